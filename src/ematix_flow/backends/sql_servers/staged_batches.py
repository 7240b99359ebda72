"""The batches of one part that tasks write to a staging table. It imports little, for the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ematix_flow.spec.generated_names import internal_name

if TYPE_CHECKING:
    import pyarrow as pa

PART = internal_name("part")  # the column with the number of a row's part


class StagedBatches:
    """Batches from the first with rows on; a subclass converts and counts them."""

    def __init__(self, batches: Iterable[pa.RecordBatch], number: int) -> None:
        self.rows = 0
        self.bytes = 0
        self.number = number
        self._batches = iter(batches)
        self._first = next((batch for batch in self._batches if batch.num_rows), None)

    @property
    def is_empty(self) -> bool:
        return self._first is None

    def _all(self) -> Iterator[pa.RecordBatch]:
        batch = self._first
        while batch is not None:
            yield batch
            batch = next(self._batches, None)

    def _count(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
