"""Reads durations: ``"90s"``, ``"15m"``, ``"6h"``, ``"2d"``, a number of seconds or a timedelta."""

from __future__ import annotations

import datetime as dt
import math
import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPEC = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")

Duration = str | int | float | dt.timedelta


def parse_duration(spec: Duration) -> float:
    """The duration in seconds; ValueError for anything that is not one."""
    if isinstance(spec, dt.timedelta):
        seconds = spec.total_seconds()
    elif isinstance(spec, (int, float)) and not isinstance(spec, bool):
        seconds = float(spec)
    elif isinstance(spec, str) and (found := _SPEC.fullmatch(spec)):
        seconds = float(found[1]) * _UNITS[found[2]]
    else:
        raise ValueError(f'{spec!r} is not a duration: write "90s", "15m", "6h" or "2d"')
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{spec!r} is not a duration: it must be a finite number that is not negative")
    return seconds


def format_duration(seconds: float) -> str:
    """``90`` as ``1m 30s``: the two largest units. ``2.5`` stays ``2.5s``, and a little is not 0."""
    if 0 < seconds < 0.001:
        return "under 1ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{round(seconds, 1):g}s"
    rest, parts = round(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if rest >= size:
            parts.append(f"{rest // size}{unit}")
            rest %= size
    return " ".join(parts[:2])
