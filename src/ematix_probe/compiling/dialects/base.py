"""What the compiler asks of an engine's SQL. Every method takes and gives trees.

A column's *value* is its tree in the form in which it is compared: texts by code point, times as the engine
orders them. Two values are equal exactly when the values of the rules in `assertions` are.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlglot import exp

from ematix_probe.compiling.bounds import Typed
from ematix_probe.compiling.trees import all_of, call, case, cast, column, is_not_null, number, scalar, text
from ematix_probe.compiling.trees import any_of as either
from ematix_probe.errors import AssertionRefused
from ematix_probe.sources.base import ColumnInfo

Scan = Callable[..., exp.Select]  # gives  SELECT … FROM rows AS checked WHERE …  for selected trees
COMPARED_TEXT = ("varchar", "text")
EXACT_AVERAGES = 10
LONGEST_KEY = 1_000  # letters of a part of a key that samples look for


@dataclass(frozen=True)
class PercentileTree:
    """The value, NULL without values; ``method`` says how it is found."""

    tree: exp.Expression
    method: str


class ProbeDialect(ABC):
    """One engine. What is written here holds for Postgres and DuckDB; the others differ where they must."""

    name: str
    flavour: str  # of its regular expressions, see portable_regex
    loose = False  # columns hold values of any type
    has_infinity = True
    joins_exists_in_where = True  # the engine plans a correlated EXISTS as a join, not once for each row
    joins_exists_in_case = True
    evaluates_tables_once = True  # a common table expression that is used several times

    # --- values ---

    def value(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        return self.exact_text(tree, column) if column.family == "text" else tree

    def exact_text(self, tree: exp.Expression, column: ColumnInfo) -> exp.Expression:
        raise NotImplementedError

    def key_part(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        """The value where keys are grouped and joined: equal exactly when the values are."""
        return self.value(column, tree)

    def literal(self, value: Typed, column: ColumnInfo) -> exp.Expression:
        if isinstance(value, bool):
            return exp.Boolean(this=value)
        if isinstance(value, (int, Decimal)):
            return number(value)
        if isinstance(value, float):
            return self.double(value)
        if isinstance(value, str):
            return text(value)
        if isinstance(value, dt.datetime):
            return self.time(value, column)
        return self.date(value)

    def double(self, value: float) -> exp.Expression:
        names = {float("inf"): "Infinity", float("-inf"): "-Infinity"}
        return cast(text(names.get(value, repr(value))), "DOUBLE")

    def time(self, value: dt.datetime, column: ColumnInfo) -> exp.Expression:
        written = value.isoformat(" ", "microseconds")
        if column.family == "timestamp_tz":
            return cast(text(written + "+00:00"), "TIMESTAMPTZ")
        return cast(text(written), "TIMESTAMP")

    def date(self, value: dt.date) -> exp.Expression:
        return cast(text(value.isoformat()), "DATE")

    # --- conditions ---

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        raise NotImplementedError

    def is_nan(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        """True for NaN; None where the column cannot hold it."""
        if column.family != "float":
            return None
        return exp.EQ(this=tree.copy(), expression=cast(text("NaN"), "DOUBLE"))

    def is_stray(self, column: ColumnInfo, tree: exp.Expression, kind: str) -> exp.Expression | None:
        """True for a value that is not of the kind in which it is compared; None where none can be."""
        return None

    # --- aggregates ---

    def count_if(self, condition: exp.Expression | None) -> exp.Expression:
        if condition is None:
            return exp.Count(this=exp.Star())
        return exp.Count(this=case(condition.copy(), number(1)))

    def only(self, tree: exp.Expression, condition: exp.Expression | None) -> exp.Expression:
        """The tree for the rows that fulfil the condition, else NULL."""
        return tree if condition is None else case(condition.copy(), tree)

    def sums(
        self, column: ColumnInfo, tree: exp.Expression, where: exp.Expression | None
    ) -> list[exp.Expression]:
        """The aggregates from which `read_sum` makes the sum."""
        return [exp.Sum(this=self.only(self.summand(column, tree), where))]

    def summand(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        return cast(tree, "DOUBLE") if column.type == "real" else tree

    def read_sum(self, column: ColumnInfo, values: list[Any]) -> int | float | Decimal:
        (value,) = values
        if value is None:
            return 0
        return int(value) if column.family == "integer" else value

    def distinct(self, value: exp.Expression, where: exp.Expression | None, scan: Scan) -> exp.Expression:
        """The number of different values that are not NULL."""
        return exp.Count(this=exp.Distinct(expressions=[self.only(value, where)]))

    def percentile(
        self,
        column: ColumnInfo,
        tree: exp.Expression,
        p: float,
        method: str,
        where: exp.Expression | None,
        scan: Scan,
    ) -> PercentileTree:
        raise NotImplementedError

    def microseconds(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        """The microseconds from 1970 to a date or time, in UTC."""
        raise NotImplementedError

    def measured(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        """A column's value as a measure that the driver reads exactly."""
        if column.family in ("date", "timestamp", "timestamp_tz"):
            return self.microseconds(column, tree)
        return tree

    # --- samples ---

    def hexadecimal(self, tree: exp.Expression) -> exp.Expression:
        """The bytes of a text in UTF-8; NULL where the engine cannot give them."""
        return call("HEX", tree)

    def written(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        """What `returned` gives as ASCII, which no driver fails to read: ``i`` and a whole number, ``b`` and
        a truth value, ``t`` and the bytes of a text. NULL for a long text, None for other types."""
        value = self.returned(column, tree)
        if value is None:
            return None
        if column.family in ("integer", "boolean"):
            return exp.DPipe(this=text(column.family[0]), expression=cast(value, "TEXT"))
        short = exp.LTE(this=exp.Length(this=value.copy()), expression=number(LONGEST_KEY))
        return case(short, exp.DPipe(this=text("t"), expression=self.hexadecimal(value)))

    def texts_joined(self, tree: exp.Expression, separator: str) -> exp.Expression:
        """The aggregate of all texts that are not NULL."""
        return call("STRING_AGG", tree, text(separator))

    def returned(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        """A part of a key as a whole number, a text or a truth value: equal keys are equal in this form, or
        some of their rows are not found, and different ones never are. None for other types."""
        if column.family in ("boolean", "integer", "text"):
            return tree
        return None if column.family in ("bytes", "other") else cast(tree, "TEXT")

    def order(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        """What rows are ordered by; None for a type without an order."""
        return None if column.family == "other" else self.value(column, tree)


def ranked_percentile(
    value: exp.Expression, p: float, where: exp.Expression | None, scan: Scan
) -> exp.Expression:
    """By numbering the sorted values: for engines without ``percentile_disc``."""
    order = exp.Order(expressions=[exp.Ordered(this=value.copy(), nulls_first=True)])
    place = exp.Window(this=exp.RowNumber(), order=order)
    ranked = scan(
        exp.alias_(value.copy(), "v", quoted=True),
        exp.alias_(place, "r", quoted=True),
        exp.alias_(exp.Window(this=exp.Count(this=exp.Star())), "n", quoted=True),
        where=all_of(is_not_null(value), where),
    )
    v, r, n = (column(name, "ranked") for name in "vrn")
    reached = exp.GTE(this=r, expression=exp.Mul(this=n, expression=number(Decimal(repr(p)))))
    outer = exp.Select(expressions=[exp.Min(this=v)])
    outer = outer.from_(ranked.subquery(exp.to_identifier("ranked", quoted=True)), copy=False)
    return scalar(outer.where(reached, copy=False))


def counted_distinct(value: exp.Expression, where: exp.Expression | None, scan: Scan) -> exp.Expression:
    """By a subquery of the different values, which engines find by hashing."""
    different = scan(
        exp.alias_(value.copy(), "v", quoted=True), where=all_of(is_not_null(value), where)
    ).distinct(copy=False)
    outer = exp.Select(expressions=[exp.Count(this=exp.Star())])
    return scalar(outer.from_(different.subquery(exp.to_identifier("different", quoted=True)), copy=False))


def needs_number(column: ColumnInfo, what: str, *, loose: bool) -> None:
    if column.family in ("integer", "decimal", "float") or (loose and column.family == "other"):
        return
    step = f'in a text file, columns={{"{column.name}": "double"}} makes the error name the wrong value'
    raise AssertionRefused(
        f"{what} needs a column of numbers, and {column.name!r} is of type {column.type}",
        next_step=step if column.family == "text" else None,
    )


__all__ = [
    "PercentileTree",
    "ProbeDialect",
    "Scan",
    "call",
    "counted_distinct",
    "either",
    "needs_number",
    "ranked_percentile",
]
