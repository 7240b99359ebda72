"""Chooses the files that an incremental load commits: without the rows that the table has already.

Only the rows at the first watermark can be there. They are few, so this process compares them with those of
the table. If they are many, Spark does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow import fault_points
from ematix_flow.backends.base import Load, StagedPart
from ematix_flow.backends.lake.direct_staging import DirectStaging, first_part
from ematix_flow.backends.lake.direct_table import DirectTable, SparkNeeded, WrittenFile, WrittenRows
from ematix_flow.backends.lake.watermark_rows import rows_to_add

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_ROWS = 100_000


@dataclass(frozen=True)
class ChosenFiles:
    """``parts`` are those whose files a commit names."""

    files: Sequence[WrittenFile]
    parts: frozenset[str]


def choose_files(
    load: Load, table: DirectTable, staging: DirectStaging, parts: Sequence[StagedPart]
) -> ChosenFiles | SparkNeeded:
    """The files with the rows that the table lacks, or why Spark must find these rows."""
    written, own = WrittenRows.of(part.note for part in parts), frozenset(part.part for part in parts)
    low = load.plan.range.low if load.plan.range is not None else None
    everything = ChosenFiles((*written.files, *written.first), own | {first_part(part) for part in own})
    if low is None or not written.first:
        return everything
    if written.lower:
        return SparkNeeded(f"Spark sorts some rows below the watermark {low.encode()}")
    coming_count = sum(file.rows for file in written.first)
    present = table.rows_at(low, load.table.columns) if coming_count <= _MOST_ROWS else None
    if present is None or present.num_rows > _MOST_ROWS:
        return SparkNeeded(f"many rows may have the watermark {low.encode()}")
    coming = _read(staging, written.first)
    added = rows_to_add(load.table, coming, present)
    if added.num_rows == coming.num_rows:
        return everything
    if not added.num_rows:
        return ChosenFiles(written.files, own)
    part, files = staging.write_first_rows(added)
    fault_points.point("apply.first_rows_written")
    return ChosenFiles((*written.files, *files), own | {part})


def _read(staging: DirectStaging, files: Sequence[WrittenFile]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for file in files:
        with staging.store.open(f"{staging.data_folder}/{file.name}") as source:
            tables.append(pq.read_table(source).cast(staging.schema))
    return pa.concat_tables(tables)
