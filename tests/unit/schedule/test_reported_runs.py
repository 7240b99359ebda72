"""What observers hear of runs that cannot speak for themselves: died, never started; and of streams."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ematix_flow import BigInt, DeltaLocalConnection, Pipeline, SQLiteConnection, ematix
from ematix_flow.alerters import Alerter, AlertEvent, clear_alerters, register_alerter
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.errors import CannotConnect, ConfigError, FlowError, RowRejected, TargetFailed
from ematix_flow.graph.registry import current_registry
from ematix_flow.observe.metrics_observers import CountingObserver
from ematix_flow.observe.observer import Observers, SchedulerTick
from ematix_flow.observe.settings import Observability, open_observers
from ematix_flow.run.context_setup import refuse_spark, run_context
from ematix_flow.run.pipeline import open_connections
from ematix_flow.run.recovery import slot_is_done
from ematix_flow.schedule.executors.base import CannotDispatch, Executor, RunDispatch
from ematix_flow.schedule.run_due import SlotOutcome, SlotRunner
from ematix_flow.schedule.scheduler import Scheduler
from ematix_flow.schedule.unstarted_runs import record_unstarted_run
from ematix_flow.state.runlog.base import NullRunLog, RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord
from ematix_flow.state.slots.memory import MemorySlotStore
from ematix_flow.streams.restarts import RestartPolicy
from ematix_flow.streams.run_options import StreamRunOptions
from ematix_flow.streams.supervised_stream import SupervisedStream

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)


class Hears(Alerter):
    name = "hears"

    def __init__(self) -> None:
        self.events: list[AlertEvent] = []

    def send(self, event: AlertEvent) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def hears() -> Iterator[Hears]:
    listening = Hears()
    register_alerter(listening)
    yield listening
    clear_alerters()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RunLog]:
    with open_run_log(f"sqlite://{tmp_path}/log.db", env={}) as opened:
        yield opened


@pytest.fixture
def orders(tmp_path: Path) -> Pipeline:
    db = SQLiteConnection(name="db", path=str(tmp_path / "db.sqlite"))
    with sqlite3.connect(tmp_path / "db.sqlite") as made:
        made.execute("CREATE TABLE raw (id INTEGER)")

    @ematix.table(schema=None)
    class Orders:
        id: BigInt

    @ematix.pipeline(
        target=Orders, target_connection=db, mode="truncate", allow_empty=True, schedule="* * * * *"
    )
    def orders(conn: Any) -> str:
        return "SELECT id FROM raw"

    return orders


def test_a_run_that_died_is_reported_as_failed_by_the_next(
    orders: Pipeline, log: RunLog, hears: Hears, tmp_path: Path
) -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    log.start(RunRecord(run_id="dead0000", pipeline="orders", target="db:orders", mode="append", pid=gone))
    orders.sync(run_log=f"sqlite://{tmp_path}/log.db")
    assert hears.kinds == ["failed", "recovered"]
    assert hears.events[0].run_id == "dead0000"
    assert "the process ended before it committed" in hears.events[0].error_message


class Nowhere(Executor):
    """Starts nothing."""

    def capacity(self) -> int | None:
        return None

    def dispatch(self, job: RunDispatch) -> None:
        raise CannotDispatch(f"the cluster does not take {job.claim.slot.pipeline}")

    def check(self, run_log: str, engine: str | None = None) -> None:
        return

    def close(self, grace: float) -> None:
        return

    def abandon(self) -> None:
        return


@pytest.fixture
def runner(orders: Pipeline, tmp_path: Path, hears: Hears) -> Iterator[SlotRunner]:
    with run_context(run_log=f"sqlite://{tmp_path}/log.db", trigger="schedule") as context:
        yield SlotRunner(
            current_registry(),
            MemorySlotStore(),
            context.run_log,
            lambda slot: replace(context, slot=slot.fire_time),
        )


def heard(runner: SlotRunner) -> None:
    """Wait until everything was sent."""
    runner.context(Slot("orders", NOON)).observers.close(60)


def die(runner: SlotRunner, slot: Slot, times: int = 4) -> Claim | SlotOutcome | None:
    """A run begins this many times and then sends no heartbeat."""
    outcome: Claim | SlotOutcome | None = None
    for _ in range(times):
        record = runner.store.get(slot)
        assert isinstance(record, SlotRecord)
        outcome = replace(runner, lease_seconds=0.0).try_claim(record)
        if isinstance(outcome, Claim):
            assert runner.store.begin(outcome, 0.0)
    return outcome


def test_a_slot_whose_runs_die_one_after_the_other_is_reported_and_recorded(
    runner: SlotRunner, log: RunLog, hears: Hears
) -> None:
    slot = Slot("orders", NOON)
    runner.store.open([slot])
    outcome = die(runner, slot)
    heard(runner)
    assert isinstance(outcome, SlotOutcome)
    assert (outcome.status, outcome.reason) == ("gave_up", "3 attempts died without an error")
    (event,) = hears.events
    assert (event.kind, event.error_type, event.slot) == ("gave_up", "RunsDied", NOON)
    (recorded,) = log.list("orders")
    assert (recorded.status, recorded.slot) == ("failed", NOON)


def test_a_slot_whose_runs_die_after_the_load_has_succeeded(
    runner: SlotRunner, orders: Pipeline, log: RunLog, hears: Hears, tmp_path: Path
) -> None:
    slot = Slot("orders", NOON)
    runner.store.open([slot])
    orders.sync(run_log=f"sqlite://{tmp_path}/log.db", slot=NOON)
    log.start(RunRecord("dead0000", "orders", "db:orders", "truncate", slot=NOON))
    outcome = die(runner, slot)
    heard(runner)
    assert isinstance(outcome, SlotOutcome) and outcome.status == "succeeded"
    known = runner.store.get(slot)
    assert known is not None and (known.status, known.reason) == ("succeeded", outcome.reason)
    assert hears.events == []
    assert {run.status for run in log.list("orders")} == {"succeeded"}


def test_a_run_that_is_alive_says_itself_how_it_ended(
    runner: SlotRunner, orders: Pipeline, log: RunLog, tmp_path: Path
) -> None:
    slot = Slot("orders", NOON)
    runner.store.open([slot])
    orders.sync(run_log=f"sqlite://{tmp_path}/log.db", slot=NOON)
    log.start(RunRecord("alive000", "orders", "db:orders", "truncate", slot=NOON, pid=os.getppid()))
    outcome = die(runner, slot)
    assert isinstance(outcome, SlotOutcome) and outcome.status == "succeeded"
    assert log.get("alive000").status == "running"


def test_a_slot_that_is_found_done_is_counted_once(
    runner: SlotRunner, orders: Pipeline, log: RunLog, tmp_path: Path
) -> None:
    slot, counting = Slot("orders", NOON), CountingObserver("here", log)
    runner.store.open([slot])
    orders.sync(run_log=f"sqlite://{tmp_path}/log.db", slot=NOON)
    log.start(RunRecord("dead0000", "orders", "db:orders", "truncate", slot=NOON))
    counting.scheduler_ticked(
        SchedulerTick(0.1, max_attempts={"orders": 1})
    )  # as a scheduler that leads, from here on
    observers = Observers([counting])
    die(replace(runner, observers=observers), slot)
    observers.scheduler_ticked(SchedulerTick(0.1, max_attempts={"orders": 1}))
    observers.close(60)
    assert log.get("dead0000").status == "succeeded"
    assert counting.metrics.value("pipeline_slots_total", pipeline="orders", outcome="succeeded") == 1


def test_a_slot_whose_ledger_cannot_be_asked_is_tried_once_more_and_then_given_up(
    runner: SlotRunner, orders: Pipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slot = Slot("orders", NOON)
    runner.store.open([slot])
    orders.sync(run_log=f"sqlite://{tmp_path}/log.db", slot=NOON)
    (tmp_path / "db.sqlite").write_bytes(b"this is no database" * 100)
    assert isinstance(die(runner, slot), Claim) and "could not be read" in caplog.text
    outcome = die(runner, slot, 1)
    assert isinstance(outcome, SlotOutcome) and outcome.status == "gave_up"


def test_a_slot_whose_ledger_could_not_be_asked_is_found_done_by_its_next_run(
    runner: SlotRunner, orders: Pipeline, tmp_path: Path
) -> None:
    slot = Slot("orders", NOON)
    runner.store.open([slot])
    orders.sync(run_log=f"sqlite://{tmp_path}/log.db", slot=NOON)
    database = tmp_path / "db.sqlite"
    whole = database.read_bytes()
    database.write_bytes(b"this is no database" * 100)
    die(runner, slot, 3)
    died = runner.store.get(slot)
    assert died is not None
    again = runner.try_claim(died)
    assert isinstance(again, Claim)
    database.write_bytes(whole)
    assert runner.run_claimed(again).status == "succeeded"


def test_who_looks_for_work_starts_no_engine_to_read_a_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))

    @ematix.table(schema="shop")
    class Orders:
        id: BigInt

    @ematix.pipeline(target=Orders, source_connection=lake, target_connection=lake, name="lake_orders")
    def orders(conn: Any) -> str:
        return "SELECT 1 AS id"

    spec = current_registry().pipeline("lake_orders").spec
    assert not slot_is_done(
        spec, NOON, open_connections(refuse_spark), NullRunLog("none", ConfigError("none"))
    )
    assert caplog.text == ""  # from the journal, without a query of the target


def test_a_slot_that_is_given_up_again_after_it_was_cleared_is_reported_and_recorded_again(
    runner: SlotRunner, orders: Pipeline, log: RunLog, hears: Hears, tmp_path: Path
) -> None:
    slot = Slot("orders", NOON)
    runner.store.open([slot])
    die(runner, slot)
    orders.sync(run_log=f"sqlite://{tmp_path}/log.db")
    assert runner.store.reopen(slot)
    die(runner, slot)
    heard(runner)
    assert hears.kinds == ["gave_up", "recovered", "gave_up"]
    assert len(log.list("orders", "failed")) == 2


def test_a_process_that_dies_while_it_gives_a_slot_up_has_reported_it(
    runner: SlotRunner, log: RunLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    slot = Slot("orders", NOON)
    runner.store.open([slot])
    monkeypatch.setattr(runner.store, "end", killed)
    with pytest.raises(KeyboardInterrupt):
        die(runner, slot)
    assert [run.error_type for run in log.list("orders")] == ["RunsDied"]


def test_runs_that_are_started_and_never_begin_are_reported_once_and_never_given_up(
    runner: SlotRunner, log: RunLog, hears: Hears
) -> None:
    slot = Slot("orders", NOON)
    runner.store.open([slot])
    for _ in range(10):
        record = runner.store.get(slot)
        assert record is not None
        assert isinstance(replace(runner, lease_seconds=0.0).try_claim(record), Claim)
    heard(runner)
    (event,) = hears.events
    assert (event.kind, event.error_type) == ("failed", "CannotDispatch")
    assert "did not begin before its claim expired" in event.error_message
    assert len(log.list("orders")) == 1


def test_a_run_that_cannot_be_started_is_reported_once_until_one_succeeds(
    runner: SlotRunner, orders: Pipeline, log: RunLog, hears: Hears, tmp_path: Path
) -> None:
    scheduler = Scheduler(runner, Nowhere(), "pipelines")
    slots = [Slot("orders", NOON), Slot("orders", NOON + dt.timedelta(minutes=1))]
    runner.store.open(slots)
    for slot in (*slots, *slots):
        seen = runner.store.get(slot)
        assert seen is not None
        claim = runner.store.claim(replace(seen, not_before=NOON), "me", 60) or runner.store.claim(
            seen, "me", 60
        )
        if claim is not None:
            assert not scheduler._start(claim)
    heard(runner)
    (event,) = hears.events
    assert (event.kind, event.error_type) == ("failed", "CannotDispatch")
    assert "does not take orders" in event.error_message
    orders.sync(run_log=f"sqlite://{tmp_path}/log.db")
    assert hears.kinds == ["failed", "recovered"]


def test_an_alert_of_a_refused_run_that_did_not_get_through_is_sent_the_next_time(
    runner: SlotRunner, log: RunLog, hears: Hears, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(runner, Nowhere(), "pipelines", restart_delay_seconds=0.0)
    slot, send, away = Slot("orders", NOON), hears.send, [ConfigError("the receiver is away")]
    runner.store.open([slot])

    def sent(event: AlertEvent) -> None:
        if away:
            raise away.pop()
        send(event)

    monkeypatch.setattr(hears, "send", sent)
    for _ in range(3):
        seen = runner.store.get(slot)
        claim = seen and runner.store.claim(seen, "me", 60)
        assert claim is not None and not scheduler._start(claim)
    heard(runner)
    assert hears.kinds == ["failed"]
    assert len(log.list("orders")) == 1


def test_a_refused_run_is_counted_once_however_often_it_is_reported(runner: SlotRunner, log: RunLog) -> None:
    counting = CountingObserver("here", log)
    observers = Observers([counting])
    context = replace(runner.context(Slot("orders", NOON)), observers=observers)
    spec = runner.registry.pipeline("orders").spec
    for _ in range(3):
        record_unstarted_run(spec, context, CannotDispatch("the cluster is not there"), attempts=0)
    observers.close(60)
    assert counting.metrics.value("pipeline_runs_total", pipeline="orders", outcome="failure") == 1


# ------------------------------------------------------------------ streams


@dataclass
class Script:
    """What each attempt of a stream does: load a batch, wait, fail."""

    attempts: list[list[FlowError | str]]

    def next(self, run: SupervisedStream) -> None:
        for step in self.attempts.pop(0):
            if isinstance(step, FlowError):
                raise step
            (run._report_healthy if step == "batch" else run._on_alive)()


def follow(script: Script, log: RunLog, monkeypatch: pytest.MonkeyPatch, restarts: int | None) -> None:
    """A stream under supervision, without Spark: what it does is played."""
    monkeypatch.setattr(SupervisedStream, "_follow", lambda run, *_: script.next(run))
    spec: Any = SimpleNamespace(name="clicks", targets=(), where=None)
    nobody: Any = SimpleNamespace(**dict.fromkeys(_CALLS, lambda *_: None))
    counts = dict.fromkeys(("rows_read", "total_rows", "restarts"), 0)
    running: Any = SimpleNamespace(stop_requested=threading.Event(), counts=counts, watch=nobody)
    running.add_counts = lambda **counts: running.counts.update(
        {name: running.counts[name] + count for name, count in counts.items()}
    )
    with open_observers(Observability(), log) as observers:
        run = SupervisedStream(spec, running, StreamRunOptions(), nobody, log, observers)
        run.run_supervised(RestartPolicy(1, 1, restarts))


_CALLS = ("set_state", "mark_alive", "count_restart", "restarting", "stopped")


def test_a_stream_that_is_restarted_is_reported_once_and_recovers_with_its_first_batch(
    log: RunLog, hears: Hears, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = TargetFailed("the server went away")
    script = Script([[lost], ["wait", lost], ["batch", "batch", lost], ["batch"]])
    follow(script, log, monkeypatch, restarts=None)
    assert hears.kinds == ["failed", "recovered", "failed", "recovered"]
    assert hears.events[0].state == "another attempt follows"


def test_a_stream_that_is_out_of_restarts_has_given_up(
    log: RunLog, hears: Hears, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotConnect):
        follow(Script([[CannotConnect("no broker")] for _ in range(3)]), log, monkeypatch, restarts=2)
    assert hears.kinds == ["failed", "gave_up"]
    follow(Script([["batch"]]), log, monkeypatch, restarts=2)  # another process, later
    assert hears.kinds == ["failed", "gave_up", "recovered"]


def test_a_stream_that_no_restart_would_cure_has_failed(
    log: RunLog, hears: Hears, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RowRejected):
        follow(Script([[RowRejected("too long")]]), log, monkeypatch, restarts=5)
    assert hears.kinds == ["failed"]
