"""While a schedule is paused nothing of it starts; then it fires by its catch-up policy."""

from __future__ import annotations

import datetime as dt

import pytest

from ematix_flow.schedule.due_slots import BEFORE_FIRST_POLL, MISSED, DueCalculator, ScheduleEntry
from ematix_flow.schedule.slot_lifecycle import poll_slots
from ematix_flow.spec.pipelines import Catchup
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.slots.memory import MemorySlotStore

NOON = dt.datetime(2026, 3, 29, 12, tzinfo=dt.timezone.utc)
MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)


class Hours:
    """A pipeline that fires each hour, another one next to it, and a clock that is set."""

    def __init__(self, catchup: Catchup = "last") -> None:
        self.at = NOON + MINUTE
        self.store = MemorySlotStore(lambda: self.at)
        entries = [ScheduleEntry(name, Schedule("0 * * * *", "UTC"), catchup) for name in ("held", "free")]
        self.agenda = DueCalculator(entries, MINUTE)

    def poll(self, *paused: str) -> list[Slot]:
        return [record.slot for record in poll_slots(self.store, self.agenda, paused=paused)]

    def hours(self, name: str) -> list[int]:
        """The hours of the slots that wait."""
        return [
            (record.slot.fire_time - NOON) // HOUR
            for record in self.store.unfinished([name])
            if record.status == "waiting"
        ]


def test_a_paused_schedule_opens_no_slot_and_others_go_on() -> None:
    hours = Hours()
    hours.store.open([Slot(name, NOON) for name in ("held", "free")], "succeeded")
    for passed in range(1, 4):
        hours.at = NOON + passed * HOUR
        hours.poll("held")
    assert (hours.hours("held"), hours.hours("free")) == ([], [1, 2, 3])


@pytest.mark.parametrize(("catchup", "fired"), [("none", [5]), ("last", [5]), ("all", [1, 2, 3, 4, 5])])
def test_what_was_due_fires_by_the_catch_up_policy_when_it_is_resumed(
    catchup: Catchup, fired: list[int]
) -> None:
    hours = Hours(catchup)
    hours.store.open([Slot("held", NOON)], "succeeded")
    for passed in range(1, 5):
        hours.at = NOON + passed * HOUR + MINUTE / 2
        assert hours.poll("held", "free") == []
    hours.at = NOON + 5 * HOUR + MINUTE / 2  # also for the policy none, this fire is not late
    hours.poll()
    assert hours.hours("held") == fired


def test_a_late_fire_is_missed_when_it_is_resumed_and_catchup_does_not_ask_for_it() -> None:
    hours = Hours("none")
    hours.store.open([Slot("held", NOON)], "succeeded")
    hours.at = NOON + 5 * HOUR + 30 * MINUTE
    assert hours.poll("held") == []
    hours.poll()
    newest = hours.store.newest(["held"])["held"]
    assert hours.hours("held") == [] and newest.reason == MISSED


def test_a_slot_that_was_open_already_waits_until_it_is_resumed() -> None:
    hours = Hours()
    slot = Slot("held", NOON)
    hours.store.open([slot])
    assert hours.poll("held") == []
    seen = hours.store.get(slot)
    assert seen is not None and hours.store.claim(seen, "vm", 1) is not None
    hours.at += MINUTE  # its run died, and its claim has expired
    assert hours.poll("held") == []
    assert hours.poll() == [slot]


def test_a_schedule_that_is_paused_before_it_was_ever_polled_loses_no_fire() -> None:
    hours = Hours("all")
    hours.poll("held")
    first = hours.store.newest(["held"])["held"]
    assert (first.reason, first.slot.fire_time) == (BEFORE_FIRST_POLL, NOON)
    hours.at = NOON + 2 * HOUR
    assert hours.poll("held", "free") == []
    hours.poll()
    assert hours.hours("held") == [1, 2]
