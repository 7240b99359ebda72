"""Parses durations such as ``90m``, ``36h`` and ``7d``."""

from __future__ import annotations

import datetime as dt
import re

from ematix_flow.errors import UsageError

_DURATION = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def try_parse_duration(text: str) -> dt.timedelta | None:
    """The duration, or None if the text is not a duration or too long."""
    found = _DURATION.fullmatch(text.strip())
    try:
        return dt.timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None
    except (OverflowError, ValueError):
        return None


def parse_duration(option: str, text: str) -> dt.timedelta:
    found = try_parse_duration(text)
    if found is None:
        raise UsageError(f"{option} {text!r} is not a duration", next_step="write 90m, 36h, 7d or 2w")
    return found
