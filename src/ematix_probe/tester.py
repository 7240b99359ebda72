"""The fluent API that the body of a data probe gets: each call adds one assertion."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ematix_probe import portable_regex
from ematix_probe.assertions import (
    Assertion,
    Between,
    Bound,
    CardinalityBetween,
    Drift,
    Expression,
    ForeignKey,
    Freshness,
    IsIn,
    Metric,
    NotNull,
    NullShare,
    Options,
    PercentileBetween,
    Regex,
    RowCount,
    RowCountChange,
    SchemaMatch,
    Severity,
    SumBetween,
    Unique,
)
from ematix_probe.column_types import plain_type
from ematix_probe.duration import Duration, parse_duration
from ematix_probe.errors import DeclarationError
from ematix_probe.location import caller_location


class Tester:
    """Collects the assertions of a data probe."""

    __test__ = False  # pytest: this is no test class

    def __init__(self) -> None:
        self._assertions: list[Assertion] = []

    @property
    def assertions(self) -> tuple[Assertion, ...]:
        return tuple(self._assertions)

    def column(self, name: str) -> ColumnTester:
        return ColumnTester(self, _text("column() takes a column's name", name))

    def add(self, assertion: Assertion) -> Tester:
        """Add an assertion that is already a value."""
        if not isinstance(assertion, Assertion):
            raise _wrong(f"add() takes an assertion, not {assertion!r}")
        self._assertions.append(assertion)
        return self

    def unique(self, columns: Sequence[str], **options: Any) -> Tester:
        """No two rows have the same values in these columns."""
        return self.add(Unique(_names("unique()", columns), options=_options(options)))

    def row_count(self, *, at_least: int | None = None, at_most: int | None = None, **options: Any) -> Tester:
        if at_least is None and at_most is None:
            raise _wrong("row_count() needs at_least= or at_most=")
        low, high = _count("at_least", at_least), _count("at_most", at_most)
        _ordered("row_count()", low, high)
        return self.add(RowCount(low, high, options=_options(options, tolerate=False)))

    def freshness(self, column: str, *, within: Duration, **options: Any) -> Tester:
        """The newest value of the column is at most ``within`` old."""
        self.column(column).freshness(within=within, **options)
        return self

    def expression(self, sql: str, **options: Any) -> Tester:
        """A condition in the SQL of the source, which no row may make false."""
        return self.add(Expression(_text("expression() takes a condition", sql), options=_options(options)))

    def foreign_key(
        self,
        columns: str | Sequence[str],
        *,
        references: str,
        referenced_columns: Sequence[str] | None = None,
        **options: Any,
    ) -> Tester:
        """Each key is a key of ``references``, another table of the source."""
        names = _names("foreign_key()", [columns] if isinstance(columns, str) else columns)
        others = names if referenced_columns is None else _names("referenced_columns", referenced_columns)
        if len(others) != len(names):
            raise _wrong(f"foreign_key(): {len(names)} columns refer to {len(others)} columns")
        table = _text("foreign_key(references=) takes a table", references)
        return self.add(ForeignKey(names, table, others, options=_options(options)))

    def schema_match(
        self,
        columns: Mapping[str, str | None] | Sequence[str],
        *,
        allow_extra: bool = False,
        ordered: bool = False,
        **options: Any,
    ) -> Tester:
        """The source has exactly these columns: names, or a mapping of name and type."""
        given = columns.items() if isinstance(columns, Mapping) else [(name, None) for name in columns]
        pairs = tuple(
            (_text("schema_match() takes names of columns", name), None if kind is None else _type(kind))
            for name, kind in given
        )
        if not pairs:
            raise _wrong("schema_match() needs at least one column")
        return self.add(
            SchemaMatch(pairs, allow_extra, ordered, options=_options(options, tolerate=False, where=False))
        )

    def row_count_change(
        self, *, max_drop: float | None = None, max_rise: float | None = None, **options: Any
    ) -> Tester:
        """The row count against that of the last recorded run, as shares: 0.2 is a fifth."""
        if max_drop is None and max_rise is None:
            raise _wrong("row_count_change() needs max_drop= or max_rise=")
        for name, value in (("max_drop", max_drop), ("max_rise", max_rise)):
            if value is not None and (not _is_number(value) or value < 0):
                raise _wrong(f"{name}= is a share from 0, not {value!r}")
        return self.add(RowCountChange(max_drop, max_rise, options=_options(options, tolerate=False)))

    def drift(self, metric: Metric = "row_count", **named: Any) -> Tester:
        """The metric of the whole table stays in the band that its past gives."""
        if metric != "row_count":
            raise _wrong(f"the drift of {metric!r} is that of a column: write column(…).drift({metric!r})")
        return self.add(_drift(metric, None, None, named))


class ColumnTester:
    """One column of the source. Every call adds an assertion and returns the same column."""

    __test__ = False

    def __init__(self, tester: Tester, name: str) -> None:
        self._tester, self._name = tester, name

    def _add(self, assertion: Assertion) -> ColumnTester:
        self._tester.add(assertion)
        return self

    def not_null(self, **options: Any) -> ColumnTester:
        return self._add(NotNull(self._name, options=_options(options)))

    def unique(self, **options: Any) -> ColumnTester:
        return self._add(Unique((self._name,), options=_options(options)))

    def between(self, low: Bound | None, high: Bound | None, **options: Any) -> ColumnTester:
        """``low`` and ``high`` belong to the range; None leaves that end open."""
        _range("between()", low, high)
        return self._add(Between(self._name, low, high, options=_options(options)))

    def regex(self, pattern: str, **options: Any) -> ColumnTester:
        """A part of the text matches; write ``^…$`` for the whole text."""
        try:
            portable_regex.check_pattern(_text("regex() takes a pattern", pattern))
        except portable_regex.PatternError as error:
            raise DeclarationError(error.what, where=caller_location(), next_step=error.next_step) from None
        return self._add(Regex(self._name, pattern, options=_options(options)))

    def is_in(self, values: Iterable[Any], **options: Any) -> ColumnTester:
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise _wrong(f"is_in() takes a list of values, not {values!r}")
        listed = tuple(values)
        if not listed:
            raise _wrong("is_in() needs at least one value")
        if any(value is None for value in listed):
            raise _wrong("is_in() takes no None: rows with NULL are ignored; use not_null()")
        for value in listed:
            if not isinstance(value, bool):
                _bound("is_in()", value)
        return self._add(IsIn(self._name, listed, options=_options(options)))

    def freshness(self, *, within: Duration, **options: Any) -> ColumnTester:
        try:
            seconds = parse_duration(within)
        except ValueError as error:
            raise _wrong(f"freshness(within=): {error}") from None
        return self._add(Freshness(self._name, seconds, options=_options(options, tolerate=False)))

    def percentile_between(
        self,
        p: float,
        low: Bound | None,
        high: Bound | None,
        *,
        method: Literal["exact", "sketch"] = "exact",
        **options: Any,
    ) -> ColumnTester:
        """The p-th percentile: ``p=0.99`` or ``p=99``. From 0 to 1 it is a share, above 1 a percentage."""
        _range("percentile_between()", low, high)
        if method not in ("exact", "sketch"):
            raise _wrong(f'percentile_between(method=) is "exact" or "sketch", not {method!r}')
        return self._add(
            PercentileBetween(
                self._name, _percentile(p), low, high, method, options=_options(options, tolerate=False)
            )
        )

    def cardinality_between(self, low: int | None, high: int | None, **options: Any) -> ColumnTester:
        least, most = _count("low", low), _count("high", high)
        _range("cardinality_between()", least, most)
        return self._add(
            CardinalityBetween(self._name, least, most, options=_options(options, tolerate=False))
        )

    def sum_between(self, low: Bound | None, high: Bound | None, **options: Any) -> ColumnTester:
        _range("sum_between()", low, high)
        for bound in (low, high):
            if isinstance(bound, (str,)) or hasattr(bound, "year"):
                raise _wrong(f"sum_between() takes numbers, not {bound!r}")
        return self._add(SumBetween(self._name, low, high, options=_options(options, tolerate=False)))

    def null_share(self, *, at_most: float, at_least: float = 0.0, **options: Any) -> ColumnTester:
        for name, value in (("at_most", at_most), ("at_least", at_least)):
            _share(name, value)
        _ordered("null_share()", at_least, at_most)
        return self._add(NullShare(self._name, at_most, at_least, options=_options(options, tolerate=False)))

    def drift(self, metric: Metric = "null_share", *, p: float | None = None, **named: Any) -> ColumnTester:
        """The column's metric stays in the band that its past gives."""
        known = ("null_share", "sum", "average", "percentile", "cardinality")
        if metric not in known:
            raise _wrong(f"drift() of a column knows {', '.join(known)}, not {metric!r}")
        if (metric == "percentile") != (p is not None):
            raise _wrong('drift("percentile", p=0.99) needs p=, and no other metric takes it')
        return self._add(_drift(metric, self._name, None if p is None else _percentile(p), named))


