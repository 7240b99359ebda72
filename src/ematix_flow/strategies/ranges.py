"""Restricts the user's SQL to the range of an incremental run."""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.strategies.sql import StrategyDialect, column, verbatim, with_alias


def range_condition(
    source_range: SourceRange, dialect: StrategyDialect, alias: str | None = None
) -> exp.Expr | None:
    """``low <= column <= high``. Nulls are kept, so that the load refuses them instead of skipping them."""
    mark = column(source_range.column, alias)
    parts: list[exp.Expr] = []
    for bound, compare in ((source_range.low, exp.GTE), (source_range.high, exp.LTE)):
        if bound is not None:
            value = dialect.literal(bound.value, bound.type)
            parts.append(compare(this=dialect.range_operand(mark.copy(), bound.type), expression=value))
    if not parts:
        return None
    return exp.or_(exp.and_(*parts), exp.Is(this=mark, expression=exp.Null()))


def restrict_to_range(sql: str, source_range: SourceRange | None, dialect: StrategyDialect) -> str:
    """The SQL unchanged, or as a subquery with the range's condition around it."""
    condition = range_condition(source_range, dialect, "ranged") if source_range else None
    if condition is None:
        return sql
    inner = with_alias(verbatim(sql), "ranged")
    return exp.select("*").from_(inner).where(condition).sql(dialect=dialect.name, identify=True)
