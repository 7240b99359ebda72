"""Change events that keep history (``cdc=`` with ``mode="scd2"``): each change ends the version before it.

Changes are applied in the order of the source's log, each at most once: a companion table has the position
of each key's last change. A version begins when the source made the change. If the source's clock went back,
the version begins with the one before it and replaces it. Of several changes at one time, the last one holds.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import (
    BATCH_ID,
    CHANGE_AT,
    CHANGE_FROM,
    CHANGE_KEPT,
    CHANGE_OP,
    CHANGE_POSITION,
    CHANGE_UNTIL,
    DELETE_ROW,
    EVENT_AT,
    IS_CURRENT,
    LAST_POSITION,
    LOADED_AT,
    TRUNCATE_ROWS,
    VALID_FROM,
    ColumnSpec,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies import scd2, scd2_history
from ematix_flow.strategies.change_events import (
    DUE,
    IS_STORED,
    given_or_stored,
    is_op,
    last_or_opened,
    last_position,
    untold_values,
)
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.scd2_new_events import AT, EVENTS, content_hash, event_columns
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

_PLACE = internal_name("place")
_BOOLEAN, _BYTES, _MOMENT, _TEXT = map(DataType, ("boolean", "bytes", "timestamp_tz", "text"))


def work_tables(table: TableSpec, incoming: IncomingRows) -> dict[str, TableSpec]:
    """The changes that are newer than the last one of their key, and what makes versions of them."""
    columns = (
        *(ColumnSpec(c.name, c.type, nullable=True) for c in table.columns),
        *(ColumnSpec(name, _TEXT, nullable=True) for name in (CHANGE_OP, CHANGE_POSITION, CHANGE_KEPT)),
        ColumnSpec(IS_STORED, _BOOLEAN),  # whether the key has an open version
        ColumnSpec(AT, _MOMENT, nullable=True),
    )
    return {DUE: TableSpec(None, DUE, columns), **scd2.work_tables(table, incoming)}


def steps(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows
) -> list[StrategyStep | LoadGuard | RowTally]:
    options, companion, keys = incoming.matching.changes, table.companion(), incoming.matching.keys
    assert options is not None and companion is not None
    due, events, touched = incoming.work[DUE], incoming.work[EVENTS], incoming.work[scd2_history.TOUCHED]
    names = [*table.column_names, CHANGE_OP, CHANGE_POSITION, CHANGE_KEPT, IS_STORED, AT]
    out: list[StrategyStep | LoadGuard | RowTally] = [
        StrategyStep("work", insert_into(due, names, _due_changes(dialect, table, incoming)))
    ]
    if options.truncates:
        out.append(StrategyStep("work", insert_into(due, names, _truncated_rows(dialect, table, incoming))))
    out.append(untold_values(dialect, table, incoming))
    fields = [c.name for c in event_columns(table)]
    out.append(StrategyStep("work", insert_into(events, fields, _events(dialect, table, incoming))))
    distinct = exp.select(*[column(k, "e") for k in keys]).distinct().from_(table_as(events, "e"))
    out.append(StrategyStep("work", insert_into(touched, keys, distinct)))
    out.append(StrategyStep("work", scd2_history.fill_history(dialect, table, incoming)))
    out += scd2_history.write_steps(dialect, table, incoming)
    positions = dialect.table(companion.schema, companion.name)
    out.append(StrategyStep("work", dialect.delete_from(positions, touched, {k: k for k in keys}, None)))
    columns = [*keys, LAST_POSITION, EVENT_AT, LOADED_AT, BATCH_ID]
    out.append(StrategyStep("work", insert_into(positions, columns, _last_positions(dialect, incoming))))
    return out


def _due_changes(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Select:
    """The staged changes after the last one of their key, with the stored values that they leave out."""
    keys = incoming.matching.keys
    values = [
        column(c.name, "s") if c.name in keys else given_or_stored(dialect, number, c)
        for number, c in enumerate(table.columns, 1)
    ]
    at = dialect.as_timestamp_tz(column(CHANGE_AT, "s"), _MOMENT)
    selected = exp.select(
        *values,
        *[column(name, "s") for name in (CHANGE_OP, CHANGE_POSITION, CHANGE_KEPT)],
        _has_version(dialect, keys),
        _not_before(at),
    ).from_(subquery(incoming.select, "s"))
    return _with_stored(dialect, table, incoming, selected, "s").where(
        exp.not_(is_op(dialect, TRUNCATE_ROWS)),
        exp.LTE(this=column(CHANGE_FROM, "s"), expression=last_or_opened(dialect)),
        exp.GT(this=column(CHANGE_UNTIL, "s"), expression=last_or_opened(dialect)),
    )


def _truncated_rows(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Select:
    """A delete of every known key for each truncate that is after the key's last change."""
    keys, companion = incoming.matching.keys, table.companion()
    assert companion is not None

    truncates = (
        exp.select(column(CHANGE_POSITION, "x"), column(CHANGE_AT, "x"))
        .from_(subquery(incoming.select.copy(), "x"))
        .where(is_op(dialect, TRUNCATE_ROWS, "x"))
    )

    def truncated(rows: exp.Table | exp.Subquery, condition: exp.Expr | None = None) -> exp.Select:
        columns = [column(k, "k") for k in keys] + [column(n, "c") for n in (CHANGE_POSITION, CHANGE_AT)]
        found = exp.select(*columns).from_(rows).join(subquery(truncates.copy(), "c"), join_type="cross")
        return found if condition is None else found.where(condition)

    is_open = exp.EQ(this=column(IS_CURRENT, "k"), expression=dialect.literal(True, _BOOLEAN))
    is_earlier = exp.LT(this=column(CHANGE_POSITION, "k"), expression=column(CHANGE_POSITION, "c"))
    is_row = exp.not_(is_op(dialect, TRUNCATE_ROWS, "k"))
    known = exp.union(
        truncated(table_as(dialect.table(table.schema, table.name), "k"), is_open),
        truncated(table_as(dialect.table(companion.schema, companion.name), "k")),
        truncated(subquery(incoming.select.copy(), "k"), exp.and_(is_row, is_earlier)),
        distinct=True,
    )
    values = [
        column(n, "a") if n in keys else dialect.literal(None, table.column(n).type)
        for n in table.column_names
    ]
    selected = exp.select(
        *values,
        dialect.literal(DELETE_ROW, _TEXT),
        column(CHANGE_POSITION, "a"),
        dialect.literal(None, _TEXT),
        _has_version(dialect, keys),
        _not_before(dialect.as_timestamp_tz(column(CHANGE_AT, "a"), _MOMENT)),
    ).from_(subquery(known, "a"))
    return _with_stored(dialect, table, incoming, selected, "a").where(
        exp.GT(this=column(CHANGE_POSITION, "a"), expression=last_position(dialect))
    )


