"""When a trigger fires, and that of two who see it one does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

import pytest

from ematix_flow.run.last_runs import LastEnd
from ematix_flow.schedule import workflows as workflows_module
from ematix_flow.schedule.due_slots import MISSED, DueCalculator, ScheduleEntry
from ematix_flow.schedule.slot_lifecycle import poll_slots
from ematix_flow.schedule.workflows import (
    TOO_MANY_UNFINISHED,
    WorkflowFiring,
    WorkflowSlots,
    is_satisfied,
    slot_name,
)
from ematix_flow.spec.pipelines import Catchup
from ematix_flow.spec.schedules import Schedule
from ematix_flow.spec.workflows import Trigger, WorkflowSpec
from ematix_flow.state.slots.base import Slot, SlotRecord, SlotStatus
from ematix_flow.state.slots.memory import MemorySlotStore

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)
HOUR = dt.timedelta(hours=1)
ANY = WorkflowSpec("w", ("mail",), Trigger("any", ("orders", "items")))


def good(event: str) -> LastEnd:
    return LastEnd(event, True, "succeeded")


def slots_of(store: MemorySlotStore, name: str) -> list[Slot]:
    return [slot for slot in store._slots if slot.pipeline == name]


@pytest.mark.parametrize(
    ("new", "fires"),
    [("", False), ("a", False), ("b", False), ("ab", True), ("ac", True), ("bc", False), ("abc", True)],
)
def test_a_tree_of_all_and_any(new: str, fires: bool) -> None:
    tree = Trigger("all", ("a", Trigger("any", ("b", "c"))))
    assert is_satisfied(tree, new) is fires
    assert str(tree) == "a and (b or c)"


@pytest.mark.parametrize(
    ("new", "waits"),
    [("", "a and (b or c)"), ("a", "b or c"), ("b", "a"), ("bc", "a"), ("ac", None)],
)
def test_what_a_trigger_waits_for_keeps_its_structure(new: str, waits: str | None) -> None:
    spec = WorkflowSpec("w", ("mail",), Trigger("all", ("a", Trigger("any", ("b", "c")))))
    ends = {name: good(f"run:{name}") for name in new}
    told = WorkflowSlots([spec], lambda names: ends).waits_for("w", WorkflowFiring(), ends)
    assert told == ([] if waits is None else [f"a success of {waits}"])


def test_a_failure_that_a_trigger_does_not_need_is_not_reported() -> None:
    spec = WorkflowSpec("w", ("mail",), Trigger("all", ("a", Trigger("any", ("b", "c")))))
    ends = {name: LastEnd("run:1", False, "failed at noon: why") for name in "ac"} | {"b": good("run:2")}
    told = WorkflowSlots([spec], lambda names: ends).waits_for("w", WorkflowFiring(), ends)
    assert told == ["a success of a", "a failed at noon: why"]


def test_of_two_that_see_the_same_end_one_fires() -> None:
    ends = {"orders": good("run:1")}

    class Overtaken(MemorySlotStore):
        """A process that writes a firing finds that another has just written one, for more upstreams."""

        overtaken = False

        def open(
            self, wanted: Iterable[Slot], status: SlotStatus = "waiting", reason: str | None = None
        ) -> int:
            listed = list(wanted)
            if not self.overtaken and any(slot.pipeline.endswith(":firings") for slot in listed):
                self.overtaken = True
                more = {**ends, "items": good("run:2")}
                WorkflowSlots([ANY], lambda names: more).advance(self)
            return super().open(listed, status, reason)

    store = Overtaken()
    WorkflowSlots([ANY], lambda names: ends).advance(store)
    assert store.overtaken
    assert len(slots_of(store, slot_name("w"))) == 1
    firing = WorkflowSlots([ANY], lambda names: ends).firings(store)["w"]
    assert (firing.number, firing.used_ends) == (1, {"orders": ["run:1"], "items": ["run:2"]})


def test_an_end_that_shows_up_late_still_fires_and_an_old_one_that_comes_back_does_not() -> None:
    store, ends = MemorySlotStore(lambda: NOON), {"orders": good("slot:2")}
    workflows = WorkflowSlots([ANY], lambda names: ends)
    workflows.advance(store)
    ends["items"] = good("slot:1")  # it had ended before, and was not seen
    workflows.advance(store)
    assert [slot.fire_time for slot in slots_of(store, slot_name("w"))] == [
        NOON,
        NOON + dt.timedelta(microseconds=1),
    ]
    ends["orders"] = good("slot:3")
    workflows.advance(store)
    ends["orders"] = good("slot:2")  # a run that counted as dead reports its end
    workflows.advance(store)
    assert len(slots_of(store, slot_name("w"))) == 3


def test_a_job_with_its_own_schedule_loses_no_fire_to_its_workflow() -> None:
    """Own fires are searched after the newest slot: slots that a workflow opens must not hide older ones."""
    now = [NOON]
    store = MemorySlotStore(lambda: now[0])
    store.open([Slot("orders", NOON)], "succeeded")
    ends = {"items": good("run:1")}
    workflows = WorkflowSlots(
        [WorkflowSpec("w", ("orders",), Trigger("all", ("items",)))], lambda names: ends
    )
    agenda = DueCalculator([ScheduleEntry("orders", Schedule("0 * * * *"), "all")], dt.timedelta(minutes=1))
    now[0] = NOON + dt.timedelta(hours=3, minutes=30)
    found = poll_slots(store, agenda, workflows, ["orders"])
    hours = [NOON + dt.timedelta(hours=number) for number in (1, 2, 3)]
    assert [record.slot.fire_time for record in found] == [*hours, now[0]]


def test_a_fire_that_a_job_had_missed_runs_after_all_when_its_workflow_asks_for_it() -> None:
    store = MemorySlotStore(lambda: NOON)
    store.open([Slot("mail", NOON)], "skipped", MISSED)
    store.open([Slot(slot_name("w"), NOON)])
    found = poll_slots(
        store, DueCalculator([], dt.timedelta(minutes=1)), WorkflowSlots([ANY], lambda names: {}), ["mail"]
    )
    assert [record.slot for record in found] == [Slot("mail", NOON)]


def test_a_firing_whose_slot_was_not_opened_by_who_wrote_it_is_made_good() -> None:
    store = MemorySlotStore(lambda: NOON)
    store.open([Slot(slot_name("w"), NOON - HOUR)], "succeeded")
    written = Slot(slot_name("w") + ":firings", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.timezone.utc))
    store.open([written], "succeeded", WorkflowFiring(1, NOON, {"orders": ["run:1"]}).to_text())
    WorkflowSlots([ANY], lambda names: {"orders": good("run:1")}).advance(store)
    assert store.get(Slot(slot_name("w"), NOON)) is not None


def test_a_firing_whose_slot_has_been_forgotten_does_not_fire_again() -> None:
    """Of a workflow that its schedule starts often, and its trigger rarely."""
    clock = [NOON]
    store = MemorySlotStore(lambda: clock[0])
    workflows = WorkflowSlots([ANY], lambda names: {"orders": good("run:1")})
    workflows.advance(store)
    fired = Slot(slot_name("w"), NOON)
    clock[0] = NOON + HOUR
    store.open([Slot("mail", NOON), Slot("mail", NOON + HOUR)], "succeeded")
    workflows.advance(store)  # its jobs have ended, and it ends
    store.open([Slot(slot_name("w"), NOON + HOUR)], "succeeded")
    assert store.purge(NOON + HOUR) == 2
    workflows.advance(store)
    assert store.get(fired) is None


def test_a_job_that_ran_is_not_opened_again_while_its_workflow_waits_for_another() -> None:
    """As where no process here runs the other job."""
    store = MemorySlotStore(lambda: NOON)
    workflows = WorkflowSlots([WorkflowSpec("w", ("core", "elsewhere"))], lambda names: {})
    store.open([Slot(slot_name("w"), NOON)])
    workflows.open_jobs(store, NOON)
    (core,) = store.unfinished(["core"])
    claim = store.claim(core, "a", 30.0)
    assert claim is not None and store.end(claim, "succeeded")
    store.open([Slot("core", NOON + HOUR)], "succeeded")
    store.purge(NOON + HOUR)
    workflows.open_jobs(store, NOON)
    assert store.unfinished(["core"]) == []


@pytest.mark.parametrize("unfinished", [1, 7])
def test_the_jobs_of_all_workflows_that_have_not_ended_are_asked_for_together(unfinished: int) -> None:
    class Counted(MemorySlotStore):
        asked = 0

        def get_many(self, wanted: Sequence[Slot]) -> dict[Slot, SlotRecord]:
            self.asked += 1
            return super().get_many(wanted)

    store = Counted(lambda: NOON)
    specs = [WorkflowSpec("w", ("mail", "core")), WorkflowSpec("v", ("mail",))]
    workflows = WorkflowSlots(specs, lambda names: {})
    moments = [NOON - number * HOUR for number in range(unfinished)]
    store.open([Slot(slot_name(spec.name), at) for spec in specs for at in moments])
    workflows.advance(store)
    workflows.open_jobs(store, NOON)
    assert store.asked == 2
    assert len(store.unfinished(["mail"])) == len(store.unfinished(["core"])) == unfinished


class Moving:
    at = NOON

    def __call__(self) -> dt.datetime:
        return self.at


@pytest.mark.parametrize("catchup", ["none", "last", "all"])
def test_a_workflow_whose_jobs_never_end_has_so_many_slots_and_skips_the_next_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, catchup: Catchup
) -> None:
    monkeypatch.setattr(workflows_module, "MAX_UNFINISHED", 3)
    spec = WorkflowSpec("w", ("mail",), schedule="0 * * * *", catchup=catchup)
    workflows, clock = WorkflowSlots([spec], lambda names: {}), Moving()
    store = MemorySlotStore(clock)
    agenda = DueCalculator(list(workflows.scheduled()), HOUR)
    for _ in range(6):
        poll_slots(store, agenda, workflows, ["mail"])
        clock.at += HOUR
    known = [store.get(slot) for slot in slots_of(store, slot_name("w"))]
    waiting = [record for record in known if record and record.status == "waiting"]
    skipped = [record for record in known if record and record.reason == TOO_MANY_UNFINISHED]
    assert len(waiting) == 3 and len(slots_of(store, "mail")) == 3
    assert len(skipped) == (0 if catchup == "all" else 3)
    assert all(record.status == "skipped" for record in skipped)
    assert ("earlier slots of this workflow have not ended" in caplog.text) == (catchup != "all")
    for slot in slots_of(store, "mail"):  # the jobs end after all: what catchup asks for is opened now
        record = store.get(slot)
        assert record is not None
        claim = store.claim(record, "me", 60)
        assert claim is not None and store.end(claim, "succeeded")
    poll_slots(store, agenda, workflows, ["mail"])
    poll_slots(store, agenda, workflows, ["mail"])
    ended = {record.slot for record in waiting}
    now = [store.get(slot) for slot in slots_of(store, slot_name("w")) if slot not in ended]
    opened = [record for record in now if record is not None and record.status == "waiting"]
    assert len(opened) == (3 if catchup == "all" else 1)


def test_a_trigger_skips_what_is_too_many_and_uses_the_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows_module, "MAX_UNFINISHED", 2)
    clock, ends = Moving(), {"orders": good("run:0")}
    store, workflows = MemorySlotStore(clock), WorkflowSlots([ANY], lambda names: ends)
    for number in range(4):
        ends["orders"] = good(f"run:{number}")
        workflows.advance(store)
        workflows.advance(store)
        clock.at += HOUR
    known = [store.get(slot) for slot in slots_of(store, slot_name("w"))]
    assert [record.status for record in known if record] == ["waiting", "waiting", "skipped", "skipped"]
    assert known[-1] is not None and known[-1].reason == TOO_MANY_UNFINISHED
    assert workflows.firings(store)["w"].number == 4


def test_a_workflow_slot_that_a_clock_ahead_of_time_has_opened_ends_with_its_jobs() -> None:
    clock = Moving()
    store, workflows = MemorySlotStore(clock), WorkflowSlots([ANY], lambda names: {})
    clock.at += 5 * HOUR
    slot = Slot(slot_name("w"), NOON)
    store.open([slot])
    store.open([Slot("mail", NOON)], "succeeded")
    clock.at = NOON + dt.timedelta(minutes=1)
    workflows.advance(store)
    found = store.get(slot)
    assert found is not None and found.status == "succeeded"
