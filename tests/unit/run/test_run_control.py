"""Runs that are stopped and held on request."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import BigInt, Pipeline, SQLiteConnection, Target, ematix, register_connection
from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log
from ematix_flow.errors import CannotConnect, ConfigError, PipelineLocked, RunStopped
from ematix_flow.graph.registry import current_registry
from ematix_flow.observe.listener import Listener
from ematix_flow.run.context_setup import run_context
from ematix_flow.run.dag import run_dag
from ematix_flow.run.restart import restart_run
from ematix_flow.schedule.actions.carrier import ActionCarrier
from ematix_flow.schedule.actions.requests import request_action
from ematix_flow.schedule.run_due import SlotRunner
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.records import ActionRecord, Hold
from ematix_flow.state.actions.sql import SqlActionStore
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Claim, Slot
from ematix_flow.state.slots.memory import MemorySlotStore
from tests.unit.run.sqlite_file import execute
from tests.waiting import wait_until

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)
TRACE = "INSERT INTO trace VALUES ('{}')"


@ematix.table(schema=None)
class Numbers:
    n: BigInt


@ematix.table(schema=None)
class Copies:
    n: BigInt


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    execute(path, "CREATE TABLE raw (n INTEGER)")
    execute(path, "CREATE TABLE trace (step TEXT)")
    execute(path, "INSERT INTO raw VALUES (1), (2)")
    register_connection(SQLiteConnection(name="shop", path=str(path)))
    return path


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Runs that are watched as if they had lasted long; returns how often the store was asked."""
    monkeypatch.setattr("ematix_flow.run.run_watcher.INTERVAL_SECONDS", 0.02)
    count = 0
    original = SqlActionStore.stop_requested

    def stop_requested(store: SqlActionStore, run_id: str) -> ActionRecord | None:
        nonlocal count
        count += 1
        return original(store, run_id)

    monkeypatch.setattr(SqlActionStore, "stop_requested", stop_requested)
    return lambda: count


@contextmanager
def actions() -> Iterator[ActionStore]:
    with open_actions(env=os.environ) as store:
        yield store


def asked_again(polls: Callable[[], int]) -> None:
    before = polls()
    wait_until(lambda: polls() >= before + 2)


def declare(*steps: Any, name: str = "numbers", **options: Any) -> Pipeline:
    given = {"target": Numbers, "target_connection": "shop", "mode": "truncate", **options}

    @ematix.pipeline(**given, name=name, transforms_post=list(steps))
    def numbers(conn: Any) -> str:
        return "SELECT n FROM raw"

    return numbers


def records(name: str = "numbers") -> tuple[RunRecord, ...]:
    with open_run_log(env=os.environ, reading=True) as log:
        return log.list(name)


def trace(path: Path) -> list[str]:
    return [step for (step,) in execute(path, "SELECT step FROM trace ORDER BY rowid")]


def held(name: str = "numbers") -> Hold | None:
    with actions() as store:
        hold = store.find_hold("run", name)
    return hold if hold is not None and hold.held_run is not None else None


def hold(polls: Callable[[], int], name: str = "numbers") -> Callable[[Any], None]:
    """A post-load step that has the run held, from the next safe point on."""

    def hold_the_run(conn: Any) -> None:
        with actions() as store:
            store.hold("run", name, by="ada", reason="the shop is closed")
        asked_again(polls)

    return hold_the_run


def release(name: str = "numbers") -> None:
    with actions() as store:
        assert store.release("run", name)


def stop(run_id: str) -> None:
    with actions() as store:
        store.request("stop", run_id, {}, by="ada", via="cli")


# ------------------------------------------------------------------ held


def test_a_run_that_starts_while_its_pipeline_is_paused_loads_nothing_before_it_is_resumed(
    database: Path,
) -> None:
    with actions() as store:
        store.hold("run", "numbers", by="ada")
    load = declare()  # it takes less than the interval of the watcher
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.sync)
        found = wait_until(held)
        assert found.held_at is not None and found.held_at.startswith("before prepare")
        assert execute(database, "SELECT name FROM sqlite_master WHERE name = 'Numbers'") == []
        release()
        assert running.result(60).rows_inserted == 2


