"""What a carrier claims and ends: only what its module declares, and only what it can know."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from ematix_flow import BigInt, ManagedTable, SQLiteConnection, ematix
from ematix_flow.graph.registry import Registry, current_registry
from ematix_flow.schedule.actions.carrier import MAX_DEATHS, ActionCarrier
from ematix_flow.schedule.actions.untaken_actions import describe_wait
from ematix_flow.state.actions.memory import MemoryActionStore
from ematix_flow.state.actions.records import ActionKind, ActionRecord
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.slots.memory import MemorySlotStore

NOON = dt.datetime(2026, 3, 29, 12, tzinfo=dt.timezone.utc)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> dt.datetime:
        return self.now

    def pass_(self, **time: int) -> None:
        self.now += dt.timedelta(**time)


class ClaimingCarrier(ActionCarrier):
    """A carrier that starts no process."""

    def _start(self, claimed: ActionRecord) -> bool:
        return True


@pytest.fixture
def run_log() -> Iterator[RunLog]:
    db = SQLiteConnection(name="db", path="x.db")

    class Loaded(ManagedTable):
        __tablename__ = "orders"
        id: BigInt

    @ematix.pipeline(name="orders", target=Loaded, target_connection=db, source_connection=db, tags=["daily"])
    def load(conn):
        return "SELECT id FROM source"

    with open_local_run_log(env={}) as log:
        yield log


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def actions(clock: Clock) -> MemoryActionStore:
    return MemoryActionStore(clock)


@pytest.fixture
def carrier(actions: MemoryActionStore, run_log: RunLog, clock: Clock) -> ClaimingCarrier:
    return ClaimingCarrier(actions, run_log, MemorySlotStore(clock), current_registry(), "shop")


def ask(actions: MemoryActionStore, kind: ActionKind, subject: str, **arguments: object) -> ActionRecord:
    return actions.request(kind, subject, arguments, by="ada", via="web")[0]


def record(run_log: RunLog, run_id: str, pipeline: str) -> None:
    run_log.start(RunRecord(run_id, pipeline, "db:orders", "append"))
    run_log.finish(run_id, "failed")


def test_a_carrier_claims_only_what_its_module_declares(
    carrier: ClaimingCarrier, actions: MemoryActionStore, run_log: RunLog
) -> None:
    record(run_log, "ours", "orders")
    record(run_log, "theirs", "invoices")
    wanted = [
        ask(actions, "run", "orders"),
        ask(actions, "run", "tag:daily", with_downstream=True),
        ask(actions, "resume_from_watermark", "orders"),
        ask(actions, "restart", "ours"),
        ask(actions, "restart", "purged"),  # its process says that no log has it
    ]
    others = [
        ask(actions, "run", "invoices"),
        ask(actions, "run", "tag:hourly"),
        ask(actions, "resume_from_watermark", "invoices"),
        ask(actions, "replay_letters", "clicks"),
        ask(actions, "restart", "theirs"),
    ]
    started: list[str] = []
    carrier.workers = 100
    started += [each.action_id for each in carrier.poll()]
    assert sorted(started) == sorted(each.action_id for each in wanted)
    assert {actions.get(each.action_id).status for each in others} == {"waiting"}


def test_an_action_of_another_module_is_not_given_up(
    carrier: ClaimingCarrier, actions: MemoryActionStore
) -> None:
    action = ask(actions, "run", "invoices")
    for _ in range(MAX_DEATHS):
        claimed = actions.claim(actions.get(action.action_id), "another", 0)
        assert claimed is not None and actions.begin(claimed, 0)
    carrier.poll()
    assert actions.get(action.action_id).status == "claimed"


def test_an_action_that_nobody_took_is_not_carried_out_by_a_carrier_that_comes_up_much_later(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock
) -> None:
    action = ask(actions, "run", "orders")
    clock.pass_(minutes=61)
    assert carrier.poll() == []
    ended = actions.get(action.action_id)
    assert ended.status == "failed"
    assert ended.outcome == (
        "it was not carried out: for more than 60 minutes no scheduler or page ran that declares its "
        "pipeline; request it again"
    )


def test_an_action_waits_for_a_busy_carrier_as_long_as_it_takes(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock
) -> None:
    carrier.workers = 0
    action = ask(actions, "run", "orders")
    for _ in range(5):
        assert carrier.poll() == []
        clock.pass_(hours=1)
    carrier.workers = 1
    (started,) = carrier.poll()
    assert started.action_id == action.action_id


def test_an_action_that_waits_for_a_busy_carrier_does_not_expire_when_another_comes_up(
    carrier: ClaimingCarrier, actions: MemoryActionStore, run_log: RunLog, clock: Clock
) -> None:
    carrier.workers = 0
    action = ask(actions, "run", "orders")
    for _ in range(300):
        assert carrier.poll() == []
        clock.pass_(minutes=1)
    assert not actions.request("run", "orders", {}, by="bob", via="cli")[1]
    clock.pass_(minutes=58)
    other = ClaimingCarrier(actions, run_log, carrier.slots, carrier.registry, "shop")
    assert [each.action_id for each in other.poll()] == [action.action_id]


def test_an_action_expires_an_hour_after_the_last_poll_of_a_busy_carrier(
    carrier: ClaimingCarrier, actions: MemoryActionStore, run_log: RunLog, clock: Clock
) -> None:
    carrier.workers = 0
    action = ask(actions, "run", "orders")
    for _ in range(30):
        carrier.poll()
        clock.pass_(hours=1)
    foreign = ClaimingCarrier(actions, run_log, carrier.slots, Registry(), "other")
    foreign.poll()
    assert actions.get(action.action_id).status == "waiting"
    assert "one that starts after 2026-03-30 18:10 UTC" in (
        describe_wait(actions.get(action.action_id), clock()) or ""
    )
    clock.pass_(minutes=11)
    other = ClaimingCarrier(actions, run_log, carrier.slots, carrier.registry, "shop")
    assert other.poll() == []
    assert actions.get(action.action_id).status == "failed"


def test_a_busy_carrier_seldom_writes_that_actions_wait(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    keep_waiting = actions.keep_waiting

    def count(seen: ActionRecord, seconds: float) -> bool:
        written.append(seen.action_id)
        return keep_waiting(seen, seconds)

    monkeypatch.setattr(actions, "keep_waiting", count)
    carrier.workers = 0
    ask(actions, "run", "orders")
    ask(actions, "run", "invoices")  # of another module
    for _ in range(120):
        carrier.poll()
        clock.pass_(minutes=1)
    assert 10 <= len(written) <= 13


def test_what_a_process_had_begun_is_continued_however_late_a_carrier_comes_up(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock
) -> None:
    handed_back, died = ask(actions, "run", "orders"), ask(actions, "resume_from_watermark", "orders")
    for action in (handed_back, died):
        claimed = actions.claim(action, "another", 60)
        assert claimed is not None and actions.begin(claimed, 60)
        if action is handed_back:
            assert actions.hand_back(claimed)
    clock.pass_(hours=48)
    assert {each.action_id for each in carrier.poll()} == {handed_back.action_id, died.action_id}


def test_an_action_that_no_module_declares_is_ended_by_any_carrier_after_a_day(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock
) -> None:
    action, hold = ask(actions, "run", "invoices"), actions.hold("run", "invoices", by="ada")
    clock.pass_(hours=23)
    carrier.poll()
    assert hold and actions.get(action.action_id).status == "waiting"
    clock.pass_(hours=2)
    carrier.poll()
    assert actions.get(action.action_id).status == "failed"
    assert len(actions.holds()) == 1  # a pause does not expire


def test_an_action_that_waits_says_why(actions: MemoryActionStore, clock: Clock) -> None:
    def why(action: ActionRecord) -> str | None:
        return describe_wait(actions.get(action.action_id), clock())

    action, restart = ask(actions, "run", "orders"), ask(actions, "restart", "0123456789abcdef")
    assert why(action) is None  # a carrier takes it within a poll
    clock.pass_(minutes=2)
    assert why(action) == (
        "no running scheduler or page declares 'orders', or all that do are busy; one that starts after "
        "2026-03-29 13:00 UTC does not carry it out"
    )
    assert (why(restart) or "").startswith(
        "no running scheduler or page declares the pipeline of run 01234567, or all that do are busy"
    )
    claimed = actions.claim(action, "vm/7/x", 60)
    assert claimed is not None and why(action) is None
    clock.pass_(minutes=2)
    assert (why(action) or "").startswith("vm/7 stopped its heartbeat, and nobody has taken over: no running")
    assert actions.hand_back(claimed)
    assert (why(action) or "").startswith("it was handed back, and nobody has taken over: no running")
    assert actions.end(actions.get(action.action_id), "done", "orders succeeded")
    assert why(action) is None


def test_a_stop_is_ended_by_a_carrier_of_its_module(
    carrier: ClaimingCarrier, actions: MemoryActionStore, run_log: RunLog
) -> None:
    for run_id, pipeline in (("ours", "orders"), ("cleaned", "maintain:orders"), ("theirs", "invoices")):
        record(run_log, run_id, pipeline)
    stops = [ask(actions, "stop", run_id) for run_id in ("ours", "cleaned", "theirs", "purged")]
    carrier.poll()
    assert [actions.get(stop.action_id).status for stop in stops] == ["done", "done", "waiting", "failed"]


def test_a_stop_between_attempts_whose_process_died_is_completed_by_a_carrier(
    carrier: ClaimingCarrier, actions: MemoryActionStore, run_log: RunLog
) -> None:
    slot = Slot("orders", NOON)
    run_log.start(RunRecord("ours", "orders", "db:orders", "append", slot=NOON))
    run_log.finish("ours", "failed")
    carrier.slots.open([slot])
    (seen,) = carrier.slots.unfinished()
    claim = carrier.slots.claim(seen, "scheduler", 60)
    assert claim is not None
    stop = ask(actions, "stop", "ours")
    carrier.poll()
    assert actions.get(stop.action_id).status == "waiting"  # the attempt at work obeys it
    assert carrier.slots.retry_later(claim, 900, "the source is away")
    carrier.poll()
    ended, stopped = actions.get(stop.action_id), carrier.slots.get(slot)
    assert stopped is not None and stopped.status == "gave_up"
    assert (stopped.reason or "").startswith("stopped by ada before its next attempt")
    assert (ended.status, ended.run_ids) == ("done", ("ours",))


def test_a_stop_of_a_dead_run_stays_open_until_its_slot_is_free(
    carrier: ClaimingCarrier, actions: MemoryActionStore, run_log: RunLog, clock: Clock
) -> None:
    slot = Slot("orders", NOON)
    run_log.start(RunRecord("ours", "orders", "db:orders", "append", slot=NOON, pid=2**22 + 1))
    carrier.slots.open([slot])
    claim = carrier.slots.claim(carrier.slots.unfinished()[0], "scheduler", 60)
    assert claim is not None
    stop = ask(actions, "stop", "ours")
    carrier.poll()
    clock.pass_(minutes=2)  # the claim has expired, and the next attempt obeys the stop
    carrier.poll()
    assert actions.get(stop.action_id).status == "waiting"
    assert carrier.slots.retry_later(claim, 900, "its process is gone", failed=False)
    carrier.poll()
    assert actions.get(stop.action_id).status == "done"
    assert getattr(carrier.slots.get(slot), "status", None) == "gave_up"


def test_an_interrupted_stop_by_name_gives_up_no_other_slot(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock
) -> None:
    slot = Slot("orders", NOON)
    carrier.slots.open([slot])
    claim = carrier.slots.claim(carrier.slots.unfinished()[0], "scheduler", 60)
    assert claim is not None and carrier.slots.retry_later(claim, 900, "the source is away")
    stop = ask(actions, "stop", "orders")
    carrier.poll()
    assert actions.get(stop.action_id).status == "waiting"  # its command may be at work
    clock.pass_(minutes=6)
    carrier.poll()
    assert actions.get(stop.action_id).status == "failed"
    assert [record.status for record in carrier.slots.unfinished()] == ["waiting"]


def test_an_interrupted_pause_or_resume_ends_by_what_is_paused(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock
) -> None:
    actions.hold("schedule", "orders", by="ada")
    clock.pass_(minutes=1)
    kinds: tuple[ActionKind, ...] = ("pause", "resume", "pause_schedule", "resume_schedule")
    wanted = {kind: ask(actions, kind, "orders") for kind in kinds}
    carrier.poll()
    assert {actions.get(each.action_id).status for each in wanted.values()} == {"waiting"}
    clock.pass_(minutes=6)
    carrier.poll()
    ended = {kind: actions.get(each.action_id) for kind, each in wanted.items()}
    assert {kind: (each.status, each.outcome) for kind, each in ended.items()} == {
        "pause": ("failed", "it was interrupted before it took effect; request it again"),
        "resume": ("done", "orders goes on"),
        "pause_schedule": ("done", "no slot of orders starts until its schedule is resumed"),
        "resume_schedule": ("failed", "it was interrupted before it took effect; request it again"),
    }


def test_a_resume_that_another_pause_followed_is_done(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock
) -> None:
    resumed = ask(actions, "resume", "removed")  # what is no longer declared can be resumed
    clock.pass_(minutes=6)
    actions.hold("run", "removed", by="bob")
    carrier.poll()
    assert actions.get(resumed.action_id).status == "done"


def test_a_slow_clear_is_not_said_to_have_died(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock
) -> None:
    cleared, others = ask(actions, "clear", "orders"), ask(actions, "clear", "invoices")
    clock.pass_(hours=20)
    carrier.poll()
    assert actions.get(cleared.action_id).status == "waiting"
    clock.pass_(hours=5)
    carrier.poll()
    ended = actions.get(cleared.action_id)
    assert (ended.status, ended.outcome) == (
        "failed",
        "it did not record its end; request it again to complete it",
    )
    assert actions.get(others.action_id).status == "waiting"


def test_old_actions_are_deleted_while_a_carrier_runs(
    carrier: ClaimingCarrier, actions: MemoryActionStore, clock: Clock
) -> None:
    def end_one() -> ActionRecord:
        ended = ask(actions, "pause", "orders")
        assert actions.end(ended, "done", "paused")
        return ended

    first = end_one()
    clock.pass_(hours=48)
    carrier.poll()
    assert actions.list() == (actions.get(first.action_id),)  # without a limit all are kept
    carrier.keep_for, carrier.clock = dt.timedelta(days=1), lambda: clock.now.timestamp()
    second = end_one()
    carrier.poll()
    assert [each.action_id for each in actions.list()] == [second.action_id]
    carrier.keep_for = dt.timedelta(minutes=1)
    clock.pass_(minutes=59)
    carrier.poll()
    assert len(actions.list()) == 1  # once an hour is enough
    clock.pass_(minutes=1)
    carrier.poll()
    assert actions.list() == ()
