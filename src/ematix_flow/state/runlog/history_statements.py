"""SQL statements and queries behind the pages of a run log.

`page_of_runs` reads a range of an index in the order of the page. A filter without an index is applied to the
next `MOST_EXAMINED` runs of that range only, so that a rare value cannot make it read a million runs.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from ematix_flow.state.runlog.history import (
    STATUSES_WITH_ERRORS,
    RunCursor,
    RunFilter,
    RunPage,
    RunSummary,
)
from ematix_flow.state.runlog.records import RunRecord, RunStatus
from ematix_flow.state.runlog.statements import (
    LONG_AGO,
    NEWEST_FIRST,
    listed_columns,
    names_array,
    names_table,
)
from ematix_flow.state.runlog.tables import runs
from ematix_flow.state.sql.column_types import UtcDateTime

MOST_EXAMINED = 2_000  # runs with one status that one page examines for a filter without an index
EARLIEST_START = dt.timedelta(hours=1)  # of a run before its slot, by a clock that is slow
LATEST_START = dt.timedelta(days=2)  # of a run after its slot: later ones are not looked for
_NAMES_PER_STATEMENT = 200
_SHOWN = tuple(
    runs.c[name]
    for name in ("run_id", "pipeline", "status", "started_at", "finished_at", "rows_inserted", "rows_updated")
)

ReadRecords = Callable[[sa.Connection, sa.Select[Any]], tuple[RunRecord, ...]]


def page_of_runs(
    connection: sa.Connection, wanted: RunFilter, after: RunCursor | None, limit: int, read: ReadRecords
) -> RunPage:
    if not wanted.needs_records:
        listed = listed_columns(connection.dialect.name)
        query = sa.select(*listed).where(*_range(wanted, wanted.status, after)).order_by(*NEWEST_FIRST)
        records = read(connection, query.limit(limit + 1))
        return _cut(records, limit, None)
    # of each status by its part of the index: the order of the page is the order of the index
    statuses: Sequence[RunStatus | None] = (wanted.status,)
    if wanted.text is not None and wanted.status is None:
        statuses = STATUSES_WITH_ERRORS
    found: list[RunRecord] = []
    examined_down_to: RunCursor | None = None
    for status in statuses:
        portion = _range(wanted, status, after)
        end = _portion_end(connection, portion)
        if end is not None and (examined_down_to is None or _place(end) > _place(examined_down_to)):
            examined_down_to = end
        found += read(connection, _matching(wanted, portion, connection.dialect.name).limit(limit + 1))
    found.sort(key=lambda record: (record.started_at, record.run_id), reverse=True)
    if examined_down_to is not None:
        found = [record for record in found if _place(RunCursor.of(record)) >= _place(examined_down_to)]
    return _cut(found, limit, examined_down_to)


def _place(cursor: RunCursor) -> tuple[dt.datetime, str]:
    return cursor.started_at, cursor.run_id


def _cut(records: Sequence[RunRecord], limit: int, end: RunCursor | None) -> RunPage:
    if len(records) > limit:
        return RunPage(tuple(records[:limit]), RunCursor.of(records[limit - 1]))
    return RunPage(tuple(records), end)


def _range(
    wanted: RunFilter, status: RunStatus | None, after: RunCursor | None
) -> list[sa.ColumnElement[bool]]:
    """The conditions that an index answers."""
    found: list[sa.ColumnElement[bool]] = []
    if wanted.pipeline is not None:
        found.append(runs.c.pipeline == wanted.pipeline)
    if status is not None:
        found.append(runs.c.status == status)
    if wanted.since is not None:
        found.append(runs.c.started_at >= wanted.since)
    if wanted.until is not None:
        found.append(runs.c.started_at < wanted.until)
    if after is not None:
        found.append(runs.c.started_at <= after.started_at)
        found.append(sa.or_(runs.c.started_at < after.started_at, runs.c.run_id < after.run_id))
    return found


def _portion_end(connection: sa.Connection, conditions: Sequence[sa.ColumnElement[bool]]) -> RunCursor | None:
    """The last run that may be examined; None if the range ends before."""
    query = sa.select(runs.c.started_at, runs.c.run_id).where(*conditions).order_by(*NEWEST_FIRST)
    row = connection.execute(query.offset(MOST_EXAMINED - 1).limit(1)).one_or_none()
    return None if row is None else RunCursor(row.started_at, row.run_id)


def _matching(
    wanted: RunFilter, conditions: Sequence[sa.ColumnElement[bool]], dialect: str
) -> sa.Select[Any]:
    few = ("run_id", "started_at", "trigger", "error_type", "error_message")
    portion = (
        sa.select(*(runs.c[name] for name in few))
        .where(*conditions)
        .order_by(*NEWEST_FIRST)
        .limit(MOST_EXAMINED)
        .subquery("examined")
    )
    joined = runs.join(portion, portion.c.run_id == runs.c.run_id)
    query = sa.select(*listed_columns(dialect)).select_from(joined)
    if wanted.trigger is not None:
        query = query.where(portion.c.trigger == wanted.trigger)
    if wanted.text is not None:
        texts = (portion.c.error_type, portion.c.error_message)
        query = query.where(
            sa.or_(*(sa.func.lower(text).contains(wanted.text.lower(), autoescape=True) for text in texts))
        )
    return query.order_by(portion.c.started_at.desc(), portion.c.run_id.desc())


# ------------------------------------------------------------------ the newest runs of many pipelines


def recent_runs(
    connection: sa.Connection, pipelines: Sequence[str], each: int
) -> dict[str, tuple[RunSummary, ...]]:
    wanted = list(dict.fromkeys(pipelines))
    found: dict[str, list[RunSummary]] = {}
    portions: list[tuple[int | None, dict[str, Any]]] = [(None, {"names": wanted})] if wanted else []
    if connection.dialect.name != "postgresql":
        portions = [
            (len(names), {f"name_{n}": name for n, name in enumerate(names)})
            for first in range(0, len(wanted), _NAMES_PER_STATEMENT)
            for names in [wanted[first : first + _NAMES_PER_STATEMENT]]
        ]
    for number, values in portions:
        for row in connection.execute(_recent_statement(number, each), values):
            its = found.setdefault(row.pipeline, [])
            if len(its) < each:
                its.append(_summary(row))
    return {name: tuple(its) for name, its in found.items()}


def _recent_by_lateral(each: int) -> sa.Select[Any]:
    """The same for PostgreSQL, which searches the index once for each pipeline."""
    asked = names_array()
    of_one = sa.select(*_SHOWN).where(runs.c.pipeline == asked.c.pipeline).order_by(*NEWEST_FIRST)
    newest = of_one.limit(each).lateral("newest")
    query = sa.select(newest).select_from(asked.join(newest, sa.true()))
    return query.order_by(newest.c.pipeline, newest.c.started_at.desc(), newest.c.run_id.desc())


def newest_summaries(
    connection: sa.Connection, since: dt.datetime | None, limit: int
) -> tuple[RunSummary, ...]:
    query = sa.select(*_SHOWN).order_by(*NEWEST_FIRST).limit(limit)
    if since is not None:
        query = query.where(runs.c.started_at >= since)
    return tuple(_summary(row) for row in connection.execute(query))


def _summary(row: Any) -> RunSummary:
    known = [count for count in (row.rows_inserted, row.rows_updated) if count is not None]
    return RunSummary(
        row.run_id,
        row.pipeline,
        row.status,
        row.started_at,
        row.finished_at,
        sum(known) if known else None,
    )


@functools.lru_cache(maxsize=8)
def _recent_statement(names: int | None, each: int) -> sa.Select[Any]:
    """Return the statement for the newest runs of ``names`` pipelines; None: the names come as one array.

    It may return more than ``each`` runs if several started at the same time.
    """
    if names is None:
        return _recent_by_lateral(each)
    asked = names_table(names)
    inner = runs.alias("inner_run")
    nth = (
        sa.select(inner.c.started_at)
        .where(inner.c.pipeline == asked.c.pipeline)
        .order_by(inner.c.started_at.desc(), inner.c.run_id.desc())
        .limit(1)
        .offset(each - 1)
    )
    always = sa.literal(LONG_AGO, UtcDateTime)
    since = sa.select(
        asked.c.pipeline, sa.func.coalesce(nth.scalar_subquery(), always).label("nth")
    ).subquery("since")
    later = sa.and_(runs.c.pipeline == since.c.pipeline, runs.c.started_at >= since.c.nth)
    query = sa.select(*_SHOWN).select_from(since.join(runs, later))
    return query.order_by(runs.c.pipeline, *NEWEST_FIRST)


def rows_written_statement(
    since: dt.datetime, until: dt.datetime, pipelines: Sequence[str] | None
) -> sa.Select[Any]:
    written = sa.func.coalesce(runs.c.rows_inserted, 0) + sa.func.coalesce(runs.c.rows_updated, 0)
    query = sa.select(runs.c.pipeline, sa.func.sum(written).label("written")).where(
        runs.c.started_at >= since, runs.c.started_at < until
    )
    if pipelines is not None:
        query = query.where(runs.c.pipeline.in_(pipelines))
    return query.group_by(runs.c.pipeline)


def following_statement(after: RunRecord, limit: int, dialect: str) -> sa.Select[Any]:
    later = sa.or_(runs.c.started_at > after.started_at, runs.c.run_id > after.run_id)
    query = sa.select(*listed_columns(dialect)).where(
        runs.c.pipeline == after.pipeline, runs.c.started_at >= after.started_at, later
    )
    return query.order_by(runs.c.started_at, runs.c.run_id).limit(limit)


def slot_runs_statement(since: dt.datetime, until: dt.datetime, limit: int) -> sa.Select[Any]:
    """Return the statement for the runs of the slots that fired in this time, by a range of an index."""
    query = sa.select(runs.c.pipeline, runs.c.slot, runs.c.run_id).where(
        runs.c.slot >= since,
        runs.c.slot <= until,
        runs.c.started_at >= since - EARLIEST_START,
        runs.c.started_at < until + LATEST_START,
    )
    return query.order_by(*NEWEST_FIRST).limit(limit)
