"""One contract over every store of a run log: pages, searches and summaries of a long history."""

# ruff: noqa: F401, F811  # fixtures of another module

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from ematix_flow.backends.state_stores.run_logs import open_slots
from ematix_flow.errors import UsageError
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.state.runlog import history_statements, object_history
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.history import RunCursor, RunFilter
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Slot
from tests.contract.test_run_logs import NOON, gcs, log, record, url

MINUTE = dt.timedelta(minutes=1)


def add(log: RunLog, pipeline: str, minute: float, **fields: Any) -> RunRecord:
    one = record(pipeline, started_at=NOON + minute * MINUTE, **fields)
    log.start(one)
    return one


def end(
    log: RunLog, one: RunRecord, status: Any = "succeeded", error: str | None = None, rows: int = 0
) -> None:
    finished_at = one.started_at + dt.timedelta(seconds=2)
    problem = None if error is None else ValueError(error)
    log.finish(one.run_id, status, error=problem, rows=RowCounts(inserted=rows), finished_at=finished_at)


def walk(log: RunLog, wanted: RunFilter, limit: int) -> list[str]:
    """The runs of all pages."""
    found: list[str] = []
    cursor: RunCursor | None = None
    while True:
        page = log.page(wanted, cursor, limit)
        found += [each.run_id for each in page.records]
        if page.next is None:
            return found
        cursor = RunCursor.parse(str(page.next))


