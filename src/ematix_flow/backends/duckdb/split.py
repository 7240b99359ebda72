"""Reads DuckDB inside a task: streams one query as Arrow batches, in one snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb

from ematix_flow.backends.arrow.batch_casts import row_rejection
from ematix_flow.backends.base import SourceColumn
from ematix_flow.backends.duckdb.column_types import export_cast, source_type
from ematix_flow.backends.duckdb.failures import source_error, translate_errors
from ematix_flow.backends.duckdb.shared_connections import open_connection
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.errors import SourceFailed

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 32_768


@dataclass(frozen=True)
class DuckDBSplit:
    """A whole query, restricted to its range.

    ``folder`` is the driver's working directory: a relative path in the SQL, as in
    ``read_csv('orders.csv')``, is relative to it in every task.
    """

    file: DatabaseFile
    sql: str
    folder: str

    def read(self) -> Iterator[pa.RecordBatch]:
        self.file.require_existing()
        with (
            _working_directory(self.folder),
            open_connection(self.file, write=False) as connection,
            translate_errors(lambda error: source_error(error, self.file)),
        ):
            columns = describe_query(connection, self.sql)
            reader = connection.sql(_export_sql(self.sql, columns)).to_arrow_reader(_BATCH_ROWS)
            offset = 0
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                except OSError as error:  # Arrow raises DuckDB's errors within a stream as OSError
                    raise source_error(error, self.file) from error
                _refuse_infinity(batch, offset)
                offset += batch.num_rows
                yield batch


@contextmanager
def _working_directory(folder: str) -> Iterator[None]:
    """Change the working directory: a task has its own process. Without the folder, stay."""
    before = _current_folder()
    if folder == before or not os.path.isdir(folder):
        yield
        return
    os.chdir(folder)
    try:
        yield
    finally:
        if before is not None:
            os.chdir(before)


def _current_folder() -> str | None:
    """The working directory, None if it was deleted: Spark's workers keep the one that Spark started in."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def describe_query(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[SourceColumn, ...]:
    found = connection.execute(f"DESCRIBE {require_one_select(connection, sql)}").fetchall()
    return tuple(SourceColumn(name, source_type(native), native) for name, native, *_ in found)


def require_one_select(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The SQL, which must be one query: DuckDB would run any other statement too."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        kinds = ", ".join(s.type.name for s in statements) or "nothing"
        raise SourceFailed(
            f"the source SQL must be one SELECT; DuckDB reads it as {kinds}",
            next_step="write one SELECT; a PIVOT needs its columns listed with IN, inside a subquery",
        )
    return statements[0].query.rstrip().rstrip(";")


def _export_sql(sql: str, columns: tuple[SourceColumn, ...]) -> str:
    """The query with each column in a form that Arrow has.

    Columns are numbered, because two names may differ only in case. The SQL is built as text from numbers,
    fixed type names, and quoted names.
    """
    numbers = [f"c{number}" for number in range(len(columns))]
    exported = [
        f"{_export_value(f'q.{number}', column.native)} AS {_quote(column.name)}"
        for number, column in zip(numbers, columns, strict=True)
    ]
    return f"SELECT {', '.join(exported)} FROM (\n{sql}\n) AS q({', '.join(numbers)})"


def _export_value(value: str, native: str) -> str:
    target = export_cast(native)
    if target == "JSON":
        return f"CAST(to_json({value}) AS VARCHAR)"
    return f"CAST({value} AS {target})" if target else value


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _refuse_infinity(batch: pa.RecordBatch, offset: int) -> None:
    """Refuse infinite dates, which would arrive as distant finite ones."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as t

    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if not (t.is_timestamp(array.type) or t.is_date(array.type)):
            continue
        integer = pa.int32() if t.is_date32(array.type) else pa.int64()
        numbers = array.cast(integer)
        limit = 2 ** (integer.bit_width - 1) - 1
        ends = pc.min_max(numbers).as_py()
        for shown, end in (("infinity", limit), ("-infinity", -limit)):
            if end in ends.values():
                row = pc.index(numbers, end).as_py()
                raise row_rejection(name, offset + row, shown, "cannot be loaded: no other system stores it")
