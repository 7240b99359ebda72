"""Staging: one unlogged table per attempt, which tasks write with COPY BINARY, part by part.

The columns are numbered, so that the bulk driver sees no user's names, and have the types in which Arrow
values are sent. Each row carries the number of its part: rows of a task attempt that did not report are in
the table and are never read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.base import StagedPart
from ematix_flow.backends.postgres.address import PostgresAddress
from ematix_flow.backends.postgres.bulk_connection import BulkError, open_bulk_for_staging
from ematix_flow.backends.postgres.failures import target_failure
from ematix_flow.backends.sql_servers.staged_batches import PART, StagedBatches
from ematix_flow.spec.generated_names import part_number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class PostgresStaging:
    """Picklable: an address, the name of the table, and the Arrow schema of the rows."""

    address: PostgresAddress
    table_schema: str
    table: str
    schema: pa.Schema

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        """Stream all batches in one transaction: memory holds about one batch."""
        import pyarrow as pa

        flow = _NumberedBatches(batches, part_number(part), self.schema)
        if flow.is_empty:
            return StagedPart(part, 0, 0)
        with open_bulk_for_staging(self.address) as connection:
            try:
                # a crash of the server empties the table anyway, so do not wait for its disk
                connection.execute("SET LOCAL synchronous_commit = off")
                reader = pa.RecordBatchReader.from_batches(flow.schema, flow)
                connection.ingest(self.table_schema, self.table, reader)
                connection.commit()
            except BulkError as error:
                if flow.failure is not None:  # the driver's error only wraps the batches' own error
                    raise flow.failure from None
                names = {f"c{i}": name for i, name in enumerate(self.schema.names)}
                raise target_failure(error, names) from error
        return StagedPart(part, flow.rows, flow.bytes)


class _NumberedBatches(StagedBatches):
    """The batches with their part number, counted; keeps the error that ended them."""

    def __init__(self, batches: Iterable[pa.RecordBatch], number: int, schema: pa.Schema) -> None:
        import pyarrow as pa

        super().__init__(batches, number)
        self.schema = pa.schema(
            [pa.field(f"c{i}", field.type) for i, field in enumerate(schema)] + [pa.field(PART, pa.int64())]
        )
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._all():
                yield self._with_part_number(batch)
                self._count(batch)
        except BaseException as error:
            self.failure = error
            raise

    def _with_part_number(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        # from bytes: pa.scalar and pa.array import pandas on their first call
        repeated = pa.py_buffer(self.number.to_bytes(8, sys.byteorder, signed=True) * batch.num_rows)
        numbers = pa.Array.from_buffers(pa.int64(), batch.num_rows, [None, repeated])
        return pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=self.schema)
