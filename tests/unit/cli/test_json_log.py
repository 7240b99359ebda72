"""``--log-format json``: stderr holds one JSON object per line and nothing else, in every case."""

from __future__ import annotations

import datetime as dt
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.cli import stream_views
from ematix_flow.cli.json_log import use_log_format
from ematix_flow.cli.stream_views import choose_stream_view
from ematix_flow.errors import TargetFailed

SHOP = """
import logging, sys, warnings
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.table
class Copied:
    order_id: Annotated[BigInt, pk()]

@ematix.pipeline(target=Copied, target_connection="shop", mode="truncate", schedule="* * * * *")
def orders():
    return "SELECT order_id FROM orders"

@ematix.table
class Lost:
    order_id: BigInt

@ematix.pipeline(target=Lost, target_connection="shop", retry={"max_attempts": 2, "backoff_seconds": 0})
def broken():
    return "SELECT order_id FROM nowhere"

@ematix.pipeline(target=Lost, target_connection="shop", depends_on=[broken], name="after")
def after():
    return "SELECT order_id FROM orders"
"""
TALKATIVE = """
logging.getLogger("a.library").warning("password=%s", "hunter22")
logging.getLogger("a.library").warning("does not %d fit", "this")
warnings.warn("old: postgres://me:hunter22@db/x")
print("two words\\n on lines", file=sys.stderr)
sys.stderr.write("no end")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop_logged.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "shop_logged")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (order_id INTEGER)")
        connection.execute("INSERT INTO orders VALUES (1), (2), (3)")
    return tmp_path


def lines_of(text: str) -> list[dict[str, Any]]:
    """Every line, each of which must be an object with a time, a level and an event."""
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        assert dt.datetime.fromisoformat(line["ts"]).utcoffset() == dt.timedelta(0)
        assert line["level"] in ("info", "warning", "error") and line["event"] and "message" in line
    return found


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run in a separate process, so that stderr also has the output of its libraries and children."""
    command = [sys.executable, "-m", "ematix_flow", *arguments]
    return subprocess.run(
        command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False
    )


def test_a_run_is_logged_event_by_event_and_stdout_holds_only_the_data(flow, shop) -> None:
    done = flow("run", "orders", "--log-format", "json")
    assert done.code == 0
    assert done.out.splitlines()[0].startswith("pipeline")
    lines = lines_of(done.err)
    assert [line["event"] for line in lines] == [
        "run_started",
        *["stage_started", "stage_finished"] * 2,
        "run_finished",
    ]
    first, last = lines[0], lines[-1]
    assert (first["pipeline"], first["attempt"], first["trigger"]) == ("orders", 1, "cli")
    assert {line["run_id"] for line in lines} == {flow("runs", "list", "-o", "json").json[0]["run_id"]}
    assert (lines[1]["target"], lines[1]["stage"]) == ("shop:copied", "prepare")
    assert (last["status"], last["rows"], last["rows_inserted"], last["level"]) == ("succeeded", 3, 3, "info")
    assert last["seconds"] >= lines[2]["seconds"] >= 0


def test_a_failure_is_one_line_with_the_parts_of_its_error(flow, shop) -> None:
    done = flow("run", "--all", "--log-format=json")
    assert done.code == 1
    lines = lines_of(done.err)
    failed = [line for line in lines if line["level"] == "error"]
    assert [(line["event"], line["pipeline"], line["attempt"]) for line in failed] == [
        ("run_finished", "broken", 1),
        ("run_finished", "broken", 2),
    ]
    assert failed[0]["error"]["type"] == "SourceFailed"
    assert failed[0]["error"]["where"].startswith("shop_logged.py:")
    assert failed[0]["error"]["next"] == "correct the source SQL"
    again = next(line for line in lines if line["event"] == "note")
    assert again["pipeline"] == "broken" and "attempt 1 of 2 failed" in again["message"]
    left = next(line for line in lines if line.get("status") == "not_run")
    assert (left["pipeline"], left["level"]) == ("after", "warning")


def test_with_quiet_only_failures_are_shown(flow, shop) -> None:
    assert flow("run", "orders", "-q", "--log-format", "json").err == ""
    assert {line["level"] for line in lines_of(flow("run", "broken", "-q", "--log-format", "json").err)} == {
        "error"
    }


@pytest.mark.parametrize(
    "arguments", [["run", "ordrs"], ["run", "ordrs", "-o", "json"], ["run", "--nonsense"], ["rum"]]
)
def test_a_command_that_fails_says_so_in_one_line(flow, shop, arguments: list[str]) -> None:
    done = flow("--log-format", "json", *arguments)
    (line,) = lines_of(done.err)
    assert (done.code, line["event"], line["level"]) == (2, "error", "error")
    assert line["error"]["exit_code"] == 2
    assert bool(done.out) == ("-o" in arguments)  # its own JSON, for who reads stdout


