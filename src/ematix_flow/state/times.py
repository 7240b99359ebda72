"""Times in UTC: the current time, a check for a time zone, and the text form."""

from __future__ import annotations

import datetime as dt


def utc_now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)


def aware_utc(name: str, moment: dt.datetime) -> dt.datetime:
    """Return the time in UTC. Raises ValueError for a time without a time zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{name} has no time zone: {moment.isoformat()}")
    return moment.astimezone(dt.timezone.utc)


def format_utc(moment: dt.datetime, *, seconds: bool = False) -> str:
    form = "%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M"
    return f"{moment.astimezone(dt.timezone.utc):{form}} UTC"
