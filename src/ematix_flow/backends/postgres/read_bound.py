"""The safe upper bound of an incremental read: no open transaction can still write below it.

Neither the highest value nor the order of transaction ids is a safe bound: an open transaction may hold a
lower value than one that has committed. Which transactions can do so depends on the source of the values.

- A ``timestamptz`` is assumed to be ``now()``, the start of the row's transaction. The bound is the start of
  the oldest open transaction. Every open transaction counts, because one that has only read may still write.
- Any other value is assumed to come from a sequence, or from the statement that writes it. Both take a
  RowExclusiveLock on the sequence or the table and hold it to the end of the transaction. So the highest
  value seen is safe once all transactions have ended that held such a lock right after it was seen; any other
  transaction draws a higher value. The read waits for them for a short time.
- A ``timestamp`` without zone and a ``date`` are ``now()`` in a zone that only their writers know. The
  highest value is safe once every transaction has ended that was open right after it was seen. A value that
  is further below the start of a transaction than any zone is behind UTC is safe: that transaction cannot
  write a lower one. All writers must use one zone: with two zones, a later transaction may write a lower
  value, and no bound is safe.

A transaction takes its start time before the server lists it as open. After one second all transactions that
started before a time are listed; a read of newer rows waits that long. A prepared transaction writes nothing
more and has no visible start: the read waits for one that wrote to a table. Values that a client makes up,
that a sequence with a cache hands out in advance, or that were copied from another server belong to no
transaction here: use ``lag=`` for them.
"""

from __future__ import annotations

import datetime as dt
import decimal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlglot import exp

from ematix_flow.backends.base import ReadBound, SourceQuery
from ematix_flow.backends.postgres.address import READER_APPLICATION
from ematix_flow.backends.postgres.describe import prepare_statement
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.postgres.failures import source_failure
from ematix_flow.backends.sql_servers.source_queries import ALIAS, as_subquery
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark, WatermarkValue
from ematix_flow.strategies.ranges import range_condition
from ematix_flow.strategies.raw_sql import one_statement
from ematix_flow.strategies.sql import column

WAIT_SECONDS = 2.0  # how long a plan waits for transactions to end
_POLL_SECONDS = 0.03
# by then the server lists every transaction that has started, also on a busy machine
_VISIBLE_AFTER = dt.timedelta(seconds=1)
_FURTHEST_BEHIND_UTC = dt.timedelta(hours=14)  # no zone is more than 12 today

_DATE, _TIMESTAMP, _TIMESTAMPTZ = 1082, 1114, 1184
_TIMES = ("date", "timestamp", "timestamp_tz")
_DIALECT = PostgresDialect()

# Every user sees locks; only members of pg_read_all_stats see starts. Autovacuum has no user; our own
# readers cannot write.
_OPEN_SQL = """
SELECT DISTINCT l.virtualtransaction, a.pid, a.usename, a.xact_start
FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock'
  AND a.datname = current_database() AND a.usesysid IS NOT NULL AND a.pid <> pg_backend_pid()
  AND a.application_name IS DISTINCT FROM %(reader)s AND a.backend_type IS DISTINCT FROM 'walsender'
"""
_WRITERS_SQL = """
SELECT DISTINCT l.virtualtransaction, a.pid, a.usename, a.xact_start
FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
  AND a.datname = current_database() AND l.database = a.datid AND a.usesysid IS NOT NULL
  AND a.pid <> pg_backend_pid()
  AND (c.relkind = 'S' OR (c.oid = ANY(%(tables)s::oid[]) AND c.relkind NOT IN ('i', 'I')))
"""
_PREPARED_SQL = """
SELECT DISTINCT own.virtualtransaction, p.gid, p.owner, p.prepared
FROM pg_catalog.pg_prepared_xacts AS p
JOIN pg_catalog.pg_locks AS own ON own.locktype = 'transactionid' AND own.transactionid = p.transaction
  AND own.mode = 'ExclusiveLock'
JOIN pg_catalog.pg_locks AS wrote ON wrote.virtualtransaction = own.virtualtransaction
  AND wrote.locktype = 'relation' AND wrote.mode = 'RowExclusiveLock'
WHERE p.database = current_database()
"""
_STILL_OPEN_SQL = """
SELECT DISTINCT virtualtransaction FROM pg_catalog.pg_locks WHERE virtualtransaction = ANY(%(noted)s)
"""
_TABLES_READ_SQL = """
SELECT DISTINCT relation FROM pg_catalog.pg_locks
WHERE locktype = 'relation' AND pid = pg_backend_pid() AND relation IS NOT NULL
"""


