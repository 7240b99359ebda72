"""DuckDB, which also reads files, lakes and frames."""

from __future__ import annotations

from decimal import Decimal

from sqlglot import exp

from ematix_probe.compiling.dialects.base import PercentileTree, ProbeDialect, Scan
from ematix_probe.compiling.trees import call, case, cast, number, text
from ematix_probe.portable_regex import translate
from ematix_probe.sources.base import ColumnInfo

_LAST = 2**63 - 1


class DuckDBDialect(ProbeDialect):
    name = "duckdb"
    flavour = "re2"

    def exact_text(self, tree: exp.Expression, column: ColumnInfo) -> exp.Expression:
        if column.native != "VARCHAR":
            tree = cast(tree, "TEXT")  # enums and uuid
        return exp.Collate(this=tree, expression=exp.to_identifier("binary", quoted=True))

    def matches(self, tree: exp.Expression, pattern: str) -> exp.Expression:
        return call("REGEXP_MATCHES", tree, text(translate(pattern, self.flavour)))

    def percentile(
        self,
        column: ColumnInfo,
        tree: exp.Expression,
        p: float,
        method: str,
        where: exp.Expression | None,
        scan: Scan,
    ) -> PercentileTree:
        value = self.only(self.value(column, tree.copy()), where)
        share = number(Decimal(repr(p)))  # a decimal: DuckDB then takes the exact rank
        sketch = method == "sketch" and column.family in ("integer", "decimal", "float", "date", "timestamp")
        found = call("APPROX_QUANTILE" if sketch else "QUANTILE_DISC", value, share)
        return PercentileTree(self.measured(column, found), "sketch" if sketch else "exact")

    def microseconds(self, column: ColumnInfo, tree: exp.Expression) -> exp.Expression:
        kind = "TIMESTAMPTZ" if column.family == "timestamp_tz" else "TIMESTAMP"
        found = call("EPOCH_US", cast(tree.copy(), kind))
        beyond = case(
            exp.GT(this=tree.copy(), expression=cast(text("2000-01-01"), kind)), number(_LAST), number(-_LAST)
        )
        return case(call("ISFINITE", tree.copy()), found, case(exp.Not(this=_is_null(tree)), beyond))


def _is_null(tree: exp.Expression) -> exp.Expression:
    return exp.Is(this=tree.copy(), expression=exp.Null())
