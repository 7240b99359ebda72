"""A spool as a streaming source of Spark. Its positions are segment numbers.

The source only tells Spark that there are new segments; the loader of a batch reads their rows: see
`segments`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from ematix_flow.backends.spool.batch_limits import limited_batch_end
from ematix_flow.backends.spool.spool import Spool
from ematix_flow.engine.streams.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPOOL_FORMAT = "ematix_flow_spool"


class SpoolStream(DataSource):
    """Registered with a session under `SPOOL_FORMAT`.

    The option ``newest`` is the file with the last number. ``most`` is the largest number of messages in a
    batch; it needs ``segments`` and ``checkpoint``, the folders from which the end of a batch is computed.
    """

    @classmethod
    def name(cls) -> str:
        return SPOOL_FORMAT

    def schema(self) -> str:
        return "segment bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        limit = self.options.get("most")
        if limit is None:
            return _SpoolReader(Path(self.options["newest"]))
        folders = Path(self.options["segments"]), Path(self.options["checkpoint"])
        return _LimitedSpoolReader(Path(self.options["newest"]), *folders, int(limit))


class _SegmentRange(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class _SpoolReader(DataSourceStreamReader):
    def __init__(self, newest: Path) -> None:
        self.newest = newest

    def initialOffset(self) -> dict[str, Any]:
        return {"segment": 0}

    def latestOffset(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.newest.read_text())
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_SegmentRange(start["segment"], end["segment"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        assert isinstance(partition, _SegmentRange)
        return iter([(partition.end,)])


class _LimitedSpoolReader(_SpoolReader):
    """Limits a batch. Spark does not pass the start of a batch; the reader takes it from the checkpoint."""

    def __init__(self, newest: Path, segments: Path, checkpoint: Path, most: int) -> None:
        super().__init__(newest)
        self.segments, self.checkpoint, self.most = segments, checkpoint, most

    def latestOffset(self) -> dict[str, Any]:
        newest = super().latestOffset()
        checkpoint = Checkpoint(self.checkpoint)
        planned = checkpoint.last_planned()
        position = checkpoint.positions(planned)[0] if planned is not None else None
        return limited_batch_end(newest, self.segments, _segment_number(position, newest["spool"]), self.most)


def spool_frame(spark: SparkSession, spool: Spool, checkpoint: Path, most: int | None) -> DataFrame:
    """The streaming frame of a spool. Its one row per batch is not used."""
    spark.dataSource.register(SpoolStream)
    reader = spark.readStream.format(SPOOL_FORMAT).option("newest", str(spool.newest_file))
    if most is not None:
        reader = reader.option("most", str(most))
        reader = reader.option("segments", str(spool.segments)).option("checkpoint", str(checkpoint))
    return reader.load()


def segment_range(before: str | None, after: str | None, spool: str) -> range:
    """The segments of a batch, from its start and end positions. Positions of another spool are ignored."""
    return range(_segment_number(before, spool) + 1, _segment_number(after, spool) + 1)


def _segment_number(position: str | None, spool: str) -> int:
    found = json.loads(position) if position else {}
    return int(found["segment"]) if found.get("spool") == spool else 0
