"""A query read inside a task: rows from the wire as Arrow batches, in one read-only snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.mysql.address import MySQLAddress
from ematix_flow.backends.mysql.connection import DriverError, open_connection
from ematix_flow.backends.mysql.failures import source_failure
from ematix_flow.backends.mysql.result_types import decode_batch
from ematix_flow.backends.mysql.wire_protocol import stream_columns
from ematix_flow.backends.sql_servers.column_export import ColumnExport

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 4 << 20
SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


@dataclass(frozen=True)
class MySQLSplit:
    """Picklable. ``statement`` selects the exports in order and contains the user's ``sql``."""

    address: MySQLAddress
    statement: str
    sql: str
    exports: tuple[ColumnExport, ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        with open_connection(self.address) as connection:
            try:
                connection.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                connection.query(SNAPSHOT)
                seen = 0
                for columns in stream_columns(connection, self.statement, BATCH_BYTES):
                    yield decode_batch(columns, self.exports, seen)
                    seen += len(columns[0])
            except DriverError as error:
                raise source_failure(error, self.address.name, self.sql) from error
