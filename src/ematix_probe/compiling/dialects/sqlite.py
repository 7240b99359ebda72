"""SQLite, whose columns hold values of any type.

Two functions are registered by the source (`sources.sqlite_functions`): the match of a regular expression,
and the microseconds since 1970 of a date or time that SQLite holds as a text or a number.
"""

from __future__ import annotations

import datetime as dt
import math
import sqlite3
from decimal import Decimal
from typing import Any

from sqlglot import exp

from ematix_probe.column_types import precision_and_scale
from ematix_probe.compiling.bounds import Typed
from ematix_probe.compiling.dialects.base import LONGEST_KEY, PercentileTree, ProbeDialect, Scan
from ematix_probe.compiling.trees import all_of, call, case, cast, is_not_null, is_null, number, scalar, text
from ematix_probe.iso_times import microseconds
from ematix_probe.portable_regex import translate
from ematix_probe.sources.base import ColumnInfo

MATCHES = "EMATIX_PROBE_MATCHES"
MICROSECONDS = "EMATIX_PROBE_MICROSECONDS"
_TIMES = ("date", "timestamp", "timestamp_tz")
_HALF = 2**32
_LARGEST = 2**53  # a double holds every whole number below it
_LESS_THAN_ONE = 1 - 2**-50


class SQLiteDialect(ProbeDialect):
    name = "sqlite"
    flavour = "python"
    loose = True
    joins_exists_in_where = joins_exists_in_case = False
    evaluates_tables_once = sqlite3.sqlite_version_info >= (3, 35)

    def value(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        if column.family in _TIMES:
            return call("COALESCE", call(MICROSECONDS, tree), tree.copy())
        return self.exact_text(tree, column)

    def exact_text(self, tree: exp.Expression, column: ColumnInfo) -> exp.Expression:
        if column.family in ("text", "other"):
            return exp.Collate(this=tree, expression=exp.Var(this="BINARY"))
        return tree

    def literal(self, value: Typed, column: ColumnInfo) -> exp.Expression:
        if isinstance(value, bool):
            return number(int(value))
        if isinstance(value, dt.date):
            return number(microseconds(value))
        return super().literal(value, column)

    def double(self, value: float) -> exp.Expression:
        if math.isinf(value):
            tree: exp.Expression = exp.Literal.number("9e999")
        else:
            tree = _exact_double(abs(value))
        return exp.Paren(this=exp.Neg(this=tree)) if value < 0 else tree

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        return exp.EQ(this=call(MATCHES, text(translate(pattern, self.flavour)), tree), expression=number(1))

    def is_nan(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        return None  # SQLite stores NULL for it

    def is_stray(self, column: ColumnInfo, tree: exp.Expression, kind: str) -> exp.Expression | None:
        if kind == "timestamp":
            return all_of(is_not_null(tree), is_null(call(MICROSECONDS, tree.copy())))
        stored = exp.Typeof(this=tree.copy())
        if kind == "text":
            return all_of(is_not_null(tree), exp.NEQ(this=stored, expression=text("text")))
        if kind == "number":
            numbers = exp.In(this=stored, expressions=[text("integer"), text("real"), text("null")])
            return exp.Not(this=numbers)
        return None

    def sums(
        self, column: ColumnInfo, tree: exp.Expression, where: exp.Expression | None
    ) -> list[exp.Expression]:
        """Whole numbers by their halves, so that none overflows; decimals as whole numbers of their scale."""
        scale = _whole_scale(column)
        stored = exp.Typeof(this=tree.copy())
        if scale is None:
            whole = case(exp.EQ(this=stored, expression=text("integer")), tree.copy())
            rest = case(exp.EQ(this=stored.copy(), expression=text("real")), tree.copy())
        else:
            numbers = exp.In(this=stored, expressions=[text("integer"), text("real")])
            scaled = call("ROUND", exp.Mul(this=tree.copy(), expression=number(10**scale)))
            fits = exp.LT(this=call("ABS", scaled.copy()), expression=number(_LARGEST))
            whole = case(all_of(numbers, fits) or numbers, cast(scaled, "BIGINT"))
            rest = case(all_of(numbers, exp.Not(this=exp.Paren(this=fits))) or numbers, tree.copy())
        high = exp.BitwiseRightShift(this=exp.Paren(this=whole), expression=number(32))
        low = exp.BitwiseAnd(this=exp.Paren(this=whole.copy()), expression=number(_HALF - 1))
        parts = [self.only(part, where) for part in (exp.Paren(this=high), exp.Paren(this=low), rest)]
        return [*(exp.Sum(this=part) for part in parts), exp.Count(this=parts[-1].copy())]

    def read_sum(self, column: ColumnInfo, values: list[Any]) -> int | float | Decimal:
        high, low, rest, rests = values
        whole = (high or 0) * _HALF + (low or 0)
        if rests:  # whose sum is NULL for infinity plus minus infinity
            scaled = whole / 10 ** (_whole_scale(column) or 0)
            return math.nan if rest is None else float(scaled + rest)
        scale = _whole_scale(column)
        if scale is not None:
            return Decimal(whole).scaleb(-scale)
        return float(whole) if column.family == "float" else whole

    def percentile(
        self,
        column: ColumnInfo,
        tree: exp.Expression,
        p: float,
        method: str,
        where: exp.Expression | None,
        scan: Scan,
    ) -> PercentileTree:
        value = self.value(column, tree)
        condition = all_of(is_not_null(tree), where)
        counted = scan(exp.Count(this=exp.Star()), where=condition)
        place = exp.Mul(this=scalar(counted), expression=self.double(p * _LESS_THAN_ONE))
        found = scan(value.copy(), where=condition)
        found = found.order_by(exp.Ordered(this=value.copy(), nulls_first=True), copy=False)
        found = found.limit(number(1), copy=False).offset(cast(place, "BIGINT"), copy=False)
        return PercentileTree(scalar(found), "exact")

    def microseconds(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        return call(MICROSECONDS, tree)

    def returned(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        return tree  # of any type, which shows in the value

    def written(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        stored = exp.Typeof(this=tree.copy())
        bytes_of_text = exp.Length(this=exp.Cast(this=tree.copy(), to=exp.DataType.build("BLOB", "sqlite")))
        whole = exp.DPipe(this=text("i"), expression=cast(tree.copy(), "TEXT"))
        return exp.Case(
            ifs=[
                exp.If(this=exp.EQ(this=stored, expression=text("integer")), true=whole),
                exp.If(
                    this=all_of(
                        exp.EQ(this=stored.copy(), expression=text("text")),
                        exp.LTE(this=bytes_of_text, expression=number(LONGEST_KEY)),
                    ),
                    true=exp.DPipe(this=text("t"), expression=self.hexadecimal(tree.copy())),
                ),
            ]
        )

    def texts_joined(self, tree: exp.Expression, separator: str) -> exp.Expression:
        return call("GROUP_CONCAT", tree, text(separator))

    def order(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        return self.value(column, tree)


def _whole_scale(column: ColumnInfo) -> int | None:
    """The scale of decimals that are summed as whole numbers."""
    shape = precision_and_scale(column.type) if column.family == "decimal" else None
    return shape[1] if shape is not None and shape[1] <= 15 else None


def _exact_double(value: float) -> exp.Expression:
    """SQLite may read the last digit of a long number wrongly: such a number is written as a fraction."""
    written = repr(value)
    digits = written.partition("e")[0].replace(".", "").strip("0")
    if len(digits) <= 15 and 1e-7 < value < 1e22:
        return exp.Literal.number(written)
    above, below = value.as_integer_ratio()
    tree: exp.Expression = cast(number(above if above < 2**53 else 0), "DOUBLE")
    if above >= 2**53:
        shift = above.bit_length() - 53
        tree = cast(number(above >> shift), "DOUBLE")
        for part in _powers(shift):
            tree = exp.Mul(this=tree, expression=cast(number(part), "DOUBLE"))
    for part in _powers(below.bit_length() - 1):
        tree = exp.Div(this=tree, expression=cast(number(part), "DOUBLE"))
    return exp.Paren(this=tree)


def _powers(exponent: int) -> list[int]:
    """Powers of two whose product is two to the exponent."""
    return [2**62] * (exponent // 62) + ([2 ** (exponent % 62)] if exponent % 62 else [])
