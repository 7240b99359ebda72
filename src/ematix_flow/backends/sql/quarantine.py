"""The quarantine table of a load: the statements that set rows aside, read again by the source, and replay.

All of them run inside the transaction of a load: a row is in the target or in quarantine, never in both and
never in neither.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow.backends.base import Load, QuarantinedRows, QuarantineFilter
from ematix_flow.backends.sql.rule_checks import Reference
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.spec.expectations import (
    POSITION,
    QUARANTINE_BATCH,
    QUARANTINED_AT,
    QUARANTINED_BY,
    RULE,
    Gate,
)
from ematix_flow.spec.tables import MESSAGE, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.sql import column, identifier, insert_into, subquery

if TYPE_CHECKING:
    from ematix_probe.sources.base import ColumnInfo

BATCH_TABLE = "batch"  # the work table with the rows of a query that the database computes itself
GATED_TABLE = "gated"  # the work table with the rows of a load and the first rule that each fails
_TEXT = DataType("text")


def batch_table(table: TableSpec, replayed: bool) -> TableSpec:
    """The work table for computed rows. Replayed rows keep the source position that they had."""
    return TableSpec(None, BATCH_TABLE, _nullable_columns(table, replayed))


def gated_table(table: TableSpec, replayed: bool, names_messages: bool = False) -> TableSpec:
    """The work table of a load whose rows may be set aside."""
    added = (MESSAGE, RULE) if names_messages else (RULE,)
    texts = tuple(ColumnSpec(name, _TEXT, nullable=True) for name in added)
    return TableSpec(None, GATED_TABLE, (*_nullable_columns(table, replayed), *texts))


def _nullable_columns(table: TableSpec, replayed: bool) -> tuple[ColumnSpec, ...]:
    values = tuple(replace(c, nullable=True, primary_key=False) for c in table.columns)
    return (*values, ColumnSpec(POSITION, _TEXT, nullable=True)) if replayed else values


def fill_gated(
    gate: Gate,
    names: Sequence[str],
    columns: Mapping[str, ColumnInfo],
    dialect: SqlDialect,
    rows: exp.Query,
    reference: Reference,
    gated: exp.Table,
) -> exp.Insert:
    """INSERT of every row with the first rule that it fails, or NULL.

    The conditions are evaluated once: a condition that is not deterministic cannot lose or double a row.
    """
    from ematix_probe.compiling import ROWS, failing_rows
    from ematix_probe.compiling.trees import joined

    rules = gate.set_aside_rules
    failing = [
        failing_rows(rule.assertion, columns, dialect.name, rows, reference, case=place)
        for place, rule in enumerate(rules)
    ]
    cases = [
        exp.If(this=each.condition, true=dialect.literal(rule.label, _TEXT))
        for rule, each in zip(rules, failing, strict=True)
    ]
    values: list[exp.Expr] = [exp.Column(this=identifier(name), table=identifier(ROWS)) for name in names]
    checked = exp.Subquery(this=rows.copy(), alias=exp.TableAlias(this=identifier(ROWS)))
    select = exp.select(*values, exp.Case(ifs=cases)).from_(checked)
    for each in failing:
        select = joined(select, each.joins)
    return insert_into(gated, [*names, RULE], select)


def passing_select(table: TableSpec, gated: exp.Table) -> exp.Select:
    rule_is_null = exp.Is(this=column(RULE), expression=exp.Null())
    return exp.select(*[column(n) for n in table.column_names]).from_(gated.copy()).where(rule_is_null)


def failing_messages(gated: exp.Table, limit: int) -> exp.Select:
    """The messages of rows that fail, each with its rule."""
    failed = exp.not_(exp.Is(this=column(RULE), expression=exp.Null()))
    return exp.select(column(MESSAGE), column(RULE)).from_(gated.copy()).where(failed).limit(limit)


def fail_messages(messages: Sequence[str], rule: str, gated: exp.Table, dialect: SqlDialect) -> exp.Update:
    """UPDATE that makes the rows of these messages fail the rule."""
    return exp.Update(
        this=gated.copy(),
        expressions=[exp.EQ(this=column(RULE), expression=dialect.literal(rule, _TEXT))],
        where=exp.Where(
            this=exp.In(this=column(MESSAGE), expressions=[dialect.literal(each, _TEXT) for each in messages])
        ),
    )


def failing_counts(gated: exp.Table) -> exp.Select:
    """The number of rows by the first rule that they fail."""
    failed = exp.not_(exp.Is(this=column(RULE), expression=exp.Null()))
    counted = exp.select(column(RULE), exp.Count(this=exp.Star())).from_(gated.copy()).where(failed)
    return counted.group_by(column(RULE))


def insert_quarantined(
    load: Load,
    gate: Gate,
    dialect: SqlDialect,
    gated: exp.Table,
    high: Watermark | None,
    *,
    replayed: bool,
) -> exp.Insert:
    """INSERT of the failing rows into the quarantine table."""
    assert gate.quarantine is not None
    moment, text = DataType("timestamp_tz"), _TEXT
    added: dict[str, exp.Expr] = {
        QUARANTINED_AT: dialect.literal(load.loaded_at, moment),
        QUARANTINED_BY: dialect.literal(load.pipeline, text),
        QUARANTINE_BATCH: dialect.literal(str(load.run_id), DataType("uuid")),
        RULE: column(RULE, "g"),
        POSITION: column(POSITION, "g") if replayed else dialect.literal(source_position(load, high), text),
    }
    names = load.table.column_names
    failed = exp.not_(exp.Is(this=column(RULE, "g"), expression=exp.Null()))
    rows = subquery(exp.select("*").from_(gated.copy()), "g")
    select = exp.select(*[column(n, "g") for n in names], *added.values()).from_(rows).where(failed)
    into = dialect.table(gate.quarantine.schema, gate.quarantine.name)
    return insert_into(into, [*names, *added], select)


def values_read_again(load: Load) -> tuple[tuple[str, Any, DataType], ...] | None:
    """Columns and values of quarantined rows that this load has read again; None if it reads only new ones.

    They are those at the lower bound of an incremental load, and all of a load that replaces the table or
    reads an incremental source from its beginning.
    """
    range = load.plan.range
    if range is None and load.plan.mode != "truncate":
        return None
    mine = (QUARANTINED_BY, load.pipeline, _TEXT)
    low = range.low if range is not None else None
    return (mine,) if low is None else (mine, (low.column, low.value, low.type))


def delete_read_again(load: Load, gate: Gate, dialect: SqlDialect) -> exp.Delete | None:
    """DELETE of the rows of `values_read_again`; None if there can be none."""
    values = values_read_again(load)
    if gate.quarantine is None or values is None:
        return None
    conditions = [
        exp.EQ(this=column(name), expression=dialect.literal(value, data_type))
        for name, value, data_type in values
    ]
    return exp.delete(dialect.table(gate.quarantine.schema, gate.quarantine.name)).where(*conditions)


def superseded_keys(load: Load) -> tuple[str, ...]:
    """The key of which only the newest row counts; empty if the load keeps every row.

    A later row of the key makes a quarantined one outdated: to replay it would undo the later one.
    """
    plan = load.plan
    keeps_newest = plan.mode == "merge" or (plan.mode == "scd2" and plan.matching.event is None)
    return plan.matching.keys if keeps_newest else ()


def delete_superseded(load: Load, gate: Gate, dialect: SqlDialect, rows: exp.Query) -> exp.Delete | None:
    """DELETE of the quarantined rows whose key is among ``rows``; None if the load keeps every row."""
    keys = superseded_keys(load)
    if gate.quarantine is None or not keys:
        return None
    mine = exp.EQ(this=column(QUARANTINED_BY), expression=dialect.literal(load.pipeline, _TEXT))
    newer = exp.select(*[column(key, "newer") for key in keys]).from_(subquery(rows.copy(), "newer"))
    key: exp.Expr = column(keys[0])
    if len(keys) > 1:
        key = exp.Tuple(expressions=[column(name) for name in keys])
    is_newer = exp.In(this=key, query=exp.Subquery(this=newer))
    return exp.delete(dialect.table(gate.quarantine.schema, gate.quarantine.name)).where(mine, is_newer)


def select_any(delete: exp.Delete, pipeline: str, dialect: SqlDialect) -> exp.Select:
    """SELECT of one quarantined row of the pipeline, which is quick before a DELETE that reads a load."""
    mine = exp.EQ(this=column(QUARANTINED_BY), expression=dialect.literal(pipeline, _TEXT))
    return exp.select(exp.Literal.number(1)).from_(delete.this.copy()).where(mine).limit(1)


def mark_quarantined(rows: QuarantinedRows, run_id: uuid.UUID, dialect: SqlDialect) -> exp.Update:
    """UPDATE that gives the chosen rows to a run: its id names them from then on, and it has locked them."""
    mine = dialect.literal(str(run_id), DataType("uuid"))
    return exp.Update(
        this=dialect.table(rows.table.schema, rows.table.name),
        expressions=[exp.EQ(this=column(QUARANTINE_BATCH), expression=mine)],
        where=exp.Where(this=exp.and_(*chosen_conditions(rows.chosen, dialect))),
    )


def select_quarantined(rows: QuarantinedRows, table: TableSpec, dialect: SqlDialect) -> exp.Select:
    """The chosen rows with the columns of the target, and their source positions."""
    found = dialect.table(rows.table.schema, rows.table.name)
    select = exp.select(*[column(n) for n in (*table.column_names, POSITION)]).from_(found)
    return select.where(*chosen_conditions(rows.chosen, dialect))


def delete_quarantined(rows: QuarantinedRows, dialect: SqlDialect) -> exp.Delete:
    found = exp.delete(dialect.table(rows.table.schema, rows.table.name))
    return found.where(*chosen_conditions(rows.chosen, dialect))


def chosen_conditions(chosen: QuarantineFilter, dialect: SqlDialect) -> list[exp.Expr]:
    wanted = (
        (QUARANTINED_BY, chosen.pipeline, _TEXT),
        (RULE, chosen.rule, _TEXT),
        (QUARANTINE_BATCH, chosen.batch, DataType("uuid")),
    )
    return [
        exp.EQ(this=column(name), expression=dialect.literal(value, data_type))
        for name, value, data_type in wanted
        if value is not None
    ]


def source_position(load: Load, high: Watermark | None) -> str | None:
    """What the load had read, as its ledger entry says; None for a load of a whole source."""
    low, end = load.source_bounds(high)
    if low is None and end is None:
        return None
    return f"{low or 'the beginning'} .. {end or 'the end'}"
