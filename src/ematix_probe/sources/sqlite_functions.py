"""The functions that SQLite lacks and the compiled statements call."""

from __future__ import annotations

import re
import sqlite3
from functools import lru_cache
from typing import Any

from ematix_probe.compiling.dialects.sqlite import MATCHES, MICROSECONDS
from ematix_probe.iso_times import microseconds, parse_time

_LAST_JULIAN_DAY = 5373484.5
_EPOCH_IN_JULIAN_DAYS = 2440587.5
_DAY = 86_400_000_000


def register(connection: sqlite3.Connection) -> None:
    connection.create_function(MATCHES, 2, _matches, deterministic=True)
    connection.create_function(MICROSECONDS, 1, _microseconds, deterministic=True)


def _matches(pattern: str, value: Any) -> int | None:
    return int(_compiled(pattern).search(value) is not None) if isinstance(value, str) else None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _microseconds(value: Any) -> int | None:
    """From 1970 in UTC to what SQLite holds as a time: an ISO text, a Julian day, or seconds since 1970.

    A number is read as SQLite's modifier ``auto`` does. None for what is no time.
    """
    if isinstance(value, str):
        found = parse_time(value)
        return None if found is None else microseconds(found)
    if not isinstance(value, (int, float)):
        return None
    if 0 <= value <= _LAST_JULIAN_DAY:
        return round((value - _EPOCH_IN_JULIAN_DAYS) * _DAY)
    micros = round(value * 1_000_000) if abs(value) < 1e12 else None
    return micros