def test_pages_show_every_run_once_newest_first(log: RunLog) -> None:
    runs = [add(log, "ab"[n % 2], n // 3) for n in range(11)]  # three start at the same time
    for one in runs[:8]:
        end(log, one)
    whole = walk(log, RunFilter(), 100)
    times = {one.run_id: one.started_at for one in runs}
    assert [times[each] for each in whole] == sorted(times.values(), reverse=True)
    for limit in (1, 2, 3, 10, 11):
        assert walk(log, RunFilter(), limit) == whole
    assert walk(log, RunFilter(pipeline="b"), 2) == [
        each for each in whole if each in {r.run_id for r in runs[1::2]}
    ]
    assert log.page(RunFilter(), None, 11).next is None


def test_a_page_is_filtered_by_pipeline_status_and_time(log: RunLog) -> None:
    runs = [add(log, "a", n) for n in range(6)]
    for n, one in enumerate(runs[:5]):
        end(log, one, "failed" if n % 2 else "succeeded", "no" if n % 2 else None)
    ids = [one.run_id for one in runs]
    assert walk(log, RunFilter(status="failed"), 1) == [ids[3], ids[1]]
    assert walk(log, RunFilter(status="running"), 1) == [ids[5]]
    assert walk(log, RunFilter(since=NOON + 2 * MINUTE, until=NOON + 4 * MINUTE), 1) == [ids[3], ids[2]]
    assert walk(log, RunFilter("a", "succeeded", since=NOON + MINUTE), 5) == [ids[4], ids[2]]
    assert walk(log, RunFilter("nobody"), 5) == []


def test_errors_are_searched_as_text(log: RunLog) -> None:
    runs = [add(log, "a", n) for n in range(5)]
    texts = ["Disk 100% full", "disk_full", None, "DISK broken", "no such column 'x'"]
    for one, text in zip(runs, texts, strict=True):
        end(log, one, "succeeded" if text is None else "failed", text)
    ids = [one.run_id for one in runs]
    assert walk(log, RunFilter(text="disk"), 2) == [ids[3], ids[1], ids[0]]
    assert walk(log, RunFilter(text="100% F"), 2) == [ids[0]]
    assert walk(log, RunFilter(text="disk_"), 2) == [ids[1]]
    assert walk(log, RunFilter(text="'x'", status="failed"), 2) == [ids[4]]
    assert walk(log, RunFilter(text="valueERROR"), 9) == [ids[4], ids[3], ids[1], ids[0]]
    assert walk(log, RunFilter(text="disk", status="interrupted"), 2) == []


def test_a_search_for_something_rare_examines_few_runs_a_page(
    log: RunLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history_statements, "MOST_EXAMINED", 4)
    monkeypatch.setattr(object_history, "MOST_READ", 4)
    runs = [add(log, "a", n, trigger="web" if n == 1 else "cli") for n in range(10)]
    for n, one in enumerate(runs):
        end(log, one, "failed" if n % 2 else "interrupted", "rare" if n in (0, 3) else "usual")
    page = log.page(RunFilter(trigger="web"), None, 5)
    assert page.records == () and page.next is not None
    assert walk(log, RunFilter(trigger="web"), 5) == [runs[1].run_id]
    assert walk(log, RunFilter(text="rare"), 5) == [runs[3].run_id, runs[0].run_id]


def test_the_newest_runs_of_many_pipelines_do_not_end_at_a_success(log: RunLog) -> None:
    for n in range(5):
        for name in ("a", "Ü/ö"):
            end(log, add(log, name, n), "failed" if n == 4 else "succeeded", rows=n)
    add(log, "c", 9)
    found = log.recent(["a", "Ü/ö", "c", "nobody", *(f"n{n}" for n in range(220))], 3)
    shown = {name: [(run.status, run.started_at.minute) for run in its] for name, its in found.items()}
    three = [("failed", 4), ("succeeded", 3), ("succeeded", 2)]
    assert shown == {"a": three, "Ü/ö": three, "c": [("running", 9)]}
    newest = found["a"][0]
    assert (newest.pipeline, newest.rows_written) == ("a", 4)
    assert newest.finished_at == newest.started_at + dt.timedelta(seconds=2)
    assert log.recent([], 3) == {}


def test_the_newest_runs_of_all_pipelines_are_summarised(log: RunLog) -> None:
    runs = [add(log, name, n) for n, name in enumerate(["a", "Ü/ö", "a"])]
    end(log, runs[0])
    ids = [one.run_id for one in runs]
    assert [(run.run_id, run.pipeline, run.status) for run in log.newest_summaries(None, 10)] == [
        (ids[2], "a", "running"),
        (ids[1], "Ü/ö", "running"),
        (ids[0], "a", "succeeded"),
    ]
    since = log.newest_summaries(NOON + MINUTE, 10)
    assert [run.run_id for run in since] == [ids[2], ids[1]]
    assert len(log.newest_summaries(None, 1)) == 1


def test_the_runs_after_one_are_those_of_its_pipeline_oldest_first(log: RunLog) -> None:
    runs = [add(log, "a", n) for n in range(5)]
    add(log, "b", 2)
    for one in runs[:4]:
        end(log, one)
    assert [one.run_id for one in log.following(runs[1], 2)] == [runs[2].run_id, runs[3].run_id]
    assert [one.run_id for one in log.following(runs[3], 9)] == [runs[4].run_id]
    assert log.following(runs[4], 9) == ()


def test_written_rows_are_summed_for_a_time(log: RunLog, url: str) -> None:
    for name, minute, rows in (("a", 0, 5), ("a", 1, 7), ("b", 1, 1), ("a", 2, 100)):
        end(log, add(log, name, minute), rows=rows)
    found = log.rows_written(NOON, NOON + 2 * MINUTE)
    assert found == (None if url.startswith(("s3", "gs", "az")) else {"a": 12, "b": 1})
    if found is not None:
        assert log.rows_written(NOON, NOON + 2 * MINUTE, ["b"]) == {"b": 1}


def test_the_run_of_a_slot_is_its_last_one(log: RunLog, url: str) -> None:
    add(log, "a", 1, slot=NOON)
    last = add(log, "a", 2, slot=NOON, attempt=2)
    add(log, "a", 3)
    for n in range(12):  # runs of later slots, and of none, do not hide it
        add(log, "a", 60 + n, slot=NOON + (60 + n) * MINUTE)
        add(log, "b", 4)
    found = log.runs_of_slots(NOON, NOON + 9 * MINUTE, 10)
    assert found == ({} if url.startswith(("s3", "gs", "az")) else {("a", NOON): last.run_id})


def test_slots_of_a_time_are_listed_newest_first(log: RunLog, url: str) -> None:
    with open_slots(url, env={}) as slots:
        fired = [Slot(name, NOON + n * MINUTE) for n in range(4) for name in ("a", "b")]
        slots.open(fired[:6])
        slots.open(fired[6:], "skipped", "missed")
        found = slots.between(NOON + MINUTE, NOON + 4 * MINUTE, 100)
        assert [each.slot for each in found] == list(reversed(fired[2:]))
        newest = slots.between(NOON, NOON + 2 * MINUTE, 3)
        assert [each.slot.fire_time.minute for each in newest] == [1, 1, 0]
        assert [each.status for each in slots.between(NOON + 3 * MINUTE, NOON + 9 * MINUTE, 9)] == [
            "skipped"
        ] * 2


def test_a_text_that_is_no_cursor_is_refused() -> None:
    for text in ("", "x", "AAAA", "é", "bm90IGEgdGltZQ"):
        with pytest.raises(UsageError, match="is not a cursor"):
            RunCursor.parse(text)


def test_lists_leave_the_plans_of_runs_in_the_database(log: RunLog, url: str) -> None:
    metrics = {
        "plan": {"sql": "x" * 50_000},
        "stages": [{"plan": 1, "rows": None}],
        "n": 2**60,
    }
    runs = [add(log, "a", n, metrics=metrics) for n in range(2)]
    plain = add(log, "a", 2)
    end(log, runs[1], "failed", "disk full")
    rest = {name: value for name, value in metrics.items() if name != "plan"}
    if url.startswith(("s3", "gs", "az")):  # a run is one document there
        rest = metrics
    listed = [
        *log.page(RunFilter(), None, 5).records,
        *log.page(RunFilter(text="disk"), None, 5).records,
        *log.following(runs[0], 5),
        *log.list(),
        *log.newest(["a"], 5)["a"],
    ]
    found = [(each.run_id, each.metrics) for each in listed if each.run_id != plain.run_id]
    assert len(found) == 2 + 1 + 1 + 2 + 2
    assert all(each == rest for _, each in found)
    assert all(each.metrics == {} for each in listed if each.run_id == plain.run_id)
    assert log.get(runs[0].run_id).metrics == metrics
    odd = add(log, "a", 9, metrics={"note": "a\0b 😀", "n": 1})
    assert log.list(limit=1)[0].metrics == odd.metrics, "also what a database's functions refuse"