def _drift(metric: Metric, column: str | None, p: float | None, named: dict[str, Any]) -> Drift:
    sensitivity, least = named.pop("sensitivity", 4.0), named.pop("at_least_runs", 5)
    if not _is_number(sensitivity) or sensitivity <= 0:
        raise _wrong(f"drift(sensitivity=) is a number above 0, not {sensitivity!r}")
    runs = _count("at_least_runs", least)
    if runs is None or runs < 2:
        raise _wrong(f"drift(at_least_runs=) is a whole number from 2, not {least!r}")
    return Drift(metric, column, p, float(sensitivity), runs, options=_options(named, tolerate=False))


def _options(given: dict[str, Any], *, tolerate: bool = True, where: bool = True) -> Options:
    allowed = ["severity", "name", *(["where"] if where else []), *(["tolerate"] if tolerate else [])]
    for name in given:
        if name not in allowed:
            raise _wrong(f"this assertion takes {', '.join(f'{each}=' for each in allowed)}; not {name}=")
    severity: Severity = given.get("severity", "fail")
    if severity not in ("fail", "warn"):
        raise _wrong(f'severity= is "fail" or "warn", not {severity!r}')
    share = given.get("tolerate", 0.0)
    _share("tolerate", share)
    for name in ("where", "name"):
        if given.get(name) is not None:
            _text(f"{name}= takes a text", given[name])
    return Options(severity=severity, where=given.get("where"), tolerate=float(share), name=given.get("name"))