@dataclass(frozen=True)
class _OpenTransaction:
    """An open transaction: its name in ``pg_locks``, its user and start; a ``gid`` if it is prepared."""

    name: str
    user: str | None
    pid: int | None = None
    start: dt.datetime | None = None
    gid: str | None = None
    prepared_at: dt.datetime | None = None

    def __str__(self) -> str:
        user = f" of user {self.user!r}" if self.user else ""
        if self.gid is not None:
            return f"transaction {self.gid!r}{user} is prepared since {_time_text(self.prepared_at)}"
        if self.start is not None:
            return f"server process {self.pid}{user} has a transaction open since {_time_text(self.start)}"
        return f"server process {self.pid}{user} has a transaction open"


def find_read_bound(
    connection: psycopg.Connection[Any], name: str, query: SourceQuery, data_type: DataType
) -> ReadBound | None:
    """The bound for a read that begins after this call; ``connection`` is not in a transaction.

    None on a standby, which does not list the open transactions of its primary.
    """
    source_range = query.range
    assert source_range is not None
    if _fetch_value(connection, "SELECT pg_is_in_recovery()"):
        return None
    sql = one_statement(query.sql, "postgres")
    picked = f"SELECT {_DIALECT.quote(source_range.column)} FROM {as_subquery(sql, _DIALECT)}"
    native = prepare_statement(connection, name, sql, picked)[0][1]
    if native == _TIMESTAMPTZ and data_type.kind in ("timestamp", "timestamp_tz"):
        return _bound_by_oldest_start(connection, name, sql, source_range, data_type)
    top, tables = _highest_value(connection, name, sql, source_range, data_type)
    if top is None:
        return ReadBound(_bound_without_new_rows(source_range, data_type))
    high = Watermark(source_range.column, data_type, top)
    is_time = native in (_DATE, _TIMESTAMP, _TIMESTAMPTZ)
    if is_time and data_type.kind in _TIMES:
        return _bound_by_local_start(connection, source_range, high)
    if is_time:  # as text
        _sleep(_VISIBLE_AFTER)
    noted = _open_transactions(connection) if is_time else _writing_transactions(connection, tables)
    left = _wait_for_transactions(connection, [*noted, *_prepared_transactions(connection)])
    if not left:
        return ReadBound(high)
    high = _bound_without_new_rows(source_range, data_type)
    return ReadBound(high, _held_back_text(high, left, source_range))


def _bound_by_local_start(
    connection: psycopg.Connection[Any], source_range: SourceRange, high: Watermark
) -> ReadBound:
    """The bound for ``high``, the highest value, in an unknown zone."""
    if high == source_range.low:  # nothing new
        return ReadBound(high)
    if _bound_before_start(_now(connection) - _VISIBLE_AFTER, high) != high:
        _sleep(_VISIBLE_AFTER)
    noted = [*_open_transactions(connection), *_prepared_transactions(connection)]
    if _bound_before_starts(noted, source_range, high) == high:
        return ReadBound(high)
    left = _wait_for_transactions(connection, noted)
    bound = _bound_before_starts(left, source_range, high)
    return ReadBound(bound, _held_back_text(bound, left, source_range) if bound != high else None)


