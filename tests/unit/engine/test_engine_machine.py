"""Cores and memory under a container's limits, and where the engine keeps its files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ematix_flow.engine.jvm.cache_folder import cache_folder, drop_old_logs, spark_log
from ematix_flow.engine.spark.machine_resources import cores, memory_bytes
from ematix_flow.errors import ConfigError


def test_a_cpu_quota_rounds_up_and_bounds_the_cores(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert cores(tmp_path) == 1


def test_no_quota_leaves_all_cores(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores(tmp_path) == cores(tmp_path / "nothing") >= 1


def test_an_old_cpu_quota_counts_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cores(tmp_path) == 1


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_memory_limit_bounds_the_memory(tmp_path: Path, name: str) -> None:
    limit = tmp_path / name
    limit.parent.mkdir(exist_ok=True)
    limit.write_text("1073741824\n")
    assert memory_bytes(tmp_path) == 1 << 30


@pytest.mark.parametrize("unlimited", ["max", "9223372036854771712", "", "nonsense"])
def test_no_memory_limit_leaves_what_is_installed(tmp_path: Path, unlimited: str) -> None:
    (tmp_path / "memory.max").write_text(unlimited)
    assert memory_bytes(tmp_path) == memory_bytes(tmp_path / "nothing")


def test_the_cache_is_where_the_variable_says(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert cache_folder({"EMATIX_FLOW_CACHE": str(folder)}) == folder
    assert folder.is_dir()


def test_the_cache_is_below_the_home_otherwise(tmp_path: Path) -> None:
    assert cache_folder({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "ematix-flow"
    assert (
        cache_folder({"HOME": "/", "XDG_CACHE_HOME": str(tmp_path / "x")}) == tmp_path / "x" / "ematix-flow"
    )


def test_a_cache_that_cannot_be_written_is_an_error_that_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written") as error:
        cache_folder({"EMATIX_FLOW_CACHE": str(tmp_path / "file" / "below")})
    assert "EMATIX_FLOW_CACHE" in str(error.value)


def test_a_home_that_cannot_be_written_means_a_private_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("no folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_folder({"HOME": str(tmp_path / "home")})
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="is another user's"):
        cache_folder({"HOME": str(tmp_path / "home")})


def test_old_logs_go_and_the_newest_stay(tmp_path: Path) -> None:
    env = {"EMATIX_FLOW_CACHE": str(tmp_path)}
    logs = spark_log(env).parent
    for number in range(25):
        (logs / f"spark-{number}.log").touch()
        os.utime(logs / f"spark-{number}.log", (time.time() - number * 60,) * 2)
    os.utime(logs / "spark-3.log", (time.time() - 30 * 86400,) * 2)
    drop_old_logs(env)
    left = {path.name for path in logs.iterdir()}
    assert "spark-0.log" in left
    assert "spark-3.log" not in left
    assert len(left) == 20
