"""Python functions that SQL compiled for SQLite calls, and their registration.

All are deterministic and return NULL for NULL. Dates and times are stored as ISO text: ``2024-01-02``,
``2024-01-02 03:04:05.678000``, and a point in time has ``+00:00`` after it.
"""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
import zoneinfo
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from functools import lru_cache
from typing import Any

from ematix_flow.spec.types import INTEGER_BITS

Stored = str | int | float | bytes | None

_ISO = re.compile(
    r"\s*(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6})\d*)?)?\s*(Z|[+-]\d{2}(?::?\d{2})?)?)?\s*",
    re.ASCII | re.IGNORECASE,
)
_UTC = dt.timezone.utc


def register(connection: sqlite3.Connection) -> None:
    """Put the functions on a connection; without them compiled SQL fails with "no such function"."""
    for name, (arguments, function) in _FUNCTIONS.items():
        connection.create_function(name, arguments, function, deterministic=True)


# --- text ------------------------------------------------------------------------------------------


def _lower(value: Stored) -> str | None:
    """Lower case character by character. A letter whose lower case has two letters stays."""
    return None if value is None else "".join(low if len(low := c.lower()) == 1 else c for c in str(value))


def _upper(value: Stored) -> str | None:
    return None if value is None else "".join(up if len(up := c.upper()) == 1 else c for c in str(value))


@lru_cache(maxsize=512)
def _compiled(pattern: str, flags: int) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | flags)


def _matches(value: Stored, pattern: str) -> int | None:
    return None if value is None else int(_compiled(pattern, 0).search(str(value)) is not None)


def _regex_replace(value: Stored, pattern: str, replacement: str, flags: str) -> str | None:
    if value is None:
        return None
    found = _compiled(pattern, re.IGNORECASE if "i" in flags else 0)
    return found.sub(replacement, str(value), count=0 if "g" in flags else 1)


# --- dates and times -------------------------------------------------------------------------------


def read_iso(value: str) -> dt.datetime | None:
    """The timestamp, with a zone if the text has one; None if it is not ISO 8601."""
    found = _ISO.fullmatch(value)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    try:
        moment = dt.datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "0").ljust(6, "0")),
        )
        if zone is None:
            return moment
        if zone in "Zz":
            return moment.replace(tzinfo=_UTC)
        shift = dt.timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]) if len(zone) > 3 else 0)
        return (moment - shift if zone[0] == "+" else moment + shift).replace(tzinfo=_UTC)
    except (ValueError, OverflowError):
        return None


def _temporal(value: Stored, kind: str) -> Stored:
    """ISO text in the canonical form of its kind; other text is unchanged."""
    moment = read_iso(value) if isinstance(value, str) else None
    if moment is None:
        return value
    if kind == "date":
        return moment.date().isoformat()
    return moment.replace(tzinfo=_UTC if kind == "timestamp_tz" else None).isoformat(" ", "microseconds")


def _local(value: Stored, zone: str) -> str | None:
    moment = read_iso(value) if isinstance(value, str) else None
    if moment is None:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=_UTC)
    return aware.astimezone(zoneinfo.ZoneInfo(zone)).replace(tzinfo=None).isoformat(" ", "microseconds")


def _start_of(unit: str, value: Stored) -> str | None:
    moment = read_iso(value) if isinstance(value, str) else None
    if moment is None:
        return None
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    starts = {
        "second": moment.replace(microsecond=0),
        "minute": moment.replace(second=0, microsecond=0),
        "hour": moment.replace(minute=0, second=0, microsecond=0),
        "day": day,
        "week": day - dt.timedelta(days=day.weekday()),
        "month": day.replace(day=1),
        "quarter": day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1),
        "year": day.replace(month=1, day=1),
    }
    return starts[unit].isoformat(" ", "microseconds")


# --- numbers ---------------------------------------------------------------------------------------


def _decimal(value: Stored) -> Decimal | None:
    try:
        number = Decimal(repr(value) if isinstance(value, float) else str(value).strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _round(value: Stored, digits: int) -> Stored:
    """Round half away from zero, in the form of the value."""
    number = None if value is None else _decimal(value)
    if number is None:
        return None
    with localcontext() as context:
        context.prec = 400
        rounded = number.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
        plain = format(rounded.quantize(Decimal(1)) if digits < 0 else rounded, "f")
    if isinstance(value, int):
        return int(Decimal(plain))
    return float(plain) if isinstance(value, float) else plain


def _compare(left: Stored, right: Stored) -> int | None:
    """-1, 0 or 1: compared as numbers if both are numbers, otherwise as texts."""
    if left is None or right is None:
        return None
    first, second = _decimal(left), _decimal(right)
    if first is not None and second is not None:
        return (first > second) - (first < second)
    return (str(left) > str(right)) - (str(left) < str(right))


# --- casts -----------------------------------------------------------------------------------------


def _cast(value: Stored, kind: str, precision: int, scale: int) -> Stored:
    return None if value is None else _CASTS.get(kind, _unchanged)(value, kind, precision, scale)


def _find_complaint(value: Stored, kind: str, precision: int, scale: int) -> str | None:
    """Why a value is not of the kind; None if it is."""
    try:
        _cast(value, kind, precision, scale)
    except (ValueError, ArithmeticError):
        shown = str(value)
        return f"'{shown if len(shown) <= 80 else shown[:79] + '…'}' does not fit {kind}"
    return None


def _cast_integer(value: Stored, kind: str, precision: int, scale: int) -> int:
    number = _decimal(value)
    bits = INTEGER_BITS[kind]
    if (
        number is None
        or number != number.to_integral_value()
        or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)
    ):
        raise ValueError(value)
    return int(number)


def _cast_numeric(value: Stored, kind: str, precision: int, scale: int) -> str:
    number = _decimal(value)
    if number is None:
        raise ValueError(value)
    with localcontext() as context:
        context.prec = 400
        rounded = number.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)
        if abs(rounded) >= Decimal(10) ** (precision - scale):
            raise ValueError(value)
        return format(rounded, "f")


def _cast_float(value: Stored, kind: str, precision: int, scale: int) -> float:
    return float(value.strip() if isinstance(value, str) else value)  # type: ignore[arg-type]


def _cast_boolean(value: Stored, kind: str, precision: int, scale: int) -> int:
    if value not in (0, 1):
        raise ValueError(value)
    return int(value)


def _cast_temporal(value: Stored, kind: str, precision: int, scale: int) -> Stored:
    if not isinstance(value, str) or read_iso(value) is None:
        raise ValueError(value)
    return _temporal(value, kind)


def _unchanged(value: Stored, kind: str, precision: int, scale: int) -> Stored:
    return value


_CASTS: dict[str, Callable[[Stored, str, int, int], Stored]] = {
    **dict.fromkeys(INTEGER_BITS, _cast_integer),
    **dict.fromkeys(("float", "double"), _cast_float),
    **dict.fromkeys(("date", "timestamp", "timestamp_tz"), _cast_temporal),
    "numeric": _cast_numeric,
    "boolean": _cast_boolean,
}

_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "ematix_lower": (1, _lower),
    "ematix_upper": (1, _upper),
    "ematix_matches": (2, _matches),
    "ematix_regex_replace": (4, _regex_replace),
    "ematix_temporal": (2, _temporal),
    "ematix_local": (2, _local),
    "ematix_start_of": (2, _start_of),
    "ematix_round": (2, _round),
    "ematix_compare": (2, _compare),
    "ematix_cast": (4, _cast),
    "ematix_complaint": (4, _find_complaint),
}
