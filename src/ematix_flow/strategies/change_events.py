"""Change events: insert, update and delete rows as the source did, each change at most once, the newest last.

A companion table has the position of each key's last change in the source's log. A staged row is the result
of a key's changes in this batch for one range of that position: it says what to do if the key's last position
is at least `CHANGE_FROM` and below `CHANGE_UNTIL`. Older and repeated changes match no row.

A truncate deletes the rows whose last change is before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from ematix_flow.errors import FlowError, RowRejected
from ematix_flow.spec.change_positions import SNAPSHOT_PATTERN
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import (
    BATCH_ID,
    CHANGE_FROM,
    CHANGE_KEPT,
    CHANGE_OP,
    CHANGE_OPEN,
    CHANGE_POSITION,
    CHANGE_UNTIL,
    DELETE_ROW,
    GIVEN,
    LAST_POSITION,
    LOADED_AT,
    LOST,
    MARK_ROW,
    TRUNCATE_ROWS,
    UNTOLD,
    UPSERT_ROW,
    ColumnSpec,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.sql import (
    IncomingRows,
    StrategyDialect,
    StrategyStep,
    column,
    equal_keys,
    insert_into,
    load_column_values,
    load_columns_of,
    subquery,
    table_as,
)

DUE = "due"
IS_STORED = internal_name("stored")
_TEXT, _BOOLEAN = DataType("text"), DataType("boolean")
_MAX_SHOWN = 5


def work_tables(table: TableSpec, incoming: IncomingRows) -> dict[str, TableSpec]:
    """The changes that are due: newer than the last change of their key."""
    columns = tuple(ColumnSpec(c.name, c.type, nullable=True) for c in table.columns)
    marks = tuple(
        ColumnSpec(name, _TEXT, nullable=True) for name in (CHANGE_OP, CHANGE_POSITION, CHANGE_KEPT)
    )
    return {DUE: TableSpec(None, DUE, (*columns, *marks, ColumnSpec(IS_STORED, _BOOLEAN)))}


def steps(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows
) -> list[StrategyStep | LoadGuard]:
    options, companion = incoming.matching.changes, table.companion()
    assert options is not None and companion is not None
    keys, soft = incoming.matching.keys, options.soft_delete_column
    due, target = incoming.work[DUE], dialect.table(table.schema, table.name)
    positions = dialect.table(companion.schema, companion.name)
    names = [*table.column_names, CHANGE_OP, CHANGE_POSITION, CHANGE_KEPT, IS_STORED]
    by_key = equal_keys(keys, "t", "s")
    out: list[StrategyStep | LoadGuard] = [
        StrategyStep("work", insert_into(due, names, _due_changes(dialect, table, incoming)))
    ]
    if options.truncates:
        out.append(StrategyStep("work", insert_into(due, names, _truncated_rows(dialect, table, incoming))))
    out.append(untold_values(dialect, table, incoming))
    if soft is None:
        is_gone = exp.and_(is_op(dialect, DELETE_ROW), _stored(dialect, True))
        out.append(StrategyStep("delete", dialect.delete_from(target, due, {k: k for k in keys}, is_gone)))
    else:
        condition = exp.and_(is_op(dialect, DELETE_ROW), _stored(dialect, True), *by_key)
        mark = _mark(dialect, table, incoming, soft)
        if table.column(soft).type.kind != "boolean":  # the time of the first delete stays
            mark = exp.Coalesce(this=column(soft, "s"), expressions=[mark])
        marked = {soft: mark, **load_columns_of(dialect, table, incoming)}
        out.append(StrategyStep("delete", dialect.update_from(target, due, marked, condition)))
    has_row = exp.paren(exp.or_(is_op(dialect, UPSERT_ROW), is_op(dialect, MARK_ROW)))
    sets: dict[str, exp.Expr] = {n: column(n, "s") for n in table.column_names if n not in keys}
    if soft is not None:
        sets[soft] = _mark_of_row(dialect, table, incoming, soft)
    sets |= load_columns_of(dialect, table, incoming)
    if sets:
        condition = exp.and_(has_row.copy(), _stored(dialect, True), *[each.copy() for each in by_key])
        out.append(StrategyStep("update", dialect.update_from(target, due, sets, condition)))
    values: dict[str, exp.Expr] = {k: column(k, "s") for k in keys} | {n: v.copy() for n, v in sets.items()}
    select = (
        exp.select(*values.values()).from_(table_as(due, "s")).where(has_row.copy(), _stored(dialect, False))
    )
    out.append(StrategyStep("insert", insert_into(target, list(values), select)))
    out.append(StrategyStep("work", dialect.delete_from(positions, due, {k: k for k in keys}, None)))
    stamps = load_column_values(dialect, incoming)
    applied = exp.select(
        *[column(k, "s") for k in keys], column(CHANGE_POSITION, "s"), stamps[LOADED_AT], stamps[BATCH_ID]
    ).from_(table_as(due, "s"))
    columns = [*keys, LAST_POSITION, LOADED_AT, BATCH_ID]
    out.append(StrategyStep("work", insert_into(positions, columns, applied)))
    return out


def _has_mark(mark: str) -> exp.Expr:
    return exp.Like(this=column(CHANGE_KEPT, "s"), expression=exp.Literal.string(f"%{mark}%"))


def _is_marked(dialect: StrategyDialect, soft: ColumnSpec) -> exp.Expr:
    """Whether the stored row of a due change is marked as deleted."""
    mark = column(soft.name, "s")
    if soft.type.kind == "boolean":
        return exp.EQ(this=mark, expression=dialect.literal(True, _BOOLEAN))
    return exp.not_(exp.Is(this=mark, expression=exp.Null()))


def _text(dialect: StrategyDialect, value: str) -> exp.Expr:
    return dialect.literal(value, _TEXT)


def is_op(dialect: StrategyDialect, op: str, alias: str = "s") -> exp.Expr:
    return exp.EQ(this=column(CHANGE_OP, alias), expression=_text(dialect, op))


def _stored(dialect: StrategyDialect, value: bool) -> exp.Expr:
    return exp.EQ(this=column(IS_STORED, "s"), expression=dialect.literal(value, _BOOLEAN))


def _due_changes(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Select:
    """The staged rows for the last positions of their keys, with the stored values that they do not tell."""
    options, keys, companion = incoming.matching.changes, incoming.matching.keys, table.companion()
    assert options is not None and companion is not None
    begins: exp.Expr = last_or_opened(dialect)
    op: exp.Expr = column(CHANGE_OP, "s")
    position: exp.Expr = column(CHANGE_POSITION, "s")
    survives: exp.Expr | None = None  # whether a truncate leaves the stored row
    if options.truncates:
        cut = exp.Coalesce(this=column(CHANGE_POSITION, "c"), expressions=[_text(dialect, "")])
        if options.soft_delete_column is None:
            survives = exp.GTE(this=begins.copy(), expression=cut)
            begins = exp.Case(ifs=[exp.If(this=survives.copy(), true=begins)], default=cut.copy())
        else:  # what comes before a truncate is still loaded, and marked
            is_cut = exp.LT(this=position.copy(), expression=cut)
            is_row = exp.and_(is_cut, is_op(dialect, UPSERT_ROW))
            op = exp.Case(ifs=[exp.If(this=is_row, true=_text(dialect, MARK_ROW))], default=op)
            position = exp.Case(ifs=[exp.If(this=is_cut.copy(), true=cut.copy())], default=position)
    values: list[exp.Expr] = []
    for number, name in enumerate(table.column_names, 1):
        if name in keys:
            values.append(column(name, "s"))
        elif name == options.soft_delete_column:
            values.append(column(name, "t"))
        else:
            values.append(given_or_stored(dialect, number, table.column(name), survives))
    due = (
        exp.select(*values, op, position, column(CHANGE_KEPT, "s"), _is_stored(dialect, keys))
        .from_(subquery(incoming.select, "s"))
        .join(
            table_as(dialect.table(companion.schema, companion.name), "p"),
            on=exp.and_(*equal_keys(keys, "p", "s")),
            join_type="left",
        )
        .join(
            table_as(dialect.table(table.schema, table.name), "t"),
            on=exp.and_(*equal_keys(keys, "t", "s")),
            join_type="left",
        )
        .where(
            exp.not_(is_op(dialect, TRUNCATE_ROWS)),
            exp.LTE(this=column(CHANGE_FROM, "s"), expression=begins),
            exp.GT(this=column(CHANGE_UNTIL, "s"), expression=begins.copy()),
        )
    )
    if not options.truncates:
        return due
    return due.join(subquery(_last_truncate(dialect, incoming), "c"), join_type="cross")


def given_or_stored(
    dialect: StrategyDialect, number: int, wanted: ColumnSpec, survives: exp.Expr | None = None
) -> exp.Expr:
    """The staged value of the column with this number, or the stored one if the change leaves it out.

    ``survives`` says whether the stored row is still there.
    """
    staged, stored = (
        dialect.with_one_collation(column(wanted.name, alias), wanted.type) for alias in ("s", "t")
    )
    if survives is not None:
        stored = exp.Case(ifs=[exp.If(this=survives.copy(), true=stored)])
    mark = exp.Substring(
        this=column(CHANGE_KEPT, "s"), start=exp.Literal.number(number), length=exp.Literal.number(1)
    )
    told = exp.Coalesce(this=mark, expressions=[_text(dialect, GIVEN)])
    is_given = exp.EQ(this=told, expression=_text(dialect, GIVEN))
    return exp.Case(ifs=[exp.If(this=is_given, true=staged)], default=stored)


def last_position(dialect: StrategyDialect) -> exp.Expr:
    return exp.Coalesce(this=column(LAST_POSITION, "p"), expressions=[_text(dialect, "")])


def last_or_opened(dialect: StrategyDialect) -> exp.Expr:
    """The position of the key's last change. A row of a snapshot comes before the changes of a transaction
    that was open during it, although its place in the log is later.
    """
    last, opened = last_position(dialect), column(CHANGE_OPEN, "s")
    is_snapshot = exp.Like(this=column(LAST_POSITION, "p"), expression=exp.Literal.string(SNAPSHOT_PATTERN))
    is_later = exp.and_(is_snapshot, exp.GT(this=last.copy(), expression=opened))
    return exp.Case(ifs=[exp.If(this=is_later, true=opened.copy())], default=last)


def _is_stored(dialect: StrategyDialect, keys: tuple[str, ...]) -> exp.Expr:
    is_new = exp.Is(this=column(keys[0], "t"), expression=exp.Null())
    return exp.Case(
        ifs=[exp.If(this=is_new, true=dialect.literal(False, _BOOLEAN))],
        default=dialect.literal(True, _BOOLEAN),
    )


def _last_truncate(dialect: StrategyDialect, incoming: IncomingRows) -> exp.Select:
    """One row with the position of the last truncate in this batch, or null."""
    position = exp.Max(this=column(CHANGE_POSITION, "x"))
    return (
        exp.select(exp.alias_(position, CHANGE_POSITION, quoted=True))
        .from_(subquery(incoming.select.copy(), "x"))
        .where(is_op(dialect, TRUNCATE_ROWS, "x"))
    )


def _truncated_rows(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Select:
    """Deletes of every known key whose last change is before a truncate, and that no later change brings.

    Keys without a stored row are known too: a change from before the truncate may come again.
    """
    options, keys, companion = incoming.matching.changes, incoming.matching.keys, table.companion()
    assert options is not None and companion is not None
    target = dialect.table(table.schema, table.name)
    positions = dialect.table(companion.schema, companion.name)

    def keys_of(rows: exp.Table | exp.Subquery) -> exp.Select:
        return exp.select(*[column(k, "k") for k in keys]).from_(rows)

    staged = keys_of(subquery(incoming.select.copy(), "k"))
    known = exp.union(
        keys_of(table_as(target, "k")),
        keys_of(table_as(positions, "k")),
        staged.where(exp.not_(is_op(dialect, TRUNCATE_ROWS, "k"))),
        distinct=True,
    )
    values = [
        column(n, "a")
        if n in keys
        else column(n, "t")
        if n == options.soft_delete_column
        else dialect.literal(None, table.column(n).type)
        for n in table.column_names
    ]
    joins = [(positions, "p"), (target, "t"), (incoming.work[DUE], "d")]
    query = exp.select(
        *values,
        _text(dialect, DELETE_ROW),
        column(CHANGE_POSITION, "c"),
        dialect.literal(None, _TEXT),
        _is_stored(dialect, keys),
    ).from_(subquery(known, "a"))
    for joined, alias in joins:
        on = exp.and_(*equal_keys(keys, alias, "a"))
        query = query.join(table_as(joined, alias), on=on, join_type="left")
    return query.join(subquery(_last_truncate(dialect, incoming), "c"), join_type="cross").where(
        exp.LT(this=last_position(dialect), expression=column(CHANGE_POSITION, "c")),
        exp.Is(this=column(keys[0], "d"), expression=exp.Null()),
    )


def _mark(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, soft: str) -> exp.Expr:
    """The value that marks a deleted row: the time of the load, or true."""
    kind = table.column(soft).type
    if kind.kind == "boolean":
        return dialect.literal(True, kind)
    moment = incoming.loaded_at if kind.kind == "timestamp_tz" else incoming.loaded_at.replace(tzinfo=None)
    return dialect.literal(moment, kind)


def _mark_of_row(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, soft: str) -> exp.Expr:
    kind = table.column(soft).type
    alive = dialect.literal(False if kind.kind == "boolean" else None, kind)
    is_marked = exp.If(this=is_op(dialect, MARK_ROW), true=_mark(dialect, table, incoming, soft))
    return exp.Case(ifs=[is_marked], default=alive)


def untold_values(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> LoadGuard:
    """Refuse a new row for which the source leaves out a value: nothing has ever told it.

    A row that is marked as deleted is another row, which had the key before.
    """
    keys, options = incoming.matching.keys, incoming.matching.changes
    unknown: list[exp.Expr] = [_stored(dialect, False)]
    if options is not None and options.soft_delete_column is not None:
        unknown.append(_is_marked(dialect, table.column(options.soft_delete_column)))
    query = (
        exp.select(*[column(k, "s") for k in keys])
        .from_(table_as(incoming.work[DUE], "s"))
        .where(exp.or_(_has_mark(LOST), exp.and_(_has_mark(UNTOLD), exp.paren(exp.or_(*unknown)))))
        .limit(_MAX_SHOWN)
    )

    def judge(rows: list[tuple[Any, ...]], _: Mapping[str, int]) -> FlowError | None:
        if not rows:
            return None
        shown = ", ".join("(" + ", ".join(map(repr, row)) + ")" for row in rows)
        return RowRejected(
            f"changes of rows that {table.label} does not have leave out long values that did not change; "
            f"their keys: {shown}",
            where=table.where,
            state=f"{table.label} is unchanged",
            next_step="let the source send whole rows (REPLICA IDENTITY FULL), or begin with a snapshot",
        )

    return LoadGuard(query, judge)
