"""Reads segments of a spool as Arrow batches, in tasks or in the driver, without Java.

Each message gets an arrival: segment number and row number as a text that sorts in order of arrival. With the
name of the spool it replaces the position of a message that has none, so that two equal messages can be
distinguished, also if the spool was lost and another one counts from 1 again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.backends.messages.base import MESSAGE_DDL, POSITION, VALUE, message_schema
from ematix_flow.engine.streams.message_names import ARRIVAL

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT_DDL = f"{MESSAGE_DDL}, {ARRIVAL} string"
_ROWS = 8_192


def parse_arrival(arrival: str) -> tuple[int, int]:
    """The segment of a message and its row there."""
    return int(arrival[:20]), int(arrival[-12:])


@dataclass(frozen=True)
class SegmentSplit:
    """Some segments of a spool, for one task."""

    paths: tuple[str, ...]
    spool: str  # its name

    def read(self) -> Iterator[pa.RecordBatch]:
        for path in self.paths:
            yield from _read_batches(Path(path), self.spool)

    def values(self) -> Iterator[bytes]:
        for batch in self.read():
            yield from batch.column(VALUE).to_pylist()


def segment_splits(paths: Sequence[Path], spool: str, most: int) -> list[SegmentSplit]:
    """The segments, divided into at most ``most`` splits."""
    shares = [paths[n::most] for n in range(min(most, len(paths)))]
    return [SegmentSplit(tuple(map(str, share)), spool) for share in shares]


def all_segments(paths: Sequence[Path], spool: str) -> SegmentSplit:
    """One split with all segments, in order of arrival."""
    return SegmentSplit(tuple(map(str, paths)), spool)


def count_rows(paths: Sequence[Path]) -> int:
    import pyarrow.parquet as pq

    return sum(int(pq.read_metadata(path).num_rows) for path in paths)


def _read_batches(path: Path, spool: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema, row = message_schema(), 0
    position = schema.get_field_index(POSITION)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS, columns=schema.names):
            arrived = pa.array([f"{path.name}{row + n:012d}" for n in range(batch.num_rows)], pa.string())
            columns = batch.select(schema.names).cast(schema).columns
            places = pc.binary_join_element_wise(spool, arrived, "/")
            columns[position] = pc.coalesce(columns[position], places)
            yield pa.RecordBatch.from_arrays([*columns, arrived], names=[*schema.names, ARRIVAL])
            row += batch.num_rows
