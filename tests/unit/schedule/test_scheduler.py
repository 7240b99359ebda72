"""The scheduler over a store in memory and an executor that only notes what it is asked."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import BigInt, ManagedTable, SQLiteConnection, ematix
from ematix_flow.errors import ConfigError
from ematix_flow.graph.registry import current_registry
from ematix_flow.observe.metrics_observers import CountingObserver
from ematix_flow.observe.observer import Observer, Observers, SchedulerTick
from ematix_flow.run.run_context import RunContext
from ematix_flow.schedule.executors.base import CannotDispatch, Executor, RunDispatch, WorkerExit, WorkerState
from ematix_flow.schedule.run_due import SlotRunner
from ematix_flow.schedule.scheduler import Scheduler
from ematix_flow.schedule.slot_lifecycle import MAX_DEATHS, AttemptEnd, claim_slot, conclude_attempt
from ematix_flow.spec.retry_policy import RetryPolicy
from ematix_flow.state.local_stores import open_slots_file
from ematix_flow.state.runlog.base import NullRunLog, run_log_location
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord
from ematix_flow.state.slots.memory import MemorySlotStore

NOON = dt.datetime(2026, 3, 29, 12, tzinfo=dt.timezone.utc)
YEARLY = "0 0 1 1 *"


class Notes(Executor):
    def __init__(self) -> None:
        self.jobs: list[RunDispatch] = []
        self.sight = WorkerState()
        self.refuses: Exception | None = None
        self.closed: list[str] = []
        self.places: int | None = None

    def check(self, run_log: str, engine: str | None = None) -> None:
        pass

    def capacity(self) -> int | None:
        return None if self.places is None else self.places - len(self.jobs)

    def dispatch(self, job: RunDispatch) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.jobs.append(job)

    def poll_workers(self) -> WorkerState:
        sight, self.sight = self.sight, WorkerState()
        return sight

    def close(self, grace: float) -> None:
        self.closed.append(f"closed within {grace:g} s")

    def abandon(self) -> None:
        self.closed.append("abandoned")


class Counted(MemorySlotStore):
    """Counts what it is asked."""

    def __init__(self, clock: Callable[[], dt.datetime]) -> None:
        super().__init__(clock)
        self.asked: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("now", "unfinished", "newest", "latest", "get", "claim", "lease", "open"):
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.asked[name] += 1
            return found(*arguments, **named)

        return counted


class Clock:
    at = NOON

    def __call__(self) -> dt.datetime:
        return self.at

    def pass_(self, seconds: float) -> None:
        self.at += dt.timedelta(seconds=seconds)


class Desk:
    def __init__(self) -> None:
        self.clock, self.executor = Clock(), Notes()
        self.store = Counted(self.clock)

    def declare(self, name: str, **more: Any) -> None:
        db = SQLiteConnection(name="db", path="x.db")

        class Loaded(ManagedTable):
            id: BigInt

        @ematix.pipeline(
            name=name, target=Loaded, source_connection=db, target_connection=db, schedule=YEARLY, **more
        )
        def declared(conn: Any) -> str:
            return "SELECT 1 AS id"

    def scheduler(self, holder: str = "me", **more: Any) -> Scheduler:
        log = NullRunLog("none", ConfigError("there is none"))
        context = RunContext(log, _nothing_runs)
        runner = SlotRunner(current_registry(), self.store, log, lambda slot: context, 300, holder)
        return Scheduler(runner, self.executor, "project", **more)

    def open(self, pipeline: str, minutes: int = 0) -> Slot:
        slot = Slot(pipeline, NOON - dt.timedelta(hours=1) + dt.timedelta(minutes=minutes))
        self.store.open([slot])
        return slot

    def started(self) -> list[Slot]:
        return [job.claim.slot for job in self.executor.jobs]


def _nothing_runs(jar_groups: Sequence[str]) -> Any:
    raise AssertionError("a slot was run here")


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_scheduler_whose_run_log_was_deleted_says_so_and_claims_nothing(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk.declare("orders")
    path = tmp_path / "run_log.db"
    stored = open_slots_file(run_log_location(str(path), {}))
    stored.open([Slot("orders", NOON)])
    one = desk.scheduler()
    one.runner = replace(one.runner, store=stored)
    for left in tmp_path.glob("run_log.db*"):
        left.unlink()
    one.run(looks=1)
    assert f"the run log {path} was deleted or replaced while this process used it" in caplog.text
    open_slots_file(run_log_location(str(path), {})).open([Slot("orders", NOON)])  # by another process
    one.run(looks=1)
    assert desk.executor.jobs == [] and caplog.text.count("a poll of the schedules failed") == 2


def test_what_is_due_is_claimed_and_handed_over_with_the_engine(desk: Desk) -> None:
    desk.declare("orders")
    slot = desk.open("orders")
    assert [claim.slot for claim in desk.scheduler(engine="local[2]").tick()] == [slot]
    assert "--engine=local[2]" in desk.executor.jobs[0].arguments()
    assert desk.scheduler("another").tick() == []


def test_a_pipeline_runs_one_slot_at_a_time_the_oldest_first(desk: Desk) -> None:
    desk.declare("orders")
    first, second = desk.open("orders"), desk.open("orders", 1)
    scheduler = desk.scheduler()
    scheduler.tick()
    scheduler.tick()
    assert desk.started() == [first]
    desk.store.end(desk.executor.jobs[0].claim, "succeeded")
    scheduler.tick()
    assert desk.started() == [first, second]


def test_a_slot_waits_for_an_older_one_that_another_scheduler_was_faster_with(desk: Desk) -> None:
    desk.declare("orders")
    first, _ = desk.open("orders"), desk.open("orders", 1)
    real = desk.store.claim

    def claim(seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        if seen.slot == first:
            assert real(seen, "another", 300) is not None
        return real(seen, holder, seconds)

    desk.store.claim = claim  # type: ignore[method-assign]
    scheduler = desk.scheduler()
    assert scheduler.tick() == []
    assert scheduler.tick() == []


def test_a_slot_that_ends_elsewhere_during_a_look_is_no_harm(desk: Desk) -> None:
    desk.declare("orders")
    first = desk.open("orders")
    scheduler, real = desk.scheduler(), desk.store.unfinished

    def unfinished(*asked: Sequence[str]) -> list[SlotRecord]:
        found = real(*asked)
        if found:
            claim = desk.store.claim(found[0], "another", 300)
            assert claim is not None and desk.store.end(claim, "succeeded")
        return found

    desk.store.unfinished = unfinished  # type: ignore[method-assign]
    assert scheduler.tick() == []
    record = desk.store.get(first)
    assert record is not None and record.status == "succeeded"


def test_a_slot_that_waits_for_its_next_attempt_holds_no_newer_one_back(desk: Desk) -> None:
    desk.declare("orders", retry={"max_attempts": 3, "base_secs": 3600})
    first, second = desk.open("orders"), desk.open("orders", 1)
    scheduler = desk.scheduler()
    [claim] = scheduler.tick()
    desk.store.retry_later(claim, 3600, "no connection")
    [claim] = scheduler.tick()
    assert claim.slot == second and desk.store.end(claim, "succeeded")
    desk.clock.pass_(3600)
    assert [claim.slot for claim in scheduler.tick()] == [first]


def test_an_executor_that_refuses_a_slot_is_not_asked_for_a_newer_one_in_the_same_look(desk: Desk) -> None:
    desk.declare("orders")
    first, second = desk.open("orders"), desk.open("orders", 1)
    scheduler = desk.scheduler()
    desk.executor.refuses = CannotDispatch("the cluster is not there")
    assert scheduler.tick() == []
    records = [desk.store.get(slot) for slot in (first, second)]
    assert [record.fence for record in records if record] == [1, 0]
    desk.executor.refuses = None
    [claim] = scheduler.tick()  # while the first one waits
    assert claim.slot == second and desk.store.end(claim, "succeeded")
    desk.clock.pass_(30)
    assert [claim.slot for claim in scheduler.tick()] == [first]


def test_a_fire_is_not_missed_while_another_scheduler_takes_over(desk: Desk) -> None:
    desk.declare("orders", catchup="none")
    desk.clock.at = dt.datetime(2026, 12, 31, 23, 59, 55, tzinfo=dt.timezone.utc)
    desk.scheduler("me").tick()
    desk.clock.pass_(75)  # it died, its lease ends after 60 s, and the other polls every 10 s
    fired = Slot("orders", dt.datetime(2027, 1, 1, tzinfo=dt.timezone.utc))
    assert [claim.slot for claim in desk.scheduler("you").tick()] == [fired]


def test_a_schedule_that_is_new_looks_back_for_the_interval_alone(desk: Desk) -> None:
    desk.declare("orders", catchup="none")
    desk.clock.at = dt.datetime(2027, 1, 1, 0, 1, 10, tzinfo=dt.timezone.utc)
    assert desk.scheduler().tick() == []


def test_a_run_that_died_is_retried_soon_and_given_up_with_the_reason_of_its_exit(desk: Desk) -> None:
    desk.declare("orders")
    slot, scheduler = desk.open("orders"), desk.scheduler()
    for died in range(MAX_DEATHS):
        scheduler.tick()
        assert len(desk.executor.jobs) == died + 1
        desk.executor.sight = WorkerState([WorkerExit(desk.executor.jobs[-1].claim, "OOMKilled")])
        scheduler.tick()
        desk.clock.pass_(30 * 2**died - 1)
        scheduler.tick()
        assert len(desk.executor.jobs) == died + 1  # not yet
        desk.clock.pass_(1)
    scheduler.tick()
    record = desk.store.get(slot)
    assert record is not None and record.status == "gave_up"
    assert record.reason == "3 attempts died without an error; the last message: OOMKilled"


def test_a_run_that_was_stopped_before_it_began_gives_its_slot_back_and_is_no_death(desk: Desk) -> None:
    desk.declare("orders")
    slot, scheduler = desk.open("orders"), desk.scheduler()
    for stopped in range(MAX_DEATHS + 1):
        scheduler.tick()
        assert len(desk.executor.jobs) == stopped + 1
        desk.executor.sight = WorkerState(
            [WorkerExit(desk.executor.jobs[-1].claim, "SIGTERM", never_began=True)]
        )
        scheduler.check_runs()
        record = desk.store.get(slot)
        assert record is not None and (record.status, record.deaths) == ("waiting", 0)


def test_a_run_that_reported_its_end_is_left_alone(desk: Desk) -> None:
    desk.declare("orders")
    slot, scheduler = desk.open("orders"), desk.scheduler()
    [claim] = scheduler.tick()
    desk.store.retry_later(claim, 600, "no connection")
    desk.executor.sight = WorkerState([WorkerExit(claim, "exit code 1")])
    scheduler.tick()
    record = desk.store.get(slot)
    assert record is not None and (record.status, record.reason) == ("waiting", "no connection")


def test_a_claim_is_kept_while_its_run_has_not_begun(desk: Desk) -> None:
    desk.declare("orders")
    desk.open("orders")
    scheduler = desk.scheduler()
    [claim] = scheduler.tick()
    for _ in range(10):
        desk.clock.pass_(200)
        desk.executor.sight = WorkerState(starting=[claim])
        assert scheduler.tick() == []
    assert len(desk.executor.jobs) == 1


def test_what_cannot_be_started_waits_and_is_never_given_up_for_it(desk: Desk) -> None:
    desk.declare("orders")
    slot, scheduler = desk.open("orders"), desk.scheduler()
    desk.executor.refuses = CannotDispatch("the cluster is not there")
    for _ in range(20):
        assert scheduler.tick() == []
        desk.clock.pass_(30)
    record = desk.store.get(slot)
    assert record is not None and (record.status, record.reason) == ("waiting", "the cluster is not there")
    desk.executor.refuses = None
    assert [claim.slot for claim in scheduler.tick()] == [slot]


def test_a_run_that_began_though_the_answer_to_its_start_was_lost_keeps_its_claim(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.declare("orders")
    desk.open("orders")

    def delivered(job: RunDispatch) -> None:
        assert desk.store.begin(job.claim, 300)
        desk.executor.jobs.append(job)
        raise CannotDispatch("the read timed out")

    monkeypatch.setattr(desk.executor, "dispatch", delivered)
    [claim] = desk.scheduler().tick()
    assert desk.store.end(claim, "succeeded")


def test_a_run_that_comes_after_its_start_was_refused_does_not_begin(desk: Desk) -> None:
    desk.declare("orders")
    slot = desk.open("orders")
    desk.executor.refuses = CannotDispatch("the read timed out")
    assert desk.scheduler().tick() == []
    assert not desk.store.begin(Claim(slot, "me", 1, 0), 300)


def test_a_slot_that_is_reopened_by_hand_is_run(desk: Desk) -> None:
    slot, policy = desk.open("orders"), RetryPolicy()
    for _ in range(MAX_DEATHS + 1):
        seen = desk.store.get(slot)
        assert seen is not None
        claim = claim_slot(desk.store, seen, "me", 10, policy)
        if isinstance(claim, Claim):
            assert desk.store.begin(claim, 10)
        desk.clock.pass_(10)
    seen = desk.store.get(slot)
    assert seen is not None and seen.status == "gave_up"
    assert desk.store.reopen(slot)
    seen = desk.store.get(slot)
    assert seen is not None
    assert isinstance(claim_slot(desk.store, seen, "me", 10, policy), Claim)


def test_what_a_look_asks_the_store_does_not_grow_with_the_pipelines(desk: Desk) -> None:
    desk.declare("upstream")
    desk.open("upstream", -5)
    asked = []
    for number in range(40):
        desk.declare(f"p{number}", depends_on=["upstream"])
        desk.open(f"p{number}")
        if number in (3, 39):
            scheduler = desk.scheduler()
            scheduler.tick()  # the first starts the upstream, which then runs
            desk.store.asked.clear()
            scheduler.tick()
            asked.append(dict(desk.store.asked))
    assert desk.started() == [Slot("upstream", NOON - dt.timedelta(minutes=65))]
    assert asked[0] == asked[1]
    assert sum(asked[0].values()) < 10


def test_a_failed_poll_is_reported_and_the_next_one_follows(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.declare("orders")
    slot = desk.open("orders")
    failures = iter([ConfigError("the store is not there"), RuntimeError("who knows")])
    lease = desk.store.lease

    def failing(*arguments: Any) -> Any:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return lease(*arguments)

    monkeypatch.setattr(desk.store, "lease", failing)
    desk.scheduler(poll_seconds=0.01).run(3)
    assert desk.started() == [slot]
    assert "the store is not there" in caplog.text and "who knows" in caplog.text


def test_who_stops_gives_the_lease_back_and_lets_runs_end(desk: Desk) -> None:
    desk.declare("orders")
    desk.scheduler(poll_seconds=0.01, grace_seconds=7).run(1)
    assert desk.executor.closed == ["closed within 7 s"]
    assert desk.store.lease("scheduler", "another", 60) is not None


def test_who_is_interrupted_again_ends_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(grace: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(desk.executor, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        desk.scheduler(poll_seconds=0.01).run(1)
    assert desk.executor.closed == ["abandoned"]
    assert desk.store.lease("scheduler", "another", 60) is not None


def test_only_attempts_that_end_without_a_result_count_as_deaths() -> None:
    store = MemorySlotStore(lambda: NOON)
    slot = Slot("orders", NOON)
    store.open([slot])
    for _ in range(10 * MAX_DEATHS):
        seen = store.get(slot)
        assert seen is not None
        claim = claim_slot(store, seen, "me", 10, RetryPolicy())
        assert claim is not None
        store.retry_later(claim, 0, "another run has the lock", failed=False)


def test_freshness_of_pipelines_is_reported_with_each_poll(desk: Desk) -> None:
    desk.declare("fresh", freshness_sla="2h")
    desk.declare("other")
    heard: list[SchedulerTick] = []

    class Hears(Observer):
        def scheduler_ticked(self, tick: SchedulerTick) -> None:
            heard.append(tick)

    observers = Observers([Hears()])
    scheduler = desk.scheduler()
    scheduler.runner = replace(scheduler.runner, observers=observers)
    scheduler.run(looks=1)
    observers.close()
    assert [(tick.freshness_slas, set(tick.max_attempts)) for tick in heard] == [
        ({"fresh": 7200}, {"fresh", "other"})
    ]


def test_a_missed_fire_is_counted_once_by_all_processes(desk: Desk) -> None:
    desk.declare("orders", catchup="none")
    counting = CountingObserver("here", NullRunLog("none", ConfigError("there is none")))
    watching = Observers([counting])
    schedulers = [desk.scheduler(holder) for holder in ("me", "you")]
    for scheduler in schedulers:
        scheduler.runner = replace(scheduler.runner, observers=watching)
    schedulers[0].tick()
    desk.clock.pass_(370 * 86_400)  # over New Year
    for scheduler in schedulers:
        scheduler.tick()
        desk.clock.pass_(120)  # another leads
    schedulers[0].runner.run_due(dt.timedelta(minutes=1))
    watching.close()
    assert desk.started() == []
    assert counting.metrics.value("pipeline_slots_total", pipeline="orders", outcome="missed") == 1


def test_what_is_due_and_finds_no_room_is_reported_with_how_far_behind_it_is(desk: Desk) -> None:
    for number in range(3):
        desk.declare(f"p{number}")
    desk.declare("after", depends_on=["p2"])
    for name in ("p0", "p1", "p2", "after"):
        desk.open(name)
    desk.open("p0", 30)
    desk.executor.places = 1
    counting = CountingObserver("here", NullRunLog("none", ConfigError("there is none")))
    scheduler = desk.scheduler()

    def numbers() -> tuple[float | None, float | None]:
        observers = Observers([counting])
        scheduler.runner = replace(scheduler.runner, observers=observers)
        scheduler.poll_seconds = 0.0
        scheduler.run(looks=1)
        observers.close()
        prefix = "ematix_flow_scheduler"
        value = counting.metrics.value
        return value(f"{prefix}_due_slots"), value(f"{prefix}_oldest_due_seconds")

    assert numbers() == (4, 3600)
    desk.clock.pass_(200)
    assert numbers() == (4, 3800)  # one runs, and there is no room
    desk.executor.places = 10
    assert numbers() == (2, 3800)  # p0 of the half hour waits for the one that runs, after for p2
    desk.executor.poll_workers = broken  # type: ignore[method-assign]
    assert numbers() == (2, 3800)  # a failed poll does not know better
    desk.executor.poll_workers = WorkerState  # type: ignore[method-assign]
    desk.store.lease("scheduler", "another", 60)
    assert numbers() == (0, 0)  # the leader reports it


def broken() -> WorkerState:
    raise ConfigError("the executor does not answer")


HOURS = 3600.0


def test_an_attempt_that_failed_while_a_clock_was_ahead_is_tried_again_at_its_pace(desk: Desk) -> None:
    desk.declare("orders", retry={"max_attempts": 3, "base_secs": 1800})
    slot = desk.open("orders")
    desk.clock.pass_(5 * HOURS)
    (claim,) = desk.scheduler().tick()
    policy = current_registry().pipeline("orders").spec.retry
    assert (
        conclude_attempt(desk.store, claim, AttemptEnd(False, "no source"), policy, random.Random(1))
        == "waiting"
    )
    desk.clock.pass_(-5 * HOURS)
    (again,) = desk.scheduler().tick()
    assert (again.slot, again.fence, again.failures) == (slot, 2, 1)


def test_a_pause_that_the_policy_asks_for_is_kept(desk: Desk) -> None:
    desk.declare("orders", retry={"max_attempts": 3, "base_secs": 7200})
    slot = desk.open("orders")
    (claim,) = desk.scheduler().tick()
    desk.store.retry_later(claim, 7200 * 1.1, "no source")
    assert desk.scheduler().tick() == []
    found = desk.store.get(slot)
    assert found is not None and found.not_before == NOON + dt.timedelta(seconds=7920)


def test_a_slot_that_a_clock_ahead_of_time_has_opened_late_runs_when_the_clock_is_right_again(
    desk: Desk,
) -> None:
    desk.declare("orders")
    desk.clock.pass_(5 * HOURS)
    slot = desk.open("orders")
    desk.clock.pass_(-5 * HOURS)
    assert [claim.slot for claim in desk.scheduler().tick()] == [slot]


@pytest.mark.parametrize("lives", [True, False])
def test_a_run_elsewhere_that_died_while_a_clock_was_ahead_is_taken_over_within_an_hour(
    desk: Desk, lives: bool
) -> None:
    desk.declare("orders")
    slot = desk.open("orders")
    desk.clock.pass_(5 * HOURS)
    (claim,) = desk.scheduler().tick()
    assert desk.store.begin(claim, 300)
    desk.clock.pass_(-5 * HOURS)
    assert desk.scheduler().tick() == []
    if lives:
        assert desk.store.renew(claim, 300)
    desk.clock.pass_(HOURS - 1)
    if lives:
        assert desk.store.renew(claim, 300)
    assert desk.scheduler().tick() == []
    desk.clock.pass_(2)
    assert [each.slot for each in desk.scheduler().tick()] == ([] if lives else [slot])
