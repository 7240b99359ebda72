"""How figures, ranges and times read in messages."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

_MOST_VALUES = 5
_MOST_LETTERS = 60
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_LAST_SECOND = 253_402_300_799  # of the year 9999


def count(value: int) -> str:
    return f"{value:,}"


def share_of_rows(some: int, every: int) -> str:
    """``2 of 1,000 rows``."""
    return f"{some:,} of {every:,} {'row' if every == 1 else 'rows'}"


def figure(value: Any) -> str:
    """A measured value: whole numbers with thousands separators, others as Python shows them."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Decimal):
        return f"{value:,f}" if value.is_finite() and abs(value.adjusted()) < 40 else str(value)
    if isinstance(value, float):
        if math.isfinite(value) and value.is_integer() and abs(value) < 1e15:
            return f"{value:,.0f}"
        return repr(value)
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat(" ") if isinstance(value, dt.datetime) else value.isoformat()
    return literal(value)


def literal(value: Any) -> str:
    """A declared value, texts in quotes and not too long."""
    if isinstance(value, str):
        shown = value if len(value) <= _MOST_LETTERS else value[: _MOST_LETTERS - 1] + "…"
        return repr(shown)
    return figure(value)


def value_range(low: Any, high: Any) -> str:
    """``0 … 100``, ``at least 0`` or ``at most 100``."""
    if low is None:
        return f"at most {literal(high)}"
    if high is None:
        return f"at least {literal(low)}"
    return f"{literal(low)} … {literal(high)}"


def outside_of(low: Any, high: Any) -> str:
    if low is None:
        return f"not at most {literal(high)}"
    if high is None:
        return f"not at least {literal(low)}"
    return f"outside of {literal(low)} … {literal(high)}"


def percent(share: float) -> str:
    """``2.5 %``. What is not quite nothing or all is never shown as 0 or 100."""
    rounded = round(share * 100, 2)
    if share > 0 and rounded == 0:
        return "under 0.01 %"
    if share < 1 and rounded == 100:
        return "over 99.99 %"
    return f"{rounded:g} %"


def listed(values: Sequence[Any]) -> str:
    shown = ", ".join(literal(value) for value in values[:_MOST_VALUES])
    more = len(values) - _MOST_VALUES
    return f"{shown} and {more} more" if more > 0 else shown


def time_text(microseconds: float) -> str:
    """The time in UTC of the microseconds since 1970, also beyond the years that Python knows."""
    seconds = microseconds / 1e6
    if math.isinf(microseconds) or abs(microseconds) >= 2**63 - 1:
        return "infinity" if microseconds > 0 else "-infinity"
    if seconds > _LAST_SECOND or seconds < -62_135_596_800:
        return "a time after the year 9999" if seconds > 0 else "a time before the year 1"
    time = _EPOCH + dt.timedelta(microseconds=int(microseconds))
    return time.replace(tzinfo=None).isoformat(" ") + "Z"
