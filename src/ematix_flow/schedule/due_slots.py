"""Finds due slots: the fires of a schedule since its newest known slot.

The catch-up policy decides about fires that no scheduler saw (the machine was off, the scheduler was down):
``none`` ignores them, ``last`` runs the newest, ``all`` runs every one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ematix_flow.spec.pipelines import Catchup
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.slots.base import Slot, SlotRecord

MISSED = "missed, and catchup does not ask for it"
BEFORE_FIRST_POLL = "fired before its schedule was first looked at"
_LONGEST_GAP = dt.timedelta(days=366 * 8)  # 29 February comes at least this often
MAX_SLOTS_PER_POLL = 1_000  # of one pipeline; the next poll opens more


@dataclass(frozen=True)
class ScheduleEntry:
    """A pipeline or workflow with a schedule."""

    name: str
    schedule: Schedule
    catchup: Catchup = "last"


@dataclass(frozen=True)
class DueSlots:
    """What one poll found: slots to run, and missed slots that do not run.

    ``before_first_poll`` are the last fires of entries without any slot: from these on no fire is lost,
    however late the next poll is.
    """

    to_run: tuple[Slot, ...] = ()
    missed: tuple[Slot, ...] = ()
    before_first_poll: tuple[Slot, ...] = ()

    def without(self, paused: Collection[str]) -> DueSlots:
        """Return what is left while these schedules are paused: they only mark from when fires count."""
        return DueSlots(
            tuple(slot for slot in self.to_run if slot.pipeline not in paused),
            tuple(slot for slot in self.missed if slot.pipeline not in paused),
            self.before_first_poll,
        )


def is_missed(record: SlotRecord) -> bool:
    """Whether the slot was missed, rather than skipped because of its upstreams."""
    return record.status == "skipped" and record.reason in (MISSED, BEFORE_FIRST_POLL)


def is_before_first_poll(record: SlotRecord) -> bool:
    """Whether the slot only marks the time from which fires count."""
    return record.status == "skipped" and record.reason == BEFORE_FIRST_POLL


class DueCalculator:
    """Finds the due slots of all entries with a schedule. Between two fires of an entry it computes nothing.

    Many entries fire at the same times: what is computed for one of them is reused for the others.

    An entry that never fired looks back one ``interval``. A fire is missed when it is older than ``late``,
    which is the ``interval`` by default.
    """

    def __init__(
        self, scheduled: Sequence[ScheduleEntry], interval: dt.timedelta, late: dt.timedelta | None = None
    ) -> None:
        self.entries = {each.name: each for each in scheduled}
        self.interval, self.late = interval, late or interval
        self._quiet: dict[str, tuple[dt.datetime, dt.datetime]] = {}  # from a time until the next fire

    def find_due(self, newest: Mapping[str, dt.datetime], now: dt.datetime) -> DueSlots:
        """Return the fires of each entry since its newest known slot."""
        wanted: list[Slot] = []
        missed: list[Slot] = []
        before: list[Slot] = []
        same: dict[tuple[Schedule, Catchup, dt.datetime], DueSlots] = {}
        for name, scheduled in self.entries.items():
            since = newest.get(name, now - self.interval)
            quiet = self._quiet.get(name)
            if quiet is not None and quiet[0] <= since and now < quiet[1]:
                continue
            key = (scheduled.schedule, scheduled.catchup, since)
            if key not in same:
                same[key] = due_slots(scheduled, since, now, self.late)
            found = same[key]
            wanted += (Slot(name, slot.fire_time) for slot in found.to_run)
            missed += (Slot(name, slot.fire_time) for slot in found.missed)
            if name not in newest and not found.to_run:
                last = scheduled.schedule.last_fire_time(since, since - _LONGEST_GAP)
                before += [] if last is None else [Slot(name, last)]
            elif not found.to_run and not found.missed:
                after = scheduled.schedule.next_fire_time(now)
                self._quiet[name] = (since, after or now + dt.timedelta(days=365))
        return DueSlots(tuple(wanted), tuple(missed), tuple(before))


def due_slots(scheduled: ScheduleEntry, since: dt.datetime, now: dt.datetime, late: dt.timedelta) -> DueSlots:
    """Return fires later than ``since``: the newest known fire, or one interval ago for a new entry.

    A fire is missed when it is older than ``late`` and the policy does not keep it as the newest one. A
    missed slot is opened as ended, so that it is reported once.
    """
    if scheduled.catchup == "all":
        return DueSlots(tuple(_slots_between(scheduled, since, now)))
    recent = max(since, now - late)
    wanted = tuple(_slots_between(scheduled, recent, now))
    last = scheduled.schedule.last_fire_time(recent, since)
    if last is None:
        return DueSlots(wanted)
    missed = Slot(scheduled.name, last)
    if scheduled.catchup == "last" and not wanted:
        return DueSlots((missed,))
    return DueSlots(wanted, (missed,))


def _slots_between(scheduled: ScheduleEntry, after: dt.datetime, until: dt.datetime) -> Iterator[Slot]:
    fires = scheduled.schedule.fire_times(after, until)
    return (Slot(scheduled.name, at) for at in islice(fires, MAX_SLOTS_PER_POLL))
