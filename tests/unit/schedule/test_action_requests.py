"""Requests of actions: what is refused and with which words, and what is done at once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ematix_flow import BigInt, KafkaConnection, ManagedTable, SQLiteConnection, ematix
from ematix_flow.errors import FlowError, UnknownName, UsageError
from ematix_flow.fault_points import InjectedCrash, inject
from ematix_flow.graph.registry import current_registry
from ematix_flow.schedule.actions.arguments import check_arguments, require_action_kind
from ematix_flow.schedule.actions.requests import ActionReceipt, find_refusal, request_action
from ematix_flow.state.actions.memory import MemoryActionStore
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.next_attempts import next_attempt_mark
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Slot, SlotRecord
from ematix_flow.state.slots.memory import MemorySlotStore

NOON = dt.datetime(2026, 3, 29, 12, tzinfo=dt.timezone.utc)


class Desk:
    """One module, its stores, and a person who asks."""

    def __init__(self, run_log: RunLog) -> None:
        self.run_log, self.slots, self.actions = run_log, MemorySlotStore(), MemoryActionStore()

    def ask(
        self, kind: str, subject: str, arguments: Mapping[str, Any] | None = None, by: str = "ada"
    ) -> ActionReceipt:
        return request_action(kind, subject, arguments or {}, by=by, via="web", **self._stores())

    def refusal(self, kind: str, subject: str) -> str | None:
        error = find_refusal(kind, subject, {}, **self._stores())
        return None if error is None else error.what

    def _stores(self) -> dict[str, Any]:
        return {
            "registry": current_registry(),
            "run_log": self.run_log,
            "slots": self.slots,
            "actions": self.actions,
        }

    def run(self, run_id: str, status: str = "running", **more: Any) -> None:
        record = RunRecord(run_id, "orders", "db:orders", "append", batch=f"run:{run_id}", **more)
        self.run_log.start(record)
        if status != "running":
            self.run_log.finish(run_id, status)  # type: ignore[arg-type]  # a status


@pytest.fixture
def desk() -> Iterator[Desk]:
    db = SQLiteConnection(name="db", path="x.db")

    class Orders(ManagedTable):
        __tablename__ = "orders"
        id: BigInt

    @ematix.pipeline(
        name="orders", target=Orders, source_connection=db, target_connection=db, schedule="0 * * * *"
    )
    def orders(conn: Any) -> str:
        return "SELECT 1 AS id"

    class Report(ManagedTable):
        __tablename__ = "report"
        id: BigInt

    @ematix.pipeline(
        name="report", target=Report, source_connection=db, target_connection=db, depends_on=["orders"]
    )
    def report(conn: Any) -> str:
        return "SELECT 1 AS id"

    with open_local_run_log(f"memory://{id(orders)}", env={}) as run_log:
        yield Desk(run_log)


def test_an_unknown_action_or_argument_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UsageError, match=r"no action 'restrat'\. Did you mean 'restart'"):
        require_action_kind("restrat")
    with pytest.raises(UsageError, match=r"no argument 'with_downstrem'\. Did you mean 'with_downstream'"):
        check_arguments("run", {"with_downstrem": True})
    with pytest.raises(UsageError, match="It takes none"):
        check_arguments("restart", {"from": "start"})
    for wrong in ({"with_downstream": 1}, {"select": "orders"}, {"select": [1]}, {"select": ["x"] * 1_001}):
        with pytest.raises(UsageError, match="of the action run is"):
            check_arguments("run", wrong)
    for wrong in ({"first": True}, {"first": "1"}, {"reason": 1}, {"letters": ["x" * 2_001]}):
        with pytest.raises(UsageError, match="of the action park_letters is"):
            check_arguments("park_letters", wrong)
    assert check_arguments("run", {"with_downstream": False, "select": [], "with_upstream": None}) == {}


def test_a_run_is_requested_once_by_two_people(desk: Desk) -> None:
    first = desk.ask("run", "orders", {"with_downstream": True})
    second = desk.ask("run", "orders", {"with_downstream": True, "with_upstream": False}, by="bob")
    assert first.is_new and not second.is_new and first.action == second.action
    assert (first.action.status, first.action.requested_by, first.action.via) == ("waiting", "ada", "web")
    with pytest.raises(UnknownName, match=r"no pipeline is named 'ordrs'\. Did you mean 'orders'"):
        desk.ask("run", "ordrs")
    with pytest.raises(FlowError, match="no pipeline has the tag 'nightly'"):
        desk.ask("run", "orders", {"select": ["tag:nightly"]})
    assert len(desk.actions.list()) == 1


def test_a_request_that_nobody_carried_out_for_an_hour_gives_way_to_the_same_one(desk: Desk) -> None:
    now = NOON
    desk.actions = MemoryActionStore(lambda: now)
    first = desk.ask("run", "orders")
    other = desk.ask("run", "orders", {"with_downstream": True})
    now += dt.timedelta(minutes=59)
    assert not desk.ask("run", "orders").is_new
    now += dt.timedelta(minutes=2)
    again = desk.ask("run", "orders")
    assert again.is_new and again.action.action_id != first.action.action_id
    ended = desk.actions.get(first.action.action_id)
    assert ended.status == "failed" and "request it again" in (ended.outcome or "")
    assert desk.actions.get(other.action.action_id).status == "waiting"


def test_only_the_newest_run_that_did_not_end_well_is_restarted(desk: Desk) -> None:
    desk.run("a1", "failed", started_at=NOON)
    desk.run("b2", "failed", started_at=NOON + dt.timedelta(hours=1))
    assert "a1" in (desk.refusal("restart", "a1") or "") and "newer" in (desk.refusal("restart", "a1") or "")
    assert desk.refusal("restart", "b2") is None
    assert desk.ask("restart", "b").action.subject == "b2"
    desk.run("c3", "succeeded", started_at=NOON + dt.timedelta(hours=2))
    assert "has ended well" in (desk.refusal("restart", "c3") or "")
    assert "no run 'd4'" in (desk.refusal("restart", "d4") or "")


def test_only_an_incremental_pipeline_is_resumed_from_its_watermark(desk: Desk) -> None:
    assert (
        desk.refusal("resume_from_watermark", "orders") == "'orders' has no watermark: it is not incremental"
    )


def test_only_what_runs_is_stopped(desk: Desk) -> None:
    desk.run("a1", "failed")
    assert desk.refusal("stop", "a1") == "run a1 of 'orders' has ended: it is failed"
    desk.run("b2", pid=2**22 + 1)
    gone = desk.refusal("stop", "b2") or ""
    assert gone.startswith("there is nothing to stop: the process 4194305 of run b2") and gone.endswith(
        "gone"
    )
    desk.run("c3")
    assert desk.ask("stop", "c3").action.status == "waiting"
    assert not desk.ask("stop", "c3", by="bob").is_new
    assert desk.actions.stop_requested("c3") is not None


def test_only_what_runs_is_paused_and_only_what_is_paused_is_resumed(desk: Desk) -> None:
    assert desk.refusal("pause", "orders") == "'orders' is not running, so there is no run to pause"
    assert "Did you mean 'orders'" in (desk.refusal("pause", "oders") or "")
    assert desk.refusal("resume", "orders") == "'orders' is not paused."
    desk.run("a1")
    done = desk.ask("pause", "orders", {"reason": "look at the target"}).action
    assert (done.status, done.outcome) == ("done", "orders waits at its next safe point until it is resumed")
    again = desk.refusal("pause", "orders") or ""
    assert "already paused by ada since" in again and again.endswith("(look at the target)")
    assert desk.refusal("resume_schedule", "orders") == (
        "the schedule of 'orders' is not paused, but its runs are"
    )
    assert "Did you mean 'orders'" in (desk.refusal("resume", "oders") or "")
    assert desk.ask("resume", "orders").action.outcome == "orders goes on"
    assert desk.actions.holds() == ()


def test_a_schedule_is_paused_and_resumed(desk: Desk) -> None:
    assert desk.refusal("pause_schedule", "report") == "'report' has no schedule, and no workflow runs it"
    assert desk.ask("pause_schedule", "orders").action.status == "done"
    assert desk.refusal("resume", "orders") == "no run of 'orders' is paused, but its schedule is"
    assert [hold.kind for hold in desk.actions.holds()] == ["schedule"]
    desk.ask("resume_schedule", "orders")
    assert desk.actions.holds() == ()


def test_the_slots_that_were_named_are_cleared(desk: Desk) -> None:
    slots = [Slot("orders", NOON + dt.timedelta(hours=hour)) for hour in range(3)]
    desk.slots.open(slots, "gave_up", "it failed")
    assert "nothing to clear" in (desk.refusal("clear", "report") or "")
    cleared = desk.ask("clear", "orders", {"slots": [NOON.isoformat(), "2026-03-29T13:00:00Z"]}).action
    assert cleared.outcome == ("2 slots of orders will run again: 2026-03-29 12:00 UTC, 2026-03-29 13:00 UTC")
    assert [record.slot for record in desk.slots.unfinished()] == slots[:2]
    assert desk.ask("clear", "orders", {"since": NOON.isoformat()}).action.status == "done"
    assert [record.slot for record in desk.slots.unfinished()] == slots
    with pytest.raises(UsageError, match="'noon' is not a time"):
        desk.ask("clear", "orders", {"slots": ["noon"]})


def test_a_clear_ends_the_stops_of_its_slots_and_no_other(desk: Desk) -> None:
    later = NOON + dt.timedelta(hours=1)
    desk.slots.open([Slot("orders", NOON)], "gave_up", "it failed")
    desk.slots.open([Slot("orders", later)])
    desk.run("a1", "failed", slot=NOON)
    desk.run("b2", "failed", slot=later)
    desk.run("c3", "failed")
    runs = ("a1", "b2", "c3", "purged")
    stops = {run: desk.actions.request("stop", run, {}, by="ada", via="web")[0] for run in runs}
    assert (
        desk.ask("clear", "orders", {"slots": [NOON.isoformat(), later.isoformat()]}).action.status == "done"
    )
    statuses = {run: desk.actions.get(stop.action_id).status for run, stop in stops.items()}
    assert statuses == {"a1": "done", "b2": "waiting", "c3": "waiting", "purged": "waiting"}


def test_dead_letters_are_chosen_of_a_declared_stream(desk: Desk) -> None:
    assert "no streaming pipeline is named 'orders'" in (desk.refusal("park_letters", "orders") or "")


@pytest.mark.parametrize("point", ["action.requested", "action.effected"])
def test_what_a_crash_interrupts_is_completed_by_the_same_request(desk: Desk, point: str) -> None:
    desk.run("a1")
    with inject(point, "crash"), pytest.raises(InjectedCrash):
        desk.ask("pause", "orders")
    (left,) = desk.actions.list()
    assert left.status == "waiting" and bool(desk.actions.holds()) is (point == "action.effected")
    again = desk.ask("pause", "orders", by="bob")
    assert not again.is_new and (again.action.action_id, again.action.status) == (left.action_id, "done")
    assert [(hold.kind, hold.name, hold.by) for hold in desk.actions.holds()] == [("run", "orders", "ada")]
    assert len(desk.actions.list()) == 1


def test_an_effect_that_fails_ends_the_action(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.run("a1")

    def refuse(*_: object, **__: object) -> bool:
        raise UsageError("the store is full")

    monkeypatch.setattr(desk.actions, "hold", refuse)
    with pytest.raises(UsageError, match="full"):
        desk.ask("pause", "orders")
    (failed,) = desk.actions.list()
    assert (failed.status, failed.outcome) == ("failed", "the store is full")


def test_a_run_that_failed_is_stopped_only_as_long_as_its_next_attempt_has_not_begun(desk: Desk) -> None:
    desk.run("a1", started_at=NOON)
    desk.run_log.finish("a1", "failed", metrics=next_attempt_mark(60.0))
    assert desk.refusal("stop", "a1") is None
    desk.run("b2", started_at=NOON + dt.timedelta(minutes=1))
    assert desk.refusal("stop", "a1") == "run a1 of 'orders' has ended: it is failed"
    desk.run_log.finish("b2", "failed", metrics=next_attempt_mark(-3600.0))
    assert desk.refusal("stop", "b2") == "run b2 of 'orders' has ended: it is failed"
    desk.run("c3", started_at=NOON + dt.timedelta(minutes=2), pid=4194305)
    desk.run_log.finish("c3", "failed", metrics=next_attempt_mark(60.0))
    assert desk.refusal("stop", "c3") == "run c3 of 'orders' has ended: it is failed"


def test_a_slot_is_stopped_only_between_two_attempts(desk: Desk) -> None:
    desk.slots.open([Slot("orders", NOON)])
    desk.run("a1", "failed", slot=NOON)
    assert desk.refusal("stop", "a1") == "run a1 of 'orders' has ended: it is failed"
    (seen,) = desk.slots.unfinished()
    claim = desk.slots.claim(seen, "scheduler", 60)
    assert claim is not None and desk.slots.retry_later(claim, 900, "the source is away")
    asked = desk.ask("stop", "orders")
    assert (asked.action.status, asked.action.subject) == ("done", "a1")
    stopped = desk.slots.get(seen.slot)
    assert stopped is not None and (stopped.status, stopped.reason) == (
        "gave_up",
        "stopped by ada before its next attempt; the last message: the source is away",
    )


def wait_for_next_attempt(desk: Desk, fire_time: dt.datetime = NOON) -> SlotRecord:
    """Open a slot, and let an attempt at it fail; the next one comes in 15 minutes."""
    slot = Slot("orders", fire_time)
    desk.slots.open([slot])
    seen = desk.slots.get(slot)
    claim = desk.slots.claim(seen, "scheduler", 60) if seen is not None else None
    assert claim is not None and desk.slots.retry_later(claim, 900, "the source is away")
    waits = desk.slots.get(slot)
    assert waits is not None
    return waits


def test_a_stop_of_a_waiting_slot_is_not_of_a_restart_of_its_run(desk: Desk) -> None:
    waits = wait_for_next_attempt(desk)
    desk.run("a1", "failed", slot=NOON, started_at=NOON)
    restart = {"slot": NOON, "metrics": {"restart_of": "a1"}, "started_at": NOON + dt.timedelta(hours=1)}
    desk.run("b2", **restart)
    assert desk.ask("stop", "b2").action.status == "waiting"  # it runs, and obeys it
    assert desk.slots.get(waits.slot) == waits
    stopped = desk.ask("stop", "a1").action
    assert (stopped.subject, stopped.status) == ("a1", "done")
    assert getattr(desk.slots.get(waits.slot), "status", None) == "gave_up"


def test_a_restart_that_has_ended_is_no_attempt_at_its_slot(desk: Desk) -> None:
    waits = wait_for_next_attempt(desk)
    desk.run("a1", "failed", slot=NOON, started_at=NOON)
    later = NOON + dt.timedelta(hours=1)
    desk.run("b2", "failed", slot=NOON, metrics={"restart_of": "a1"}, started_at=later)
    assert desk.refusal("stop", "b2") == "run b2 of 'orders' has ended: it is failed"
    assert desk.slots.get(waits.slot) == waits
    assert desk.ask("stop", "orders").action.subject == "a1"


def test_a_waiting_slot_whose_last_attempt_died_is_stopped(desk: Desk) -> None:
    waits = wait_for_next_attempt(desk)
    desk.run("a1", slot=NOON, pid=2**22 + 1)
    assert desk.ask("stop", "orders").action.status == "done"
    assert getattr(desk.slots.get(waits.slot), "status", None) == "gave_up"
    assert "process 4194305" in (desk.refusal("stop", "a1") or "")


@pytest.mark.parametrize("other_runs", [0, 100])
def test_a_waiting_slot_is_stopped_by_name_although_none_of_its_runs_is_found(
    desk: Desk, other_runs: int
) -> None:
    waits = wait_for_next_attempt(desk)
    if other_runs:
        desk.run("a1", "failed", slot=NOON, started_at=NOON)
    for number in range(other_runs):
        desk.run(f"b{number}", "failed", started_at=NOON + dt.timedelta(hours=1 + number))
    stopped = desk.ask("stop", "orders").action
    assert (stopped.subject, stopped.status, stopped.outcome) == (
        "orders",
        "done",
        "the slot of 2026-03-29 12:00 UTC is given up: no further attempt starts",
    )
    assert getattr(desk.slots.get(waits.slot), "status", None) == "gave_up"
    assert "nothing to stop" in (desk.refusal("stop", "orders") or "")


def test_a_stop_by_name_whose_slot_is_claimed_meanwhile_has_failed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = wait_for_next_attempt(desk)
    monkeypatch.setattr(desk.slots, "end_unclaimed", lambda *_: False)
    stopped = desk.ask("stop", "orders").action
    assert (stopped.status, stopped.outcome) == (
        "failed",
        "none of its slots waits any more for its next attempt",
    )
    assert desk.slots.get(waits.slot) == waits


def test_a_stop_that_a_carrier_ends_meanwhile_is_returned_as_it_ended(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_next_attempt(desk)
    desk.run("a1", "failed", slot=NOON)
    end = desk.actions.end

    def end_too_late(*given: Any) -> bool:
        end(*given)  # by the carrier
        return end(*given)

    monkeypatch.setattr(desk.actions, "end", end_too_late)
    stopped = desk.ask("stop", "a1").action
    assert (stopped.status, stopped.run_ids) == ("done", ("a1",))


def test_a_stop_by_name_is_of_the_run_at_work_and_names_several(desk: Desk) -> None:
    assert "nothing to stop: 'orders' is not running" in (desk.refusal("stop", "orders") or "")
    desk.run("a1")
    asked = desk.ask("stop", "orders")
    assert (asked.action.status, asked.action.subject) == ("waiting", "a1")
    desk.run("b2")
    assert desk.refusal("stop", "orders") in (
        "'orders' has several runs: a1, b2",
        "'orders' has several runs: b2, a1",
    )


def test_a_stream_is_paused_also_between_its_attempts(desk: Desk) -> None:
    class Clicks(ManagedTable):
        __tablename__ = "clicks"
        id: BigInt

    bus = KafkaConnection(name="bus", bootstrap_servers="b1:9092")
    db = SQLiteConnection(name="db2", path="x.db")

    @ematix.streaming_pipeline(source=bus, source_query="clicks", target=Clicks, target_connection=db)
    def clicks(df: Any) -> Any:
        return df

    assert desk.ask("pause", "clicks").action.status == "done"


def test_a_pipeline_with_retries_is_paused_also_between_its_attempts(desk: Desk) -> None:
    class Retried(ManagedTable):
        __tablename__ = "retried"
        id: BigInt

    db = SQLiteConnection(name="db2", path="x.db")

    @ematix.pipeline(
        name="retried", target=Retried, source_connection=db, target_connection=db, retry={"max_attempts": 2}
    )
    def retried(conn: Any) -> str:
        return "SELECT 1 AS id"

    assert desk.ask("pause", "retried").action.status == "done"
    assert desk.refusal("pause", "report") == "'report' is not running, so there is no run to pause"
