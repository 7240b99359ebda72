"""DuckDB, which also reads files, lakes and frames."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from sqlglot import exp

from ematix_probe.compiling.bounds import Typed
from ematix_probe.compiling.dialects.base import PercentileTree, ProbeDialect, Scan
from ematix_probe.compiling.trees import call, case, cast, is_not_null, number, text
from ematix_probe.iso_times import microseconds
from ematix_probe.portable_regex import translate
from ematix_probe.sources.base import ColumnInfo

_LAST = 2**63 - 1


class DuckDBDialect(ProbeDialect):
    name = "duckdb"
    flavour = "re2"

    def value(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        if _in_nanoseconds(column):  # DuckDB compares such times with no other ones
            return call("EPOCH_NS", tree)
        return super().value(column, tree)

    def literal(self, value: Typed, column: ColumnInfo) -> exp.Expression:
        if _in_nanoseconds(column) and isinstance(value, dt.date):
            return number(microseconds(value) * 1000)
        return super().literal(value, column)

    def exact_text(self, tree: exp.Expression, column: ColumnInfo) -> exp.Expression:
        if column.native != "VARCHAR":
            tree = cast(tree, "TEXT")  # enums and uuid
        return exp.Collate(this=tree, expression=exp.to_identifier("binary", quoted=True))

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        return call("REGEXP_MATCHES", tree, text(translate(pattern, self.flavour)))

    def is_nan(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression | None:
        # a function: for  x = 'NaN'  DuckDB passes over row groups of Parquet, whose statistics know no NaN
        return call("ISNAN", tree.copy()) if column.family == "float" else None

    def percentile(
        self,
        column: ColumnInfo,
        tree: exp.Expression,
        p: float,
        method: str,
        where: exp.Expression | None,
        scan: Scan,
    ) -> PercentileTree:
        ordered = self.value(column, tree.copy()) if column.family == "text" else tree.copy()
        value = self.only(ordered, where)
        share = number(Decimal(repr(p)))  # a decimal: DuckDB then takes the exact rank
        sketch = method == "sketch" and column.family in ("integer", "decimal", "float", "date", "timestamp")
        found = call("APPROX_QUANTILE" if sketch else "QUANTILE_DISC", value, share)
        return PercentileTree(self.measured(column, found), "sketch" if sketch else "exact")

    def microseconds(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        kind = "TIMESTAMPTZ" if column.family == "timestamp_tz" else "TIMESTAMP"
        found = call("EPOCH_US", cast(tree.copy(), kind))
        if _in_nanoseconds(column):
            kind = "TIMESTAMP_NS"
            tree = cast(tree, kind)
            found = exp.IntDiv(this=call("EPOCH_NS", tree.copy()), expression=number(1000))
        beyond = case(
            exp.GT(this=tree.copy(), expression=cast(text("2000-01-01"), kind)), number(_LAST), number(-_LAST)
        )
        return case(call("ISFINITE", tree.copy()), found, case(is_not_null(tree), beyond))


def _in_nanoseconds(column: ColumnInfo) -> bool:
    return column.native in ("TIMESTAMP_NS", "TIMESTAMPTZ_NS")
