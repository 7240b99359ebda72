"""SQLite as a source: what a query yields, and one split that reads it as Arrow batches.

Several processes cannot share one moment of a SQLite file, so a query is one split, read inside one
transaction.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow.backends.base import BatchSource, Query, SourceColumn, Split
from ematix_flow.backends.embedded import DatabaseFile
from ematix_flow.backends.sqlite.collector import no_collection
from ematix_flow.backends.sqlite.columns import to_arrow
from ematix_flow.backends.sqlite.dialect import SQLiteDialect
from ematix_flow.backends.sqlite.session import source_connection, source_error
from ematix_flow.backends.sqlite.types import affinity, is_exact_number, source_type
from ematix_flow.errors import FlowError, RowRejected, SchemaMismatch
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.ranges import range_condition
from ematix_flow.strategies.sql import column, identifier, verbatim

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_ROWS, _MOST_ROWS = 512, 16_384
_BATCH_BYTES = 16 << 20
_VIEW = "ematix_flow_described"
_UNTYPED = DataType("text")


class SQLiteSource(BatchSource):
    dialect = "sqlite"

    def __init__(self, file: DatabaseFile) -> None:
        file.require_shared("source")
        self.file = file

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        schema, _, name = table.rpartition(".")
        # qualified, because SQLite takes an unknown "name" that stands alone for a text
        chosen = [exp.alias_(column(source, "t"), alias, quoted=True) for alias, source in columns]
        tree = SQLiteDialect().table(schema or None, name)
        tree.set("alias", exp.TableAlias(this=identifier("t")))
        return exp.select(*(chosen or [exp.Star()])).from_(tree).sql(dialect=self.dialect, identify=True)

    def describe(self, sql: str) -> tuple[SourceColumn, ...]:
        with source_connection(self.file) as (connection, failures), _asked(self.file, sql, failures):
            return _described(connection, sql)

    def explain(self, sql: str) -> str:
        with source_connection(self.file) as (connection, failures), _asked(self.file, sql, failures):
            steps = connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()
        depth: dict[int, int] = {0: -1}
        lines = []
        for number, parent, _, what in steps:
            depth[number] = depth.get(parent, -1) + 1
            lines.append("  " * depth[number] + what)
        return "\n".join(lines)

    @contextmanager
    def split(
        self, query: Query, wanted: Mapping[str, DataType], parallelism: int
    ) -> Iterator[Sequence[Split]]:
        yield [SQLiteSplit(self.file, query, dict(wanted))]


@dataclass(frozen=True)
class SQLiteSplit:
    """A whole query."""

    file: DatabaseFile
    query: Query
    wanted: Mapping[str, DataType]

    def read(self) -> Iterator[pa.RecordBatch]:
        sql = self.query.sql
        with source_connection(self.file) as (connection, failures), _asked(self.file, sql, failures):
            connection.execute("BEGIN")
            described = _described(connection, sql)
            if self.query.range is not None:
                sql = _ranged(self.query, described)
            types = [(c.name, self.wanted.get(c.name) or c.type or _UNTYPED) for c in described]
            yield from _batches(connection.execute(sql), types)


def _batches(cursor: sqlite3.Cursor, types: Sequence[tuple[str, DataType]]) -> Iterator[pa.RecordBatch]:
    """Batches of about the same bytes: wide rows make short ones."""
    import pyarrow as pa

    schema = pa.schema([pa.field(name, data_type.arrow()) for name, data_type in types])
    offset, size = 0, _FIRST_ROWS
    while columns := _fetch_columns(cursor, size):
        arrays = [to_arrow(values, *named, offset) for values, named in zip(columns, types, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        offset += batch.num_rows
        a_row = max(batch.nbytes // batch.num_rows, 1)
        size = min(max(_BATCH_BYTES // a_row, 1), _MOST_ROWS)
        yield batch


def _fetch_columns(cursor: sqlite3.Cursor, size: int) -> list[tuple[Any, ...]]:
    """The next rows, column by column; empty at the end."""
    with no_collection():
        return list(zip(*cursor.fetchmany(size), strict=True))


def _described(connection: sqlite3.Connection, sql: str) -> tuple[SourceColumn, ...]:
    """Names and declared types, from a view that lives in this connection only."""
    connection.execute(f"CREATE TEMP VIEW {_VIEW} AS {sql}\n")
    try:
        found = connection.execute(f"SELECT name, type FROM pragma_table_info('{_VIEW}', 'temp')").fetchall()
        if not found:  # the pragma says nothing about a view that is wrong; asking it does
            connection.execute(f"SELECT * FROM {_VIEW} LIMIT 0")
    finally:
        connection.execute(f"DROP VIEW IF EXISTS temp.{_VIEW}")
    return tuple(SourceColumn(name, source_type(native), native) for name, native in found)


@contextmanager
def _asked(file: DatabaseFile, sql: str, failures: list[RowRejected]) -> Iterator[None]:
    try:
        yield
    except FlowError:
        raise
    except (sqlite3.Error, sqlite3.Warning) as error:
        known = error if isinstance(error, sqlite3.Error) else sqlite3.ProgrammingError(str(error))
        raise source_error(known, file, sql, failures) from error


# ------------------------------------------------------------------ the range of an incremental run


def _ranged(query: Query, described: Sequence[SourceColumn]) -> str:
    """The query's rows from the low bound on.

    The bound is compared with each value in our own form, since text such as ``2024-01-01T10:00`` does
    not order against ours. A coarser condition beside it lets SQLite use an index on the raw column.
    """
    source_range = query.range
    assert source_range is not None
    exact = range_condition(source_range, SQLiteDialect())
    native = {c.name.lower(): c.native for c in described}
    if source_range.column.lower() not in native:
        raise SchemaMismatch(f"the source SQL yields no column {source_range.column!r}, the watermark column")
    tree = exp.select("*").from_(_alias(verbatim(query.sql)))
    if source_range.low is not None:
        coarse = _coarse(source_range.low, affinity(native[source_range.column.lower()]))
        tree = tree.where(coarse) if coarse is not None else tree
    if exact is not None:
        tree = tree.where(exact)
    return tree.sql(dialect="sqlite", identify=True)


def _coarse(low: Watermark, lean: str) -> exp.Expr | None:
    """A condition that leaves out only what lies below the bound in any form; nulls and misfits stay."""
    mark: exp.Expr = column(low.column)
    kind, numbers = low.type.kind, None
    if isinstance(low.value, dt.date):
        # a zone moves a time by less than a day
        day = low.value.date() if isinstance(low.value, dt.datetime) else low.value
        floor = (day - dt.timedelta(days=1)).isoformat() if day > dt.date(1, 1, 3) else ""
        bound: exp.Expr = exp.Literal.string(floor)
        numbers = exp.LT(this=mark.copy(), expression=exp.Literal.string(""))
    elif (kind in INTEGER_BITS or is_exact_number(low.type)) and lean != "TEXT":
        bound = exp.Literal.number(str(int(low.value) - 1))
    elif kind in ("text", "string") and lean == "TEXT" and "\x00" not in str(low.value):
        bound = exp.Literal.string(str(low.value))
        mark = exp.Collate(this=mark, expression=exp.Var(this="BINARY"))
    else:
        return None
    parts = [exp.GTE(this=mark, expression=bound), exp.Is(this=column(low.column), expression=exp.Null())]
    return exp.or_(*parts, *([numbers] if numbers is not None else []))


def _alias(subquery: exp.Subquery) -> exp.Subquery:
    subquery.set("alias", exp.TableAlias(this=identifier("ranged")))
    return subquery
