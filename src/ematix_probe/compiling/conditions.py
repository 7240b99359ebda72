"""The condition that a row fulfils when it fails an assertion."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from ematix_probe.assertions import (
    Assertion,
    Between,
    Expression,
    ForeignKey,
    IsIn,
    NotNull,
    Regex,
    Unique,
)
from ematix_probe.compiling import bounds
from ematix_probe.compiling.dialects import dialect_named
from ematix_probe.compiling.dialects.base import ProbeDialect
from ematix_probe.compiling.trees import (
    aliased,
    all_of,
    always,
    any_of,
    column,
    count_rows,
    filtered,
    from_rows,
    is_false,
    is_not_null,
    is_null,
    is_true,
    not_,
    number,
)
from ematix_probe.compiling.user_sql import read_condition
from ematix_probe.errors import AssertionRefused
from ematix_probe.sources.base import ColumnInfo

Rows = exp.Query | exp.Table
Reference = Callable[[str], Rows]


def failing_rows(
    assertion: Assertion,
    columns: Mapping[str, ColumnInfo],
    dialect: str,
    rows: Rows,
    reference: Reference,
) -> exp.Expression:
    """True, and never NULL, for the rows `checked` that fail: those that ``where`` leaves out do not.

    AssertionRefused when the source has no such column, or its type cannot be checked so.
    """
    compiler = ConditionCompiler(columns, dialect_named(dialect), rows, reference)
    failing = compiler.failing(assertion)
    where = compiler.where(assertion)
    if not isinstance(assertion, (Expression, NotNull)):
        present = [is_not_null(column(name)) for name in compared_columns(assertion)]
        failing = all_of(*present, failing) or failing
    return all_of(None if where is None else is_true(where), failing) or failing


def compared_columns(assertion: Assertion) -> tuple[str, ...]:
    """The columns that an assertion names; ``expression`` and ``where`` are not read."""
    if isinstance(assertion, (Unique, ForeignKey)):
        return assertion.columns
    name = getattr(assertion, "column", None)
    return (name,) if isinstance(name, str) else ()


class ConditionCompiler:
    """Writes conditions over the rows of one source."""

    def __init__(
        self, columns: Mapping[str, ColumnInfo], dialect: ProbeDialect, rows: Rows, reference: Reference
    ) -> None:
        self.columns, self.dialect, self.rows, self.reference = columns, dialect, rows, reference

    def scan(self, *selected: exp.Expression, where: exp.Expression | None = None) -> exp.Select:
        return filtered(from_rows(self.rows, *selected), where)

    def column(self, name: str) -> ColumnInfo:
        found = self.columns.get(name)
        if found is None:
            raise AssertionRefused(f"there is no column {name!r}{_similar(name, self.columns)}")
        return found

    def value(self, name: str) -> exp.Expression:
        """The column's value as it is compared."""
        return self.dialect.value(self.column(name), column(name))

    def where(self, assertion: Assertion) -> exp.Expression | None:
        sql = assertion.options.where
        return None if sql is None else read_condition(sql, self.dialect.name)

    def failing(self, assertion: Assertion) -> exp.Expression:
        """True for the rows that fail; it may be NULL where a column is, and does not look at ``where``."""
        if isinstance(assertion, NotNull):
            self.column(assertion.column)
            return is_null(column(assertion.column))
        if isinstance(assertion, Between):
            return self.outside(assertion.column, assertion.low, assertion.high)
        if isinstance(assertion, Regex):
            return self._unmatched(assertion)
        if isinstance(assertion, IsIn):
            return self._not_in(assertion)
        if isinstance(assertion, Expression):
            return is_false(read_condition(assertion.sql, self.dialect.name))
        if isinstance(assertion, ForeignKey):
            return self._without_parent(assertion)
        if isinstance(assertion, Unique):
            return self._repeated(assertion)
        raise TypeError(f"{assertion.kind} looks at no single row")

    def outside(self, name: str, low: Any, high: Any) -> exp.Expression:
        info, tree = self.column(name), column(name)
        limits = bounds.limits(low, high, info, loose=self.dialect.loose)
        if limits.empty:
            return is_not_null(tree)
        value = self.value(name)
        least, most = limits.low, limits.high
        if not self.dialect.has_infinity:
            if least == float("inf") or most == float("-inf"):
                return is_not_null(tree)
            least, most = (
                None if bound in (float("-inf"), float("inf")) else bound for bound in (least, most)
            )
        stray_kind = bounds.compared_as(info, (low, high), True) if self.dialect.loose else ""
        failing = any_of(
            None
            if least is None
            else exp.LT(this=value.copy(), expression=self.dialect.literal(least, info)),
            None if most is None else exp.GT(this=value.copy(), expression=self.dialect.literal(most, info)),
            self.dialect.is_nan(info, tree),
            self.dialect.is_stray(info, tree, stray_kind) if self.dialect.loose else None,
        )
        return failing or always(False)

    def _unmatched(self, assertion: Regex) -> exp.Expression:
        info, tree = self.column(assertion.column), column(assertion.column)
        dynamic = self.dialect.loose and info.family == "other"
        if info.family != "text" and not dynamic:
            raise AssertionRefused(
                f"regex() needs a column of texts, and {info.name!r} is of type {info.type}",
                next_step="use expression() with a cast in the SQL of the source",
            )
        text = self.dialect.exact_text(tree, info)
        stray = self.dialect.is_stray(info, tree, "text")
        return any_of(stray, not_(self.dialect.matches(text, assertion.pattern))) or always(False)

    def _not_in(self, assertion: IsIn) -> exp.Expression:
        info, tree = self.column(assertion.column), column(assertion.column)
        values = bounds.members(assertion.values, info, loose=self.dialect.loose)
        if not self.dialect.has_infinity:
            values = tuple(value for value in values if value not in (float("inf"), float("-inf")))
        if not values:
            return is_not_null(tree)
        listed = [self.dialect.literal(value, info) for value in values]
        return exp.Not(this=exp.In(this=self.value(assertion.column), expressions=listed))

    def _without_parent(self, assertion: ForeignKey) -> exp.Expression:
        pairs = [
            exp.EQ(
                this=self.dialect.value(self.column(name), column(other, "referenced")),
                expression=self.value(name),
            )
            for name, other in zip(assertion.columns, assertion.referenced_columns, strict=True)
        ]
        parents = from_rows(self.reference(assertion.references), number(1), alias="referenced")
        return exp.Not(this=exp.Exists(this=filtered(parents, *pairs)))

    def repeated_keys(self, assertion: Unique, *selected: exp.Expression) -> exp.Select:
        """One row for each key that occurs more than once; its parts are ``k0``, ``k1`` …"""
        values = [self.value(name) for name in assertion.columns]
        present = [is_not_null(column(name)) for name in assertion.columns]
        keys = self.scan(*selected, where=all_of(self.where(assertion), *present))
        keys = keys.group_by(*[value.copy() for value in values], copy=False)
        return keys.having(exp.GT(this=count_rows(), expression=number(1)), copy=False)

    def _repeated(self, assertion: Unique) -> exp.Expression:
        values = [self.value(name) for name in assertion.columns]
        keys = self.repeated_keys(
            assertion, *[aliased(value.copy(), f"k{place}") for place, value in enumerate(values)]
        )
        pairs = [
            exp.EQ(this=column(f"k{place}", "repeated"), expression=value)
            for place, value in enumerate(values)
        ]
        return exp.Exists(this=filtered(from_rows(keys, number(1), alias="repeated"), *pairs))


def _similar(name: str, known: Mapping[str, ColumnInfo]) -> str:
    folded = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    if near:
        return f"; did you mean {folded[near[0]]!r}?"
    listed = list(known)
    shown = ", ".join(listed[:10]) + (" …" if len(listed) > 10 else "")
    return f"; there is {shown}" if listed else ""
