"""Time to live: ends a version that nothing has confirmed for ``ttl_seconds``.

By event time, a version ends ``ttl_seconds`` after the last event that confirmed it, also in the past.
Without event times, a load confirms the rows that it brings; an open version that it does not bring and that
began longer ago ends at the time of the load.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import (
    EVENT_AT,
    IS_CURRENT,
    IS_DELETE,
    VALID_FROM,
    VALID_TO,
    ColumnSpec,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.sql import (
    IncomingRows,
    StrategyDialect,
    StrategyStep,
    ascending,
    column,
    equal_keys,
    insert_into,
    subquery,
    table_as,
)

EXPIRED = "expired"
_RUN, _LAST, _BEGAN, _ENDS = (
    internal_name("run"),
    internal_name("last"),
    internal_name("began"),
    internal_name("ends"),
)
_BOOLEAN, _MOMENT = DataType("boolean"), DataType("timestamp_tz")


def work_table(table: TableSpec, incoming: IncomingRows) -> TableSpec:
    keys = tuple(ColumnSpec(k, table.column(k).type) for k in incoming.matching.keys)
    return TableSpec(None, EXPIRED, (*keys, ColumnSpec(_BEGAN, _MOMENT), ColumnSpec(_ENDS, _MOMENT)))


def end_expired_versions(
    dialect: StrategyDialect,
    incoming: IncomingRows,
    points: exp.Select,
    fields: tuple[str, ...],
    by_key: Sequence[exp.Expr],
    *,
    at: str,
    until: str,
    kind: str,
    version: int,
    delete: int,
) -> exp.Select:
    """The points of a history, with an end after the time to live of each version."""
    ttl = incoming.matching.ttl_seconds
    assert ttl is not None
    is_version = exp.EQ(this=column(kind, "p"), expression=exp.Literal.number(version))
    opened = exp.Case(
        ifs=[exp.If(this=is_version.copy(), true=exp.Literal.number(1))], default=exp.Literal.number(0)
    )
    run = exp.Window(
        this=exp.Sum(this=opened),
        partition_by=[k.copy() for k in by_key],
        order=exp.Order(expressions=[ascending(column(at, "p"))]),
    )
    carried = [column(f, "p") for f in fields]
    runs = exp.select(*carried, exp.alias_(run, _RUN, quoted=True)).from_(subquery(points, "p"))
    is_delete = exp.EQ(this=column(kind, "p"), expression=exp.Literal.number(delete))
    confirmed = exp.Case(ifs=[exp.If(this=exp.not_(is_delete), true=column(at, "p"))])
    last = exp.Window(
        this=exp.Max(this=confirmed), partition_by=[*[k.copy() for k in by_key], column(_RUN, "p")]
    )
    lasting = exp.select(*carried, exp.alias_(last, _LAST, quoted=True)).from_(subquery(runs, "p"))
    ends = dialect.add_seconds(column(_LAST, "p"), ttl)
    now = dialect.literal(incoming.loaded_at, _MOMENT)
    goes_on = exp.Is(this=column(until, "p"), expression=exp.Null())
    is_over = exp.or_(
        exp.LT(this=ends.copy(), expression=column(until, "p")),
        exp.and_(goes_on, exp.LTE(this=ends.copy(), expression=now)),
    )
    shortened = exp.Case(
        ifs=[exp.If(this=exp.and_(is_version.copy(), exp.paren(is_over)), true=ends)],
        default=column(until, "p"),
    )
    kept = [column(f, "p") for f in fields if f != until]
    return exp.select(*kept, exp.alias_(shortened, until, quoted=True)).from_(subquery(lasting, "p"))


def steps(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, touched_keys: exp.Table
) -> list[StrategyStep | LoadGuard]:
    """End the expired open versions of all keys that this load does not touch."""
    keys = incoming.matching.keys
    target = dialect.table(table.schema, table.name)
    fill = insert_into(
        incoming.work[EXPIRED], [*keys, _BEGAN, _ENDS], _overdue(dialect, table, incoming, touched_keys)
    )
    sets: dict[str, exp.Expr] = {
        VALID_TO: column(_ENDS, "s"),
        IS_CURRENT: dialect.literal(False, _BOOLEAN),
    }
    began = exp.EQ(this=column(VALID_FROM, "t"), expression=column(_BEGAN, "s"))
    condition = exp.and_(*equal_keys(keys, "t", "s"), began)
    update = dialect.update_from(target, incoming.work[EXPIRED], sets, condition)
    return [StrategyStep("work", fill), StrategyStep("update", update)]


def _overdue(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, touched_keys: exp.Table
) -> exp.Select:
    matching, companion = incoming.matching, table.companion()
    ttl, keys = matching.ttl_seconds, matching.keys
    assert ttl is not None
    now = dialect.literal(incoming.loaded_at, _MOMENT)
    target = table_as(dialect.table(table.schema, table.name), "t")
    is_open = exp.EQ(this=column(IS_CURRENT, "t"), expression=dialect.literal(True, _BOOLEAN))
    place = [column(k, "t") for k in keys] + [column(VALID_FROM, "t")]
    long_ago = exp.LTE(this=dialect.add_seconds(column(VALID_FROM, "t"), ttl), expression=now.copy())
    is_touched = exp.select("1").from_(table_as(touched_keys, "k")).where(*equal_keys(keys, "k", "t"))
    other = exp.not_(exp.Exists(this=is_touched))
    if companion is None:
        brought = exp.Exists(
            this=exp.select("1").from_(subquery(incoming.select, "s")).where(*equal_keys(keys, "s", "t"))
        )
        return exp.select(*place, now).from_(target).where(is_open, long_ago, other, exp.not_(brought))
    confirms = exp.and_(
        *equal_keys(keys, "e", "t"),
        exp.EQ(this=column(IS_DELETE, "e"), expression=dialect.literal(False, _BOOLEAN)),
        exp.GT(this=column(EVENT_AT, "e"), expression=column(VALID_FROM, "t")),
    )
    latest = exp.Max(this=exp.Coalesce(this=column(EVENT_AT, "e"), expressions=[column(VALID_FROM, "t")]))
    ends = dialect.add_seconds(latest, ttl)
    return (
        exp.select(*place, ends)
        .from_(target)
        .join(table_as(dialect.table(companion.schema, companion.name), "e"), on=confirms, join_type="left")
        .where(is_open, long_ago, other)
        .group_by(*[p.copy() for p in place])
        .having(exp.LTE(this=ends.copy(), expression=now))
    )
