"""What assertions of a data probe must find, in plain Python: rows are dicts, types are plain words.

It shares no code with the compiler or the judge, but the syntax of regular expressions.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ematix_probe import assertions as a
from ematix_probe.portable_regex import translate

Row = Mapping[str, Any]
Predicate = Callable[[Row], "bool | None"]
NUMBERS = ("smallint", "integer", "bigint", "numeric", "double")
TIMES = ("date", "timestamp", "timestamptz")


@dataclass(frozen=True)
class Expected:
    verdict: str
    failing: int | None = None
    checked: int | None = None
    failing_rows: Sequence[Row] = ()


class Refused(Exception):
    """The assertion cannot be checked: the verdict is ``error``."""


@dataclass(frozen=True)
class Table:
    """Rows and the types of their columns."""

    types: Mapping[str, str]
    rows: Sequence[Row]

    def base(self, column: str) -> str:
        if column not in self.types:
            raise Refused(column)
        return self.types[column].partition("(")[0]


def expect(
    assertion: a.Assertion,
    table: Table,
    parents: Table | None,
    now: dt.datetime,
    *,
    where: Predicate | None = None,
    condition: Predicate | None = None,
) -> Expected:
    """``where`` and ``condition`` are what the SQL of the assertion means. ``parents``: None for a source
    that is one table."""
    rows = [row for row in table.rows if where is None or where(row) is True]
    try:
        if type(assertion) in _BY_ROW:
            fails = _BY_ROW[type(assertion)](assertion, table, rows, parents, condition)
            failing_rows = [row for row in rows if fails(row)]
            checked = sum(1 for row in rows if not _is_ignored(assertion, row))
            share = Fraction(len(failing_rows), checked) if checked else Fraction(0)
            holds = share <= Fraction(repr(assertion.options.tolerate))
            found = _expected(assertion, holds, len(failing_rows), checked)
            return dataclasses.replace(found, failing_rows=failing_rows)
        holds, *counts = _WHOLE[type(assertion)](assertion, table, rows, now)
        if isinstance(assertion, a.Freshness) and holds and _is_far_ahead(assertion, rows, now):
            return Expected("warn", *counts)
        return _expected(assertion, holds, *counts)
    except Refused:
        return Expected("error")


def _is_ignored(assertion: Any, row: Row) -> bool:
    """Whether the row has no value that could be checked."""
    if isinstance(assertion, (a.NotNull, a.Expression)):
        return False
    columns = assertion.columns if isinstance(assertion, (a.Unique, a.ForeignKey)) else [assertion.column]
    return any(row[column] is None for column in columns)


def _expected(
    assertion: a.Assertion, holds: bool, failing: int | None = None, checked: int | None = None
) -> Expected:
    return Expected("pass" if holds else assertion.options.severity, failing, checked)


# --- values ---


def key_of(value: Any) -> Any:
    """Two values have one key when they are equal."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dt.datetime):
        return instant(value)
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return value + 0  # 0.0 for -0.0
    return value


def instant(value: Any) -> dt.datetime:
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    if not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)
    return value.astimezone(dt.timezone.utc).replace(tzinfo=None) if value.tzinfo else value


