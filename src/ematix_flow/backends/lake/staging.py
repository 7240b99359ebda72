"""Staging of a lake table: tasks write Parquet files of the declared columns into one folder per attempt."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.backends.base import StagedPart
from ematix_flow.backends.lake.direct_table import WrittenFile
from ematix_flow.backends.lake.file_statistics import file_statistics, nan_columns
from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

STAGING = ".ematix_flow/staging"
BEGUN_MARKER = "_begun"
_FILE_BYTES = 256 * 1024 * 1024
_ROW_GROUP_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class LakeStaging:
    """The staging of one attempt. A part is a folder of files; a part that failed is never read."""

    store: Store
    folder: str
    table: TableSpec

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        self.require_shared()
        rows = written = 0
        with tempfile.TemporaryDirectory(prefix="ematix-flow-") as scratch:
            files = RollingParquetFiles(
                Path(scratch),
                self.store,
                lambda number: f"{self.folder}/{part}/{number:05d}.parquet",
                self.table.arrow_schema(),
            )
            for batch in batches:
                rows += batch.num_rows
                files.write(batch)
            written = files.close()
        return StagedPart(part, rows, written)

    def require_shared(self) -> None:
        """Fail if this task does not see the folder that the driver has created."""
        if BEGUN_MARKER not in self.store.names(self.folder):
            raise TargetFailed(
                f"this task does not see the staging folder {self.store.uri(self.folder)}",
                next_step="a lake on a disk needs a file system that the driver and every worker share",
            )

    def paths(self, parts: Iterable[StagedPart]) -> list[str]:
        """The paths for Spark. Parts without rows have no file."""
        return [self.store.uri(f"{self.folder}/{part.part}") for part in parts if part.rows]


class RollingParquetFiles:
    """Writes files of bounded size: each on the local disk first, then uploaded when it is full.

    ``path`` gives the path of each file, counted from 1. Files ``for_readers`` of the table have exactly this
    schema, without Arrow's own copy of it, and ``written`` has their statistics; other files take nulls.
    """

    def __init__(
        self,
        scratch: Path,
        store: Store,
        path: Callable[[int], str],
        schema: pa.Schema,
        *,
        for_readers: bool = False,
    ) -> None:
        import pyarrow as pa

        self.written: list[WrittenFile] = []
        self._scratch, self._store, self._path_of = scratch, store, path
        self._schema = schema if for_readers else pa.schema([each.with_nullable(True) for each in schema])
        self._for_readers = for_readers
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._count = self._bytes = 0
        self._writer: pa.parquet.ParquetWriter | None = None
        self._nan_columns: set[str] = set()
        self._path = scratch / "part"

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> int:
        self._flush()
        self._finish()
        return self._bytes

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return
        if self._writer is None:
            self._count += 1
            self._path = self._scratch / f"{self._count:05d}.parquet"
            self._writer = pq.ParquetWriter(
                str(self._path),
                self._schema,
                compression="zstd",
                store_decimal_as_integer=True,
                store_schema=not self._for_readers,
            )
        rows = pa.Table.from_batches([batch.cast(self._schema) for batch in self._waiting])
        if self._for_readers:
            self._nan_columns |= nan_columns(rows)
        self._writer.write_table(rows)
        self._waiting, self._waiting_bytes = [], 0
        if self._path.stat().st_size >= _FILE_BYTES:
            self._finish()

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        size, place = self._path.stat().st_size, self._path_of(self._count)
        self._bytes += size
        if self._for_readers:
            rows, statistics = file_statistics(self._path, self._nan_columns)
            name = place.rpartition("/")[2]
            self.written.append(WrittenFile(name, size, rows, time.time_ns() // 1_000_000, statistics))
            self._nan_columns = set()
        self._store.upload(self._path, place)
