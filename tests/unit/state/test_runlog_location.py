"""Which run log is meant, and which URLs are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.errors import ConfigError
from ematix_flow.state.runlog import open_run_log, run_log_location


@pytest.mark.parametrize(
    ("url", "env", "expected"),
    [
        (None, {}, "sqlite:///home/ann/.ematix-flow/run_log.db"),
        (None, {"EMATIX_FLOW_STATE": "/s"}, "sqlite:///s/run_log.db"),
        (None, {"EMATIX_FLOW_RUN_LOG_PATH": "/p/x.db", "EMATIX_FLOW_STATE": "/s"}, "sqlite:///p/x.db"),
        (None, {"EMATIX_FLOW_RUN_LOG_PATH": "~/x.db"}, "sqlite:///home/ann/x.db"),
        (None, {"EMATIX_FLOW_RUN_LOG_URL": "memory://", "EMATIX_FLOW_RUN_LOG_PATH": "/p"}, "memory://"),
        (
            None,
            {"EMATIX_FLOW_RUN_LOG_URL": "", "EMATIX_FLOW_RUN_LOG_PATH": ""},
            "sqlite:///home/ann/.ematix-flow/run_log.db",
        ),
        ("memory://mine", {"EMATIX_FLOW_RUN_LOG_URL": "sqlite:///x.db"}, "memory://mine"),
        ("sqlite:///abs/x.db", {}, "sqlite:///abs/x.db"),
        ("sqlite:////abs/x.db", {}, "sqlite:///abs/x.db"),
        ("sqlite://~/x.db", {}, "sqlite:///home/ann/x.db"),
        ("sqlite://:memory:", {}, "memory://"),
        ("/abs/x.db", {}, "sqlite:///abs/x.db"),
    ],
)
def test_the_url_wins_over_the_environment_and_that_over_the_state_root(
    url: str | None, env: dict[str, str], expected: str
) -> None:
    assert str(run_log_location(url, {"HOME": "/home/ann", **env})) == expected


def test_a_path_without_a_leading_slash_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite://logs/run_log.db", "logs/run_log.db"):
        assert run_log_location(url, {}).path == tmp_path / "logs" / "run_log.db"


@pytest.mark.parametrize(
    "url", ["postgres://u:hunter22@h/d", "mysql://u:hunter22@h/d", "duckdb://x.duckdb", "s3://b/p"]
)
def test_a_store_that_does_not_exist_yet_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="not supported yet") as caught:
        open_run_log(url, env={})
    assert "hunter22" not in str(caught.value)
    assert "sqlite://" in str(caught.value.next_step)


def test_a_mistyped_scheme_is_refused_with_the_one_that_was_probably_meant() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'sqlite'"):
        open_run_log("sqlit://x.db", env={})
    with pytest.raises(ConfigError, match="has no path"):
        open_run_log("sqlite://", env={})


def test_two_names_in_memory_are_two_logs() -> None:
    from ematix_flow.state.records import RunRecord

    with open_run_log("memory://one", env={}) as one, open_run_log("memory://two", env={}) as two:
        one.start(RunRecord("r1", "orders", "dw.orders", "append"))
        assert two.list() == ()


def test_the_contract_is_imported_without_a_database_library() -> None:
    code = "import sys, ematix_flow.state.runlog; sys.exit('sqlalchemy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
