"""Counts what happened to the rows of a batch of events. Each row has one of three outcomes.

``brought``: it opens a version, or replaces the one that begins at its event time.
``outranked``: another row of its key holds at the same event time, by the total order that `scd2` describes.
All other rows are unchanged: they repeat a known event, or confirm the version before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from ematix_flow.spec.tables import EVENT_AT, IS_DELETE, VALID_FROM, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_comparison import rows_differ
from ematix_flow.strategies.scd2_new_events import AT, EVENTS, GONE, IS_NEW, dated_rows
from ematix_flow.strategies.sql import (
    IncomingRows,
    RowTally,
    StrategyDialect,
    column,
    equal_keys,
    subquery,
    table_as,
)

_BOOLEAN = DataType("boolean")


@dataclass(frozen=True)
class HistoryPoints:
    """The points in time of the touched keys, one for each time.

    ``kind`` is ``version`` where a version opens.
    """

    table: exp.Table
    kind: str
    version: int


def row_tallies(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, points: HistoryPoints
) -> list[RowTally]:
    return [
        RowTally("brought", _count_brought(dialect, table, incoming, points)),
        RowTally("outranked", _count_outranked(dialect, table, incoming, points)),
    ]


def _count_brought(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, points: HistoryPoints
) -> exp.Select:
    """Points of this batch that open a version. A returning row may have two points: it counts once."""

    def opens(alias: str) -> list[exp.Expr]:
        return [
            exp.EQ(this=column(points.kind, alias), expression=exp.Literal.number(points.version)),
            exp.EQ(this=column(IS_NEW, alias), expression=dialect.literal(True, _BOOLEAN)),
        ]

    found = _select_count().from_(table_as(points.table, "h")).where(*opens("h"))
    if incoming.matching.deletes is None:
        return found
    moment = _moment_of_event(dialect, table, incoming, "h")
    own = (
        exp.select("1")
        .from_(table_as(points.table, "o"))
        .where(
            *equal_keys(incoming.matching.keys, "o", "h"),
            exp.EQ(this=column(AT, "o"), expression=moment.copy()),
            *opens("o"),
        )
    )
    is_own = exp.EQ(this=column(AT, "h"), expression=moment)
    return found.where(exp.paren(exp.or_(is_own, exp.not_(exp.Exists(this=own)))))


def _count_outranked(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, points: HistoryPoints
) -> exp.Select:
    """Rows that differ from the version valid at their time: a point of a touched key, or the stored one."""
    matching, companion = incoming.matching, table.companion()
    assert companion is not None
    keys, false = matching.keys, dialect.literal(False, _BOOLEAN)
    values = tuple(n for n in table.column_names if n not in keys)
    stored = dialect.table(table.schema, table.name)
    companion_table = dialect.table(companion.schema, companion.name)

    def at_its_time(alias: str, begins: str, is_gone: str | None) -> exp.Expr:
        same_moment = exp.EQ(this=column(begins, alias), expression=column(AT, "i"))
        event = [exp.EQ(this=column(is_gone, alias), expression=false.copy())] if is_gone else []
        return exp.and_(*equal_keys(keys, alias, "i"), same_moment, *event)

    def other(alias: str) -> exp.Expr:
        is_there = exp.not_(exp.Is(this=column(keys[0], alias), expression=exp.Null()))
        return exp.and_(is_there, rows_differ(dialect, table, values, "i", alias))

    def missing(alias: str) -> exp.Expr:
        return exp.Is(this=column(keys[0], alias), expression=exp.Null())

    found = (
        _select_count()
        .from_(subquery(dated_rows(dialect, table, incoming), "i"))
        .join(table_as(points.table, "h"), on=at_its_time("h", AT, GONE), join_type="left")
        .join(table_as(stored, "v"), on=at_its_time("v", VALID_FROM, None), join_type="left")
        .join(table_as(companion_table, "e"), on=at_its_time("e", EVENT_AT, IS_DELETE), join_type="left")
        .where(
            exp.paren(
                exp.or_(
                    other("h"),
                    exp.and_(missing("h"), other("v")),
                    exp.and_(missing("h"), missing("v"), other("e")),
                )
            )
        )
    )
    if matching.deletes is None:
        return found

    def returned(source: exp.Table, begins: str, is_gone: str | None) -> exp.Expr:
        """Whether the row is valid since its key returned, later than its event time."""
        event = [exp.EQ(this=column(is_gone, "o"), expression=false.copy())] if is_gone else []
        own = exp.EQ(this=column(begins, "o"), expression=_moment_of_event(dialect, table, incoming, "o"))
        return exp.Exists(
            this=exp.select("1")
            .from_(table_as(source, "o"))
            .where(
                *equal_keys(keys, "o", "i"),
                *event,
                exp.not_(own),
                exp.not_(rows_differ(dialect, table, values, "i", "o")),
            )
        )

    return found.where(
        exp.not_(returned(incoming.work[EVENTS], AT, GONE)),
        exp.not_(returned(stored, VALID_FROM, None)),
        exp.not_(returned(companion_table, EVENT_AT, IS_DELETE)),
    )


def _moment_of_event(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, alias: str
) -> exp.Expr:
    event = incoming.matching.event
    assert event is not None
    return dialect.as_timestamp_tz(column(event, alias), table.column(event).type)


def _select_count() -> exp.Select:
    return exp.select(exp.Count(this=exp.Star()))
