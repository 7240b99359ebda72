"""``flow runs`` and ``flow status`` show the run log."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ematix_flow.cli.local_time import format_duration, format_time_until, parse_since
from ematix_flow.errors import LoadError, UsageError
from ematix_flow.schedule.status import next_fire_time
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.row_counts import UNKNOWN_ROWS
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord

NOW = dt.datetime(2026, 3, 28, 12, 0, tzinfo=dt.timezone.utc)


def record(run_id: str, pipeline: str = "orders", hours_ago: float = 1, status: str = "succeeded") -> None:
    """A run as `flow run` would have left it."""
    started = dt.datetime.now(dt.timezone.utc) - dt.timedelta(hours=hours_ago)
    with open_local_run_log(env=os.environ) as log:
        log.start(RunRecord(run_id, pipeline, f"warehouse:shop.{pipeline}", "append", started_at=started))
        if status != "running":
            log.finish(
                run_id,
                status,
                rows=replace(UNKNOWN_ROWS, read=1200, inserted=1000),
                error=LoadError("a value is too long", next_step="fix it") if status == "failed" else None,
                metrics={"targets": [{"target": "warehouse:shop.orders", "seconds": {"copy": 1.5}}]},
                finished_at=started + dt.timedelta(seconds=75),
            )


def test_runs_are_listed_newest_first(flow):
    record("aaaa1111", hours_ago=2)
    record("bbbb2222", hours_ago=1, status="failed")
    header, newest, oldest = flow("runs", "list").out.splitlines()
    assert header.startswith("run       pipeline  status")
    assert newest.startswith("bbbb2222  orders    failed")
    assert newest.endswith("a value is too long")
    assert oldest.startswith("aaaa1111  orders    succeeded")
    assert "1 min 15 s  1,200     1,000" in oldest


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--pipeline", "returns"], ["cccc"]),
        (["--status", "failed"], ["bbbb"]),
        (["--limit", "1"], ["aaaa"]),
        (["--since", "90m"], ["aaaa"]),
    ],
)
def test_runs_can_be_narrowed_down(flow, options, expected):
    record("cccc", "returns", hours_ago=3)
    record("bbbb", hours_ago=2, status="failed")
    record("aaaa", hours_ago=1)
    assert [run["run_id"] for run in flow("runs", "list", *options, "-o", "json").json] == expected


def test_no_run_says_where_it_looked(flow):
    shown = flow("runs", "list")
    assert shown.code == 0
    assert shown.err.startswith("no matching run in sqlite://")


def test_one_run_is_shown_by_the_first_letters_of_its_id(flow):
    record("feedbeef", status="failed")
    shown = flow("runs", "show", "feed").out
    assert "run          feedbeef" in shown
    assert "rows         1,200 read, 1,000 inserted" in shown
    assert "error        LoadError: a value is too long" in shown
    assert shown.rstrip().endswith(f"copy      1.50  {'█' * 40}")


@pytest.mark.parametrize(
    ("letters", "shown"),
    [(0, "4 read, 2 inserted\n"), (1, "inserted, 1 dead letter\n"), (2, "inserted, 2 dead letters\n")],
)
def test_the_run_of_a_stream_is_shown_with_its_dead_letters(flow, letters, shown):
    with open_local_run_log(env=os.environ) as log:
        log.start(RunRecord("feedbeef", "payments", "w:t", "append"))
        rows = replace(UNKNOWN_ROWS, read=4, inserted=2)
        log.finish("feedbeef", "succeeded", rows=rows, metrics={"stream": {"dead_letters": letters}})
    assert shown in flow("runs", "show", "feed").out


def test_a_run_at_work_is_shown_with_its_progress(flow):
    with open_local_run_log(env=os.environ) as log:
        log.start(RunRecord("feedbeef", "orders", "w:t", "append", metrics={"restart_of": "c0ffee"}))
        progress = {"target": "w:t", "stage": "copy", "rows": 1500, "rows_per_second": 250.0}
        progress |= {"expected_rows": 6000, "eta_seconds": 18.0, "at": "2026-01-05T06:00:02+00:00"}
        log.add_metrics("feedbeef", {"progress": progress})
    shown = flow("runs", "show", "feed").out
    assert "progress     copy of w:t, 1,500 of 6,000 rows, 250/s, 0:18 left (at " in shown
    assert "restart of   c0ffee" in shown


def test_a_run_is_shown_with_its_post_load_steps(flow):
    steps = [
        {"label": "ANALYZE", "status": "ok", "seconds": 0.5, "error": None},
        {"label": "refresh", "status": "failed", "seconds": 1.25, "error": "no such view\nat line 1"},
    ]
    with open_local_run_log(env=os.environ) as log:
        log.start(RunRecord("feedbeef", "orders", "w:t", "append"))
        log.finish("feedbeef", "failed", metrics={"post": steps, "plan": {"pipeline": "orders"}})
    lines = [line.split() for line in flow("runs", "show", "feed").out.splitlines()]
    assert ["ANALYZE", "ok", "0.50"] in lines
    assert ["refresh", "failed", "1.25", "no", "such", "view"] in lines
    assert flow("runs", "show", "feed", "-o", "json").json["metrics"]["plan"] == {"pipeline": "orders"}
    assert flow("runs", "list", "-o", "json").json[0]["metrics"] == {"post": steps}


LOADS = """
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.table(schema="main")
class Numbers:
    n: Annotated[BigInt, pk()]

