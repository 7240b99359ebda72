"""Bulk connections for tasks: ADBC with COPY BINARY.

It uses the driver manager's own calls instead of its DBAPI layer, which imports pyarrow.dataset and pandas
and so costs every new worker about a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import adbc_driver_manager
import adbc_driver_postgresql

from ematix_flow.backends.postgres.address import PostgresAddress, connect_error

if TYPE_CHECKING:
    import pyarrow as pa

BulkError = adbc_driver_manager.Error

_BATCH_BYTES = adbc_driver_postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value
_SCHEMA = adbc_driver_manager.StatementOptions.INGEST_TARGET_DB_SCHEMA.value


class BulkConnection:
    """One connection in one transaction. It raises `BulkError`, and Arrow's errors while reading."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str) -> None:
        """A statement without a result."""
        with adbc_driver_manager.AdbcStatement(self._connection) as statement:
            statement.set_sql_query(sql)
            statement.execute_update()

    @contextmanager
    def query(self, sql: str, batch_bytes: int) -> Iterator[pa.RecordBatchReader]:
        """The result as a stream of batches of about ``batch_bytes``."""
        import pyarrow as pa

        with adbc_driver_manager.AdbcStatement(self._connection) as statement:
            statement.set_options(**{_BATCH_BYTES: str(batch_bytes)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                yield reader

    def ingest(self, schema: str, table: str, reader: pa.RecordBatchReader) -> None:
        """COPY the stream into a table whose columns are named as the stream's."""
        with adbc_driver_manager.AdbcStatement(self._connection) as statement:
            statement.set_options(
                **{
                    adbc_driver_manager.INGEST_OPTION_TARGET_TABLE: table,
                    adbc_driver_manager.INGEST_OPTION_MODE: adbc_driver_manager.INGEST_OPTION_MODE_APPEND,
                    _SCHEMA: schema,
                }
            )
            statement.bind_stream(reader)
            statement.execute_update()

    def commit(self) -> None:
        self._connection.commit()


@contextmanager
def open_bulk(address: PostgresAddress, **extra: str) -> Iterator[BulkConnection]:
    """Open a bulk connection. Closing it without `commit` discards what was written."""
    with _open_database(address, address.conninfo(**extra)) as database:
        yield from _connect(address, database)


@contextmanager
def open_bulk_for_staging(address: PostgresAddress) -> Iterator[BulkConnection]:
    """As `open_bulk`, for PostgreSQL's built-in types only: the type catalog is read once per process.

    Reading it takes longer than writing a small batch. No connection stays open.
    """
    conninfo = address.conninfo()
    database = _databases.get(conninfo)
    if database is None:
        opened = _open_database(address, conninfo)
        with _lock:
            database = _databases.setdefault(conninfo, opened)
            if len(_databases) > _MAX_DATABASES:
                _databases.pop(next(iter(_databases)))
    yield from _connect(address, database)


_MAX_DATABASES = 8
_lock = threading.Lock()
_databases: dict[str, Any] = {}  # by conninfo, which includes the password


def _open_database(address: PostgresAddress, conninfo: str) -> Any:
    try:
        return adbc_driver_postgresql.connect(conninfo)
    except BulkError as error:
        raise connect_error(address, error) from error


def _connect(address: PostgresAddress, database: Any) -> Iterator[BulkConnection]:
    try:
        connection = adbc_driver_manager.AdbcConnection(database)
    except BulkError as error:
        raise connect_error(address, error) from error
    with connection:
        connection.set_autocommit(False)
        yield BulkConnection(connection)
