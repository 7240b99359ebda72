"""Bulk connections: ADBC with COPY BINARY, inside tasks.

The driver manager's own calls, not its DBAPI layer: that one imports pyarrow.dataset and with it
pandas, which costs every fresh worker about a second.
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
    """One connection inside one transaction. Raises `BulkError`, while reading also Arrow's errors."""

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
    """Without a commit, nothing that was written stays."""
    with _open_database(address, address.conninfo(**extra)) as database:
        yield from _connect(address, database)


@contextmanager
def open_bulk_for_staging(address: PostgresAddress) -> Iterator[BulkConnection]:
    """As `bulk`, for who needs PostgreSQL's own types only: the catalog of types is read once a process.

    It takes longer to read than a small batch takes to write. No connection is kept.
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
_databases: dict[str, Any] = {}  # by address, with the credentials in it: another password is another entry


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
