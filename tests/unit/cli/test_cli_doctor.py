"""``flow doctor``: what it finds, and its exit code."""

from __future__ import annotations


def test_the_doctor_shows_python_java_spark_and_the_run_log(flow):
    shown = flow("doctor")
    subjects = [line.split("  ")[0] for line in shown.out.splitlines()[1:]]
    assert {"Python", "Java", "Spark", "cache", "run log"} <= set(subjects)


def test_what_is_missing_ends_with_1_and_says_what_to_do(flow, monkeypatch, tmp_path):
    monkeypatch.setenv("EMATIX_FLOW_JAVA", str(tmp_path / "no-java-here"))
    found = flow("doctor", "--output", "json")
    assert found.code == 1
    (java,) = [finding for finding in found.json if finding["subject"] == "Java"]
    assert java["status"] == "fail"
    assert "EMATIX_FLOW_JAVA" in java["next_step"]


def test_an_unknown_engine_is_a_usage_error(flow):
    failed = flow("doctor", "--engine", "lokal")
    assert failed.code == 2
    assert "Did you mean 'local'?" in failed.err
