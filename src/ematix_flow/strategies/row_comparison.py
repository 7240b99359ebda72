"""Compares rows in SQL: whether two of them differ, and which of those with one key is the last."""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import IncomingRows, StrategyDialect, column, subquery

_PLACE, _COUNT = internal_name("place"), internal_name("count")


def null_safe_equal(
    dialect: StrategyDialect, left: exp.Expr, right: exp.Expr, data_type: DataType
) -> exp.Expr:
    """Equal, or both null."""
    return exp.NullSafeEQ(
        this=dialect.comparable(left, data_type), expression=dialect.comparable(right, data_type)
    )


def rows_differ(
    dialect: StrategyDialect, table: TableSpec, names: tuple[str, ...], left: str, right: str
) -> exp.Expr:
    """Whether at least one column differs between the two sides; null equals null."""
    equal = [null_safe_equal(dialect, column(n, left), column(n, right), table.column(n).type) for n in names]
    return exp.not_(exp.paren(exp.and_(*equal))) if equal else exp.false()


def last_of_each_key(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, order: str
) -> exp.Select:
    """The row with the highest ``order`` of each key. The row hash decides between equal ones."""
    names = table.column_names
    keys = incoming.matching.keys
    by_key = [dialect.comparable(column(k, "r"), table.column(k).type) for k in keys]
    count = exp.Window(this=exp.Count(this=exp.Star()), partition_by=[k.copy() for k in by_key])
    counted = exp.select(*[column(n, "r") for n in names], exp.alias_(count, _COUNT, quoted=True)).from_(
        subquery(incoming.select, "r")
    )
    # hash only keys that occur more than once
    content = dialect.row_hash([(n, table.column(n).type, column(n, "r")) for n in names if n not in keys])
    several = exp.GT(this=column(_COUNT, "r"), expression=exp.Literal.number(1))
    ordering = [
        exp.Ordered(this=dialect.comparable(column(order, "r"), table.column(order).type), desc=True),
        exp.Ordered(this=exp.Case(ifs=[exp.If(this=several, true=content)]), desc=True),
    ]
    place = exp.Window(this=exp.RowNumber(), partition_by=by_key, order=exp.Order(expressions=ordering))
    numbered = exp.select(*[column(n, "r") for n in names], exp.alias_(place, _PLACE, quoted=True)).from_(
        subquery(counted, "r")
    )
    first = exp.EQ(this=column(_PLACE, "n"), expression=exp.Literal.number(1))
    return exp.select(*[column(n, "n") for n in names]).from_(subquery(numbered, "n")).where(first)
