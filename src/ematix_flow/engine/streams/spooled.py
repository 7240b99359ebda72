"""A spool as a stream of Spark's: its positions are segment numbers, its rows are read from the segments.

The source itself only tells Spark that there are new segments; what is in them is read by whoever loads
the batch, as files, without a way through Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "ematix_flow_spool"


class SpoolStream(DataSource):
    """Registered with a session under `FORMAT`; the option ``newest`` is the file with the last number."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "segment bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Reader(self.options["newest"])


class _Range(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class _Reader(DataSourceStreamReader):
    def __init__(self, newest: str) -> None:
        self.newest = newest

    def initialOffset(self) -> dict[str, Any]:
        return {"segment": 0}

    def latestOffset(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.newest).read_text())
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Range(start["segment"], end["segment"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        assert isinstance(partition, _Range)
        return iter([(partition.end,)])


def spool_frame(spark: SparkSession, newest: Path) -> DataFrame:
    """The streaming frame of a spool: a row a batch, which nobody reads."""
    spark.dataSource.register(SpoolStream)
    return spark.readStream.format(FORMAT).option("newest", str(newest)).load()


def segment_range(before: str | None, after: str | None, spool: str) -> range:
    """The segments of a batch, from the positions around it; numbers of another spool mean nothing here."""

    def number(position: str | None) -> int:
        found = json.loads(position) if position else {}
        return int(found["segment"]) if found.get("spool") == spool else 0

    return range(number(before) + 1, number(after) + 1)
