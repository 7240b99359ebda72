"""Append: insert the batch. An incremental one leaves out boundary rows that are there already.

The lower bound of an incremental read is closed, so rows that share the last watermark value are read
again; they are matched against the target by key, or as a multiset of whole rows where there is none.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import (
    IncomingRows,
    StrategyDialect,
    StrategyStep,
    ascending,
    column,
    insert_rows,
    subquery,
    table_as,
    with_alias,
)

_COPY = internal_name("copy")


def steps(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> list[StrategyStep]:
    if incoming.low is None:
        return [insert_rows(dialect, table, incoming)]
    low = dialect.literal(incoming.low.value, incoming.low.type)
    mark = column(incoming.low.column, "s")
    if table.primary_key:
        condition = exp.or_(
            exp.GT(this=mark, expression=low), exp.not_(_key_is_present(dialect, table, incoming, low))
        )
        return [insert_rows(dialect, table, incoming, condition)]
    later = exp.GT(this=mark, expression=low)
    at_boundary = IncomingRows(
        _unmatched_copies(dialect, table, incoming, low), incoming.run_id, incoming.loaded_at
    )
    return [insert_rows(dialect, table, incoming, later), insert_rows(dialect, table, at_boundary)]


def _key_is_present(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, low: exp.Expr
) -> exp.Expr:
    assert incoming.low is not None
    matches = [exp.EQ(this=column(k, "t"), expression=column(k, "s")) for k in table.primary_key]
    matches.append(exp.EQ(this=column(incoming.low.column, "t"), expression=low))
    target = table_as(dialect.table(table.schema, table.name), "t")
    return exp.Exists(this=exp.select("1").from_(target).where(*matches))


def _unmatched_copies(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, low: exp.Expr
) -> exp.Expr:
    """Boundary rows whose n-th equal copy is not in the target yet."""
    assert incoming.low is not None
    names = table.column_names
    target = table_as(dialect.table(table.schema, table.name), "t")

    def numbered(source: exp.Expr, alias: str) -> exp.Select:
        same = [dialect.comparable(column(n, alias), table.column(n).type) for n in names]
        # the copies are equal, but some databases need an order to number rows
        order = exp.Order(expressions=[ascending(column(incoming.low.column, alias))])  # type: ignore[union-attr]
        number = exp.Window(this=exp.RowNumber(), partition_by=same, order=order)
        at_low = exp.EQ(this=column(incoming.low.column, alias), expression=low.copy())  # type: ignore[union-attr]
        select = exp.select(*[column(n, alias) for n in names], exp.alias_(number, _COPY, quoted=True))
        return select.from_(source).where(at_low)

    rows = with_alias(exp.Subquery(this=incoming.select.copy()), "r")
    present, coming = subquery(numbered(target, "t"), "p"), subquery(numbered(rows, "r"), "c")
    equal: list[exp.Expr] = [
        exp.NullSafeEQ(
            this=dialect.comparable(column(n, "p"), table.column(n).type),
            expression=dialect.comparable(column(n, "c"), table.column(n).type),
        )
        for n in names
    ]
    equal.append(exp.EQ(this=column(_COPY, "p"), expression=column(_COPY, "c")))
    missing = exp.not_(exp.Exists(this=exp.select("1").from_(present).where(*equal)))
    return exp.select(*[column(n, "c") for n in names]).from_(coming).where(missing)
