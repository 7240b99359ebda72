"""Which run log is meant, and which URLs are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.errors import ConfigError
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.base import project_run_log, run_log_location


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


def test_an_unknown_kind_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match="'oracle' is not a kind of run log") as caught:
        open_local_run_log("oracle://u:hunter22@h/d", env={})
    assert "hunter22" not in str(caught.value)
    assert "sqlite://" in str(caught.value.next_step)
    assert str(caught.value.where) == "the URL of the run log"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite://x.db?create_table=false", "no option 'create_table'. Did you mean 'create_tables'?"),
        ("sqlite://x.db?create_tables=maybe", "neither true nor false"),
        ("s3://bucket/p?regio=eu", "no option 'regio'. Did you mean 'region'?"),
        ("s3://?region=eu", "names no location"),
        ("gs://bucket/p?region=eu", "no option 'region'"),
        ("gs:///p", "names no location"),
        ("azureblob://account", "names no location"),
        ("azure://account/container?accountkey=hunter22", "no option 'accountkey'"),
        ("mysql://u@h/d?schema=x", "name the database in the URL"),
        ("postgres://u@h/d?create_tables=2", "neither true nor false"),
    ],
)
def test_an_option_that_is_not_known_is_refused(url: str, problem: str) -> None:
    from ematix_flow.backends.state_stores.run_logs import open_run_log as by_url

    with pytest.raises(ConfigError) as caught:
        by_url(url, env={}, reading=True)
    assert problem in str(caught.value) and "hunter22" not in str(caught.value)


def test_the_url_of_the_project_may_name_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ematix-flow.toml").write_text(
        '[run_log]\nurl = "postgres://flow:${LOG_PASSWORD}@db/runs"\n'
    )
    assert project_run_log({"LOG_PASSWORD": "hunter22"}) == "postgres://flow:hunter22@db/runs"


def test_a_mistyped_scheme_is_refused_with_the_one_that_was_probably_meant() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'sqlite'"):
        open_local_run_log("sqlit://x.db", env={})
    with pytest.raises(ConfigError, match="has no path"):
        open_local_run_log("sqlite://", env={})


def test_two_names_in_memory_are_two_logs() -> None:
    from ematix_flow.state.runlog.records import RunRecord

    with open_local_run_log("memory://one", env={}) as one, open_local_run_log("memory://two", env={}) as two:
        one.start(RunRecord("r1", "orders", "dw.orders", "append"))
        assert two.list() == ()


def test_the_contract_is_imported_without_a_database_library() -> None:
    code = "import sys, ematix_flow.state.runlog.base; sys.exit('sqlalchemy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
