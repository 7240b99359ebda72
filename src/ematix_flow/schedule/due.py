"""Which slots are due: those that a schedule has fired since the newest one that is known.

What to do with fires that nobody saw (the machine was off, the scheduler down) is the catch-up policy:
``none`` lets them be, ``last`` runs the newest, ``all`` runs every one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ematix_flow.spec.pipelines import Catchup
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.slots.base import Slot, SlotRecord

MISSED = "missed, and catchup does not ask for it"
BEFORE_FIRST_POLL = "fired before its schedule was first looked at"
_LONGEST_GAP = dt.timedelta(days=366 * 8)  # 29 February comes at least so often
MAX_SLOTS_PER_POLL = 1_000  # slots of one pipeline that one look opens; the next look goes on


@dataclass(frozen=True)
class ScheduleEntry:
    """A pipeline or workflow with a schedule."""

    name: str
    schedule: Schedule
    catchup: Catchup = "last"


@dataclass(frozen=True)
class DueSlots:
    """What one look found: slots to run, and slots that are let be.

    ``before`` are the last fires of what has none yet: from them on none is lost, however late the next look.
    """

    to_run: tuple[Slot, ...] = ()
    missed: tuple[Slot, ...] = ()
    before_first_poll: tuple[Slot, ...] = ()


def is_missed(record: SlotRecord) -> bool:
    """Whether it was let be, rather than held back by what it depends on."""
    return record.status == "skipped" and record.reason in (MISSED, BEFORE_FIRST_POLL)


def is_before_first_poll(record: SlotRecord) -> bool:
    """Whether it only marks from when on fires count."""
    return record.status == "skipped" and record.reason == BEFORE_FIRST_POLL


class DueCalculator:
    """All that has a schedule. Between two fires of one nothing is computed for it.

    Many fire at the same times: what one look computes for one of them holds for the others.

    What never fired looks back for an ``interval``. A fire is missed when it is older than ``late``, which is
    the same unless told.
    """

    def __init__(
        self, scheduled: Sequence[ScheduleEntry], interval: dt.timedelta, late: dt.timedelta | None = None
    ) -> None:
        self.entries = {each.name: each for each in scheduled}
        self.interval, self.late = interval, late or interval
        self._quiet: dict[str, tuple[dt.datetime, dt.datetime]] = {}  # from a moment to the next fire

    def find_due(self, newest: Mapping[str, dt.datetime], now: dt.datetime) -> DueSlots:
        """What has fired since the newest slot that is known of each."""
        wanted: list[Slot] = []
        missed: list[Slot] = []
        before: list[Slot] = []
        same: dict[tuple[Schedule, Catchup, dt.datetime], DueSlots] = {}
        for name, scheduled in self.entries.items():
            since = newest.get(name, now - self.interval)
            quiet = self._quiet.get(name)
            if quiet is not None and quiet[0] <= since and now < quiet[1]:
                continue
            alike = (scheduled.schedule, scheduled.catchup, since)
            if alike not in same:
                same[alike] = due_slots(scheduled, since, now, self.late)
            found = same[alike]
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
    """Fires later than ``since``, which is the newest that is known, or for a beginner an interval ago.

    A fire is missed when it is older than ``late`` and not the newest one that the policy keeps. What
    is missed is opened as ended, so that it is seen once.
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
