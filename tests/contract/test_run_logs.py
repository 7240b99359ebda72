"""One contract over every place where a run log and its slots can lie."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from pathlib import Path

import pytest

from ematix_flow.backends.run_logs import open_run_log, open_slots
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.state.records import RunRecord
from ematix_flow.state.runlog import RunLog
from ematix_flow.state.slots import Slot

NOON = dt.datetime(2026, 5, 17, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)
KINDS = ("memory", "sqlite", "duckdb", "postgres", "mariadb", "mysql")


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = request.param
    if kind == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if kind in ("sqlite", "duckdb"):
        return f"{kind}://{tmp_path}/run_log.db"
    found: str = request.getfixturevalue({"postgres": "pg_database"}.get(kind, f"{kind}_database"))
    return found


@pytest.fixture
def log(url: str) -> RunLog:
    return open_run_log(url, env={}, reading=True)


def record(pipeline: str = "orders", **fields: object) -> RunRecord:
    values: dict[str, object] = {"started_at": NOON, "target": "t", "mode": "append", **fields}
    return RunRecord(run_id=uuid.uuid4().hex, pipeline=pipeline, **values)  # type: ignore[arg-type]


def test_a_run_is_read_as_it_was_written(log: RunLog, url: str) -> None:
    one = record(slot=NOON, trigger="schedule", attempt=2, batch="slot:x", overdue=("a", "b"))
    log.start(one)
    assert log.get(one.run_id) == one
    done = log.finish(
        one.run_id,
        "succeeded",
        path="copy",
        rows_read=2**40,
        rows_inserted=3,
        source_to="ü",
        metrics={"stages": {"read": 1.5}},
        finished_at=NOON + dt.timedelta(seconds=1.5),
    )
    assert done
    with open_run_log(url, env={}, reading=True) as again:
        found = again.get(one.run_id[:8])
    assert (found.status, found.rows_read, found.source_to) == ("succeeded", 2**40, "ü")
    assert found.metrics == {"stages": {"read": 1.5}} and found.duration == dt.timedelta(seconds=1.5)
    assert (found.slot, found.attempt, found.overdue) == (NOON, 2, ("a", "b"))


def test_the_newest_come_first_and_may_be_chosen(log: RunLog) -> None:
    runs = [record(started_at=NOON + dt.timedelta(minutes=n)) for n in range(5)]
    for one in [*runs, record("others")]:
        log.start(one)
    log.finish(runs[4].run_id, "failed", error=ValueError("no"))
    assert [found.run_id for found in log.list("orders", limit=3)] == [r.run_id for r in runs[4:1:-1]]
    assert [found.run_id for found in log.list(status="failed")] == [runs[4].run_id]
    assert len(log.list(since=NOON + dt.timedelta(minutes=3))) == 2
    assert len(log.running("orders")) == 4


def test_a_run_ends_once(log: RunLog) -> None:
    one = record()
    log.start(one)
    assert log.settle(one.run_id, "interrupted", "it died")
    assert not log.settle(one.run_id, "interrupted", "it died")
    assert log.finish(one.run_id, "succeeded")  # it lives after all
    assert not log.finish(one.run_id, "failed")
    assert log.get(one.run_id).status == "succeeded"


def test_the_last_batch_is_known(log: RunLog) -> None:
    log.start(record(batch="run:1"))
    later = record(started_at=NOON + dt.timedelta(hours=1))
    log.start(later)
    assert getattr(log.last_batch("orders"), "batch", None) == "run:1"
    log.take_batch(later.run_id, "run:2", ["t"])
    assert getattr(log.last_batch("orders"), "overdue", None) == ("t",)
    assert log.last_batch("others") is None


def test_names_are_told_apart_as_they_are_written(log: RunLog) -> None:
    for name in ("Orders", "orders", "ordérs", "orders "):
        log.start(record(name))
    assert [len(log.list(name)) for name in ("Orders", "orders", "ordérs", "orders ")] == [1, 1, 1, 1]


def test_an_id_is_given_once(log: RunLog) -> None:
    one = record()
    log.start(one)
    with pytest.raises(UsageError, match="already has a run"):
        log.start(one)


def test_slots_lie_beside_the_runs(url: str, log: RunLog) -> None:
    slot = Slot("orders", NOON)
    first, second = open_slots(url, env={}), open_slots(url, env={})
    assert (first.open([slot]), second.open([slot])) == (1, 0)
    seen = second.get(slot)
    assert seen is not None
    claim = first.claim(seen, "a", 30)
    assert claim is not None and second.claim(seen, "b", 30) is None
    assert second.renew(claim, 30) and second.end(claim, "succeeded")
    assert first.unended() == []
    lease = first.lease("scheduler", "a", 60)
    assert lease is not None and second.lease("scheduler", "b", 60) is None


@pytest.mark.parametrize(
    "dead", ["postgres://user:hunter2@127.0.0.1:1/db", "mysql://user:hunter2@127.0.0.1:1/db"]
)
def test_a_server_that_is_away_is_one_warning_for_a_run_and_an_error_for_a_reader(
    dead: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with open_run_log(dead, env={}) as forgetful:
        forgetful.start(record())
    assert "Runs go on, but are not recorded" in caplog.text and "hunter2" not in caplog.text
    with pytest.raises(FlowError) as raised:
        open_run_log(dead, env={}, reading=True)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(FlowError):
        open_slots(dead, env={})


def test_what_is_noted_later_stands_beside_what_a_run_told(log: RunLog) -> None:
    one = record()
    log.start(one)
    log.finish(one.run_id, "failed", metrics={"stages": {"read": 1.5}})
    log.add_metrics(one.run_id, {"alerts": [{"to": "ü"}]})
    log.add_metrics(one.run_id, {"alerts": [{"to": "ü"}, {"to": "b", "url": "postgres://u:hunter22@h/d"}]})
    log.add_metrics("no such run", {"alerts": []})
    found = log.get(one.run_id)
    assert found.status == "failed" and found.metrics["stages"] == {"read": 1.5}
    assert [each["to"] for each in found.metrics["alerts"]] == ["ü", "b"]
    assert "hunter22" not in str(found.metrics)
