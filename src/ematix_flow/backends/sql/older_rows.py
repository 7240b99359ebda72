"""The older rows of a batch: of a key whose newest row is set aside, the newest row that passes is loaded.

A stream that merges stages every row of a batch, with its age. The gate judges the newest row of each key,
which has the age 0, and reads the others only where that one fails.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from ematix_flow.backends.base import Load
from ematix_flow.backends.sql.quarantine import gated_table
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.spec.expectations import RULE, Gate
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import AGE, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import column, equal_keys, insert_into, subquery, table_as
from ematix_probe.assertions import Unique

OLDER_TABLE = (
    "older"  # the work table with the older rows of failing keys, and the first rule that each fails
)
_PLACE = internal_name("place")


def older_table(table: TableSpec) -> TableSpec:
    gated = gated_table(table, replayed=False)
    return replace(gated, name=OLDER_TABLE, columns=(*gated.columns, ColumnSpec(AGE, DataType("big_int"))))


def newest_rows(table: TableSpec, rows: exp.Expr) -> exp.Select:
    """The newest row of each key."""
    newest = exp.EQ(this=column(AGE, "s"), expression=exp.Literal.number(0))
    return exp.select(*[column(n, "s") for n in table.column_names]).from_(subquery(rows, "s")).where(newest)


def rules_of_older(gate: Gate) -> Gate:
    """The gate for older rows: those of one key repeat it, and only one of them is loaded."""
    return replace(gate, rules=tuple(r for r in gate.rules if not isinstance(r.assertion, Unique)))


def older_rows(load: Load, rows: exp.Expr, gated: exp.Table) -> exp.Select:
    """The older rows of each key whose newest row, which ``gated`` has, fails a rule."""
    failed = exp.not_(exp.Is(this=column(RULE, "g"), expression=exp.Null()))
    same_key = equal_keys(load.plan.matching.keys, "g", "s")
    newest = exp.select("1").from_(table_as(gated, "g")).where(failed, *same_key)
    is_older = exp.GT(this=column(AGE, "s"), expression=exp.Literal.number(0))
    names = (*load.table.column_names, AGE)
    found = exp.select(*[column(n, "s") for n in names]).from_(subquery(rows.copy(), "s"))
    return found.where(is_older, exp.Exists(this=newest))


def add_older(load: Load, dialect: SqlDialect, older: exp.Table, gated: exp.Table) -> exp.Insert:
    """INSERT into ``gated`` of the newest row of each key in ``older`` that fails no rule."""
    names, keys = load.table.column_names, load.plan.matching.keys
    place = exp.Window(
        this=exp.RowNumber(),
        partition_by=[dialect.comparable(column(k, "o"), load.table.column(k).type) for k in keys],
        order=exp.Order(expressions=[exp.Ordered(this=column(AGE, "o"), nulls_first=True)]),
    )
    passes = exp.Is(this=column(RULE, "o"), expression=exp.Null())
    placed = exp.select(*[column(n, "o") for n in names], exp.alias_(place, _PLACE, quoted=True))
    placed = placed.from_(table_as(older, "o")).where(passes)
    first = exp.EQ(this=column(_PLACE, "n"), expression=exp.Literal.number(1))
    chosen = exp.select(*[column(n, "n") for n in names]).from_(subquery(placed, "n")).where(first)
    return insert_into(gated, names, chosen)
