"""What every store of the run log does; each test runs on each store."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow import fault_points
from ematix_flow.errors import UsageError
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)


@pytest.fixture(params=["sqlite", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/log.db" if request.param == "sqlite" else f"memory://{uuid.uuid4()}"


@pytest.fixture
def log(url: str) -> Iterator[RunLog]:
    with open_local_run_log(url, env={}) as opened:
        yield opened


def a_run(run_id: str, pipeline: str = "orders", minute: int = 0, **given: object) -> RunRecord:
    started = NOON + dt.timedelta(minutes=minute)
    return RunRecord(run_id, pipeline, "dw.orders", "append", started_at=started, **given)  # type: ignore[arg-type]


def ids(records: tuple[RunRecord, ...]) -> str:
    return " ".join(record.run_id for record in records)


def test_a_started_run_comes_back_as_it_was_written(log: RunLog) -> None:
    hostile = "o'; DROP TABLE run_log; -- 漢字 \U0001f600 " + "x" * 300
    written = a_run(
        "r1", hostile, slot=NOON, attempt=2, trigger="schedule", path="copy", metrics={"spark": {"cores": 2}}
    )
    log.start(written)
    assert log.get("r1") == written
    assert log.last(hostile) == written


def test_a_finished_run_tells_how_it_ended(log: RunLog) -> None:
    log.start(a_run("r1", metrics={"early": 1}))
    assert log.finish(
        "r1",
        "succeeded",
        path="spark",
        rows=RowCounts(read=10, inserted=2**40, updated=0, deleted=1, unchanged=3),
        source_from="1",
        source_to="9",
        metrics={"seconds": 1.5},
        finished_at=NOON + dt.timedelta(seconds=3),
    )
    done = log.get("r1")
    assert done.status == "succeeded"
    assert done.duration == dt.timedelta(seconds=3)
    assert (done.path, done.source_from, done.source_to) == ("spark", "1", "9")
    assert done.rows == RowCounts(10, 2**40, 0, 1, 3, outranked=None)
    assert (done.error_type, done.error_message) == (None, None)
    assert done.metrics == {"seconds": 1.5}


def test_what_the_end_does_not_tell_stays_as_started(log: RunLog) -> None:
    log.start(a_run("r1", path="copy", metrics={"early": 1}))
    log.finish("r1", "skipped")
    assert (log.get("r1").path, log.get("r1").metrics) == ("copy", {"early": 1})


def test_a_failure_is_kept_with_its_type_and_without_its_secret(log: RunLog) -> None:
    log.start(a_run("r1"))
    log.finish("r1", "failed", error=ConnectionError("no route to postgres://ann:hunter22@db/x"))
    failed = log.get("r1")
    assert failed.error_type == "ConnectionError"
    assert failed.error_message == "no route to postgres://ann:***@db/x"


def test_an_error_that_names_an_undecodable_file_is_kept(log: RunLog) -> None:
    log.start(a_run("r1"))
    assert log.finish("r1", "failed", error=FileNotFoundError("no file caf\udce9.csv"))
    assert log.get("r1").error_message == "no file caf\\udce9.csv"


def test_runs_are_listed_newest_first_and_never_more_than_asked_for(log: RunLog) -> None:
    for minute in (3, 1, 2):
        log.start(a_run(f"r{minute}", minute=minute))
    assert ids(log.list()) == "r3 r2 r1"
    assert ids(log.list(limit=2)) == "r3 r2"
    assert log.list(limit=0) == ()


def test_runs_are_listed_by_pipeline_status_and_age(log: RunLog) -> None:
    log.start(a_run("a1", "a", 1))
    log.start(a_run("b2", "b", 2))
    log.start(a_run("a3", "a", 3))
    log.finish("a3", "failed", error=ValueError("x"))
    assert ids(log.list("a")) == "a3 a1"
    assert ids(log.list(status="running")) == "b2 a1"
    assert ids(log.list("a", "failed")) == "a3"
    since = (NOON + dt.timedelta(minutes=2)).astimezone(dt.timezone(dt.timedelta(hours=9)))
    assert ids(log.list(since=since)) == "a3 b2"
    assert log.list("A") == ()


def test_the_last_run_is_the_newest_however_it_ended(log: RunLog) -> None:
    assert log.last("orders") is None
    log.start(a_run("r1", minute=1))
    log.start(a_run("r2", minute=2))
    log.finish("r2", "failed", error=ValueError("x"))
    last = log.last("orders")
    assert last is not None
    assert last.run_id == "r2"


def test_a_run_without_an_end_is_found_and_settled_once(log: RunLog) -> None:
    log.start(a_run("dead", minute=1))
    log.start(a_run("other", "payments"))
    log.start(a_run("over", minute=2))
    log.finish("over", "succeeded")
    assert ids(log.running("orders")) == "dead"
    assert ids(log.running("orders", "dw.orders")) == "dead"
    assert log.running("orders", "dw.elsewhere") == ()
    assert log.settle("dead", "interrupted", "the process died; the ledger has no batch of it")
    assert not log.settle("dead", "succeeded", "too late")
    assert log.running("orders") == ()
    settled = log.get("dead")
    assert settled.status == "interrupted"
    assert settled.finished_at is not None
    assert settled.error_message == "the process died; the ledger has no batch of it"


def test_a_run_that_was_thought_dead_may_still_say_how_it_ended(log: RunLog) -> None:
    log.start(a_run("slow"))
    log.settle("slow", "interrupted", "no sign of life")
    assert log.finish("slow", "succeeded", rows=RowCounts(read=5))
    assert (log.get("slow").status, log.get("slow").error_message) == ("succeeded", None)


def test_a_run_ends_once(log: RunLog) -> None:
    log.start(a_run("r1"))
    assert log.finish("r1", "succeeded")
    assert not log.finish("r1", "failed", error=ValueError("x"))
    assert not log.settle("r1", "interrupted", "x")
    assert log.get("r1").status == "succeeded"


def test_the_end_of_an_unknown_run_is_not_written(log: RunLog) -> None:
    assert not log.finish("never", "succeeded")
    assert log.list() == ()


def test_a_run_cannot_end_as_running(log: RunLog) -> None:
    log.start(a_run("r1"))
    with pytest.raises(ValueError, match="cannot end"):
        log.finish("r1", "running")
    with pytest.raises(ValueError, match="not one of"):
        log.settle("r1", "dead", "x")  # type: ignore[arg-type]


def test_the_beginning_of_an_id_is_enough_while_only_one_run_has_it(log: RunLog) -> None:
    for run_id in ("abc1", "abc2", "abd", "ab_1", "abc"):
        log.start(a_run(run_id))
    assert log.get("abd").run_id == "abd"
    assert log.get("abc2").run_id == "abc2"
    assert log.get("abc").run_id == "abc"
    assert log.get("ab_").run_id == "ab_1"
    with pytest.raises(UsageError, match="several runs begin with 'ab'"):
        log.get("ab")
    for unknown in ("x", "", "%"):
        with pytest.raises(UsageError, match="no run"):
            log.get(unknown)


def test_an_id_is_used_once(log: RunLog) -> None:
    log.start(a_run("r1"))
    with pytest.raises(UsageError, match="already has a run 'r1'"):
        log.start(a_run("r1", "payments"))
    assert log.get("r1").pipeline == "orders"


def test_a_second_opening_sees_the_same_runs(url: str, log: RunLog) -> None:
    log.start(a_run("r1"))
    with open_local_run_log(url, env={}) as again:
        assert ids(again.list()) == "r1"
    assert ids(log.list()) == "r1"


def test_threads_share_one_log(log: RunLog) -> None:
    def work(number: int) -> None:
        for turn in range(5):
            run_id = f"t{number}-{turn}"
            log.start(RunRecord(run_id, "orders", "dw.orders", "append", started_at=utc_now()))
            log.finish(run_id, "succeeded", rows=RowCounts(read=turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.list(status="succeeded", limit=100)) == 30


def test_a_crash_before_the_end_is_written_leaves_the_run_to_be_settled(log: RunLog) -> None:
    log.start(a_run("r1"))
    with fault_points.inject("runlog.before_finish", "crash"), pytest.raises(fault_points.InjectedCrash):
        log.finish("r1", "succeeded")
    assert ids(log.running("orders")) == "r1"


def test_the_last_batch_is_of_the_newest_run_that_has_one(log: RunLog) -> None:
    assert log.last_batch("orders") is None
    first = a_run("r1", batch="run:1")
    for record in (first, a_run("r2", minute=1), a_run("r3", "other", minute=2, batch="run:3")):
        log.start(record)
    assert log.last_batch("orders") == first
    log.record_batch("r2", "run:2")
    found = log.last_batch("orders")
    assert found is not None and (found.run_id, found.batch) == ("r2", "run:2")
