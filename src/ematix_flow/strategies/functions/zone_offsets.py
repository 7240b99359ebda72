"""A time zone as a table of offsets, for an engine whose own zones may be missing."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable
from functools import lru_cache

EPOCH = dt.datetime(1, 1, 1)
LAST_YEAR = 2200  # the table ends here, although daylight saving rules continue
_FIRST = dt.datetime(1800, 1, 1)
_STEP = dt.timedelta(days=5)


@lru_cache(maxsize=32)
def utc_offsets(zone: str) -> tuple[tuple[int, int], ...]:
    """Pairs in order: from this second since the epoch (UTC), local time is ahead by so many seconds."""
    info = zoneinfo.ZoneInfo(zone)

    def ahead(moment: dt.datetime) -> int:
        local = moment.replace(tzinfo=dt.timezone.utc).astimezone(info).utcoffset()
        assert local is not None
        return int(local.total_seconds())

    found = [(0, ahead(_FIRST))]
    moment = _FIRST
    while moment.year < LAST_YEAR:
        following = moment + _STEP
        if ahead(following) != found[-1][1]:
            found.append(_change(moment, following, ahead))
        moment = following
    return tuple(found)


def _change(low: dt.datetime, high: dt.datetime, ahead: Callable[[dt.datetime], int]) -> tuple[int, int]:
    """The one change of the offset between two times."""
    first, last = 0, int((high - low).total_seconds())
    before = ahead(low)
    while last - first > 1:
        middle = (first + last) // 2
        if ahead(low + dt.timedelta(seconds=middle)) == before:
            first = middle
        else:
            last = middle
    change = low + dt.timedelta(seconds=last)
    return int((change - EPOCH).total_seconds()), ahead(change)
