"""Fire times of a schedule: five cron fields or a name, in a time zone.

A schedule names times of the wall clock. When daylight saving skips such a time, the schedule fires as much
later; when a time occurs twice, it fires the first time only. A schedule for every hour is different: it does
not fire in the skipped hour, and it fires in both hours of the same name.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import heapq
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cronsim import CronSim

UTC = dt.timezone.utc
NAMED_SCHEDULES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELD_RANGES = {  # in the order of the fields, by the names that cronsim gives them
    "minute": (0, 59),
    "hour": (0, 23),
    "day-of-month": (1, 31),
    "month": (1, 12),
    "day-of-week": (0, 7),
}
_CLOCK_CHANGE_MARGIN = dt.timedelta(
    days=2
)  # longer than any clock change, shorter than the time between two changes
_MINUTE = dt.timedelta(minutes=1)
_BLOCK, _HALF_A_DAY = dt.timedelta(minutes=15), dt.timedelta(hours=12)
_LONGEST_WAIT = dt.timedelta(days=366 * 30)  # cronsim gives up on a date that does not come within this time


class BadSchedule(ValueError):
    """A schedule is invalid; the text says why."""


@dataclass(frozen=True)
class Schedule:
    """A cron line in a time zone. All arguments and results are in UTC."""

    cron: str
    timezone: str = "UTC"

    def check(self) -> None:
        """Raise BadSchedule if the cron line or the time zone is invalid."""
        try:
            zoneinfo.ZoneInfo(self.timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise BadSchedule(f"the time zone {self.timezone!r} is not known") from error
        if self.next_fire_time(dt.datetime(2026, 1, 1, tzinfo=UTC)) is None:
            raise BadSchedule("it never fires")

    def fire_times(self, after: dt.datetime, until: dt.datetime) -> Iterator[dt.datetime]:
        """The fire times in (after, until], in order."""
        before = after
        for moment in self._candidate_fire_times(after):
            if moment > until:
                return
            if moment > before:
                yield moment
                before = moment

    def next_fire_time(self, after: dt.datetime) -> dt.datetime | None:
        """The first fire time later than ``after``; None if there is none within thirty years."""
        return _next_fire_time(self, after)

    def last_fire_time(self, until: dt.datetime, since: dt.datetime) -> dt.datetime | None:
        """The latest fire time in (since, until], found without computing all of them."""
        return _last_fire_time(self, until, since)

    @cached_property
    def _zone(self) -> zoneinfo.ZoneInfo:
        return zoneinfo.ZoneInfo(self.timezone)

    @cached_property
    def _parsed(self) -> CronSim:
        """The parsed cron line: its fields, and a template for iterators."""
        return _parse_cron(self.fields)

    @property
    def fields(self) -> str:
        """The five cron fields; a name such as ``@daily`` is replaced by its fields."""
        return NAMED_SCHEDULES.get(self.cron.strip().lower(), self.cron)

    def _wall_clock_times(self, start: dt.datetime, *, reverse: bool = False) -> CronSim:
        """The wall clock times after ``start``, or with ``reverse`` those before it, latest first."""
        found = copy.copy(self._parsed)  # a copy is faster than parsing again
        found.dt, found.tick_direction = start.replace(microsecond=0), -1 if reverse else 1
        return found

    def _to_utc(self, wall: dt.datetime) -> dt.datetime:
        """A wall clock time in UTC: the first of a repeated time; a skipped time by the earlier offset."""
        return wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)

    def _is_clear_of_clock_change(self, moment: dt.datetime) -> bool:
        """Whether no clock change happened shortly before: then wall clock order is time order."""
        then, now = (
            each.astimezone(self._zone).utcoffset() for each in (moment - _CLOCK_CHANGE_MARGIN, moment)
        )
        return then == now

    def _last_clear_of_clock_change(self, until: dt.datetime) -> dt.datetime | None:
        """The latest fire time by one step back on the wall clock; None near a clock change."""
        if len(self._parsed.hours) == 24 or not self._is_clear_of_clock_change(until):
            return None
        local = until.astimezone(self._zone).replace(tzinfo=None, second=0)
        wall = next(self._wall_clock_times(local + _MINUTE, reverse=True), None)
        moment = None if wall is None else self._to_utc(wall)
        return moment if moment is not None and self._is_clear_of_clock_change(moment) else None

    def _candidate_fire_times(self, after: dt.datetime) -> Iterator[dt.datetime]:
        """All fire times from shortly before ``after`` on, in order; a time may be repeated."""
        if len(self._parsed.hours) == 24:
            yield from self._hourly_fire_times(self._parsed, after)
            return
        local = after.astimezone(self._zone).replace(tzinfo=None)
        waiting: list[dt.datetime] = []
        for wall in self._wall_clock_times(
            local if self._is_clear_of_clock_change(after) else local - _CLOCK_CHANGE_MARGIN
        ):
            moment = self._to_utc(wall)
            heapq.heappush(waiting, moment)
            sure = moment if self._is_clear_of_clock_change(moment) else moment - _CLOCK_CHANGE_MARGIN
            while waiting and waiting[0] <= sure:
                yield heapq.heappop(waiting)
        yield from sorted(waiting)

    def _hourly_fire_times(self, cron: CronSim, after: dt.datetime) -> Iterator[dt.datetime]:
        """The fire times of a schedule for every hour: each time the clock shows one of the minutes."""
        block = after.replace(minute=after.minute // 15 * 15, second=0, microsecond=0)
        while True:  # clocks change at a quarter of an hour only
            local = block.astimezone(self._zone)
            if local.month in cron.months and cron.match_day(local.date()):
                yield from (
                    block + dt.timedelta(minutes=n)
                    for n in range(15)
                    if (local.minute + n) % 60 in cron.minutes
                )
                block += _BLOCK
            else:
                ahead = (local + _HALF_A_DAY).date()
                waits = ahead.month not in cron.months or not cron.match_day(ahead)
                block += _HALF_A_DAY if waits else _BLOCK


@functools.lru_cache(maxsize=4096)
def _parse_cron(fields: str) -> CronSim:
    from cronsim import CronSim, CronSimError

    if len(fields.split()) != 5:
        raise BadSchedule(
            "a schedule has five fields (minute hour day month weekday) or is one of "
            + " ".join(NAMED_SCHEDULES)
        )
    try:
        return CronSim(fields, dt.datetime(2026, 1, 1))
    except (CronSimError, AttributeError, TypeError) as error:
        raise BadSchedule(_field_error_text(fields, str(error))) from error


def _field_error_text(fields: str, message: str) -> str:
    """Name the field, its value and the allowed range. ``message`` is cronsim's, such as ``Bad hour``."""
    name = message.removeprefix("Bad ")
    if name not in _FIELD_RANGES:
        return message
    value = fields.split()[list(_FIELD_RANGES).index(name)]
    lowest, highest = _FIELD_RANGES[name]
    numbers = re.findall(r"(?<![/#\d])\d+", value)
    outside = next((number for number in numbers if not lowest <= int(number) <= highest), None)
    if outside is not None:
        return f"{name} {outside} is not in {lowest} to {highest}"
    if re.search(r"/0+(,|$)", value):
        return f"{name} {value} has the step 0; the smallest step is 1"
    if name == "day-of-month" and value.replace(",", "").isdigit():
        return f"the month has no day {value}"
    return f"{name} {value} is not valid; {name} takes numbers from {lowest} to {highest}"


@functools.lru_cache(maxsize=4096)
def _next_fire_time(schedule: Schedule, after: dt.datetime) -> dt.datetime | None:
    """Cached, because many pipelines share a schedule and are checked at the same time."""
    return next(schedule.fire_times(after, after + _LONGEST_WAIT), None)


@functools.lru_cache(maxsize=4096)
def _last_fire_time(schedule: Schedule, until: dt.datetime, since: dt.datetime) -> dt.datetime | None:
    newest = schedule._last_clear_of_clock_change(until)
    if newest is not None:
        return newest if newest > since else None
    reach = dt.timedelta(hours=1)
    while True:
        start = max(since, until - reach)
        newest = max(schedule.fire_times(start, until), default=None)
        if newest is not None or start == since:
            return newest
        reach *= 4