@ematix.pipeline(target=Numbers, target_connection="shop", mode="append")
def numbers(conn):
    return "SELECT 7 AS n UNION ALL SELECT 8"
"""


def test_a_run_is_shown_with_what_its_target_committed(flow, tmp_path):
    (tmp_path / "loads.py").write_text(LOADS)
    (tmp_path / "shop.db").touch()
    assert flow("run", "numbers", "-m", "loads").code == 0
    (run,) = flow("runs", "list", "-o", "json").json
    shown = flow("runs", "show", run["run_id"][:8], "--ledger", "-m", "loads").out
    header, entry = shown.splitlines()[-2:]
    assert header.split()[:2] == ["committed", "to"]
    assert entry.startswith("shop:main.numbers") and run["batch"] in entry
    found = flow("runs", "show", run["run_id"], "--ledger", "-m", "loads", "-o", "json").json
    assert found["run_id"] == run["run_id"]
    ((entry,),) = [target["entries"] for target in found["ledger"]]
    assert (entry["rows_inserted"], entry["batch_key"]) == (2, run["batch"])
    assert "ledger" not in flow("runs", "show", run["run_id"], "-o", "json").json


def test_a_ledger_that_is_not_known_is_explained(flow, project):
    record("feedbeef", "gone")
    shown = flow("runs", "show", "feed", "--ledger", "-m", "pipelines").out
    assert "warehouse:shop.gone: the module does not declare 'gone'" in shown


def test_a_run_that_is_not_there_is_a_usage_error(flow):
    record("feedbeef")
    failed = flow("runs", "show", "0000")
    assert failed.code == 2
    assert "next:  flow runs list" in failed.err


@pytest.mark.parametrize("option", ["--run-log", "--run-log-url", "--run-log-path"])
def test_the_run_log_is_chosen_by_an_option(flow, tmp_path, option):
    with open_local_run_log(f"sqlite://{tmp_path}/other.db", env=os.environ) as log:
        log.start(RunRecord("other", "orders", "w:t", "append"))
    assert flow("runs", "list", option, f"{tmp_path}/other.db", "-o", "json").json[0]["run_id"] == "other"


def test_the_project_file_chooses_the_run_log(flow, tmp_path):
    (tmp_path / ".ematix-flow.toml").write_text('[run_log]\nurl = "sqlite://here.db"\n')
    with open_local_run_log("sqlite://here.db", env=os.environ) as log:
        log.start(RunRecord("here", "orders", "w:t", "append"))
    assert flow("runs", "list", "-o", "json").json[0]["run_id"] == "here"


def test_a_run_log_that_cannot_be_read_is_an_error(flow):
    failed = flow("runs", "list", "--run-log", "ftp://somewhere")
    assert failed.code == 2
    assert "is not a kind of run log" in failed.err


def test_the_status_counts_failures_since_the_last_success(flow, project):
    for number, status in enumerate(["succeeded", "failed", "failed"]):
        record(f"run{number}", hours_ago=10 - number, status=status)
    orders, report = flow("status", "-m", "pipelines", "-o", "json").json
    assert orders["failures_since_success"] == 2
    assert orders["last_run"]["run_id"] == "run2"
    assert orders["next_due"] is not None
    assert report["last_run"] is None
    assert report["next_due"] is None


def test_the_status_is_a_table_for_a_person(flow, project):
    record("run1", status="failed")
    head, orders, report = flow("status", "-m", "pipelines").out.splitlines()
    assert head.split()[:4] == ["name", "schedule", "last", "run"]
    assert orders.startswith("orders  0 6 * * * Europe/Berlin  ")
    assert "  failed  " in orders and ", in " in orders
    assert orders.endswith("a value is too long")
    assert report.split() == ["report", "by", "hand", "never", "orders"]


def test_the_status_of_a_run_whose_process_is_gone_says_so(flow, project):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with open_local_run_log(env=os.environ) as log:
        log.start(RunRecord("feedbeef", "orders", "w:t", "append", pid=dead.pid))
        log.start(RunRecord("beef", "report", "w:t", "append"))
    orders, report = flow("status", "-m", "pipelines", "-o", "json").json
    assert orders["why"].startswith(f"its process {dead.pid} is gone")
    assert report["last_run"]["status"] == "running" and report["why"] is None


def test_a_schedule_fires_in_its_own_time_zone_across_a_change_of_clocks():
    due = next_fire_time("0 6 * * *", "Europe/Berlin", NOW)  # the clocks go forward in the night between
    assert due is not None
    assert due.astimezone(dt.timezone.utc) == dt.datetime(2026, 3, 29, 4, 0, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", NOW - dt.timedelta(minutes=90)),
        ("2h", NOW - dt.timedelta(hours=2)),
        ("7d", NOW - dt.timedelta(days=7)),
        ("2026-03-01T08:00Z", dt.datetime(2026, 3, 1, 8, tzinfo=dt.timezone.utc)),
        ("2026-03-01T08:00+02:00", dt.datetime(2026, 3, 1, 6, tzinfo=dt.timezone.utc)),
    ],
)
def test_since_is_a_duration_or_a_moment(text, expected):
    assert parse_since(text, NOW) == expected


def test_a_since_that_is_neither_is_refused():
    with pytest.raises(UsageError, match="'yesterday' is not a time"):
        parse_since("yesterday", NOW)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (75, "1 min 15 s"), (7300, "2 h 1 min")]
)
def test_durations_are_short(seconds, expected):
    assert format_duration(dt.timedelta(seconds=seconds)) == expected


@pytest.mark.parametrize(("hours", "expected"), [(0.1, "in 6 min"), (5, "in 5 h"), (72, "in 3 days")])
def test_what_is_due_is_shown_in_words(hours, expected):
    assert format_time_until(NOW + dt.timedelta(hours=hours), NOW) == expected


def test_the_stages_of_a_run_are_drawn_along_its_time(flow):
    with open_local_run_log(env=os.environ) as log:
        log.start(RunRecord("feedbeef", "orders", "w:t", "append", code_version="1.0, git abc"))
        stages = [
            {"target": "w:t", "stage": "prepare", "at": 0.0, "seconds": 1.0, "ended": True},
            {"target": "w:t", "stage": "copy", "at": 1.0, "seconds": 3.0, "ended": False},
        ]
        error = LoadError("no", where=SourceLocation("pipelines.py", 7))
        log.finish("feedbeef", "failed", error=error, engine="local[2], Spark 4", metrics={"stages": stages})
    shown = flow("runs", "show", "feed").out
    assert "engine       local[2], Spark 4" in shown and "code         1.0, git abc" in shown
    assert "declared at  pipelines.py:7" in shown
    assert f"w:t     prepare     1.00  {'█' * 10}\n" in shown
    assert f"w:t     copy        3.00  {' ' * 10}{'▒' * 30}\n" in shown


def test_the_output_of_a_run_is_shown_from_its_end(flow):
    record("feedbeef")
    with open_local_run_log(env=os.environ) as log:
        log.save_output("feedbeef", "one\ntwo\nthree\n")
    assert flow("logs", "feed").out == "one\ntwo\nthree\n"
    assert flow("logs", "feed", "--tail", "2").out == "two\nthree\n"
    assert flow("logs", "feed", "-n", "1", "-o", "json").json == {
        "run_id": "feedbeef",
        "status": "succeeded",
        "lines": ["three"],
    }


def test_a_run_without_output_exits_with_1(flow):
    record("feedbeef")
    silent = flow("logs", "feed")
    assert (silent.code, silent.out) == (1, "") and "has no log" in silent.err


def test_an_unknown_run_is_reported_alike_by_every_command(flow):
    record("feedbeef")
    shown, logs = flow("runs", "show", "0000"), flow("logs", "0000")
    assert shown.code == logs.code == 2
    assert shown.err == logs.err and "next:  flow runs list" in logs.err


def test_runs_without_a_command_are_listed(flow):
    record("feedbeef")
    assert flow("runs").out == flow("runs", "list").out
    assert flow("runs", "show", "feed").out.startswith("run ")


def test_a_run_is_followed_until_it_has_ended(flow, monkeypatch):
    from ematix_flow.cli.commands import logs

    record("feedbeef", status="running")
    told = iter(["one\n", "one\ntwo\n", "two\nthree\n"])  # the beginning of a long story is dropped

    def look(seconds: float) -> None:
        with open_local_run_log(env=os.environ) as log:
            log.save_output("feedbeef", next(told, "two\nthree\nend\n"))
            if "end" in (log.output("feedbeef") or ""):
                log.finish("feedbeef", "succeeded")

    monkeypatch.setattr(logs.time, "sleep", look)
    assert flow("logs", "feed", "--follow").out == "one\ntwo\nthree\nend\n"


def test_nobody_follows_a_run_whose_process_is_gone(flow, monkeypatch):
    from ematix_flow.cli.commands import logs

    monkeypatch.setattr(logs.time, "sleep", lambda seconds: pytest.fail("it goes on"))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with open_local_run_log(env=os.environ) as log:
        log.start(RunRecord("feedbeef", "orders", "w:t", "append", pid=dead.pid))
        log.save_output("feedbeef", "one\n")
    followed = flow("logs", "feed", "--follow")
    assert (followed.code, followed.out) == (0, "one\n")
    assert f"its process {dead.pid} is gone" in followed.err


def test_old_runs_are_forgotten_and_the_newest_stay(flow):
    for number in range(5):
        record(f"run{number}", hours_ago=100 - number)
    forgot = flow("runs", "purge", "--older-than", "2d", "--keep", "2")
    assert forgot.code == 0 and forgot.err.startswith("deleted 3 runs in sqlite://")
    done, kept = forgot.err.splitlines()
    assert done.endswith(" UTC")
    assert "kept of each pipeline at any age: the newest 2 runs, success and slot" in kept
    assert [run["run_id"] for run in flow("runs", "list", "-o", "json").json] == ["run4", "run3"]
    assert flow("runs", "purge", "--older-than", "2d", "-o", "json").json["runs"] == 1
    refused = flow("runs", "purge", "--older-than", "soon")
    assert refused.code == 2 and "is not a duration" in refused.err
    assert flow("runs", "purge").code == 2


def test_a_transform_by_hand_is_recorded(flow, tmp_path):
    (tmp_path / "tidying.py").write_text(
        "from ematix_flow import SQLiteConnection, ematix\n"
        "db = SQLiteConnection(name='db', path='x.db')\n"
        "@ematix.transform(name='tidy', target_connection=db)\n"
        "def tidy(conn): return {'done': 1}\n"
        "@ematix.transform(name='spoil', target_connection=db)\n"
        "def spoil(conn): raise ValueError('no')\n"
    )
    assert flow("transform", "run", "tidy", "-m", "tidying").code == 0
    assert flow("transform", "run", "spoil", "-m", "tidying").code == 1
    spoilt, tidied = flow("runs", "list", "-o", "json").json
    assert (tidied["pipeline"], tidied["status"], tidied["metrics"]) == (
        "transform:tidy",
        "succeeded",
        {"result": {"done": 1}},
    )
    assert (spoilt["pipeline"], spoilt["status"]) == ("transform:spoil", "failed")
    assert spoilt["error_where"] == "tidying.py:5"
