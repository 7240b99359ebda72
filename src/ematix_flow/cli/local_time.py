"""Parses and formats times and durations for a person, in local time."""

from __future__ import annotations

import datetime as dt
import re

from ematix_flow.errors import UsageError
from ematix_flow.spec.durations import try_parse_duration

_LINE_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)Z(?= )")


def parse_since(text: str, now: dt.datetime) -> dt.datetime:
    """Parse ``90m``, ``2h``, ``7d``, or a date or time in ISO 8601; without a zone it is local time."""
    ago = try_parse_duration(text)
    if ago is not None:
        return now - ago
    try:
        return dt.datetime.fromisoformat(text.strip().replace("Z", "+00:00")).astimezone()
    except ValueError:
        raise UsageError(
            f"--since {text!r} is not a time", next_step="write 90m, 2h, 7d, 2026-01-31 or 2026-01-31T08:00"
        ) from None


def format_local_time(moment: dt.datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def localize_line(line: str) -> str:
    """A line of a run's log with its time converted from UTC to local time."""
    found = _LINE_TIME.match(line)
    if found is None:
        return line
    moment = dt.datetime.fromisoformat(f"{found[1]}+00:00").astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S} {moment.tzname()}{line[found.end() :]}"


def local_zone_name() -> str:
    """The name of the local time zone, for a heading."""
    return dt.datetime.now().astimezone().tzname() or "local time"


def format_duration(duration: dt.timedelta | None) -> str:
    if duration is None:
        return ""
    seconds = duration.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_time_until(moment: dt.datetime, now: dt.datetime) -> str:
    """``in 5 min``, ``in 3 h``, ``in 2 days``."""
    minutes = max(0, round((moment - now).total_seconds() / 60))
    if minutes < 60:
        return f"in {minutes} min"
    return f"in {round(minutes / 60)} h" if minutes < 48 * 60 else f"in {round(minutes / 1440)} days"