def _bound_by_oldest_start(
    connection: psycopg.Connection[Any], name: str, sql: str, source_range: SourceRange, data_type: DataType
) -> ReadBound:
    """A row at the bound itself may come later: the next read starts at the bound, inclusive."""
    now = _now(connection)
    noted = _open_transactions(connection)
    bound, surely_shown = _oldest_start(noted, now), now - _VISIBLE_AFTER
    if bound > surely_shown:
        newest = SourceRange(
            source_range.column,
            _watermark_at(source_range, data_type, surely_shown),
            _watermark_at(source_range, data_type, bound),
        )
        if _highest_value(connection, name, sql, newest, data_type)[0] is None:
            bound = surely_shown
        else:
            _sleep(bound - surely_shown)
            noted = _open_transactions(connection)
            bound = _oldest_start(noted, bound)
    # a transaction with a hidden start may have begun at any time
    unknown = [t for t in noted if t.start is None]
    left = _wait_for_transactions(connection, [*unknown, *_prepared_transactions(connection)])
    if left:
        high = _bound_without_new_rows(source_range, data_type)
        return ReadBound(high, _held_back_text(high, left, source_range))
    high = _watermark_at(source_range, data_type, bound)
    if source_range.high is not None and _sort_value(source_range.high) < _sort_value(high):
        return ReadBound(source_range.high)
    started = [t for t in noted if t.start is not None]
    long_open = (now - _oldest_start(started, now)).total_seconds() > WAIT_SECONDS
    return ReadBound(high, _held_back_text(high, started, source_range) if long_open else None)


# ------------------------------------------------------------------ queries


def _highest_value(
    connection: psycopg.Connection[Any], name: str, sql: str, source_range: SourceRange, data_type: DataType
) -> tuple[WatermarkValue | None, list[int]]:
    """The highest value in the range, as the bound's type, and the tables that the query read."""
    mark = _DIALECT.range_operand(column(source_range.column, ALIAS), data_type)
    typed = _DIALECT.literal(None, data_type)
    typed.set("this", exp.Max(this=_DIALECT.comparable(mark, data_type)))
    statement = f"SELECT {_DIALECT.render(typed)} FROM {as_subquery(sql, _DIALECT)}"
    condition = range_condition(source_range, _DIALECT, ALIAS)
    if condition is not None:
        statement += f" WHERE {_DIALECT.render(condition)}"
    connection.execute("BEGIN READ ONLY")
    try:
        row = connection.execute(statement.encode(), prepare=True).fetchone()
        tables = [int(oid) for (oid,) in connection.execute(_TABLES_READ_SQL).fetchall()]
    except psycopg.Error as error:
        raise source_failure(error, name, sql, statement) from error
    connection.execute("ROLLBACK")  # the transactions that we wait for must not wait for this one
    return _DIALECT.to_python(row[0] if row else None, data_type), tables


def _open_transactions(connection: psycopg.Connection[Any]) -> list[_OpenTransaction]:
    rows = connection.execute(_OPEN_SQL, {"reader": READER_APPLICATION}).fetchall()
    return [_OpenTransaction(name, user, pid, start) for name, pid, user, start in rows]


def _writing_transactions(connection: psycopg.Connection[Any], tables: list[int]) -> list[_OpenTransaction]:
    rows = connection.execute(_WRITERS_SQL, {"tables": tables}).fetchall()
    return [_OpenTransaction(name, user, pid, start) for name, pid, user, start in rows]


def _prepared_transactions(connection: psycopg.Connection[Any]) -> list[_OpenTransaction]:
    """Query these after the open ones: an open transaction can become prepared, but not the reverse."""
    rows = connection.execute(_PREPARED_SQL).fetchall()
    return [_OpenTransaction(name, user, gid=gid, prepared_at=at) for name, gid, user, at in rows]


def _wait_for_transactions(
    connection: psycopg.Connection[Any], noted: Sequence[_OpenTransaction]
) -> list[_OpenTransaction]:
    """Wait until all of ``noted`` have ended, at most `WAIT_SECONDS`; returns those that are still open."""
    deadline = time.monotonic() + WAIT_SECONDS
    left, followed = list(noted), False
    while left:
        rows = connection.execute(_STILL_OPEN_SQL, {"noted": [t.name for t in left]}).fetchall()
        there = {name for (name,) in rows}
        left = [t for t in left if t.name in there]
        if not left and not followed:
            # one of them may be prepared now, under another name
            followed = True
            left = _prepared_transactions(connection)
        if left and time.monotonic() >= deadline:
            return left
        if left:
            time.sleep(_POLL_SECONDS)
    return left