def test_a_run_starts_without_an_answer_about_pauses(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.run.pipeline.START_ANSWER_SECONDS", 0.1)
    answer = threading.Event()
    monkeypatch.setattr(SqlActionStore, "stop_requested", lambda store, run_id: answer.wait(60) and None)
    try:
        assert declare().sync().status == "succeeded"
    finally:
        answer.set()


def test_a_held_run_waits_at_its_next_safe_point_until_it_is_resumed(
    database: Path, polls: Callable[[], int]
) -> None:
    load = declare(hold(polls), TRACE.format("two"))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.sync)
        found = wait_until(held)
        (run,) = records()
        assert (found.held_run, found.held_at) == (
            run.run_id,
            f"before the post-load step {TRACE.format('two')}",
        )
        assert (run.status, trace(database)) == ("running", [])
        release()
        result = running.result(60)
    assert (result.status, trace(database)) == ("succeeded", ["two"])
    notes = " ".join(result.notes)
    with open_run_log(env=os.environ, reading=True) as log:
        notes += log.output(result.run_id) or ""
    assert "by ada (the shop is closed); flow resume numbers  lets it go on" in notes
    assert "goes on after" in notes


def test_runs_are_held_between_targets(database: Path, polls: Callable[[], int]) -> None:
    seen: list[Any] = []
    with actions() as store:
        store.hold("run", "numbers", by="ada")
    load = declare(targets=[Target(table=table) for table in (Numbers, Copies)], target=None)
    with run_context() as context, ThreadPoolExecutor(1) as pool:
        listener = Slow(lambda: asked_again(polls))
        running = pool.submit(run_dag, current_registry(), [load.name], replace(context, listener=listener))
        seen.append(wait_until(held))
        release()
        (outcome,) = running.result(60)
    assert outcome.status == "succeeded"
    assert seen[0].held_at.startswith("before ") and " into shop:" in seen[0].held_at


def test_a_run_whose_store_goes_away_while_it_is_held_goes_on_waiting(
    database: Path, polls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.run.run_control._LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("ematix_flow.run.run_control._HELD_PAUSE_SECONDS", 0.02)
    load = declare(hold(polls), TRACE.format("two"))
    failures = 0
    original = SqlActionStore.stop_requested

    def is_away(store: SqlActionStore, run_id: str) -> None:
        nonlocal failures
        failures += 1
        raise ConfigError("the store is away")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.sync)
        wait_until(held)
        monkeypatch.setattr(SqlActionStore, "stop_requested", is_away)
        wait_until(lambda: failures > 3)
        release()
        before = failures
        wait_until(lambda: failures > before + 3)
        assert not running.done() and trace(database) == []
        monkeypatch.setattr(SqlActionStore, "stop_requested", original)
        assert running.result(60).status == "succeeded"
    assert trace(database) == ["two"]


