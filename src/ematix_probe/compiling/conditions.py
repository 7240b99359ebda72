"""The condition that a row fulfils when it fails an assertion."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from ematix_probe.control_characters import mask_and_escape
from ematix_probe.errors import AssertionRefused
from ematix_probe.sources.base import ColumnInfo

Rows = exp.Query | exp.Table
Reference = Callable[[str], Rows]


@dataclass(frozen=True)
class FailingRows:
    """A condition over the rows ``checked``, and what must be joined to them. A join doubles no row."""

    condition: exp.Expression
    joins: tuple[exp.Join, ...] = ()


def failing_rows(
    assertion: Assertion,
    columns: Mapping[str, ColumnInfo],
    dialect: str,
    rows: Rows,
    reference: Reference,
    *,
    case: int | None = None,
) -> FailingRows:
    """True, and never NULL, for the rows `checked` that fail: those that ``where`` leaves out do not.

    The condition is for a WHERE, or for the branch of a CASE with the number ``case``.
    AssertionRefused when the source has no such column, or its type cannot be checked so.
    """
    compiler = ConditionCompiler(columns, dialect_named(dialect), rows, reference)
    found = compiler.failing_keys(assertion, case) or FailingRows(compiler.failing(assertion))
    failing = found.condition
    where = compiler.where(assertion)
    if not isinstance(assertion, (Expression, NotNull)):
        present = [is_not_null(column(name)) for name in compared_columns(assertion)]
        failing = all_of(*present, failing) or failing
    return FailingRows(all_of(None if where is None else is_true(where), failing) or failing, found.joins)


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

    def key_part(self, name: str, tree: exp.Expression | None = None) -> exp.Expression:
        """The column's value, or another tree of its type, as a part of a key."""
        return self.dialect.key_part(self.column(name), column(name) if tree is None else tree)

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
        """One row for each key that occurs more than once; with the trees that are selected of it."""
        values = [self.key_part(name) for name in assertion.columns]
        present = [is_not_null(column(name)) for name in assertion.columns]
        keys = self.scan(*selected, where=all_of(self.where(assertion), *present))
        keys = keys.group_by(*[value.copy() for value in values], copy=False)
        return keys.having(exp.GT(this=count_rows(), expression=number(1)), copy=False)

    def _repeated(self, assertion: Unique) -> exp.Expression:
        keys = self.repeated_keys(assertion, *self.named_parts(assertion))
        pairs = self._equal_parts(assertion, "repeated")
        return exp.Exists(this=filtered(from_rows(keys, number(1), alias="repeated"), *pairs))

    # --- keys by a join, for engines that would evaluate EXISTS once for each row ---

    def failing_keys(self, assertion: Assertion, case: int | None = None) -> FailingRows | None:
        """The rows that fail `unique` or `foreign_key`, by a join; None where EXISTS is as good."""
        dialect = self.dialect
        if dialect.joins_exists_in_where if case is None else dialect.joins_exists_in_case:
            return None
        alias = f"ematix_probe_keys_{case or 0}"
        first = column(key_name(0), alias)
        if isinstance(assertion, Unique):
            repeated = self.repeated_keys(assertion, *self.named_parts(assertion))
            return FailingRows(is_not_null(first), (self._join(assertion, repeated, alias),))
        if isinstance(assertion, ForeignKey):
            return FailingRows(is_null(first), (self._join(assertion, self._known_keys(assertion), alias),))
        return None

    def _known_keys(self, assertion: ForeignKey) -> exp.Select:
        """The different keys of the rows that have a parent, which an engine finds from either side."""
        present = [is_not_null(column(name)) for name in assertion.columns]
        own = self.scan(*self.named_parts(assertion), where=all_of(*present)).distinct(copy=False)
        parts = [column(key_name(place), "own") for place in range(len(assertion.columns))]
        pairs = [
            exp.EQ(this=self.key_part(name, column(other, "referenced")), expression=part.copy())
            for name, other, part in zip(assertion.columns, assertion.referenced_columns, parts, strict=True)
        ]
        named = [aliased(part, key_name(place)) for place, part in enumerate(parts)]
        known = from_rows(own, *named, alias="own")
        parents = from_rows(self.reference(assertion.references), alias="referenced").args["from_"].this
        return known.join(parents, on=all_of(*pairs), copy=False).distinct(copy=False)

    def _join(self, assertion: Unique | ForeignKey, keys: exp.Select, alias: str) -> exp.Join:
        source = exp.Subquery(this=keys, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        return exp.Join(this=source, side="LEFT", on=all_of(*self._equal_parts(assertion, alias)))

    def named_parts(self, assertion: Unique | ForeignKey) -> list[exp.Expression]:
        return [aliased(self.key_part(name), key_name(place)) for place, name in enumerate(assertion.columns)]

    def _equal_parts(self, assertion: Unique | ForeignKey, keys: str) -> list[exp.Expression]:
        return [
            exp.EQ(this=column(key_name(place), keys), expression=self.key_part(name))
            for place, name in enumerate(assertion.columns)
        ]


def key_name(place: int) -> str:
    """The name of a part of a key, which no column that a user's condition names should have."""
    return f"ematix_probe_key_{place}"


def _similar(name: str, known: Mapping[str, ColumnInfo]) -> str:
    folded = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    if near:
        return f"; did you mean {folded[near[0]]!r}?"
    listed = list(known)
    shown = ", ".join(map(mask_and_escape, listed[:10])) + (" …" if len(listed) > 10 else "")
    return f"; there is {shown}" if listed else ""
