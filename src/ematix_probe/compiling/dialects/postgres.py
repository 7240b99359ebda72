"""PostgreSQL."""

from __future__ import annotations

from sqlglot import exp

from ematix_probe.compiling.dialects.base import PercentileTree, ProbeDialect, Scan, counted_distinct
from ematix_probe.compiling.trees import call, case, cast, number, text
from ematix_probe.portable_regex import translate
from ematix_probe.sources.base import ColumnInfo

# percentile_disc rounds p times the number of rows up, in doubles: 0.07 of 100 would be the 8th row
_LESS_THAN_ONE = 1 - 2**-50


class PostgresDialect(ProbeDialect):
    name = "postgres"
    flavour = "postgres"
    joins_exists_in_case = False

    def exact_text(self, tree: exp.Expression, column: ColumnInfo) -> exp.Expression:
        if not column.native.startswith(("text", "character varying")):
            tree = cast(tree, "TEXT")  # char(n), citext, enums and uuid compare by other rules
        return exp.Collate(this=tree, expression=exp.to_identifier("C", quoted=True))

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        return exp.RegexpLike(this=tree, expression=text(translate(pattern, self.flavour)))

    def is_nan(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        if column.family == "decimal":
            return exp.EQ(this=tree.copy(), expression=cast(text("NaN"), "DECIMAL"))
        return super().is_nan(column, tree)

    def distinct(self, value: exp.Expression, where: exp.Expression | None, scan: Scan) -> exp.Expression:
        return counted_distinct(value, where, scan)  # count(DISTINCT …) would sort

    def percentile(
        self,
        column: ColumnInfo,
        tree: exp.Expression,
        p: float,
        method: str,
        where: exp.Expression | None,
        scan: Scan,
    ) -> PercentileTree:
        share = exp.Literal.number(repr(p * _LESS_THAN_ONE))
        order = exp.Order(expressions=[exp.Ordered(this=self.value(column, tree.copy()), nulls_first=False)])
        found: exp.Expression = exp.WithinGroup(
            this=exp.Anonymous(this="PERCENTILE_DISC", expressions=[share]), expression=order
        )
        if where is not None:
            found = exp.Filter(this=found, expression=exp.Where(this=where.copy()))
        return PercentileTree(self.measured(column, found), "exact")

    def microseconds(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        seconds = exp.Extract(this=exp.Var(this="EPOCH"), expression=tree)
        return cast(exp.Mul(this=seconds, expression=number(1_000_000)), "DECIMAL")

    def hexadecimal(self, tree: exp.Expression) -> exp.Expression:
        # in other encodings a text may have letters without bytes in UTF-8, which would be an error
        encoding = exp.EQ(this=call("GETDATABASEENCODING"), expression=text("UTF8"))
        encoded = call("ENCODE", call("CONVERT_TO", tree, text("UTF8")), text("hex"))
        return case(encoding, encoded)

    def returned(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        if column.family == "float":  # as text it would have as many digits as the session says
            return call("ENCODE", call("FLOAT8SEND", cast(tree, "DOUBLE")), text("hex"))
        return super().returned(column, tree)

    def count_if(self, condition: exp.Expression | None) -> exp.Expression:
        counted = exp.Count(this=exp.Star())
        if condition is None:
            return counted
        return exp.Filter(this=counted, expression=exp.Where(this=condition.copy()))
