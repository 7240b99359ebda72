"""Moments and durations as a person writes and reads them: local time, a few words."""

from __future__ import annotations

import datetime as dt
import re

from ematix_flow.errors import UsageError

_AGO = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_since(text: str, now: dt.datetime) -> dt.datetime:
    """``90m``, ``2h``, ``7d``, or a date or time in ISO 8601; without a zone it is local."""
    ago = _AGO.fullmatch(text.strip())
    if ago:
        return now - dt.timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        return dt.datetime.fromisoformat(text.strip().replace("Z", "+00:00")).astimezone()
    except ValueError:
        raise UsageError(
            f"--since {text!r} is no moment", next_step="write 90m, 2h, 7d, 2026-01-31 or 2026-01-31T08:00"
        ) from None


def parse_duration(option: str, text: str) -> dt.timedelta:
    """``90m``, ``36h``, ``7d``."""
    found = _AGO.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} {text!r} is no duration", next_step="write 90m, 36h, 7d or 2w")
    return dt.timedelta(**{_UNITS[found[2]]: int(found[1])})


def local(moment: dt.datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def zone_name() -> str:
    """The zone of the times that are shown, for a heading."""
    return dt.datetime.now().astimezone().tzname() or "local time"


def took(duration: dt.timedelta | None) -> str:
    if duration is None:
        return ""
    seconds = duration.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def until(moment: dt.datetime, now: dt.datetime) -> str:
    """``in 5 min``, ``in 3 h``, ``in 2 days``."""
    minutes = max(0, round((moment - now).total_seconds() / 60))
    if minutes < 60:
        return f"in {minutes} min"
    return f"in {round(minutes / 60)} h" if minutes < 48 * 60 else f"in {round(minutes / 1440)} days"