def _with_stored(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, select: exp.Select, alias: str
) -> exp.Select:
    """With the last position of each key as ``p``, and its open version as ``t``."""
    keys, companion = incoming.matching.keys, table.companion()
    assert companion is not None
    is_open = exp.EQ(this=column(IS_CURRENT, "t"), expression=dialect.literal(True, _BOOLEAN))
    positions = table_as(dialect.table(companion.schema, companion.name), "p")
    versions = table_as(dialect.table(table.schema, table.name), "t")
    return select.join(positions, on=exp.and_(*equal_keys(keys, "p", alias)), join_type="left").join(
        versions, on=exp.and_(is_open, *equal_keys(keys, "t", alias)), join_type="left"
    )


def _has_version(dialect: StrategyDialect, keys: tuple[str, ...]) -> exp.Expr:
    is_none = exp.Is(this=column(keys[0], "t"), expression=exp.Null())
    return exp.Case(
        ifs=[exp.If(this=is_none, true=dialect.literal(False, _BOOLEAN))],
        default=dialect.literal(True, _BOOLEAN),
    )


def _not_before(at: exp.Expr) -> exp.Expr:
    """The time, or that of the key's last change or open version if it is later."""
    for earliest in (column(EVENT_AT, "p"), column(VALID_FROM, "t")):
        is_later = exp.GT(this=earliest, expression=at)
        at = exp.Case(ifs=[exp.If(this=is_later, true=earliest.copy())], default=at.copy())
    return at


