"""What a declared bound or value means for a column: it takes the column's type before anything is compared.

- A whole number column compares with whole numbers, a decimal column with decimals of its scale. A float
  bound stands for the decimal that Python shows: ``0.1`` is one tenth.
- A column of doubles or reals compares with the nearest double or real.
- A column of dates or times compares in UTC: a time without zone is UTC, a date is the start of its day.
  Texts in ISO form are taken for dates and times.
- Anything else is refused: a text for a column of numbers, a number for a column of texts.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from ematix_probe.column_types import precision_and_scale
from ematix_probe.errors import AssertionRefused
from ematix_probe.iso_times import microseconds, parse_time, utc_time
from ematix_probe.sources.base import ColumnInfo

Typed = int | float | Decimal | str | bool | dt.date | dt.datetime
_WIDE = Context(prec=400)
_BEYOND = Decimal(10) ** 38  # no engine but Postgres holds larger exact numbers
_TOPS = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}
_EXAMPLES = {
    "integer": "numbers",
    "decimal": "numbers",
    "float": "numbers",
    "text": "texts",
    "date": "dates",
    "timestamp": "times",
    "timestamp_tz": "times",
    "boolean": "True and False",
}


@dataclass(frozen=True)
class Limits:
    """A range in the column's type. None is an open end; ``empty``: no value is in the range."""

    low: Typed | None
    high: Typed | None
    empty: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a measured value is in the range; NaN is not."""
        if self.empty or value != value:
            return False
        if isinstance(value, int) and (isinstance(self.low, float) or isinstance(self.high, float)):
            value = float(value)
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


def limits(low: Any, high: Any, column: ColumnInfo, *, loose: bool = False) -> Limits:
    """The range for a column. ``loose``: the engine (SQLite) has columns that hold values of any type."""
    kind = compared_as(column, (low, high), loose)
    low = None if low == -math.inf else low
    high = None if high == math.inf else high
    least = None if low is None else _bound(low, column, kind, ROUND_CEILING)
    most = None if high is None else _bound(high, column, kind, ROUND_FLOOR)
    if least in (-math.inf, -_BEYOND):
        least = None
    if most in (math.inf, _BEYOND):
        most = None
    if kind in ("integer", "decimal"):
        empty = least in (math.inf, _BEYOND) or most in (-math.inf, -_BEYOND)
        return Limits(None, None, True) if empty else Limits(least, most)
    return Limits(least, most)


def members(values: Sequence[Any], column: ColumnInfo, *, loose: bool = False) -> tuple[Typed, ...]:
    """The values as the column can hold them; those that it cannot hold are left out."""
    kind = compared_as(column, values, loose)
    found: dict[Typed, None] = {}
    for value in values:
        typed = _bound(value, column, kind, ROUND_FLOOR)
        if kind in ("integer", "decimal", "date"):
            if kind != "date" and abs(Decimal(typed)) >= _BEYOND:  # type: ignore[arg-type]
                continue
            if typed != _bound(value, column, kind, ROUND_CEILING):
                continue
        found[typed] = None
    return tuple(found)


def compared_as(column: ColumnInfo, values: Sequence[Any], loose: bool) -> str:
    """How the column is compared with the values; AssertionRefused when it cannot be."""
    given = [value for value in values if value is not None]
    if loose:
        return _compared_loosely(column, given)
    family: str = column.family
    if family not in _EXAMPLES:
        raise AssertionRefused(
            f"the column {column.name!r} is of type {column.type}, which is compared with no value",
            next_step="use expression() with a condition in the SQL of the source",
        )
    for value in given:
        if not _fits(family, value):
            raise _refused(column, family, value)
    return {"timestamp_tz": "timestamp"}.get(family, family)


def _compared_loosely(column: ColumnInfo, given: Sequence[Any]) -> str:
    family: str = column.family
    if family == "other":  # SQLite knows no type of it: the values decide
        kinds = {_kind_of(value) for value in given}
        if len(kinds) > 1:
            raise AssertionRefused(f"the column {column.name!r} is compared with values of several types")
        return kinds.pop() if kinds else "number"
    if family not in _EXAMPLES:
        raise AssertionRefused(
            f"the column {column.name!r} is of type {column.type}, which is compared with no value"
        )
    for value in given:
        if not _fits(family, value):
            raise _refused(column, family, value)
    if family in ("date", "timestamp", "timestamp_tz"):
        return "timestamp"
    return "number" if family in ("integer", "decimal", "float") else family


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float, Decimal)):
        return "number"
    return "text" if isinstance(value, str) else "timestamp"


def _fits(family: str, value: Any) -> bool:
    if family == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if family in ("integer", "decimal", "float"):
        return isinstance(value, (int, float, Decimal))
    if family == "text":
        return isinstance(value, str)
    return isinstance(value, dt.date) or (isinstance(value, str) and parse_time(value) is not None)


def _refused(column: ColumnInfo, family: str, value: Any) -> AssertionRefused:
    return AssertionRefused(
        f"the column {column.name!r} is of type {column.type} and is compared with "
        f"{_EXAMPLES[family]}, not with {value!r}"
    )


def _bound(value: Any, column: ColumnInfo, kind: str, rounding: str) -> Typed:
    if kind in ("text", "boolean"):
        return value  # type: ignore[no-any-return]
    if kind == "date":
        return _day(_time(value), rounding)
    if kind == "timestamp":
        return _time(value)
    if kind == "number":
        return value if isinstance(value, int) and abs(value) < 2**63 else nearest_double(value)
    if kind == "float":
        return nearest_real(value) if column.type == "real" else nearest_double(value)
    exact = exact_number(value)
    if abs(exact) >= _BEYOND:
        return _BEYOND if exact > 0 else -_BEYOND
    if kind == "integer":
        whole = int(exact.to_integral_value(rounding, _WIDE))
        top = _TOPS.get(column.type)
        if top is not None and not -top <= whole < top:  # Spark counts NULL as true for such a comparison
            return _BEYOND if whole > 0 else -_BEYOND
        return whole
    shape = precision_and_scale(column.type)
    if shape is None:
        return exact
    precision, scale = shape
    rounded = exact.scaleb(scale, _WIDE).to_integral_value(rounding, _WIDE)
    beyond = rounded >= Decimal(10) ** precision or rounded <= -(Decimal(10) ** precision)
    if beyond:
        return _BEYOND if rounded > 0 else -_BEYOND
    return rounded.scaleb(-scale, _WIDE)


def exact_number(value: int | float | Decimal) -> Decimal:
    """The decimal that a number stands for."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def nearest_double(value: int | float | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def nearest_real(value: int | float | Decimal) -> float:
    double = nearest_double(value)
    try:
        return struct.unpack("f", struct.pack("f", double))[0]  # type: ignore[no-any-return]
    except OverflowError:
        return math.inf if double > 0 else -math.inf


def _time(value: Any) -> dt.datetime:
    found: Any = parse_time(value) if isinstance(value, str) else value
    return utc_time(found)


def _day(time: dt.datetime, rounding: str) -> dt.date:
    day = time.date()
    if rounding == ROUND_FLOOR or time.time() == dt.time() or day == dt.date.max:
        return day
    return day + dt.timedelta(days=1)


def as_microseconds(found: Limits) -> Limits:
    """Limits of dates or times as microseconds since 1970."""
    low, high = (
        microseconds(bound) if isinstance(bound, dt.date) else bound for bound in (found.low, found.high)
    )
    return Limits(low, high, found.empty)
