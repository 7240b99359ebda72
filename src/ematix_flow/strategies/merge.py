"""Merge: insert what is new, update what changed, leave the rest untouched.

Rows are matched key by key and compared null-safe. With a full snapshot, rows that the source no
longer has are deleted, or marked with the time of the load.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import DELETED_AT, LOADED_AT, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.key_guards import key_guards
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.row_comparison import last_of_each_key, rows_differ
from ematix_flow.strategies.shrink_limit import deletion_guard
from ematix_flow.strategies.sql import (
    IncomingRows,
    StrategyDialect,
    StrategyStep,
    column,
    equal_keys,
    insert_into,
    insert_rows,
    load_column_values,
    load_columns_of,
    subquery,
    table_as,
)

CHANGED = "changed"
GONE = "gone"
_IS_STORED = internal_name("stored")
_BOOLEAN, _MOMENT = DataType("boolean"), DataType("timestamp_tz")


def work_tables(table: TableSpec, incoming: IncomingRows) -> dict[str, TableSpec]:
    """Rows to write; with soft deletes, also the keys to mark."""
    matching = incoming.matching
    columns = tuple(ColumnSpec(c.name, c.type, nullable=True) for c in table.columns)
    tables = {CHANGED: TableSpec(None, CHANGED, (*columns, ColumnSpec(_IS_STORED, _BOOLEAN)))}
    if matching.deletes is not None:
        tables[GONE] = TableSpec(
            None, GONE, tuple(ColumnSpec(k, table.column(k).type, nullable=True) for k in matching.keys)
        )
    return tables


def steps(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows
) -> list[StrategyStep | LoadGuard]:
    matching = incoming.matching
    order = matching.order
    out: list[StrategyStep | LoadGuard] = [*key_guards(dialect, table, incoming, one_row_a_key=order is None)]
    rows = incoming.select if order is None else last_of_each_key(dialect, table, incoming, order)
    if incoming.into_empty:
        return [*out, insert_rows(dialect, table, replace(incoming, select=rows))]
    out.append(StrategyStep("work", _insert_changed(dialect, table, incoming, rows)))
    if matching.update or table.keeps == "soft_deletes":
        out.append(StrategyStep("update", _update(dialect, table, incoming)))
    if matching.deletes is not None:
        out += _delete_steps(dialect, table, incoming)
    out.append(StrategyStep("insert", _insert(dialect, table, incoming)))
    return out


def _insert_changed(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, rows: exp.Expr
) -> exp.Insert:
    """Insert the new and the differing rows into the work table, with a flag that shows which."""
    names, keys = table.column_names, incoming.matching.keys
    target = table_as(dialect.table(table.schema, table.name), "t")
    is_new = exp.Is(this=column(keys[0], "t"), expression=exp.Null())
    reasons = [is_new.copy(), rows_differ(dialect, table, incoming.matching.compare, "s", "t")]
    if table.keeps == "soft_deletes":
        reasons.append(exp.not_(exp.Is(this=column(DELETED_AT, "t"), expression=exp.Null())))
    stored = exp.Case(
        ifs=[exp.If(this=is_new, true=dialect.literal(False, _BOOLEAN))],
        default=dialect.literal(True, _BOOLEAN),
    )
    select = (
        exp.select(*[column(n, "s") for n in names], stored)
        .from_(subquery(rows, "s"))
        .join(target, on=exp.and_(*equal_keys(keys, "t", "s")), join_type="left")
        .where(exp.or_(*reasons))
    )
    return insert_into(incoming.work[CHANGED], [*names, _IS_STORED], select)


def _update(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Expr:
    sets: dict[str, exp.Expr] = {n: column(n, "s") for n in incoming.matching.update}
    sets |= load_columns_of(dialect, table, incoming)
    if table.keeps == "soft_deletes":
        sets[DELETED_AT] = dialect.literal(None, _MOMENT)
    is_stored = exp.EQ(this=column(_IS_STORED, "s"), expression=dialect.literal(True, _BOOLEAN))
    condition = exp.and_(is_stored, *equal_keys(incoming.matching.keys, "t", "s"))
    target = dialect.table(table.schema, table.name)
    return dialect.update_from(target, incoming.work[CHANGED], sets, condition)


def _insert(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Insert:
    names = list(table.column_names)
    values: list[exp.Expr] = [column(n, "s") for n in names]
    for name, value in load_columns_of(dialect, table, incoming).items():
        names.append(name)
        values.append(value)
    is_new = exp.EQ(this=column(_IS_STORED, "s"), expression=dialect.literal(False, _BOOLEAN))
    select = exp.select(*values).from_(table_as(incoming.work[CHANGED], "s")).where(is_new)
    return insert_into(dialect.table(table.schema, table.name), names, select)


def _delete_steps(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows
) -> list[StrategyStep | LoadGuard]:
    """Deletes run before the insert, so that they see only rows of earlier loads."""
    keys = incoming.matching.keys
    target = dialect.table(table.schema, table.name)
    present = exp.Exists(
        this=exp.select("1").from_(subquery(incoming.select, "s")).where(*equal_keys(keys, "s", "t"))
    )
    alive: list[exp.Expr] = [exp.not_(present)]
    living_rows = exp.select(exp.Count(this=exp.Star())).from_(table_as(target, "t"))
    if table.keeps == "soft_deletes":
        living = exp.Is(this=column(DELETED_AT, "t"), expression=exp.Null())
        alive.append(living)
        living_rows = living_rows.where(living.copy())
    missing = exp.select(*[column(k, "t") for k in keys]).from_(table_as(target, "t")).where(*alive)
    fill = StrategyStep("work", insert_into(incoming.work[GONE], keys, missing))
    if table.keeps == "soft_deletes":
        sets = {DELETED_AT: load_column_values(dialect, incoming)[LOADED_AT]}
        condition = exp.and_(*equal_keys(keys, "t", "s"))
        gone = StrategyStep("delete", dialect.update_from(target, incoming.work[GONE], sets, condition))
    else:
        gone = StrategyStep(
            "delete", dialect.delete_from(target, incoming.work[GONE], {k: k for k in keys}, None)
        )
    assert incoming.shrinking is not None
    lost = exp.select(exp.Count(this=exp.Star())).from_(table_as(incoming.work[GONE], "g"))
    is_new = exp.EQ(this=column(_IS_STORED, "c"), expression=dialect.literal(False, _BOOLEAN))
    fresh = exp.select(exp.Count(this=exp.Star())).from_(table_as(incoming.work[CHANGED], "c")).where(is_new)
    kept = exp.select(exp.Sub(this=exp.Subquery(this=living_rows), expression=exp.Subquery(this=lost.copy())))
    return [fill, deletion_guard(kept, lost, fresh, incoming.shrinking), gone]
