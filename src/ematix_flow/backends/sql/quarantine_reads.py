"""Reads the quarantine table of a database, and deletes rows from it. Loads and replays have their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from ematix_flow.backends.base import QuarantinedRows, QuarantineFilter
from ematix_flow.backends.gated_target import QuarantineCount
from ematix_flow.backends.sql.database import SqlDatabase
from ematix_flow.backends.sql.quarantine import chosen_conditions, delete_quarantined
from ematix_flow.backends.sql.session import transaction
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.expectations import QUARANTINE_BATCH, QUARANTINED_AT, RULE
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import ascending, column

_TIME, _TEXT, _UUID = DataType("timestamp_tz"), DataType("text"), DataType("uuid")


def count_quarantined(database: SqlDatabase, table: TableSpec, pipeline: str) -> list[QuarantineCount]:
    """The rows of a pipeline by rule and batch, oldest first; empty if there is no quarantine table."""
    dialect = database.dialect
    at = column(QUARANTINED_AT)
    values = (
        (column(RULE), _TEXT),
        (column(QUARANTINE_BATCH), _UUID),
        (exp.Min(this=at), _TIME),
        (exp.Max(this=at.copy()), _TIME),
    )
    query = exp.select(exp.Count(this=exp.Star()), *[dialect.as_fetchable(*each) for each in values])
    query = query.from_(dialect.table(table.schema, table.name))
    query = query.where(*chosen_conditions(QuarantineFilter(pipeline), dialect))
    query = query.group_by(column(RULE), column(QUARANTINE_BATCH))
    with database.read_session() as session:
        if database.read_live_table(session, table) is None:
            return []
        counted = session.fetch(dialect.render(query))
    found = []
    for rows, *answers in counted:
        rule, batch, oldest, newest = (
            dialect.to_python(answer, data_type)
            for answer, (_, data_type) in zip(answers, values, strict=True)
        )
        found.append(QuarantineCount(rule, str(batch), int(rows), oldest, newest))
    return sorted(found, key=lambda each: (each.oldest, each.batch, each.rule))


def read_quarantined(
    database: SqlDatabase, rows: QuarantinedRows, limit: int, offset: int
) -> list[Mapping[str, Any]]:
    """At most ``limit`` of the chosen rows with all columns of the table, oldest first."""
    dialect = database.dialect
    with database.read_session() as session:
        live = database.read_live_table(session, rows.table)
        if live is None:
            return []
        fetched = [dialect.as_fetchable(column(each.name), each.type) for each in live.columns]
        query = exp.select(*fetched).from_(dialect.table(rows.table.schema, rows.table.name))
        order = [column(name) for name in (QUARANTINED_AT, QUARANTINE_BATCH, RULE)]
        query = query.where(*chosen_conditions(rows.chosen, dialect))
        query = query.order_by(*map(ascending, order)).limit(limit).offset(offset)
        found = session.fetch(dialect.render(query))
    return [
        {
            each.name: None if value is None else dialect.to_python(value, each.type)
            for each, value in zip(live.columns, row, strict=True)
        }
        for row in found
    ]


def purge_quarantined(database: SqlDatabase, rows: QuarantinedRows) -> int:
    """Delete the chosen rows. Returns how many there were.

    Raises TargetFailed, and deletes nothing, if they are not as many as were counted.
    """
    with database.session() as session:
        if database.read_live_table(session, rows.table) is None:
            return 0
        with transaction(session):
            purged = session.execute(database.dialect.render(delete_quarantined(rows, database.dialect)))
            if rows.counted not in (None, purged):
                raise TargetFailed(
                    f"{rows.table.label} has {purged:,} of these quarantined rows now, not {rows.counted:,} "
                    "as were counted before",
                    state=f"no row of {rows.table.label} was deleted",
                    next_step="look at them with  flow quarantine show, then purge again",
                )
    return purged
