"""What each catch-up policy promises, computed from the times of the polls, without the code that polls.

A pipeline is known after the first complete poll. Of the later fires,

- ``all`` runs every one;
- ``last`` runs those that are the newest at a poll or are seen in time;
- ``none`` runs those that are seen in time, and not those that every poll sees too late.

A fire is seen in time when the poll that sees it ends within the interval, and no earlier poll was too late.
"""

from __future__ import annotations

import bisect
import datetime as dt
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from ematix_flow.graph.registry import Registry
from ematix_flow.schedule.due_slots import is_missed
from ematix_flow.schedule.workflows import slot_name
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.slots.base import Slot, SlotStore

_AROUND = dt.datetime(2026, 3, 29, tzinfo=dt.timezone.utc)
_NEVER = dt.datetime(9999, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(frozen=True)
class KnownSchedule(Schedule):
    """The fires of a schedule, computed once for all simulations; the tests use them as given."""

    end: dt.datetime = _NEVER

    def fire_times(self, after: dt.datetime, until: dt.datetime) -> Iterator[dt.datetime]:
        known = _all_fires(self.cron, self.timezone)
        until = min(until, self.end)
        return takewhile(lambda at: at <= until, islice(known, bisect.bisect_right(known, after), None))


@functools.cache
def _all_fires(cron: str, timezone: str) -> list[dt.datetime]:
    day = dt.timedelta(days=1)
    return list(Schedule(cron, timezone).fire_times(_AROUND - day, _AROUND + day))


@dataclass
class Look:
    """One poll, by the store's clock, which may jump; ``order`` numbers all starts and ends of polls."""

    began: dt.datetime
    order: int
    latest: dt.datetime | None = None  # that the clock may have shown; None while it continues
    ended: int = 0  # in that order
    is_complete: bool = False


class CatchUp:
    """Records every poll; all schedulers know all pipelines."""

    def __init__(self, registry: Registry, interval: dt.timedelta, until: dt.datetime) -> None:
        self._interval, self._until = interval, until
        own = [(each.spec.name, each.spec) for each in registry.pipelines.values()]
        started = [(slot_name(name), spec) for name, spec in registry.workflows.items()]
        self._scheduled = [(name, spec) for name, spec in [*own, *started] if spec.schedule]
        self._jobs = {job for spec in registry.workflows.values() for job in spec.jobs}
        self.looks: list[Look] = []
        self._order = 0

    def begins(self, now: dt.datetime) -> Look:
        self._order += 1
        look = Look(now, self._order)
        self.looks.append(look)
        return look

    def ends(self, look: Look, latest: dt.datetime, is_complete: bool) -> None:
        self._order += 1
        look.latest, look.ended, look.is_complete = max(look.began, latest), self._order, is_complete

    def broken(self, store: SlotStore) -> Iterator[str]:
        complete = sorted((look for look in self.looks if look.is_complete), key=lambda look: look.ended)
        known = min((look.latest for look in complete), default=self._until)
        for name, spec in self._scheduled:
            moments = _all_fires(spec.schedule or "", spec.timezone or "UTC")
            fires = [at for at in moments if known < at <= self._until]
            for at in fires:
                record = store.get(Slot(name, at))
                is_run = record is not None and not is_missed(record)
                decided = next((look for look in complete if look.began >= at), None)
                assert decided is not None, f"no poll since {at}"
                wanted = self._is_wanted(spec.catchup, at, fires, decided)
                if wanted is not None and wanted != is_run and not (is_run and name in self._jobs):
                    word = "was run" if is_run else "was lost"
                    yield f"{name} of {at:%H:%M}, which has catchup {spec.catchup!r}, {word}"

    def _is_wanted(
        self, catchup: str, at: dt.datetime, fires: list[dt.datetime], decided: Look
    ) -> bool | None:
        """None if both are allowed, because a poll was interrupted or took long."""
        if catchup == "all":
            return True
        before = [look for look in self.looks if look.order < decided.ended]
        moments = [look.latest or self._until for look in before]
        last = max(moments)
        newest = max(fire for fire in fires if fire <= last)
        if last - at < self._interval or (catchup == "last" and newest == at):
            return True
        late = (look.began - at > self._interval for look in self.looks if (look.latest or last) >= at)
        return False if catchup == "none" and all(late) else None
