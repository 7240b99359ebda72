"""Reads dates and times in ISO form, as Python 3.10 and SQLite's users write them."""

from __future__ import annotations

import datetime as dt
import re

_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s*(Z|z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
EPOCH = dt.datetime(1970, 1, 1)


def parse_time(text: str) -> dt.date | None:
    """The date, or the time with or without zone, of a text; None for any other text."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    try:
        if hour is None:
            return dt.date(int(year), int(month), int(day))
        micros = int((fraction or "").ljust(6, "0")[:6])
        return dt.datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second or 0), micros, _zone(zone)
        )
    except ValueError:
        return None


def utc_time(value: dt.date) -> dt.datetime:
    """The time in UTC, without zone. A time without zone is UTC; a date is the start of its day."""
    if not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)
    if value.tzinfo is None:
        return value
    try:
        return value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    except OverflowError:
        return dt.datetime.max if value.year > 5000 else dt.datetime.min


def microseconds(value: dt.date) -> int:
    """The microseconds since 1970, in UTC."""
    return (utc_time(value) - EPOCH) // dt.timedelta(microseconds=1)


def _zone(written: str | None) -> dt.tzinfo | None:
    if written is None:
        return None
    if written in "Zz":
        return dt.timezone.utc
    digits = written[1:].replace(":", "").ljust(4, "0")
    offset = dt.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return dt.timezone(offset if written[0] == "+" else -offset)
