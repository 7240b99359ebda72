"""Reads SQLite inside a task: one query as Arrow batches, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import SourceColumn
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.sqlite.arrow_columns import to_arrow
from ematix_flow.backends.sqlite.column_types import source_type
from ematix_flow.backends.sqlite.connection import source_connection, source_error
from ematix_flow.backends.sqlite.garbage_collection import pause_garbage_collection
from ematix_flow.errors import FlowError, RowRejected
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_ROWS, _MAX_ROWS = 512, 16_384
_BATCH_BYTES = 16 << 20
_VIEW = "ematix_flow_described"
_UNTYPED = DataType("text")


@dataclass(frozen=True)
class SQLiteSplit:
    """A whole query, restricted to its range."""

    file: DatabaseFile
    sql: str
    wanted: Mapping[str, DataType]

    def read(self) -> Iterator[pa.RecordBatch]:
        with (
            source_connection(self.file, compiled=False) as (connection, failures),
            translate_source_errors(self.file, self.sql, failures),
        ):
            connection.execute("BEGIN")
            columns = describe_query(connection, self.sql)
            types = [(c.name, self.wanted.get(c.name) or c.type or _UNTYPED) for c in columns]
            yield from _batches(connection.execute(self.sql), types)


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
        size = min(max(_BATCH_BYTES // a_row, 1), _MAX_ROWS)
        yield batch


def _fetch_columns(cursor: sqlite3.Cursor, size: int) -> list[tuple[Any, ...]]:
    """The next rows as columns; empty at the end."""
    with pause_garbage_collection():
        return list(zip(*cursor.fetchmany(size), strict=True))


def describe_query(connection: sqlite3.Connection, sql: str) -> tuple[SourceColumn, ...]:
    """Names and declared types of the result, from a temporary view."""
    connection.execute(f"CREATE TEMP VIEW {_VIEW} AS {sql}\n")
    try:
        found = connection.execute(f"SELECT name, type FROM pragma_table_info('{_VIEW}', 'temp')").fetchall()
        if not found:  # the pragma returns nothing for an invalid view; a query raises the error
            connection.execute(f"SELECT * FROM {_VIEW} LIMIT 0")
    finally:
        connection.execute(f"DROP VIEW IF EXISTS temp.{_VIEW}")
    return tuple(SourceColumn(name, source_type(native), native) for name, native in found)


@contextmanager
def translate_source_errors(file: DatabaseFile, sql: str, failures: list[RowRejected]) -> Iterator[None]:
    try:
        yield
    except FlowError:
        raise
    except (sqlite3.Error, sqlite3.Warning) as error:
        known = error if isinstance(error, sqlite3.Error) else sqlite3.ProgrammingError(str(error))
        raise source_error(known, file, sql, failures) from error
