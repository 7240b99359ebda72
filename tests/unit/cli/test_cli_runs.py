"""``flow runs`` and ``flow status``: what the run log says."""

from __future__ import annotations

import datetime as dt
import os

import pytest

from ematix_flow.cli.moments import parse_since, took, until
from ematix_flow.errors import LoadError, UsageError
from ematix_flow.schedule.standings import next_due
from ematix_flow.state.records import RunRecord
from ematix_flow.state.runlog import open_run_log

NOW = dt.datetime(2026, 3, 28, 12, 0, tzinfo=dt.timezone.utc)


def record(run_id: str, pipeline: str = "orders", hours_ago: float = 1, status: str = "succeeded") -> None:
    """A run as `flow run` would have left it."""
    started = dt.datetime.now(dt.timezone.utc) - dt.timedelta(hours=hours_ago)
    with open_run_log(env=os.environ) as log:
        log.start(RunRecord(run_id, pipeline, f"warehouse:shop.{pipeline}", "append", started_at=started))
        if status != "running":
            log.finish(
                run_id,
                status,
                rows_read=1200,
                rows_inserted=1000,
                error=LoadError("a value is too long", next_step="mend it") if status == "failed" else None,
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
    assert shown.err.startswith("no such run in sqlite://")


def test_one_run_is_shown_by_the_first_letters_of_its_id(flow):
    record("feedbeef", status="failed")
    shown = flow("runs", "show", "feed").out
    assert "run          feedbeef" in shown
    assert "rows         1,200 read, 1,000 inserted" in shown
    assert "error        LoadError: a value is too long" in shown
    assert shown.rstrip().endswith("copy      1.50")


def test_a_run_that_is_not_there_is_a_usage_error(flow):
    record("feedbeef")
    failed = flow("runs", "show", "0000")
    assert failed.code == 2
    assert "next:  flow runs list" in failed.err


@pytest.mark.parametrize("option", ["--run-log", "--run-log-url", "--run-log-path"])
def test_the_run_log_is_chosen_by_an_option(flow, tmp_path, option):
    with open_run_log(f"sqlite://{tmp_path}/other.db", env=os.environ) as log:
        log.start(RunRecord("other", "orders", "w:t", "append"))
    assert flow("runs", "list", option, f"{tmp_path}/other.db", "-o", "json").json[0]["run_id"] == "other"


def test_the_project_file_chooses_the_run_log(flow, tmp_path):
    (tmp_path / ".ematix-flow.toml").write_text('[run_log]\nurl = "sqlite://here.db"\n')
    with open_run_log("sqlite://here.db", env=os.environ) as log:
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


def test_a_schedule_fires_in_its_own_time_zone_across_a_change_of_clocks():
    due = next_due("0 6 * * *", "Europe/Berlin", NOW)  # the clocks go forward in the night between
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
    with pytest.raises(UsageError, match="'yesterday' is no moment"):
        parse_since("yesterday", NOW)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (75, "1 min 15 s"), (7300, "2 h 1 min")]
)
def test_durations_are_short(seconds, expected):
    assert took(dt.timedelta(seconds=seconds)) == expected


@pytest.mark.parametrize(("hours", "expected"), [(0.1, "in 6 min"), (5, "in 5 h"), (72, "in 3 days")])
def test_what_is_due_is_said_in_words(hours, expected):
    assert until(NOW + dt.timedelta(hours=hours), NOW) == expected