def comparable(base: str, value: Any) -> Any:
    """A value of a column, or one that is compared with it, in one form; Refused where it does not fit."""
    if base in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise Refused(value)
        if base == "double":
            return float(value)
        if isinstance(value, float) and not math.isinf(value):
            return Decimal(repr(value))
        return value
    if base == "text":
        if not isinstance(value, str):
            raise Refused(value)
        return value
    if base in TIMES:
        if isinstance(value, str):
            try:
                return instant(value)
            except ValueError:
                raise Refused(value) from None
        if not isinstance(value, dt.date):
            raise Refused(value)
        return instant(value)
    if base == "boolean" and isinstance(value, bool):
        return value
    raise Refused(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _is_outside(base: str, low: Any, high: Any) -> Callable[[Any], bool]:
    if base in ("boolean", "bytes"):
        raise Refused(base)
    least, most = (None if bound is None else comparable(base, bound) for bound in (low, high))

    def outside(value: Any) -> bool:
        if value is None:
            return False
        if _is_nan(value):
            return True
        found = comparable(base, value)
        return (least is not None and found < least) or (most is not None and found > most)

    return outside


# --- single rows ---


def _not_null(assertion: a.NotNull, table: Table, rows: Any, parents: Any, condition: Any) -> Any:
    table.base(assertion.column)
    return lambda row: row[assertion.column] is None


def _unique(assertion: a.Unique, table: Table, rows: Sequence[Row], parents: Any, condition: Any) -> Any:
    for column in assertion.columns:
        table.base(column)

    def key(row: Row) -> tuple[Any, ...] | None:
        values = [row[column] for column in assertion.columns]
        return None if None in values else tuple(map(key_of, values))

    counts = Counter(key(row) for row in rows)
    return lambda row: key(row) is not None and counts[key(row)] > 1


def _between(assertion: a.Between, table: Table, rows: Any, parents: Any, condition: Any) -> Any:
    outside = _is_outside(table.base(assertion.column), assertion.low, assertion.high)
    return lambda row: outside(row[assertion.column])


def _regex(assertion: a.Regex, table: Table, rows: Any, parents: Any, condition: Any) -> Any:
    if table.base(assertion.column) != "text":
        raise Refused(assertion.column)
    pattern = re.compile(translate(assertion.pattern, "python"), re.ASCII)
    column = assertion.column
    return lambda row: row[column] is not None and pattern.search(row[column]) is None


def _is_in(assertion: a.IsIn, table: Table, rows: Any, parents: Any, condition: Any) -> Any:
    base = table.base(assertion.column)
    listed = [comparable(base, value) for value in assertion.values]

    def fails(row: Row) -> bool:
        value = row[assertion.column]
        return value is not None and (_is_nan(value) or comparable(base, value) not in listed)

    return fails


def _expression(assertion: Any, table: Any, rows: Any, parents: Any, condition: Predicate | None) -> Any:
    assert condition is not None
    return lambda row: condition(row) is False


def _foreign_key(
    assertion: a.ForeignKey, table: Table, rows: Any, parents: Table | None, condition: Any
) -> Any:
    if parents is None:
        raise Refused(assertion.references)
    for column, other in zip(assertion.columns, assertion.referenced_columns, strict=True):
        one, two = table.base(column), parents.base(other)
        if one != two and not (one in NUMBERS and two in NUMBERS):
            raise Refused(column)
    keys = {tuple(key_of(row[other]) for other in assertion.referenced_columns) for row in parents.rows}

    def fails(row: Row) -> bool:
        values = [row[column] for column in assertion.columns]
        return None not in values and tuple(map(key_of, values)) not in keys

    return fails


_BY_ROW: dict[type[a.Assertion], Callable[..., Predicate]] = {
    a.NotNull: _not_null,
    a.Unique: _unique,
    a.Between: _between,
    a.Regex: _regex,
    a.IsIn: _is_in,
    a.Expression: _expression,
    a.ForeignKey: _foreign_key,
}


# --- the whole ---

Whole = tuple[bool, "int | None", "int | None"]


def _holds(found: int | float, low: Any, high: Any) -> bool:
    return (low is None or found >= low) and (high is None or found <= high)


def _row_count(assertion: a.RowCount, table: Table, rows: Sequence[Row], now: dt.datetime) -> Whole:
    return _holds(len(rows), assertion.at_least, assertion.at_most), None, None


def _null_share(assertion: a.NullShare, table: Table, rows: Sequence[Row], now: dt.datetime) -> Whole:
    table.base(assertion.column)
    nulls = sum(1 for row in rows if row[assertion.column] is None)
    share = nulls / len(rows) if rows else 0.0
    return _holds(share, assertion.at_least, assertion.at_most), nulls, len(rows)


def _cardinality(
    assertion: a.CardinalityBetween, table: Table, rows: Sequence[Row], now: dt.datetime
) -> Whole:
    table.base(assertion.column)
    different = {key_of(row[assertion.column]) for row in rows if row[assertion.column] is not None}
    return _holds(len(different), assertion.low, assertion.high), None, len(rows)


def _sum(assertion: a.SumBetween, table: Table, rows: Sequence[Row], now: dt.datetime) -> Whole:
    base = table.base(assertion.column)
    if base not in NUMBERS:
        raise Refused(base)
    values = [row[assertion.column] for row in rows if row[assertion.column] is not None]
    total = sum(values, start=0.0 if base == "double" else Decimal(0))
    outside = _is_outside("double" if base == "double" else "numeric", assertion.low, assertion.high)
    return not outside(total), None, len(rows)


def _percentile(assertion: a.PercentileBetween, table: Table, rows: Sequence[Row], now: dt.datetime) -> Whole:
    base = table.base(assertion.column)
    outside = _is_outside(base, assertion.low, assertion.high)
    values = [row[assertion.column] for row in rows if row[assertion.column] is not None]
    values.sort(key=lambda value: (1, 0) if _is_nan(value) else (0, comparable(base, value)))
    if not values:
        return False, None, len(rows)
    rank = max(1, math.ceil(Fraction(repr(assertion.p)) * len(values)))
    return not outside(values[rank - 1]), None, len(rows)


def _freshness(assertion: a.Freshness, table: Table, rows: Sequence[Row], now: dt.datetime) -> Whole:
    if table.base(assertion.column) not in TIMES:
        raise Refused(assertion.column)
    times = [instant(row[assertion.column]) for row in rows if row[assertion.column] is not None]
    if not times:
        return False, None, len(rows)
    return (instant(now) - max(times)).total_seconds() <= assertion.within, None, len(rows)


def _is_far_ahead(assertion: a.Freshness, rows: Sequence[Row], now: dt.datetime) -> bool:
    times = [instant(row[assertion.column]) for row in rows if row[assertion.column] is not None]
    return max(times) - instant(now) > dt.timedelta(days=1)


def _schema(assertion: a.SchemaMatch, table: Table, rows: Any, now: dt.datetime) -> Whole:
    asked = dict(assertion.columns)
    holds = all(
        name in table.types and (kind is None or table.types[name] == kind) for name, kind in asked.items()
    )
    if not assertion.allow_extra:
        holds = holds and set(table.types) <= set(asked)
    if assertion.ordered:
        found = [name for name in table.types if name in asked]
        holds = holds and found == [name for name in asked if name in table.types]
    return holds, None, None


_WHOLE: dict[type[a.Assertion], Callable[..., Whole]] = {
    a.RowCount: _row_count,
    a.NullShare: _null_share,
    a.CardinalityBetween: _cardinality,
    a.SumBetween: _sum,
    a.PercentileBetween: _percentile,
    a.Freshness: _freshness,
    a.SchemaMatch: _schema,
}
