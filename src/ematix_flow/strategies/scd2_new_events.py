"""SCD2: finds the new events of a batch. They are changed rows, and keys that the source no longer has.

By event time, they are the events that neither a version nor the companion table has. Without an event time,
they are the rows that differ from the open version of their key, and begin at the time of the load.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.errors import RowRejected
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import (
    BATCH_ID,
    EVENT_AT,
    IS_CURRENT,
    IS_DELETE,
    LOADED_AT,
    VALID_FROM,
    VALID_TO,
    ColumnSpec,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.row_comparison import last_of_each_key, rows_differ
from ematix_flow.strategies.sql import (
    IncomingRows,
    StrategyDialect,
    StrategyStep,
    column,
    equal_keys,
    insert_into,
    load_column_values,
    subquery,
    table_as,
)

EVENTS = "events"
AT, HASH, GONE = internal_name("at"), internal_name("hash"), internal_name("gone")
IS_STORED, IS_NEW = internal_name("stored"), internal_name("new")
_RANK, _PLACE, _CLOSED = internal_name("rank"), internal_name("place"), internal_name("closed")
_FILLED = internal_name("filled")
_ORDER = (_FILLED, HASH, _RANK)  # of several events at one time the greatest wins
_BOOLEAN, _MOMENT, _BYTES = DataType("boolean"), DataType("timestamp_tz"), DataType("bytes")
_TICK = 0.000001


def event_columns(table: TableSpec) -> tuple[ColumnSpec, ...]:
    """The columns of an event: the row, its time, its hash, and whether it is a delete or stored."""
    return (
        *[ColumnSpec(c.name, c.type, nullable=True) for c in table.columns],
        ColumnSpec(AT, _MOMENT, nullable=True),
        ColumnSpec(HASH, _BYTES, nullable=True),
        ColumnSpec(GONE, _BOOLEAN),
        ColumnSpec(IS_STORED, _BOOLEAN),  # whether a stored version begins here
        ColumnSpec(IS_NEW, _BOOLEAN),
        ColumnSpec(LOADED_AT, _MOMENT, nullable=True),
        ColumnSpec(BATCH_ID, DataType("uuid"), nullable=True),
    )


def null_event_times(table: TableSpec, incoming: IncomingRows) -> LoadGuard:
    event = incoming.matching.event
    assert event is not None
    missing = exp.Is(this=column(event, "s"), expression=exp.Null())
    query = (
        exp.select(*[column(k, "s") for k in incoming.matching.keys])
        .from_(subquery(incoming.select, "s"))
        .where(missing)
        .limit(5)
    )

    def judge(rows: list[tuple[object, ...]], _: object) -> RowRejected | None:
        if not rows:
            return None
        shown = ", ".join("(" + ", ".join(map(repr, row)) + ")" for row in rows)
        return RowRejected(
            f"rows for {table.label} have no time in event_timestamp_column {event!r}; their keys: {shown}",
            where=table.where,
            state=f"{table.label} is unchanged",
            next_step="filter these rows out in the source SQL, or choose a column that is never null",
        )

    return LoadGuard(query, judge)


def new_events(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Insert:
    """Insert into ``events``: by event time every unknown event; otherwise each row that differs from the
    open version.
    """
    columns = [c.name for c in event_columns(table)]
    if incoming.matching.event is None:
        select = _changes_now(dialect, table, incoming)
    else:
        select = _unknown_events(dialect, table, incoming)
    return insert_into(incoming.work[EVENTS], columns, select)


def one_row_a_key(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Expr:
    order = incoming.matching.order
    return incoming.select if order is None else last_of_each_key(dialect, table, incoming, order)


def content_hash(dialect: StrategyDialect, table: TableSpec, names: tuple[str, ...], alias: str) -> exp.Expr:
    return dialect.row_hash([(n, table.column(n).type, column(n, alias)) for n in names])


def _changes_now(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Select:
    """Rows that differ from the open version of their key. They are valid from the time of this load."""
    matching, names = incoming.matching, table.column_names
    keys = matching.keys
    true, false = dialect.literal(True, _BOOLEAN), dialect.literal(False, _BOOLEAN)
    rows = one_row_a_key(dialect, table, incoming)
    is_open = exp.EQ(this=column(IS_CURRENT, "t"), expression=true.copy())
    target = table_as(dialect.table(table.schema, table.name), "t")
    is_new_key = exp.Is(this=column(keys[0], "t"), expression=exp.Null())
    ended = (
        exp.select(exp.Max(this=column(VALID_TO, "c")))
        .from_(table_as(dialect.table(table.schema, table.name), "c"))
        .where(*equal_keys(keys, "c", "s"))
    )
    last_change = exp.Case(
        ifs=[exp.If(this=is_new_key.copy(), true=exp.Subquery(this=ended))], default=column(VALID_FROM, "t")
    )
    return (
        exp.select(
            *[column(n, "s") for n in names],
            _now_after(dialect, incoming, last_change),
            content_hash(dialect, table, matching.compare, "s"),
            false.copy(),
            false.copy(),
            true.copy(),
            *[load_column_values(dialect, incoming)[n] for n in (LOADED_AT, BATCH_ID)],
        )
        .from_(subquery(rows, "s"))
        .join(target, on=exp.and_(is_open, *equal_keys(keys, "t", "s")), join_type="left")
        .where(exp.or_(is_new_key, rows_differ(dialect, table, matching.compare, "s", "t")))
    )


def _now_after(dialect: StrategyDialect, incoming: IncomingRows, last_change: exp.Expr) -> exp.Expr:
    """The time of this load, or just after the last start or end if the clock went back."""
    now = dialect.literal(incoming.loaded_at, _MOMENT)
    late = exp.GTE(this=last_change.copy(), expression=now.copy())
    return exp.Case(ifs=[exp.If(this=late, true=dialect.add_seconds(last_change.copy(), _TICK))], default=now)


def _unknown_events(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Select:
    """Events that neither a version nor the companion table has, or that outrank the stored ones."""
    matching, names = incoming.matching, table.column_names
    keys, companion = matching.keys, table.companion()
    assert matching.event is not None and companion is not None
    false, true = dialect.literal(False, _BOOLEAN), dialect.literal(True, _BOOLEAN)
    rest = tuple(n for n in names if n not in (*keys, *matching.compare, matching.event))

    def ranked(alias: str) -> exp.Expr:
        return content_hash(dialect, table, rest, alias) if rest else dialect.literal(b"", _BYTES)

    def filled(alias: str) -> exp.Expr:
        return _values_in([column(n, alias) for n in (*matching.compare, *rest)])

    dated: exp.Expr = exp.select(
        *[column(n, "r") for n in (*names, AT)],
        exp.alias_(content_hash(dialect, table, matching.compare, "r"), HASH, quoted=True),
        exp.alias_(ranked("r"), _RANK, quoted=True),
        exp.alias_(filled("r"), _FILLED, quoted=True),
    ).from_(subquery(_rows_not_stored(dialect, table, incoming), "r"))
    if matching.deletes is not None:
        dated = _with_returns(dialect, table, incoming, dated)
    by_moment = [dialect.comparable(column(k, "r"), table.column(k).type) for k in keys]
    place = exp.Window(
        this=exp.RowNumber(),
        partition_by=[*by_moment, column(AT, "r")],
        order=exp.Order(expressions=[exp.Ordered(this=column(c, "r"), desc=True) for c in _ORDER]),
    )
    fields = (*names, AT, HASH, _RANK, _FILLED)
    numbered = exp.select(*[column(n, "r") for n in fields], exp.alias_(place, _PLACE, quoted=True)).from_(
        subquery(dated, "r")
    )

    def outranks(alias: str, begins: str) -> tuple[exp.Expr, exp.Expr]:
        """The join with the stored event at this time, and whether the new event outranks it."""
        on = exp.and_(
            *equal_keys(keys, alias, "s"), exp.EQ(this=column(begins, alias), expression=column(AT, "s"))
        )
        stored_hash = content_hash(dialect, table, matching.compare, alias)
        more: exp.Expr = exp.GT(this=column(HASH, "s"), expression=stored_hash)
        if rest:
            tied = exp.EQ(this=column(HASH, "s"), expression=stored_hash.copy())
            ranks = exp.GT(this=column(_RANK, "s"), expression=ranked(alias))
            more = exp.or_(more, exp.and_(tied, ranks))
        stored_values = filled(alias)
        fuller = exp.GT(this=column(_FILLED, "s"), expression=stored_values)
        as_full = exp.EQ(this=column(_FILLED, "s"), expression=stored_values.copy())
        return on, exp.paren(exp.or_(fuller, exp.and_(as_full, exp.paren(more))))

    to_version, over_version = outranks("v", VALID_FROM)
    to_event, over_event = outranks("e", EVENT_AT)
    has_version = exp.not_(exp.Is(this=column(keys[0], "v"), expression=exp.Null()))
    no_event = exp.Is(this=column(keys[0], "e"), expression=exp.Null())
    was_deleted = exp.EQ(this=column(IS_DELETE, "e"), expression=true.copy())
    unknown = exp.or_(
        exp.and_(has_version.copy(), over_version),
        exp.and_(
            exp.not_(has_version.copy()),
            exp.paren(exp.or_(no_event, was_deleted, over_event)),
        ),
    )
    stored = exp.Case(ifs=[exp.If(this=has_version.copy(), true=true.copy())], default=false.copy())
    first = exp.EQ(this=column(_PLACE, "s"), expression=exp.Literal.number(1))
    versions = table_as(dialect.table(table.schema, table.name), "v")
    others = table_as(dialect.table(companion.schema, companion.name), "e")
    return (
        exp.select(
            *[column(n, "s") for n in (*names, AT, HASH)],
            false.copy(),
            stored,
            true.copy(),
            *[load_column_values(dialect, incoming)[n] for n in (LOADED_AT, BATCH_ID)],
        )
        .from_(subquery(numbered, "s"), copy=False)
        .join(versions, on=to_version, join_type="left", copy=False)
        .join(others, on=to_event, join_type="left", copy=False)
        .where(first, exp.paren(unknown), copy=False)
    )


def _values_in(columns: list[exp.Expr]) -> exp.Expr:
    """How many of the columns are not null."""
    one, none = exp.Literal.number(1), exp.Literal.number(0)
    total: exp.Expr = none.copy()
    for value in columns:
        is_null = exp.Is(this=value, expression=exp.Null())
        counted = exp.Case(ifs=[exp.If(this=is_null, true=none.copy())], default=one.copy())
        total = exp.Add(this=total, expression=counted)
    return exp.paren(total)


def dated_rows(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Select:
    """The rows of the batch with their event time."""
    event = incoming.matching.event
    assert event is not None
    at = dialect.as_timestamp_tz(column(event, "i"), table.column(event).type)
    values = [*[column(n, "i") for n in table.column_names], exp.alias_(at, AT, quoted=True)]
    return exp.select(*values).from_(subquery(incoming.select, "i"))


def _rows_not_stored(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> exp.Select:
    """The rows with their event time, without those equal to an open version, column by column.

    A full read brings mostly unchanged rows; only the rest is hashed.
    """
    matching, names = incoming.matching, table.column_names
    moments = dated_rows(dialect, table, incoming)
    on = exp.and_(
        *equal_keys(matching.keys, "o", "i"),
        exp.EQ(this=column(VALID_FROM, "o"), expression=column(AT, "i")),
        exp.EQ(this=column(IS_CURRENT, "o"), expression=dialect.literal(True, _BOOLEAN)),
        _began_with_its_event(dialect, table, incoming, "o"),
    )
    others = tuple(n for n in names if n not in matching.keys)
    unknown = exp.Is(this=column(matching.keys[0], "o"), expression=exp.Null())
    return (
        exp.select(*[column(n, "i") for n in (*names, AT)])
        .from_(subquery(moments, "i"))
        .join(table_as(dialect.table(table.schema, table.name), "o"), on=on, join_type="left")
        .where(exp.or_(unknown, rows_differ(dialect, table, others, "i", "o")))
    )


def _began_with_its_event(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, alias: str
) -> exp.Expr:
    """False for a version of a key that was deleted and returned with an older row."""
    event = incoming.matching.event
    assert event is not None
    moment = dialect.as_timestamp_tz(column(event, alias), table.column(event).type)
    return exp.EQ(this=column(VALID_FROM, alias), expression=moment)


def _with_returns(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, dated: exp.Expr
) -> exp.Expr:
    """The events, and each deleted key that the snapshot has again without a newer event.

    Such a key is valid from now on with its last row, for any event time. If that row changes while its
    event time stays before the return, the changed row is valid.
    """
    keys, companion = incoming.matching.keys, table.companion()
    assert companion is not None
    fields = (*table.column_names, AT, HASH, _RANK, _FILLED)
    closed = (
        exp.select(
            *[column(k, "c") for k in keys],
            exp.alias_(exp.Max(this=column(EVENT_AT, "c")), _CLOSED, quoted=True),
        )
        .from_(table_as(dialect.table(companion.schema, companion.name), "c"))
        .where(exp.EQ(this=column(IS_DELETE, "c"), expression=dialect.literal(True, _BOOLEAN)))
        .group_by(*[column(k, "c") for k in keys])
    )
    by_key = [dialect.comparable(column(k, "r"), table.column(k).type) for k in keys]
    latest = [exp.Ordered(this=column(c, "r"), desc=True) for c in (AT, *_ORDER)]
    place = exp.Window(this=exp.RowNumber(), partition_by=by_key, order=exp.Order(expressions=latest))

    def ranked() -> exp.Subquery:
        rows = exp.select(*[column(f, "r") for f in fields], exp.alias_(place.copy(), _PLACE, quoted=True))
        return subquery(rows.from_(subquery(dated, "r"), copy=False), "n")

    opened_since = exp.Exists(
        this=exp.select("1")
        .from_(table_as(dialect.table(table.schema, table.name), "v"))
        .where(
            *equal_keys(keys, "v", "n"),
            exp.GT(this=column(VALID_FROM, "v"), expression=column(_CLOSED, "d")),
        )
    )
    carried = [
        exp.alias_(_now_after(dialect, incoming, column(_CLOSED, "d")), AT, quoted=True)
        if f == AT
        else column(f, "n")
        for f in fields
    ]
    returned = (
        exp.select(*carried)
        .from_(ranked(), copy=False)
        .join(subquery(closed, "d"), on=exp.and_(*equal_keys(keys, "d", "n")), copy=False)
        .where(
            exp.EQ(this=column(_PLACE, "n"), expression=exp.Literal.number(1)),
            exp.LTE(this=column(AT, "n"), expression=column(_CLOSED, "d")),
            exp.not_(opened_since),
            copy=False,
        )
    )
    again = [
        exp.alias_(_now_after(dialect, incoming, column(VALID_FROM, "v")), AT, quoted=True)
        if f == AT
        else column(f, "n")
        for f in fields
    ]
    open_again = exp.and_(
        *equal_keys(keys, "v", "n"),
        exp.EQ(this=column(IS_CURRENT, "v"), expression=dialect.literal(True, _BOOLEAN)),
        exp.not_(_began_with_its_event(dialect, table, incoming, "v")),
    )
    changed = (
        exp.select(*again)
        .from_(ranked(), copy=False)
        .join(table_as(dialect.table(table.schema, table.name), "v"), on=open_again, copy=False)
        .where(
            exp.EQ(this=column(_PLACE, "n"), expression=exp.Literal.number(1)),
            exp.LT(this=column(AT, "n"), expression=column(VALID_FROM, "v")),
            rows_differ(dialect, table, incoming.matching.compare, "n", "v"),
            copy=False,
        )
    )
    events = exp.select(*[column(f, "r") for f in fields]).from_(subquery(dated, "r"), copy=False)
    return exp.union(events, returned, changed, distinct=False)


def delete_events(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows
) -> list[StrategyStep | LoadGuard]:
    """Insert into ``events`` a delete for each open key that the snapshot no longer has."""
    keys = incoming.matching.keys
    true, false = dialect.literal(True, _BOOLEAN), dialect.literal(False, _BOOLEAN)
    present = exp.Exists(
        this=exp.select("1").from_(subquery(incoming.select, "s")).where(*equal_keys(keys, "s", "t"))
    )
    values: list[exp.Expr] = [
        column(c.name, "t") if c.name in keys else dialect.literal(None, c.type) for c in table.columns
    ]
    last_change: exp.Expr = column(VALID_FROM, "t")
    companion = table.companion()
    if companion is not None:  # the version may have been confirmed since, even for a future time
        confirmed = (
            exp.select(exp.Max(this=column(EVENT_AT, "c")))
            .from_(table_as(dialect.table(companion.schema, companion.name), "c"))
            .where(
                *equal_keys(keys, "c", "t"),
                exp.GT(this=column(EVENT_AT, "c"), expression=column(VALID_FROM, "t")),
            )
        )
        last_change = exp.Coalesce(this=exp.Subquery(this=confirmed), expressions=[last_change])
    select = (
        exp.select(
            *values,
            _now_after(dialect, incoming, last_change),
            dialect.literal(None, _BYTES),
            true.copy(),
            false.copy(),
            true.copy(),
            *[load_column_values(dialect, incoming)[n] for n in (LOADED_AT, BATCH_ID)],
        )
        .from_(table_as(dialect.table(table.schema, table.name), "t"))
        .where(exp.EQ(this=column(IS_CURRENT, "t"), expression=true.copy()), exp.not_(present))
    )
    columns = [c.name for c in event_columns(table)]
    return [StrategyStep("work", insert_into(incoming.work[EVENTS], columns, select))]