def test_a_store_that_is_away_fails_no_run(
    database: Path, polls: Callable[[], int], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    tries = 0

    def away(*_: Any, **__: Any) -> ActionStore:
        nonlocal tries
        tries += 1
        raise ConfigError("the store is away: password=hunter2")  # the full stop is masked too

    monkeypatch.setattr("ematix_flow.run.run_control._LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("ematix_flow.run.context_setup.open_actions", away)
    monkeypatch.setattr("ematix_flow.state.runlog.base._warned", set())

    def long(conn: Any) -> None:
        wait_until(lambda: tries > 2)

    assert declare(long, TRACE.format("two")).sync().status == "succeeded"
    warnings = [record.getMessage() for record in caplog.records if "requests to stop" in record.getMessage()]
    assert warnings == [
        "requests to stop or pause runs cannot be read: the store is away: password=*** Runs go on"
    ]


def test_the_claim_of_a_held_slot_is_renewed(database: Path, polls: Callable[[], int]) -> None:
    declare(hold(polls), TRACE.format("two"), schedule="@hourly")
    slot, renewed = Slot("numbers", NOON), 0

    class Slots(MemorySlotStore):
        def renew(self, claim: Claim, seconds: float) -> bool:
            nonlocal renewed
            renewed += 1
            return super().renew(claim, seconds)

    with run_context(slot=NOON) as context, ThreadPoolExecutor(1) as pool:
        store = Slots()
        runner = SlotRunner(current_registry(), store, context.run_log, lambda _: context, 0.3)
        store.open([slot])
        record = store.get(slot)
        assert record is not None
        claim = runner.try_claim(record)
        assert isinstance(claim, Claim)
        running = pool.submit(runner.run_claimed, claim)
        wait_until(held)
        before = renewed
        wait_until(lambda: renewed > before + 2)
        release()
        assert running.result(60).status == "succeeded"


def fails_once(*before: Callable[[], None]) -> Callable[[], None]:
    """What a pipeline does when it is declared: the first time it fails, after ``before``."""
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        if len(calls) == 1:
            for each in before:
                each()
            raise CannotConnect("the network is down")

    return fail


def declare_retried(fail: Callable[[], None], **retry: Any) -> Pipeline:
    @ematix.pipeline(
        target=Numbers,
        target_connection="shop",
        mode="truncate",
        name="numbers",
        retry={"max_attempts": 3, **retry},
    )
    def numbers(conn: Any) -> str:
        fail()
        return "SELECT n FROM raw"

    return numbers


def test_a_run_that_is_paused_between_two_attempts_waits_before_the_next(
    database: Path, polls: Callable[[], int]
) -> None:
    def pause() -> None:
        with actions() as store:
            store.hold("run", "numbers", by="ada")

    load = declare_retried(fails_once(pause))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.sync)
        found = wait_until(held)
        newest, _ = records()
        assert (found.held_run, found.held_at) == (newest.run_id, "before its next attempt")
        release()
        assert running.result(60).attempts == 2


# ------------------------------------------------------------------ stopped


def newest_stop() -> ActionRecord:
    with actions() as store:
        (found,) = store.list(kind="stop")
    return found


def test_a_stop_that_a_failing_attempt_has_not_seen_ends_the_retries(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = declare_retried(fails_once(lambda: stop(records()[0].run_id)))
    with pytest.raises(RunStopped, match="was stopped by ada") as raised:
        load.sync()
    (run,) = records()
    assert (run.status, raised.value.state) == ("failed", "attempt 1 had failed: the network is down")
    assert (newest_stop().status, newest_stop().run_ids) == ("done", (run.run_id,))


def test_a_run_is_stopped_while_it_waits_for_its_next_attempt(
    database: Path, polls: Callable[[], int]
) -> None:
    load = declare_retried(fails_once(), backoff_seconds=3600)
    with ThreadPoolExecutor(1) as pool, open_run_log(env=os.environ) as log:
        running = pool.submit(load.sync)
        (run,) = wait_until(lambda: log.list("numbers", status="failed"))
        with actions() as store:
            stores: Any = {"registry": current_registry(), "run_log": log, "slots": MemorySlotStore()}
            request_action("stop", run.run_id, {}, by="ada", via="cli", actions=store, **stores)
            # a scheduler leaves the stop to the run
            ActionCarrier(store, log, MemorySlotStore(), current_registry(), "pipelines").poll()
        with pytest.raises(RunStopped):
            running.result(60)
    assert [each.status for each in records()] == ["failed"]
    assert newest_stop().outcome == "the run had failed; it is not attempted again"


def test_an_attempt_obeys_a_stop_of_the_attempt_before(database: Path, polls: Callable[[], int]) -> None:
    def stop_first_attempt(conn: Any) -> None:
        stop(records()[-1].run_id)
        threading.Event().wait(60)

    @ematix.pipeline(
        target=Numbers,
        target_connection="shop",
        mode="truncate",
        name="numbers",
        retry={"max_attempts": 3},
        transforms_post=[stop_first_attempt],
    )
    def numbers(conn: Any) -> str:
        fail()
        return "SELECT n FROM raw"

    fail = fails_once()
    with pytest.raises(RunStopped):
        numbers.sync()
    assert [each.status for each in records()] == ["cancelled", "failed"]
    assert newest_stop().status == "done"


def test_a_slot_whose_failing_run_had_not_seen_a_stop_is_not_tried_again(database: Path) -> None:
    @ematix.pipeline(
        target=Numbers,
        target_connection="shop",
        mode="truncate",
        name="numbers",
        schedule="@hourly",
        retry={"max_attempts": 3},
    )
    def numbers(conn: Any) -> str:
        fail()
        return "SELECT n FROM raw"

    fail = fails_once(lambda: stop(records()[0].run_id))
    slot = Slot("numbers", NOON)
    with run_context(slot=NOON) as context:
        store = MemorySlotStore()
        runner = SlotRunner(current_registry(), store, context.run_log, lambda _: context)
        store.open([slot])
        record = store.get(slot)
        assert record is not None
        claim = runner.try_claim(record)
        assert isinstance(claim, Claim)
        outcome = runner.run_claimed(claim)
    assert (outcome.status, outcome.reason) == ("gave_up", "pipeline 'numbers' was stopped by ada")


def waits_to_be_stopped(conn: Any, parent: Any) -> None:
    stop(parent.run_id)
    threading.Event().wait(60)


def test_a_stop_interrupts_what_the_run_is_doing(database: Path, polls: Callable[[], int]) -> None:
    load = declare(TRACE.format("one"), waits_to_be_stopped, TRACE.format("three"))
    with pytest.raises(RunStopped, match="pipeline 'numbers' was stopped by ada") as raised:
        load.sync()
    (run,) = records()
    assert (run.status, run.error_type) == ("cancelled", "RunStopped")
    assert "it had committed to shop:numbers" in (raised.value.state or "")
    assert raised.value.next_step == f"flow restart {run.run_id[:8]}  loads what is missing"
    assert trace(database) == ["one"]
    with actions() as store:
        assert store.stop_requested(run.run_id) is None
        (done,) = store.list(subject=run.run_id)
    assert (done.status, done.run_ids) == ("done", (run.run_id,))
    declare(TRACE.format("one"), TRACE.format("two"))
    with run_context() as context:
        restart_run(current_registry().pipeline("numbers"), context, run)
    assert trace(database) == ["one", "two"]


def test_a_stop_ends_a_run_that_is_held(database: Path, polls: Callable[[], int]) -> None:
    load = declare(hold(polls), TRACE.format("two"))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(load.sync)
        found = wait_until(held)
        assert found.held_run is not None
        stop(found.held_run)
        with pytest.raises(RunStopped):
            running.result(60)
    with actions() as store:
        left = store.find_hold("run", "numbers")
    assert left is not None and left.held_run is None
    assert trace(database) == []


def test_a_run_in_another_thread_stops_at_its_next_safe_point(
    database: Path, polls: Callable[[], int]
) -> None:
    def stops(conn: Any, parent: Any) -> None:
        stop(parent.run_id)
        asked_again(polls)

    with ThreadPoolExecutor(1) as pool, pytest.raises(RunStopped):
        pool.submit(declare(stops, TRACE.format("two")).sync).result(60)
    assert (records()[0].status, trace(database)) == ("cancelled", [])


def test_other_pipelines_of_the_command_go_on(database: Path, polls: Callable[[], int]) -> None:
    declare(waits_to_be_stopped, name="stopped")
    declare(name="below", depends_on=["stopped"])
    declare(name="other")
    with run_context() as context:
        outcomes = {each.pipeline: each for each in run_dag(current_registry(), None, context)}
    assert {name: each.status for name, each in outcomes.items()} == {
        "stopped": "cancelled",
        "below": "not_run",
        "other": "succeeded",
    }
    assert outcomes["below"].reason == "stopped was stopped, and below depends on it"


def test_a_slot_whose_run_was_stopped_is_not_tried_again(database: Path, polls: Callable[[], int]) -> None:
    declare(waits_to_be_stopped, schedule="@hourly", retry={"max_attempts": 5})
    slot = Slot("numbers", NOON)
    with run_context(slot=NOON) as context:
        store = MemorySlotStore()
        runner = SlotRunner(current_registry(), store, context.run_log, lambda _: context)
        store.open([slot])
        record = store.get(slot)
        assert record is not None
        claim = runner.try_claim(record)
        assert isinstance(claim, Claim)
        outcome = runner.run_claimed(claim)
    assert (outcome.status, outcome.reason) == ("gave_up", "pipeline 'numbers' was stopped by ada")


@pytest.mark.parametrize("attempts", [["died"], ["died", "locked"], ["died", "interrupted", "locked"]])
def test_a_stop_of_an_attempt_that_died_is_obeyed_by_the_next(database: Path, attempts: list[str]) -> None:
    declare(schedule="@hourly", retry={"max_attempts": 5})
    slot = Slot("numbers", NOON)
    with run_context(slot=NOON) as context:
        for number, ended in enumerate(attempts):
            at = dt.datetime.now(dt.timezone.utc) - dt.timedelta(minutes=9 - number)
            before = RunRecord(f"a{number}", "numbers", "shop:numbers", "truncate", slot=NOON, started_at=at)
            context.run_log.start(replace(before, pid=2**22 + 1))
            if ended in ("interrupted", "locked"):
                context.run_log.finish(before.run_id, ended)  # type: ignore[arg-type]  # a status
        stop("a0")
        store = MemorySlotStore()
        runner = SlotRunner(current_registry(), store, context.run_log, lambda _: context)
        store.open([slot])
        record = store.get(slot)
        assert record is not None
        claim = runner.try_claim(record)
        assert isinstance(claim, Claim) and claim.failures == 0
        outcome = runner.run_claimed(claim)
    assert (outcome.status, outcome.reason) == ("gave_up", "pipeline 'numbers' was stopped by ada")
    assert records()[0].status == "cancelled" and newest_stop().status == "done"


def test_a_run_that_is_stopped_while_another_holds_its_lock_is_not_tried_again(
    database: Path, polls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_lock(*_: object) -> None:
        stop(records()[0].run_id)
        asked_again(polls)
        raise PipelineLocked("another run holds it")

    monkeypatch.setattr("ematix_flow.run.pipeline.lock_targets", wait_for_lock)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RunStopped):  # where nothing interrupts it
        pool.submit(declare().sync).result(60)
    assert records()[0].status == "cancelled" and newest_stop().status == "done"


def test_a_step_that_runs_a_pipeline_that_is_stopped_has_failed(
    database: Path, polls: Callable[[], int]
) -> None:
    declare(waits_to_be_stopped, name="inner", target=Copies)
    outer = declare(ematix.transform_ref("inner"), TRACE.format("two"), continue_on_failure_post=True)
    result = outer.sync()
    assert result.status == "succeeded" and "was stopped by ada" in result.post[0][1]
    assert (records("inner")[0].status, trace(database)) == ("cancelled", ["two"])
    assert records()[0].status == "succeeded"


def test_a_stop_that_comes_too_late_changes_nothing(database: Path, polls: Callable[[], int]) -> None:
    def stops(conn: Any, parent: Any) -> None:
        with actions() as store:
            store.request("stop", "another run", {}, by="ada", via="cli")
        asked_again(polls)

    assert declare(stops).sync().status == "succeeded"


class Slow(Listener):
    """Lets a run wait in its first stage until the store has been asked."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        wait, self._wait = self._wait, lambda: None
        wait()
