"""Spark SQL, in a session whose zone is UTC."""

from __future__ import annotations

import datetime as dt

from sqlglot import exp

from ematix_probe.compiling.dialects.base import PercentileTree, ProbeDialect, Scan, ranked_percentile
from ematix_probe.compiling.trees import call, cast, number, text
from ematix_probe.portable_regex import translate
from ematix_probe.sources.base import ColumnInfo

_LESS_THAN_ONE = 1 - 2**-50
_DAY = 86_400_000_000


class SparkDialect(ProbeDialect):
    name = "spark"
    flavour = "java"
    # evaluates_tables_once: the queries of a table share the exchange of its groups

    def exact_text(self, tree: exp.Expression, column: ColumnInfo) -> exp.Expression:
        if "collate" not in column.native.lower():
            return tree
        return exp.Collate(this=tree, expression=exp.Var(this="UTF8_BINARY"))

    def time(self, value: dt.datetime, column: ColumnInfo) -> exp.Expression:
        written = value.isoformat(" ", "microseconds")
        if column.family == "timestamp_tz":
            return cast(text(written + "+00:00"), "TIMESTAMPTZ")
        return cast(text(written), "TIMESTAMPNTZ")

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        return call("REGEXP_LIKE", tree, text(translate(pattern, self.flavour)))

    def texts_joined(self, tree: exp.Expression, separator: str) -> exp.Expression:
        return call("CONCAT_WS", text(separator), exp.ArrayAgg(this=tree))

    def summand(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        if column.type == "bigint":  # whose sum would overflow
            return exp.Cast(this=tree, to=exp.DataType.build("DECIMAL(20, 0)"))
        return super().summand(column, tree)

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
        if method == "sketch" and column.family in ("integer", "decimal", "float", "date", "timestamp_tz"):
            found = call(
                "PERCENTILE_APPROX", self.only(value, where), exp.Literal.number(repr(p)), number(10_000)
            )
            return PercentileTree(self.measured(column, found), "sketch")
        if column.type in ("smallint", "integer", "real", "double"):  # Spark computes it as a double
            share = exp.Literal.number(repr(p * _LESS_THAN_ONE) + "D")
            order = exp.Order(expressions=[exp.Ordered(this=self.only(value, where), nulls_first=True)])
            disc = exp.Anonymous(this="PERCENTILE_DISC", expressions=[share])
            return PercentileTree(exp.WithinGroup(this=disc, expression=order), "exact")
        return PercentileTree(self.measured(column, ranked_percentile(value, p, where, scan)), "exact")

    def microseconds(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        if column.family == "date":
            return exp.Mul(this=call("UNIX_DATE", tree), expression=number(_DAY))
        if column.family == "timestamp_tz":
            return call("UNIX_MICROS", tree)
        epoch = cast(text("1970-01-01 00:00:00"), "TIMESTAMPNTZ")
        return call("TIMESTAMPDIFF", exp.Var(this="MICROSECOND"), epoch, tree)
