"""``flow run`` as a process that is stopped, started twice, or has no Java: one error, nothing half."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

PROGRAM = "import sys; from ematix_flow.cli.main import main; sys.exit(main())"

# `numbers` counts for hours, so that it is caught in the act
PIPELINES = '''
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.connection
class source:
    kind = "sqlite"
    path = "source.db"

@ematix.connection
class target:
    kind = "sqlite"
    path = "target.db"

@ematix.table(schema="copy")
class Numbers:
    n: Annotated[BigInt, pk()]

@ematix.pipeline(target=Numbers, source_connection="source", target_connection="target", mode="truncate")
def numbers(conn):
    return """
        WITH RECURSIVE counting(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counting WHERE n < 2000000000)
        SELECT max(n) AS n FROM counting
    """

@ematix.pipeline(target=Numbers, name="few", source_connection="source", target_connection="target")
def few(conn):
    return "SELECT 1 AS n"
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    sqlite3.connect(tmp_path / "source.db").close()
    (tmp_path / "source.db").touch()
    return tmp_path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    """Starts flow in a group of its own, as a shell does; whatever still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def launch(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments, "--module", "pipelines"],
            cwd=project,
            env={**os.environ, "NO_COLOR": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield launch
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_staging(folder: Path, process: subprocess.Popen[str], seconds: float = 240) -> None:
    """Until the load has begun: the attempt's staging folder is there."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        staging = folder / ".ematix_flow" / "staging"
        if staging.is_dir() and any(staging.iterdir()):
            time.sleep(2)  # let its task begin
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    process.kill()
    pytest.fail("the load did not begin")


def last_runs(start: Start) -> list[dict[str, Any]]:
    out, _ = start("status", "--output", "json").communicate(timeout=60)
    return [pipeline["last_run"] for pipeline in json.loads(out) if pipeline["last_run"]]


def has_table(folder: Path) -> bool:
    """The table is created with its first rows, so an interrupted first load leaves none."""
    with closing(sqlite3.connect(folder / "target.db")) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE name = 'copy__numbers'").fetchone()
        return found is not None


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminate"])
def test_a_run_that_is_stopped_leaves_the_target_as_it_was(
    project: Path, start: Start, number: signal.Signals
) -> None:
    run = start("run", "numbers")
    wait_for_staging(project, run)
    os.killpg(run.pid, number)  # a terminal's Ctrl-C reaches every process of the group, Java too
    out, err = run.communicate(timeout=90)
    assert run.returncode == 130, err
    assert "error: pipeline 'numbers' was interrupted" in err
    assert "the target is as before" in err, err
    assert "Traceback" not in err
    assert out == ""
    assert not has_table(project)
    assert not any((project / ".ematix_flow" / "staging").iterdir())
    assert [record["status"] for record in last_runs(start)] == ["cancelled"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.fault
def test_the_same_pipeline_started_twice_at_once_runs_once(project: Path, start: Start) -> None:
    first = start("run", "numbers")
    wait_for_staging(project, first)
    second = start("run", "numbers")
    _, err = second.communicate(timeout=90)
    assert second.returncode == 4, err
    assert err.count("error: ") == 1
    assert first.poll() is None


def test_without_java_a_run_says_how_to_get_one(project: Path, start: Start) -> None:
    run = start("run", "few", EMATIX_FLOW_JAVA=str(project / "no-java"))
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert err.count("error: ") == 1
    assert "no Java was found" in err
    assert "Traceback" not in err