# ------------------------------------------------------------------ bounds and messages


def _oldest_start(transactions: Sequence[_OpenTransaction], otherwise: dt.datetime) -> dt.datetime:
    return min([otherwise, *(t.start for t in transactions if t.start is not None)])


def _watermark_at(source_range: SourceRange, data_type: DataType, moment: dt.datetime) -> Watermark:
    value = moment.astimezone(dt.timezone.utc)
    return Watermark(
        source_range.column,
        data_type,
        value if data_type.kind == "timestamp_tz" else value.replace(tzinfo=None),
    )


def _bound_before_starts(
    transactions: Sequence[_OpenTransaction], source_range: SourceRange, high: Watermark
) -> Watermark:
    """The lower of ``high`` and the lowest value that these can write into a column without zone."""
    starts = [t.start for t in transactions if t.start is not None]
    if not transactions:
        return high
    if len(starts) < len(transactions):
        return _bound_without_new_rows(source_range, high.type)
    return _bound_before_start(min(starts), high)


def _bound_before_start(start: dt.datetime, high: Watermark) -> Watermark:
    """The lower of ``high`` and the lowest value that a transaction begun at ``start`` writes in any zone."""
    local = start.astimezone(dt.timezone.utc) - _FURTHEST_BEHIND_UTC
    value: WatermarkValue = local  # when the column is compared as UTC
    if high.type.kind == "date":
        value = local.date()
    elif high.type.kind == "timestamp":
        value = local.replace(tzinfo=None)
    return min(high, Watermark(high.column, high.type, value), key=_sort_value)


def _bound_without_new_rows(source_range: SourceRange, data_type: DataType) -> Watermark:
    """A bound that excludes all new rows: the end of the last read, or below every value."""
    return source_range.low or Watermark(source_range.column, data_type, _lowest_value(data_type))


def _lowest_value(data_type: DataType) -> WatermarkValue:
    kind = data_type.kind
    if kind in INTEGER_BITS:
        return -(1 << (INTEGER_BITS[kind] - 1))
    lowest: dict[str, WatermarkValue] = {
        "numeric": decimal.Decimal(f"-1e{(data_type.precision or 0) - (data_type.scale or 0)}"),
        "date": dt.date.min,
        "timestamp": dt.datetime.min,
        "timestamp_tz": dt.datetime.min.replace(tzinfo=dt.timezone.utc),
        "uuid": "00000000-0000-0000-0000-000000000000",
    }
    return lowest.get(kind, "")


def _sort_value(mark: Watermark) -> Any:
    """The value to compare by. All bounds of one read have one type, which mypy cannot know."""
    return mark.value


def _held_back_text(
    high: Watermark, transactions: Sequence[_OpenTransaction], source_range: SourceRange
) -> str:
    oldest = min(
        transactions, key=lambda t: (t.start or t.prepared_at or dt.datetime.max).replace(tzinfo=None)
    )
    what = (
        "new rows"
        if high == _bound_without_new_rows(source_range, high.type)
        else f"rows with {high.column} beyond {high.encode()}"
    )
    others = f", and {len(transactions) - 1} more" if len(transactions) > 1 else ""
    hidden = any(t.start is None and t.gid is None for t in transactions) and high.type.kind in _TIMES
    grant = "; a user with pg_read_all_stats sees when it began, and reads up to there" if hidden else ""
    return f"{what} wait for a later run: {oldest}{others}{grant}"


def _time_text(at: dt.datetime | None) -> str:
    return f"{at.astimezone(dt.timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if at is not None else "long"


def _now(connection: psycopg.Connection[Any]) -> dt.datetime:
    """The server's clock, which gives transactions their start."""
    now: dt.datetime = _fetch_value(connection, "SELECT clock_timestamp()")
    return now


def _sleep(duration: dt.timedelta) -> None:
    time.sleep(duration.total_seconds())


def _fetch_value(connection: psycopg.Connection[Any], sql: str) -> Any:
    row = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return row[0]
