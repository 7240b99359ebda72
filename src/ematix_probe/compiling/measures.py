"""Compiles all assertions of a probe to one statement of one result row, and reads their measures from it.

What is measured over single rows becomes an aggregate of one scan; repeated keys, missing parents and sorted
values become scalar subqueries of the same statement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from ematix_probe.compiling.schemas import schema_differences
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

Row = Sequence[Any]
Reader = Callable[[Row], Mapping[str, Any]]
_SHARED_ROWS = "ematix_probe_rows"
_TIMES = ("date", "timestamp", "timestamp_tz")


@dataclass(frozen=True)
class CompiledMeasures:
    """One statement for all assertions. An assertion that cannot be compiled has the measure ``error``."""

    query: exp.Select
    readers: tuple[Reader, ...]

    def read(self, row: Row) -> list[Mapping[str, Any]]:
        """The measures of each assertion, in order, from the statement's one row."""
        return [reader(row) for reader in self.readers]


def compile_assertions(
    assertions: Sequence[Assertion],
    columns: Mapping[str, ColumnInfo],
    dialect: str,
    rows: Rows,
    reference: Reference,
) -> CompiledMeasures:
    """ONE statement that measures all assertions; none of them makes the others fail to compile."""
    shared = exp.Table(this=exp.to_identifier(_SHARED_ROWS, quoted=True))
    evaluate_once = bool(rows.meta.get("evaluate_once"))
    compiler = _MeasureCompiler(columns, dialect, shared if evaluate_once else rows, reference)
    readers = tuple(compiler.reader(assertion) for assertion in assertions)
    query = compiler.statement()
    if evaluate_once:
        _share_rows(query, rows)
    return CompiledMeasures(query, readers)


def _share_rows(query: exp.Select, rows: Rows) -> None:
    """Let the rows be a common table expression, unless the statement reads them only once."""
    uses = [each for each in query.find_all(exp.Table) if each.name == _SHARED_ROWS]
    if len(uses) == 1:
        single = rows.copy()
        single.set("alias", uses[0].args["alias"])
        uses[0].replace(single)
        return
    inner = rows.this.this if isinstance(rows, exp.Table) else rows.copy()
    name = exp.TableAlias(this=exp.to_identifier(_SHARED_ROWS, quoted=True))
    query.set("with_", exp.With(expressions=[exp.CTE(this=inner.copy(), alias=name)]))


class _MeasureCompiler(ConditionCompiler):
    def __init__(
        self, columns: Mapping[str, ColumnInfo], dialect: str, rows: Rows, reference: Reference
    ) -> None:
        super().__init__(columns, dialect_named(dialect), rows, reference)
        self._places: dict[str, int] = {}
        self._selected: list[exp.Expression] = []
        self._measure(count_rows())  # there is always an aggregate of the rows, so that one row comes back

    def statement(self) -> exp.Select:
        named = [aliased(tree, f"m{place}") for place, tree in enumerate(self._selected)]
        return from_rows(self.rows, *named)

    def reader(self, assertion: Assertion) -> Reader:
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
        failing = self._measure(self._count_failing(assertion, where))
        if not isinstance(assertion, (Expression, NotNull)):  # the others ignore rows without a value
            present = [is_not_null(column(name)) for name in compared_columns(assertion)]
            checked = self._measure(self.dialect.count_if(all_of(where, *present)))
        return lambda row: {"failing": int(row[failing] or 0), "checked": int(row[checked])}

    def _measure(self, tree: exp.Expression) -> int:
        """The place of a measure in the result; equal measures share one."""
        written = tree.sql(self.dialect.name)
        if written not in self._places:
            self._places[written] = len(self._selected)
            self._selected.append(tree)
        return self._places[written]

    def _count_failing(self, assertion: Assertion, where: exp.Expression | None) -> exp.Expression:
        if isinstance(assertion, Unique):
            counted = self.repeated_keys(assertion, aliased(count_rows(), "n"))
            return scalar(from_rows(counted, exp.Sum(this=column("n", "repeated")), alias="repeated"))
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
                f"freshness() needs a column of dates or times, and {info.name!r} is of type {info.type}"
            )
        tree = column(assertion.column)
        if self.dialect.loose:  # what is newest shows only in the form in which times are compared
            newest: exp.Expression = exp.Max(
                this=self.dialect.only(self.dialect.microseconds(info, tree), where)
            )
        else:
            newest = self.dialect.microseconds(info, exp.Max(this=self.dialect.only(tree, where)))
        place = self._measure(newest)
        return lambda row: {"newest_microseconds": _plain(row[place]), "checked": int(row[checked])}

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