def _wrong(what: str) -> DeclarationError:
    return DeclarationError(what, where=caller_location())


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(f"{what}, not {value!r}")
    return value


def _names(what: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise _wrong(f"{what} takes a list of columns, not {names!r}")
    listed = tuple(_text(f"{what} takes names of columns", name) for name in names)
    if not listed:
        raise _wrong(f"{what} needs at least one column")
    if len(set(listed)) != len(listed):
        raise _wrong(f"{what} names a column twice: {', '.join(listed)}")
    return listed


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(f"{name}= is a whole number from 0, not {value!r}")
    return value


def _share(name: str, value: Any) -> None:
    if not _is_number(value) or not 0 <= value <= 1:
        raise _wrong(f"{name}= is a share from 0 to 1, not {value!r}")


def _bound(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Bound):
        raise _wrong(f"{what} takes numbers, texts, dates or times, not {value!r}")
    if value != value:
        raise _wrong(f"{what} takes no NaN")


def _range(what: str, low: Any, high: Any) -> None:
    if low is None and high is None:
        raise _wrong(f"{what} needs at least one bound")
    for bound in (low, high):
        if bound is not None:
            _bound(what, bound)
    _ordered(what, low, high)


def _ordered(what: str, low: Any, high: Any) -> None:
    if low is None or high is None:
        return
    try:
        wrong = low > high
    except TypeError:
        raise _wrong(f"{what}: {low!r} and {high!r} cannot be compared") from None
    if wrong:
        raise _wrong(f"{what}: the lower bound {low!r} is above the upper bound {high!r}")


def _percentile(p: Any) -> float:
    if not _is_number(p) or not 0 <= p <= 100:
        raise _wrong(f"p= is a share from 0 to 1 or a percentage up to 100, not {p!r}")
    return float(p) if p <= 1 else p / 100


def _type(kind: Any) -> str:
    try:
        return plain_type(kind)
    except ValueError as error:
        raise _wrong(f"schema_match(): {error}") from None
