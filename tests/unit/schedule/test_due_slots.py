"""The slots that a poll opens: those since the newest known one, and missed ones by the catch-up policy."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_flow.schedule import due_slots as due_slots_module
from ematix_flow.schedule.due_slots import DueCalculator, DueSlots, ScheduleEntry, due_slots
from ematix_flow.schedule.slot_lifecycle import poll_slots
from ematix_flow.schedule.workflows import WorkflowSlots, slot_name
from ematix_flow.spec.pipelines import Catchup
from ematix_flow.spec.schedules import Schedule
from ematix_flow.spec.workflows import Trigger, WorkflowSpec
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.slots.memory import MemorySlotStore

UTC = dt.timezone.utc
MINUTE = dt.timedelta(minutes=1)
NOON = dt.datetime(2026, 5, 17, 12, tzinfo=UTC)


def hourly(catchup: Catchup = "last") -> ScheduleEntry:
    return ScheduleEntry("p", Schedule("0 * * * *"), catchup)


def at(hour: int, minute: int = 0) -> dt.datetime:
    return NOON.replace(hour=hour, minute=minute)


def hours(slots: tuple[Slot, ...]) -> list[int]:
    return [slot.fire_time.hour for slot in slots]


def test_a_fire_is_due_from_its_moment_on() -> None:
    assert due_slots(hourly(), at(11), at(12) - dt.timedelta(seconds=1), MINUTE) == DueSlots()
    assert hours(due_slots(hourly(), at(11), at(12), MINUTE).to_run) == [12]


def test_what_is_known_is_not_due_again() -> None:
    assert due_slots(hourly(), at(12), at(12, 30), MINUTE) == DueSlots()


@pytest.mark.parametrize(
    ("catchup", "wanted", "missed"), [("none", [], [12]), ("last", [12], []), ("all", [9, 10, 11, 12], [])]
)
def test_fires_that_nobody_saw(catchup: Catchup, wanted: list[int], missed: list[int]) -> None:
    found = due_slots(hourly(catchup), at(8), at(12, 30), MINUTE)
    assert (hours(found.to_run), hours(found.missed)) == (wanted, missed)


@pytest.mark.parametrize(("catchup", "missed"), [("none", [12]), ("last", [12]), ("all", [])])
def test_a_fire_of_now_goes_before_those_that_were_missed(catchup: Catchup, missed: list[int]) -> None:
    found = due_slots(hourly(catchup), at(8), at(13), MINUTE)
    assert hours(found.to_run)[-1] == 13
    assert hours(found.missed) == missed


def test_a_pipeline_that_never_fired_looks_back_one_interval() -> None:
    agenda = DueCalculator([hourly("all")], dt.timedelta(hours=2))
    assert hours(agenda.find_due({}, at(12, 30)).to_run) == [11, 12]


@pytest.mark.parametrize(("catchup", "wanted"), [("none", []), ("last", [12]), ("all", [12])])
def test_the_first_fire_of_a_new_pipeline_is_not_lost_when_the_next_look_is_late(
    catchup: Catchup, wanted: list[int]
) -> None:
    daily = ScheduleEntry("p", Schedule("0 12 * * *"), catchup)
    store, noticed = MemorySlotStore(), at(11, 50)
    look_at(store, DueCalculator([daily], MINUTE), noticed)
    assert store.unfinished() == []
    look_at(store, DueCalculator([daily], MINUTE), at(12, 5))
    assert hours(tuple(record.slot for record in store.unfinished())) == wanted
    (newest,) = store.newest(["p"]).values()
    assert newest.slot.fire_time == NOON


def look_at(store: MemorySlotStore, agenda: DueCalculator, now: dt.datetime) -> None:
    store._clock = lambda: now
    poll_slots(store, agenda)


def test_a_job_that_another_opens_later_does_not_hide_its_own_fire() -> None:
    """Two polls at the same time: one before noon, and one that fires a workflow just after it."""
    late = NOON + dt.timedelta(milliseconds=100)
    times = iter([NOON - dt.timedelta(milliseconds=100)])
    store = MemorySlotStore(lambda: next(times, late))
    workflows = WorkflowSlots([WorkflowSpec("after", ("p",), Trigger("any", ("q",)))], lambda names: {})
    agenda = DueCalculator([hourly()], MINUTE)
    store.open([Slot("p", at(11))], "succeeded")
    store.open([Slot(slot_name("after"), late)])
    times = iter([NOON - dt.timedelta(milliseconds=100)] * 2)  # to advance, and to see what has fired
    poll_slots(store, agenda, workflows)
    assert [record.slot.pipeline for record in store.unfinished()] == [slot_name("after")]
    poll_slots(store, agenda, workflows)
    found = [(record.slot.pipeline, record.slot.fire_time) for record in store.unfinished()]
    assert found == [("p", NOON), ("p", late), (slot_name("after"), late)]


def test_what_fires_at_the_same_times_is_computed_once_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, real = [], due_slots

    def noted(scheduled: ScheduleEntry, *rest: Any) -> DueSlots:
        computed.append(scheduled.name)
        return real(scheduled, *rest)

    monkeypatch.setattr(due_slots_module, "due_slots", noted)
    each = Schedule("0 * * * *")
    alike = [ScheduleEntry(name, each) for name in ("a", "b", "c")]
    others = [
        ScheduleEntry("none", each, "none"),
        ScheduleEntry("zone", Schedule("0 * * * *", "Asia/Kathmandu")),
    ]
    newest = {"a": at(9), "b": at(9), "c": at(11), "none": at(9), "zone": at(9)}
    found = DueCalculator([*alike, *others], MINUTE).find_due(newest, at(11, 30))
    assert computed == ["a", "c", "none", "zone"]
    assert found.to_run == (Slot("a", at(11)), Slot("b", at(11)), Slot("zone", at(11, 15)))
    assert found.missed == (Slot("none", at(11)),)


@settings(max_examples=60, deadline=None)
@given(
    catchup=st.sampled_from(["none", "last", "all"]),
    steps=st.lists(st.integers(1, 200), min_size=1, max_size=25),
)
def test_looks_at_any_time_open_each_fire_at_most_once(catchup: Catchup, steps: list[int]) -> None:
    """And with ``all``, every one."""
    scheduled = ScheduleEntry("p", Schedule("*/20 * * * *"), catchup)
    agenda, newest, now = DueCalculator([scheduled], MINUTE), {"p": at(6)}, at(6)
    opened: list[dt.datetime] = []
    for step in steps:
        now += step * MINUTE
        found = agenda.find_due(newest, now)
        slots = [slot.fire_time for slot in (*found.missed, *found.to_run)]
        assert all(newest["p"] < moment <= now for moment in slots)
        opened += slots
        if slots:
            newest = {"p": max(slots)}
    assert len(opened) == len(set(opened))
    fired = list(scheduled.schedule.fire_times(at(6), now))
    if catchup == "all":
        assert sorted(opened) == fired
    elif fired:
        assert max(opened) == fired[-1]
