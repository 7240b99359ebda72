"""Conversion of a table of plain rows to scd2: each row becomes the first version of its key.

The version is valid from the row's event time when the load has one, else from the time it was loaded.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from sqlglot import exp

from ematix_flow.backends.base import LiveTable
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.spec.tables import (
    BATCH_ID,
    DELETED_AT,
    EVENT_AT,
    IS_CURRENT,
    IS_DELETE,
    LOADED_AT,
    ROW_HASH,
    VALID_FROM,
    VALID_TO,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.sql import column, equal_keys, insert_into, subquery, table_as

VERSION_COLUMNS = (VALID_FROM, VALID_TO, IS_CURRENT, ROW_HASH)
_TIMESTAMP, _BOOLEAN = DataType("timestamp_tz"), DataType("boolean")
_TICK = 0.000001
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def may_keep_versions(wanted: TableSpec) -> bool:
    """Whether a load of this table keeps versions, or declares the version columns itself."""
    return wanted.keeps_versions or set(VERSION_COLUMNS) <= set(wanted.column_names)


def keeps_versions(live: LiveTable) -> bool:
    there = {c.name: c for c in live.columns}
    return all(name in there for name in VERSION_COLUMNS) and not there[VALID_FROM].nullable


def needs_conversion(wanted: TableSpec, live: LiveTable) -> bool:
    """Whether rows must become versions. A conversion that was interrupted is still needed."""
    if not wanted.keeps_versions:
        return False
    return not keeps_versions(live) or (
        VALID_FROM in wanted.primary_key and VALID_FROM not in live.primary_key
    )


def marks_deleted_rows(wanted: TableSpec, live: LiveTable) -> bool:
    """Whether rows of the table may be marked as deleted."""
    return any(c.name == DELETED_AT for c in live.columns) and DELETED_AT not in wanted.column_names


def first_version_values(
    dialect: SqlDialect, wanted: TableSpec, live: LiveTable, matching: Matching
) -> Mapping[str, exp.Expr]:
    """The values of the version columns for the existing rows."""
    there = {c.name for c in live.columns}
    # rows of another program may have neither
    moments: list[exp.Expr] = [column(LOADED_AT), dialect.literal(_EPOCH, _TIMESTAMP)]
    if matching.event is not None and matching.event in there:
        moments.insert(0, dialect.as_timestamp_tz(column(matching.event), wanted.column(matching.event).type))
    begins: exp.Expr = exp.func("COALESCE", *moments)
    ends: exp.Expr = dialect.literal(None, _TIMESTAMP)
    is_open: exp.Expr = dialect.literal(True, _BOOLEAN)
    if marks_deleted_rows(wanted, live):
        deleted_at = column(DELETED_AT)
        after = exp.GT(this=deleted_at.copy(), expression=begins.copy())
        at_once = dialect.add_seconds(begins.copy(), _TICK)
        is_alive = exp.Is(this=deleted_at.copy(), expression=exp.Null())
        ends = exp.Case(
            ifs=[exp.If(this=is_alive, true=ends), exp.If(this=after, true=deleted_at)], default=at_once
        )
        is_open = exp.Case(
            ifs=[exp.If(this=is_alive.copy(), true=is_open)], default=dialect.literal(False, _BOOLEAN)
        )
    return {
        VALID_FROM: begins,
        VALID_TO: ends,
        IS_CURRENT: is_open,
        ROW_HASH: live_row_hash(dialect, wanted, live, matching.compare),
    }


def companion_deletes_sql(
    dialect: SqlDialect, table: TableSpec, companion: TableSpec, keys: Sequence[str], ends: exp.Expr
) -> str:
    """INSERT of the existing rows' deletion marks as delete events into the companion table.

    ``ends`` is the end of a version from `first_version_values`. So the statement reads only columns of a
    plain row: it may run before the versions are filled, and again after a crash.
    """
    names = (*keys, LOADED_AT, BATCH_ID)
    marked = (
        exp.select(*[column(name) for name in names], exp.alias_(ends.copy(), EVENT_AT, quoted=True))
        .from_(dialect.table(table.schema, table.name))
        .where(exp.not_(exp.Is(this=column(DELETED_AT), expression=exp.Null())))
    )
    events = dialect.table(companion.schema, companion.name)
    known = exp.Exists(
        this=exp.select("1")
        .from_(table_as(events, "e"))
        .where(
            *equal_keys(keys, "e", "t"), exp.EQ(this=column(EVENT_AT, "e"), expression=column(EVENT_AT, "t"))
        )
    )
    values: dict[str, exp.Expr] = {
        **{k: column(k, "t") for k in keys},
        EVENT_AT: column(EVENT_AT, "t"),
        IS_DELETE: dialect.literal(True, _BOOLEAN),
        LOADED_AT: column(LOADED_AT, "t"),
        BATCH_ID: column(BATCH_ID, "t"),
    }
    rows = exp.select(*values.values()).from_(subquery(marked, "t")).where(exp.not_(known))
    return dialect.render(insert_into(events, list(values), rows))


def live_row_hash(dialect: SqlDialect, wanted: TableSpec, live: LiveTable, names: Sequence[str]) -> exp.Expr:
    """`row_hash` of the existing rows, each value converted to its declared type; a new column is null."""
    there = {c.name: c.type for c in live.columns}
    values = []
    for name in names:
        if name in there:
            item = wanted.column(name)
            as_is = dialect.can_hold(item.type, there[name], live.native.get(name))
            value: exp.Expr = column(name) if as_is else dialect.convert_value(column(name), item)
            values.append((name, item.type, value))
    return dialect.row_hash(values)


def revert_instructions(dialect: SqlDialect, wanted: TableSpec, live: LiveTable) -> str:
    """Why a load never turns versions into plain rows, and how a person does it by hand."""
    table = dialect.render(dialect.table(wanted.schema, wanted.name))
    current = f"{dialect.quote(IS_CURRENT)} = {dialect.render(dialect.literal(False, _BOOLEAN))}"
    key = [name for name in live.primary_key if name not in (VALID_FROM, EVENT_AT)]
    clauses = [live.drop_clauses[live.primary_key]] if live.primary_key in live.drop_clauses else []
    clauses += [f"DROP COLUMN {dialect.quote(name)}" for name in VERSION_COLUMNS]
    if key:
        clauses.append(f"ADD PRIMARY KEY ({', '.join(dialect.quote(name) for name in key)})")
    return (
        f"{wanted.label} keeps versions of its rows (scd2), and this load would lose them. "
        f"Declare mode='scd2', or load another table. By hand: DELETE FROM {table} WHERE {current}; "
        + dialect.manual_statement(table, ", ".join(clauses))
    )