def _events(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Select:
    """The last change of each key at each time. No change is before the ones that it follows."""
    keys, names = incoming.matching.keys, table.column_names

    def by_key(alias: str) -> list[exp.Expr]:
        return [dialect.comparable(column(k, alias), table.column(k).type) for k in keys]

    in_order = exp.Order(expressions=[exp.Ordered(this=column(CHANGE_POSITION, "d"), nulls_first=True)])
    at = exp.Window(this=exp.Max(this=column(AT, "d")), partition_by=by_key("d"), order=in_order)
    timed = exp.select(
        *[column(n, "d") for n in (*names, CHANGE_OP, CHANGE_POSITION)], exp.alias_(at, AT, quoted=True)
    ).from_(table_as(incoming.work[DUE], "d"))
    latest = exp.Order(expressions=[exp.Ordered(this=column(CHANGE_POSITION, "r"), desc=True)])
    place = exp.Window(this=exp.RowNumber(), partition_by=[*by_key("r"), column(AT, "r")], order=latest)
    numbered = exp.select(
        *[column(n, "r") for n in (*names, CHANGE_OP, AT)], exp.alias_(place, _PLACE, quoted=True)
    ).from_(subquery(timed, "r"))
    true, false = dialect.literal(True, _BOOLEAN), dialect.literal(False, _BOOLEAN)
    is_gone = is_op(dialect, DELETE_ROW)
    begins_here = exp.not_(exp.Is(this=column(keys[0], "v"), expression=exp.Null()))
    content = exp.Case(
        ifs=[exp.If(this=is_gone, true=dialect.literal(None, _BYTES))],
        default=content_hash(dialect, table, incoming.matching.compare, "s"),
    )
    stamps = load_column_values(dialect, incoming)
    return (
        exp.select(
            *[column(n, "s") for n in (*names, AT)],
            content,
            exp.Case(ifs=[exp.If(this=is_gone.copy(), true=true)], default=false),
            exp.Case(ifs=[exp.If(this=begins_here, true=true.copy())], default=false.copy()),
            true.copy(),
            stamps[LOADED_AT],
            stamps[BATCH_ID],
        )
        .from_(subquery(numbered, "s"))
        .join(
            table_as(dialect.table(table.schema, table.name), "v"),
            on=exp.and_(
                *equal_keys(keys, "v", "s"), exp.EQ(this=column(VALID_FROM, "v"), expression=column(AT, "s"))
            ),
            join_type="left",
        )
        .where(exp.EQ(this=column(_PLACE, "s"), expression=exp.Literal.number(1)))
    )


def _last_positions(dialect: StrategyDialect, incoming: IncomingRows) -> exp.Select:
    keys, stamps = incoming.matching.keys, load_column_values(dialect, incoming)
    by_key = [column(k, "d") for k in keys]
    grouped = (
        exp.select(
            *by_key,
            exp.alias_(exp.Max(this=column(CHANGE_POSITION, "d")), LAST_POSITION, quoted=True),
            exp.alias_(exp.Max(this=column(AT, "d")), EVENT_AT, quoted=True),
        )
        .from_(table_as(incoming.work[DUE], "d"))
        .group_by(*[k.copy() for k in by_key])
    )
    values = [column(name, "s") for name in (*keys, LAST_POSITION, EVENT_AT)]
    return exp.select(*values, stamps[LOADED_AT], stamps[BATCH_ID]).from_(subquery(grouped, "s"))
