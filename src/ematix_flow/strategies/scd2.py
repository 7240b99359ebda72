"""SCD2: keep every version of a row, with the half-open interval in which it was valid.

The versions of a key are a function of its events alone: their order of arrival, batching and repetition
do not matter. So the history of each touched key is computed again from all its points in time, stored
and new, and only rows that differ are written:

1. ``events``: the events of this batch that are not stored yet (`scd2_new_events`).
2. ``touched``: their keys.
3. ``history``: every point of these keys; each opens a version, changes nothing, or is a delete
   (`scd2_history`).
4. The target is made equal to the versions; by event time, the other points go to the companion table.

At one time a key has one value: an event counts more than a delete, and of several events the one with
the most values that are not null holds, then that with the greatest `row_hash`, then the greatest hash of
its other columns.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.tables import (
    IS_CURRENT,
    ROW_HASH,
    VALID_FROM,
    VALID_TO,
    ColumnSpec,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies import scd2_ttl
from ematix_flow.strategies.key_guards import key_guards
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.scd2_counts import HistoryPoints, row_tallies
from ematix_flow.strategies.scd2_history import (
    HISTORY,
    KIND,
    TOUCHED,
    VERSION,
    fill_history,
    history_columns,
    write_steps,
)
from ematix_flow.strategies.scd2_new_events import (
    EVENTS,
    GONE,
    content_hash,
    delete_events,
    event_columns,
    new_events,
    null_event_times,
    one_row_a_key,
)
from ematix_flow.strategies.shrink_limit import deletion_guard
from ematix_flow.strategies.sql import (
    IncomingRows,
    RowTally,
    StrategyDialect,
    StrategyStep,
    column,
    equal_keys,
    insert_into,
    load_column_values,
    subquery,
    table_as,
)

_BOOLEAN, _MOMENT = DataType("boolean"), DataType("timestamp_tz")


def work_tables(table: TableSpec, incoming: IncomingRows) -> dict[str, TableSpec]:
    keys = incoming.matching.keys
    by_key = tuple(ColumnSpec(k, table.column(k).type, primary_key=True) for k in keys)
    tables = {
        EVENTS: TableSpec(None, EVENTS, event_columns(table)),
        TOUCHED: TableSpec(None, TOUCHED, by_key),
        HISTORY: TableSpec(None, HISTORY, history_columns(table)),
    }
    if incoming.matching.ttl_seconds is not None:
        tables[scd2_ttl.EXPIRED] = scd2_ttl.work_table(table, incoming)
    return tables


def steps(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows
) -> list[StrategyStep | LoadGuard | RowTally]:
    matching = incoming.matching
    by_event = matching.event is not None
    ordered = by_event or matching.order is not None
    out: list[StrategyStep | LoadGuard | RowTally] = [
        *key_guards(dialect, table, incoming, one_row_a_key=not ordered)
    ]
    if by_event:
        out.append(null_event_times(table, incoming))
    elif incoming.into_empty:
        return [*out, StrategyStep("insert", _first_versions(dialect, table, incoming))]
    out.append(StrategyStep("work", new_events(dialect, table, incoming)))
    if matching.deletes is not None:
        assert incoming.shrinking is not None
        out += delete_events(dialect, table, incoming)
        out.append(deletion_guard(*_open_keys(dialect, table, incoming), incoming.shrinking))
    keys = matching.keys
    distinct = (
        exp.select(*[column(k, "e") for k in keys]).distinct().from_(table_as(incoming.work[EVENTS], "e"))
    )
    out.append(StrategyStep("work", insert_into(incoming.work[TOUCHED], keys, distinct)))
    out.append(StrategyStep("work", fill_history(dialect, table, incoming)))
    if by_event:
        points = HistoryPoints(incoming.work[HISTORY], KIND, VERSION)
        out += row_tallies(dialect, table, incoming, points)
    out += write_steps(dialect, table, incoming)
    if matching.ttl_seconds is not None:
        out += scd2_ttl.steps(dialect, table, incoming, incoming.work[TOUCHED])
    return out


def _first_versions(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Insert:
    """Insert into an empty table: every row is an open version."""
    names = table.column_names
    values: dict[str, exp.Expr] = {
        **{n: column(n, "s") for n in names},
        VALID_FROM: dialect.literal(incoming.loaded_at, _MOMENT),
        VALID_TO: dialect.literal(None, _MOMENT),
        IS_CURRENT: dialect.literal(True, _BOOLEAN),
        ROW_HASH: content_hash(dialect, table, incoming.matching.compare, "s"),
        **load_column_values(dialect, incoming),
    }
    rows = exp.select(*values.values()).from_(subquery(one_row_a_key(dialect, table, incoming), "s"))
    return insert_into(dialect.table(table.schema, table.name), list(values), rows)


def _open_keys(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows
) -> tuple[exp.Select, exp.Select, exp.Select]:
    """Queries that count open keys: those that stay open, that this load closes, that it opens."""
    keys = incoming.matching.keys
    true, false = dialect.literal(True, _BOOLEAN), dialect.literal(False, _BOOLEAN)
    events = table_as(incoming.work[EVENTS], "e")
    is_gone = exp.EQ(this=column(GONE, "e"), expression=true.copy())
    current = exp.EQ(this=column(IS_CURRENT, "t"), expression=true)
    target = table_as(dialect.table(table.schema, table.name), "t")
    matched = equal_keys(keys, "e", "t")
    deleted = exp.Exists(this=exp.select("1").from_(events.copy()).where(is_gone.copy(), *matched))
    stored = exp.Exists(this=exp.select("1").from_(target.copy()).where(current.copy(), *matched))
    brought = exp.EQ(this=column(GONE, "e"), expression=false)
    opened = exp.select(*[column(k, "e") for k in keys]).distinct().from_(events.copy())
    count = exp.select(exp.Count(this=exp.Star()))
    return (
        count.copy().from_(target).where(current.copy(), exp.not_(deleted)),
        count.copy().from_(events).where(is_gone.copy()),
        count.copy().from_(subquery(opened.where(brought, exp.not_(stored)), "n")),
    )
