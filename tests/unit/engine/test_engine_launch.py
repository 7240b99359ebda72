"""What Spark's Java process and its workers are given, and what is cleaned up after them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ematix_flow.engine.jvm.java_runtime import find_java
from ematix_flow.engine.spark.launch import cluster_launch, local_launch
from ematix_flow.engine.spark.package_zip import build_package_zip
from ematix_flow.engine.spark.scratch_folder import create_scratch_folder, remove_orphaned_folders
from ematix_flow.engine.spark.session import import_path
from ematix_flow.engine.spark.session_conf import session_conf
from ematix_flow.engine.spark.settings import EngineSettings


def test_a_local_start_is_java_itself_with_the_jars_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_CDS", "off")
    monkeypatch.setenv("SPARK_HOME", "/some/other/spark")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[7] pyspark-shell")
    settings = EngineSettings.resolve(engine="local[2]", env={}, config={"engine": {"memory": "3g"}})
    command, env, _ = local_launch(settings, frozenset(), [tmp_path / "extra.jar"])
    assert command[0] == str(find_java().executable)
    assert "-Xmx3g" in command
    assert {"-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"} <= set(command)
    assert env["CLASSPATH"].endswith("extra.jar")
    assert env["PYSPARK_PYTHON"] == sys.executable
    assert "SPARK_HOME" not in env
    assert "PYSPARK_SUBMIT_ARGS" not in env


def test_jars_that_the_settings_name_come_last_on_the_class_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_CDS", "off")
    given = {"engine": {"conf": {"spark.driver.extraClassPath": "/a/driver.jar:/b/more.jar"}}}
    settings = EngineSettings.resolve(engine="local[2]", env={}, config=given)
    env = local_launch(settings, frozenset(), [])[1]
    assert env["CLASSPATH"].split(":")[-2:] == ["/a/driver.jar", "/b/more.jar"]


def test_a_long_run_gets_the_better_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_CDS", "off")
    settings = EngineSettings.resolve(engine="local[2]", env={}, purpose="long")
    assert "-XX:TieredStopAtLevel=1" not in local_launch(settings, frozenset(), [])[0]


def test_a_clusters_start_goes_by_spark_submit_with_no_setting_on_the_command_line(tmp_path: Path) -> None:
    secret = {"spark.hadoop.fs.s3a.secret.key": "hunter22"}
    settings = EngineSettings(master="spark://far:7077", memory="2g", conf=secret)
    conf = session_conf(settings, [], tmp_path, {})
    command, env = cluster_launch(conf, [tmp_path / "a b.jar"], tmp_path)
    assert command[0].endswith("spark-submit")
    assert "hunter22" not in " ".join(command)
    properties = (tmp_path / "launch.conf").read_text()
    assert "spark.driver.memory=2g" in properties
    assert "a%20b.jar" in properties
    assert env["SPARK_HOME"].endswith("pyspark")


def test_workers_get_the_import_path_without_what_they_have_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_packages = next(p for p in sys.path if p.endswith("site-packages"))
    scratch = tmp_path / "scratch"
    (scratch / "files").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    wanted = [str(tmp_path / "mine"), "", str(tmp_path / "missing"), str(scratch / "files"), site_packages]
    monkeypatch.setattr(sys, "path", wanted)
    assert import_path(str(scratch)).split(os.pathsep) == [str(tmp_path / "mine"), os.getcwd()]


def test_the_packages_zip_can_be_imported_and_is_made_once(tmp_path: Path) -> None:
    env = {"EMATIX_FLOW_CACHE": str(tmp_path)}
    made = build_package_zip(env)
    assert build_package_zip(env) == made
    with zipfile.ZipFile(made) as archive:
        assert "ematix_flow/engine/jvm/jars.lock.toml" in archive.namelist()
    # what tasks import names expectations, which are assertions of ematix_probe
    code = "import ematix_flow.errors as e, ematix_flow.spec.expectations; print(e.__file__)"
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(made)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(made) in answer.stdout
    assert [path.name for path in (tmp_path / "package").iterdir()] == [made.name]


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = create_scratch_folder()
    assert mine.stat().st_mode & 0o077 == 0
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    orphan = tmp_path / mine.name.replace(f"-{os.getpid()}-", f"-{gone.pid}-")
    elsewhere = tmp_path / f"ematix-flow-spark-otherhost-{gone.pid}-abc"
    for folder in (orphan, elsewhere, tmp_path / "something"):
        (folder / "deep").mkdir(parents=True)
    remove_orphaned_folders()
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, elsewhere.name, "something"}
