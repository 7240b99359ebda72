"""Staging for DuckDB: each part is a Parquet file next to the database; one statement reads all parts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.base import StagedPart
from ematix_flow.backends.embedded.staging_folders import FolderStaging, part_file

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".parquet"
_GROUP_ROWS = 122_880  # DuckDB's own row group size: a thread loads such a group without splitting it
_GROUP_BYTES = 128 << 20


@dataclass(frozen=True)
class DuckDBStaging(FolderStaging):
    suffix = SUFFIX

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # numbered: DuckDB treats names that differ only in case as equal
        schema = pa.schema([pa.field(f"c{i}", kind.arrow()) for i, (_, kind) in enumerate(self.columns)])
        rows = 0
        with part_file(self.folder, part, SUFFIX) as path:
            with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
                for group in _groups(batches):
                    numbered = [pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in group]
                    table = pa.Table.from_batches(numbered, schema)
                    writer.write_table(table, row_group_size=max(table.num_rows, 1))
                    rows += table.num_rows
            size = os.path.getsize(path)
        return StagedPart(part, rows, size)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterable[list[pa.RecordBatch]]:
    """The batches in row groups of exactly DuckDB's size, or smaller when rows are wide."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        while rows + batch.num_rows >= _GROUP_ROWS:
            room = _GROUP_ROWS - rows
            yield [*group, batch.slice(0, room)]
            batch, group, rows, size = batch.slice(room), [], 0, 0
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size >= _GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if rows:
        yield group
