"""MySQL and MariaDB, in one text that both read. A comment that only one of them executes makes the choice.

The session must not have the mode NO_BACKSLASH_ESCAPES, and its zone is UTC.
"""

from __future__ import annotations

import datetime as dt

from sqlglot import exp

from ematix_probe.compiling.dialects.base import PercentileTree, ProbeDialect, Scan, ranked_percentile
from ematix_probe.compiling.trees import call, number, text
from ematix_probe.portable_regex import translate
from ematix_probe.sources.base import ColumnInfo

_BY_CODE_POINT = "/*!80000 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */"


class MySQLDialect(ProbeDialect):
    name = "mysql"
    flavour = "mysql"
    has_infinity = False
    joins_exists_in_where = joins_exists_in_case = False
    evaluates_tables_once = False  # MariaDB evaluates it for each use

    def exact_text(self, tree: exp.Expression, column: ColumnInfo) -> exp.Expression:
        return exp.Collate(this=_in_utf8(tree), expression=exp.Var(this=_BY_CODE_POINT))

    def key_part(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        """Texts and bytes by their SHA-256: an index on a derived table takes no long value."""
        if column.family not in ("text", "bytes"):
            return self.value(column, tree)
        if column.family == "text":
            tree = _in_utf8(tree)
        return call("UNHEX", exp.SHA2(this=tree, length=number(256)))

    def double(self, value: float) -> exp.Expression:
        written = repr(abs(value))
        tree = exp.Literal.number(written if "e" in written else written + "e0")
        return exp.Paren(this=exp.Neg(this=tree)) if value < 0 else tree

    def time(self, value: dt.datetime, column: ColumnInfo) -> exp.Expression:
        return _datetime(value.isoformat(" ", "microseconds"))

    def is_nan(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        return None

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        written = text("(?-i)" + translate(pattern, self.flavour))
        return exp.GT(this=call("REGEXP_INSTR", tree, written), expression=number(0))

    def summand(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        return tree  # a sum of FLOAT is a DOUBLE here

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
        return PercentileTree(self.measured(column, ranked_percentile(value, p, where, scan)), "exact")

    def microseconds(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        return call("TIMESTAMPDIFF", exp.Var(this="MICROSECOND"), _datetime("1970-01-01 00:00:00"), tree)


def _in_utf8(tree: exp.Expression) -> exp.Expression:
    utf8 = exp.DataType(this=exp.DataType.Type.CHARACTER_SET, kind=exp.Var(this="utf8mb4"))
    return exp.Cast(this=tree, to=utf8)


def _datetime(written: str) -> exp.Expression:
    return exp.Cast(this=text(written), to=exp.DataType.build("DATETIME(6)", dialect="mysql"))