def test_the_traceback_that_is_asked_for_is_in_the_same_line(flow, shop) -> None:
    (line,) = lines_of(flow("run", "ordrs", "--debug", "--log-format", "json").err)
    assert "Traceback" in line["traceback"]


def test_what_others_log_warn_and_print_comes_as_lines_without_secrets(shop) -> None:
    (shop / "shop_logged.py").write_text(SHOP + TALKATIVE, encoding="utf-8")
    done = call(shop, "list", "--log-format", "json")
    assert done.returncode == 0
    assert done.stdout.startswith("pipeline ")
    lines = lines_of(done.stderr)
    assert "hunter22" not in done.stderr
    assert [(line["event"], line["message"]) for line in lines] == [
        ("warning", "password=***"),
        ("warning", "does not %d fit (TypeError: %d format: a real number is required, not str)"),
        ("warning", "old: postgres://me:***@db/x"),
        ("note", "two words\n on lines"),
        ("note", "no end"),
    ]
    assert lines[0]["logger"] == "a.library"
    assert "shop_logged.py:" in lines[2]["where"]


def test_the_environment_and_the_project_choose_the_format_too(flow, shop, monkeypatch) -> None:
    (shop / ".ematix-flow.toml").write_text('[log]\nformat = "json"\n', encoding="utf-8")
    assert lines_of(flow("run", "orders").err)
    assert not flow("run", "orders", "--log-format", "text").err.startswith("{")
    monkeypatch.setenv("EMATIX_FLOW_LOG_FORMAT", "text")
    assert not flow("run", "orders").err.startswith("{")


@pytest.mark.parametrize(
    ("arguments", "variable", "file", "place"),
    [
        (
            ["--log-format", "jsn"],
            "",
            "",
            "--log-format is 'jsn', which is not a format. Did you mean 'json'?",
        ),
        (["--log-format"], "", "", "--log-format is ''"),
        ([], "xml", "", "EMATIX_FLOW_LOG_FORMAT is 'xml', which is not a format. Known: json, text."),
        ([], "", '[log]\nformat = "xml"\n', "[log] format in .ematix-flow.toml is 'xml'"),
    ],
)
def test_a_format_that_is_none_is_refused_with_its_place(
    flow, shop, monkeypatch, arguments: list[str], variable: str, file: str, place: str
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_LOG_FORMAT", variable)
    (shop / ".ematix-flow.toml").write_text(file, encoding="utf-8")
    done = flow("run", "orders", *arguments)
    assert (done.code, done.err.startswith(f"error: {place}")) == (2, True), done.err


def test_due_slots_are_logged_with_their_slot(flow, shop) -> None:
    lines = lines_of(flow("run-due", "--log-format", "json").err)
    ran = [line for line in lines if line["event"] == "run_finished"]
    ended = [line for line in lines if line["event"] == "slot_finished"]
    assert ran and {line["slot"] for line in ran} == {line["slot"] for line in ended}
    assert dt.datetime.fromisoformat(ended[0]["slot"]).second == 0


def test_a_due_run_that_fails_shows_its_error_in_text(flow, shop) -> None:
    with closing(sqlite3.connect(shop / "shop.db")) as connection, connection:
        connection.execute("DROP TABLE orders")
    done = flow("run-due")
    assert done.code == 1
    assert "✗ orders" in done.err
    assert "  next:  correct the source SQL" in done.err


def test_a_scheduler_and_the_runs_that_it_starts_write_json(shop) -> None:
    command = [
        sys.executable,
        "-m",
        "ematix_flow",
        "scheduler",
        "--log-format",
        "json",
        "--max-iterations",
        "1",
    ]
    done = subprocess.run(command, cwd=shop, env=os.environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    lines = lines_of(done.stderr)
    messages = [line["message"] for line in lines]
    assert any(message.startswith("orders of ") and message.endswith(" is started") for message in messages)
    (ran,) = [line for line in lines if line["event"] == "run_finished"]
    assert (ran["pipeline"], ran["status"]) == ("orders", "succeeded")


def test_streams_are_logged_line_by_line(capsys, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stream_views.time, "monotonic", lambda: now[0])
    with use_log_format("json"):
        view = choose_stream_view(["events"])
        view.started("events", "")
        view.batch_committed("events", 0, 10, 9, 0.5, {"p": 7})
        view.tick()
        now[0] += 10
        view.tick()
        view.restarting("events", TargetFailed("the disk is full"), 2.0)
        view.stopped("events")
        view.failed("events", TargetFailed("it is gone"))
    lines = lines_of(capsys.readouterr().err)
    assert [line["event"] for line in lines] == [
        "stream_started",
        "progress",
        "stream_restarting",
        "stream_stopped",
        "stream_failed",
    ]
    assert lines[1]["pipeline"] == "events"
    numbers = {key: lines[1][key] for key in ("batch", "rows_read", "rows_written", "rows_per_second", "lag")}
    assert numbers == {"batch": 0, "rows_read": 10, "rows_written": 9, "rows_per_second": 18, "lag": 7}
    assert lines[4]["error"]["what"] == "it is gone"
