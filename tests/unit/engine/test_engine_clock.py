"""Every JVM of ours runs on UTC: file readers take the JVM's zone, not the session's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.engine.jvm.java_options import UTC_CLOCK
from ematix_flow.engine.spark.launch import local_launch
from ematix_flow.engine.spark.session_conf import session_conf
from ematix_flow.engine.spark.settings import EngineSettings


def test_the_local_jvm_runs_on_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_CDS", "off")
    assert UTC_CLOCK in local_launch(EngineSettings.resolve(engine="local[1]", env={}), frozenset(), [])[0]


def test_executors_of_a_cluster_run_on_utc(tmp_path: Path) -> None:
    conf = session_conf(EngineSettings.resolve(engine="spark://127.0.0.1:7077", env={}), (), tmp_path, {})
    assert conf["spark.executor.extraJavaOptions"] == UTC_CLOCK
