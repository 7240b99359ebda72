"""A split of a query, read inside a task: Arrow batches by COPY BINARY, in the driver's snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.postgres.address import READER_APPLICATION, PostgresAddress, session_settings
from ematix_flow.backends.postgres.bulk_connection import BulkConnection, BulkError, open_bulk
from ematix_flow.backends.postgres.failures import source_failure
from ematix_flow.backends.postgres.result_types import to_plain_batch
from ematix_flow.backends.sql_servers.column_export import ColumnExport

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class PostgresSplit:
    """Picklable. ``statement`` selects the exports in order and contains the user's ``sql``."""

    address: PostgresAddress
    statement: str
    sql: str
    exports: tuple[ColumnExport, ...]
    snapshot: str | None
    server_version: int
    one_process: bool = False  # several splits already use the machine's cores

    def read(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with open_bulk(self.address, application_name=READER_APPLICATION) as connection:
            try:
                self._enter_snapshot(connection)
                with connection.query(self.statement, BATCH_BYTES) as reader:
                    seen = 0
                    for batch in reader:
                        yield to_plain_batch(batch, self.exports, seen)
                        seen += batch.num_rows
            except (BulkError, OSError, pa.ArrowException) as error:
                raise source_failure(error, self.address.name, self.sql, self.statement) from error

    def _enter_snapshot(self, connection: BulkConnection) -> None:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if self.snapshot is not None:
            connection.execute(f"SET TRANSACTION SNAPSHOT '{self.snapshot}'")
        chosen = session_settings(self.server_version)
        if self.one_process:
            chosen["max_parallel_workers_per_gather"] = "0"
        for name, value in chosen.items():
            connection.execute(f"SET LOCAL {name} = '{value}'")
