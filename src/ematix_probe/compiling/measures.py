"""Compiles all assertions of a probe to one statement of one result row, and reads their measures from it.

What is measured over single rows becomes an aggregate of one scan; repeated keys, missing parents and sorted
values become scalar subqueries of the same statement. For samples it also returns some repeated keys
(`repeated_keys`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlglot import exp

from ematix_probe.assertions import (
    Assertion,
    CardinalityBetween,
    Drift,
    Expression,
    ForeignKey,
    Freshness,
    NotNull,
    NullShare,
    PercentileBetween,
    RowCount,
    RowCountChange,
    SchemaMatch,
    SumBetween,
    Unique,
)
from ematix_probe.compiling import bounds
from ematix_probe.compiling.conditions import (
    ConditionCompiler,
    FailingRows,
    Reference,
    Rows,
    compared_columns,
)
from ematix_probe.compiling.dialects import dialect_named
from ematix_probe.compiling.dialects.base import needs_number
from ematix_probe.compiling.repeated_keys import RepeatedKeysQuery, repeated_keys_query
from ematix_probe.compiling.schemas import schema_differences
from ematix_probe.compiling.statements import (
    SHARED_ROWS,
    CompiledMeasures,
    Reader,
    Row,
    share_rows,
    structure,
)
from ematix_probe.compiling.trees import (
    aliased,
    all_of,
    column,
    count_rows,
    from_rows,
    is_not_null,
    is_null,
    joined,
    scalar,
)
from ematix_probe.errors import AssertionRefused, ProbeError
from ematix_probe.sources.base import ColumnInfo

_MOST_FIGURES = 1_000  # of a statement: SQLite returns 2000 columns, Postgres 1664
_FIGURES_OF_ONE = 10  # assertion, at most
_MOST_KEYS = 50  # assertions of keys in a statement: DuckDB plans twice as many in five times the time
_ABOUT_KEYS = (ForeignKey, Unique)
_TIMES = ("date", "timestamp", "timestamp_tz")


def compile_assertions(
    assertions: Sequence[Assertion],
    columns: Mapping[str, ColumnInfo],
    dialect: str,
    rows: Rows,
    reference: Reference,
    *,
    with_keys: bool = False,
) -> CompiledMeasures:
    """ONE statement that measures all assertions; none of them makes the others fail to compile.

    ``with_keys``: it also returns some repeated keys, which are values of the data.
    """
    compiler = _MeasureCompiler(columns, dialect, rows, reference, with_keys)
    for assertion in assertions:
        compiler.add(assertion)
    return compiler.compiled()


def compile_in_statements(
    assertions: Sequence[Assertion],
    columns: Mapping[str, ColumnInfo],
    dialect: str,
    rows: Rows,
    reference: Reference,
    *,
    with_keys: bool = False,
) -> list[CompiledMeasures]:
    """The statement of `compile_assertions`, or several that measure a part of the assertions each, in order:
    no engine returns any number of columns, or plans any number of subqueries."""
    compilers = [_MeasureCompiler(columns, dialect, rows, reference, with_keys)]
    for assertion in assertions:
        if compilers[-1].is_full_for(assertion):
            compilers.append(_MeasureCompiler(columns, dialect, rows, reference, with_keys))
        compilers[-1].add(assertion)
    return [compiler.compiled() for compiler in compilers]


class _MeasureCompiler(ConditionCompiler):
    """Collects the figures of one statement."""

    def __init__(
        self,
        columns: Mapping[str, ColumnInfo],
        dialect: str,
        rows: Rows,
        reference: Reference,
        with_keys: bool,
    ) -> None:
        evaluate_once = bool(rows.meta.get("evaluate_once"))
        shared = exp.Table(this=exp.to_identifier(SHARED_ROWS, quoted=True))
        super().__init__(columns, dialect_named(dialect), shared if evaluate_once else rows, reference)
        self._rows_to_share = rows if evaluate_once else None
        self._with_keys = with_keys
        self._places: dict[Hashable, int] = {}
        self._selected: list[exp.Expression] = []
        self._repeated_keys: dict[tuple[str | None, ...], RepeatedKeysQuery] = {}
        self._readers: list[Reader] = []
        self._places_of_keys: list[int | None] = []
        self._subqueries = 0
        self._measure(count_rows())  # there is always an aggregate of the rows, so that one row comes back

    def is_full_for(self, assertion: Assertion) -> bool:
        """Whether the assertion belongs into the next statement."""
        if not self._readers:
            return False
        if isinstance(assertion, _ABOUT_KEYS) and self._subqueries >= _MOST_KEYS:
            return True
        return len(self._selected) + _FIGURES_OF_ONE > _MOST_FIGURES

    def add(self, assertion: Assertion) -> None:
        self._readers.append(self._reader_or_error(assertion))
        self._places_of_keys.append(self._place_of_keys(assertion))
        self._subqueries += isinstance(assertion, _ABOUT_KEYS)

    def compiled(self) -> CompiledMeasures:
        named = [aliased(tree, f"m{place}") for place, tree in enumerate(self._selected)]
        query = from_rows(self.rows, *named)
        if self._repeated_keys:
            tables = [each.table for each in self._repeated_keys.values()]
            query.set("with_", exp.With(expressions=tables))
        if self._rows_to_share is not None:
            share_rows(query, self._rows_to_share)
        return CompiledMeasures(query, tuple(self._readers), tuple(self._places_of_keys))

    def _reader_or_error(self, assertion: Assertion) -> Reader:
        try:
            return self._reader(assertion)
        except ProbeError as error:
            told = str(error)
            return lambda row: {"error": told}

    def _reader(self, assertion: Assertion) -> Reader:
        if isinstance(assertion, SchemaMatch):
            problems = schema_differences(assertion, self.columns)
            return lambda row: {"problems": problems}
        where = self.where(assertion)
        checked = self._measure(self.dialect.count_if(where))
        if isinstance(assertion, (RowCount, RowCountChange)):
            return lambda row: {"row_count": int(row[checked])}
        if isinstance(assertion, Drift):
            return self._drift(assertion, where, checked)
        if isinstance(assertion, NullShare):
            return self._null_share(assertion.column, where, checked)
        if isinstance(assertion, Freshness):
            return self._freshness(assertion, where, checked)
        if isinstance(assertion, CardinalityBetween):
            return self._cardinality(assertion.column, where, checked)
        if isinstance(assertion, SumBetween):
            return self._sum(assertion, where, checked)
        if isinstance(assertion, PercentileBetween):
            return self._percentile(assertion, where, checked)
        if isinstance(assertion, Unique):
            return self._unique(assertion, where)
        failing = self._measure(self._count_failing(assertion, where))
        if not isinstance(assertion, (Expression, NotNull)):  # the others ignore rows without a value
            checked = self._measure(self._count_present(assertion, where))
        return lambda row: {"failing": int(row[failing] or 0), "checked": int(row[checked])}

    def _measure(self, tree: exp.Expression) -> int:
        """The place of a measure in the result; equal measures share one."""
        key = structure(tree)
        if key not in self._places:
            self._places[key] = len(self._selected)
            self._selected.append(tree)
        return self._places[key]

    def _count_present(self, assertion: Assertion, where: exp.Expression | None) -> exp.Expression:
        names = compared_columns(assertion)
        if where is None and len(names) == 1:
            return exp.Count(this=column(names[0]))
        return self.dialect.count_if(all_of(where, *(is_not_null(column(name)) for name in names)))

    def _unique(self, assertion: Unique, where: exp.Expression | None) -> Reader:
        for name in assertion.columns:
            self.column(name)  # before anything is measured: a missing one would fail the whole statement
        checked = self._measure(self._count_present(assertion, where))
        query = self._repeated_keys_query(assertion) if self._with_keys else None
        if query is None:
            counted = self.repeated_keys(assertion, aliased(count_rows(), "n"))
            count = scalar(from_rows(counted, exp.Sum(this=column("n", "repeated")), alias="repeated"))
        else:
            count = query.count
        failing = self._measure(count)
        return lambda row: {"failing": int(row[failing] or 0), "checked": int(row[checked])}

    def _repeated_keys_query(self, assertion: Unique) -> RepeatedKeysQuery | None:
        """Assertions about the same rows and columns share one."""
        what = (assertion.options.where, *assertion.columns)
        if what not in self._repeated_keys:
            name = f"ematix_probe_repeated_{len(self._repeated_keys)}"
            query = repeated_keys_query(self, assertion, name)
            if query is None:
                return None
            self._repeated_keys[what] = query
        return self._repeated_keys[what]

    def _place_of_keys(self, assertion: Assertion) -> int | None:
        """The place of the repeated keys in the result, for an assertion that has a reader."""
        if not isinstance(assertion, Unique):
            return None
        query = self._repeated_keys.get((assertion.options.where, *assertion.columns))
        return None if query is None else self._measure(query.keys)

    def _count_failing(self, assertion: Assertion, where: exp.Expression | None) -> exp.Expression:
        if isinstance(assertion, ForeignKey):
            present = [is_not_null(column(name)) for name in assertion.columns]
            found = self.failing_keys(assertion) or FailingRows(self.failing(assertion))
            orphans = all_of(where, *present, found.condition)
            return scalar(joined(self.scan(count_rows(), where=orphans), found.joins))
        return self.dialect.count_if(all_of(where, self.failing(assertion)))

    def _null_share(self, name: str, where: exp.Expression | None, checked: int) -> Reader:
        self.column(name)
        nulls = self._measure(self.dialect.count_if(all_of(where, is_null(column(name)))))

        def read(row: Row) -> Mapping[str, Any]:
            total, found = int(row[checked]), int(row[nulls])
            return {"failing": found, "checked": total, "null_share": found / total if total else 0.0}

        return read

    def _freshness(self, assertion: Freshness, where: exp.Expression | None, checked: int) -> Reader:
        info = self.column(assertion.column)
        dynamic = self.dialect.loose and info.family == "other"
        if info.family not in _TIMES and not dynamic:
            raise AssertionRefused(
                f"freshness() needs a column of dates or times, and {info.name!r} is of type {info.type}",
                next_step=f'query="SELECT datetime({info.name}) AS {info.name} FROM …" makes it a time'
                if self.dialect.loose
                else "columns= of a text file gives its type; a query can convert it with CAST",
            )
        tree = column(assertion.column)
        if self.dialect.loose:  # what is newest shows only in the form in which times are compared
            newest: exp.Expression = exp.Max(
                this=self.dialect.only(self.dialect.microseconds(info, tree), where)
            )
        else:
            newest = self.dialect.microseconds(info, exp.Max(this=self.dialect.only(tree, where)))
        place = self._measure(newest)
        if not self.dialect.loose:
            return lambda row: {"newest_microseconds": _plain(row[place]), "checked": int(row[checked])}
        given, time = column(assertion.column), column(assertion.column)
        unread = all_of(where, exp.Not(this=is_null(given)), is_null(self.dialect.microseconds(info, time)))
        strays = self._measure(self.dialect.count_if(unread))
        return lambda row: {
            "newest_microseconds": _plain(row[place]),
            "checked": int(row[checked]),
            "strays": int(row[strays] or 0),
        }

    def _cardinality(self, name: str, where: exp.Expression | None, checked: int) -> Reader:
        place = self._measure(self.dialect.distinct(self._comparable(name), where, self.scan))
        return lambda row: {"cardinality": int(row[place]), "checked": int(row[checked])}

    def _comparable(self, name: str) -> exp.Expression:
        return self.value(name)

    def _strays(self, name: str, kind: str, where: exp.Expression | None) -> int | None:
        if not self.dialect.loose:
            return None
        stray = self.dialect.is_stray(self.column(name), column(name), kind)
        return None if stray is None else self._measure(self.dialect.count_if(all_of(where, stray)))

    def _sum(self, assertion: SumBetween, where: exp.Expression | None, checked: int) -> Reader:
        info = self.column(assertion.column)
        needs_number(info, "sum_between()", loose=self.dialect.loose)
        summed = self._summed(info, where)
        strays = self._strays(assertion.column, "number", where)

        def read(row: Row) -> Mapping[str, Any]:
            value = summed(row)
            found = int(row[strays]) if strays is not None else 0
            exact = isinstance(value, (int, Decimal)) and not _is_special(value)
            kind = ColumnInfo("", "decimal", "numeric") if exact else ColumnInfo("", "float", "double")
            limits = bounds.limits(assertion.low, assertion.high, kind)
            inside = not found and limits.holds(value if exact else float(value))
            return {"sum": value, "inside": inside, "strays": found, "checked": int(row[checked])}

        return read

    def _summed(self, info: ColumnInfo, where: exp.Expression | None) -> Callable[[Row], Any]:
        places = [self._measure(tree) for tree in self.dialect.sums(info, column(info.name), where)]
        return lambda row: self.dialect.read_sum(info, [row[place] for place in places])

    def _percentile(self, assertion: PercentileBetween, where: exp.Expression | None, checked: int) -> Reader:
        info = self.column(assertion.column)
        loose = self.dialect.loose
        limits = bounds.limits(assertion.low, assertion.high, info, loose=loose)
        kind = bounds.compared_as(info, (assertion.low, assertion.high), loose)
        found = self.dialect.percentile(
            info, column(info.name), assertion.p, assertion.method, where, self.scan
        )
        place, method = self._measure(found.tree), found.method
        strays = self._strays(assertion.column, kind, where)
        if kind in ("date", "timestamp"):
            limits = bounds.as_microseconds(limits)

        def read(row: Row) -> Mapping[str, Any]:
            stray = int(row[strays]) if strays is not None else 0
            value = _typed(row[place], kind)
            inside = value is not None and not stray and limits.holds(value)
            return {
                "percentile": value,
                "inside": inside,
                "method": method,
                "strays": stray,
                "is_time": kind in ("date", "timestamp"),
                "checked": int(row[checked]),
            }

        return read

    def _drift(self, assertion: Drift, where: exp.Expression | None, checked: int) -> Reader:
        if assertion.metric == "row_count" or assertion.column is None:
            return lambda row: {"row_count": int(row[checked])}
        if assertion.metric == "null_share":
            return self._null_share(assertion.column, where, checked)
        if assertion.metric == "cardinality":
            return self._cardinality(assertion.column, where, checked)
        info = self.column(assertion.column)
        needs_number(info, f"the drift of {assertion.metric}", loose=self.dialect.loose)
        if assertion.metric == "percentile":
            p = assertion.p or 0.0
            found = self.dialect.percentile(info, column(info.name), p, "exact", where, self.scan)
            place = self._measure(found.tree)
            return lambda row: {"percentile": _plain(row[place])}
        summed = self._summed(info, where)
        if assertion.metric == "sum":
            return lambda row: {"sum": summed(row)}
        present = self._measure(self.dialect.count_if(all_of(where, is_not_null(column(info.name)))))

        def average(row: Row) -> Mapping[str, Any]:
            count = int(row[present])
            return {"average": float(summed(row)) / count if count else None}

        return average


def _is_special(value: int | Decimal) -> bool:
    return isinstance(value, Decimal) and not value.is_finite()


def _plain(value: Any) -> Any:
    """A whole number as an int; everything else as it is."""
    if isinstance(value, Decimal):
        if not value.is_finite():
            return float(value)
        return int(value) if value == value.to_integral_value() else value
    if isinstance(value, float) and value.is_integer() and math.isfinite(value) and abs(value) > 2**53:
        return int(value)
    return value


def _typed(value: Any, kind: str) -> Any:
    """A percentile as it is compared with its limits."""
    if value is None:
        return None
    if kind in ("date", "timestamp"):
        return _plain(value)
    if kind == "float":
        return float(value)
    if kind == "integer":
        return int(value)
    if kind == "decimal":
        return value if isinstance(value, (int, Decimal)) else Decimal(repr(value))
    return bytes(value).decode() if isinstance(value, (bytes, bytearray)) else value
