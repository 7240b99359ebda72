"""The sources of a running stream: what Spark follows, what each batch of it holds, and who is told when it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.streams import MESSAGE_DDL, Reading, Received, SparkStream, StreamSource
from ematix_flow.engine.streams.place import StreamPlace
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.spool import Spool


class Followed(ABC):
    """One source of a stream, opened. ``rows_are_columns``: nothing is to be decoded."""

    rows_are_columns = False

    @abstractmethod
    def frame(self, spark: SparkSession) -> DataFrame:
        """The streaming frame that Spark follows."""

    @abstractmethod
    def batch(self, frame: DataFrame, before: str | None, after: str | None) -> DataFrame | None:
        """What a batch holds; ``frame`` is what Spark gave for it. None when it holds nothing."""

    @abstractmethod
    def committed(self, before: str | None, after: str) -> None:
        """Every target holds everything up to ``after``."""

    def check(self) -> None:
        """Raise what went wrong in the background."""
        return

    def is_drained(self) -> bool | None:
        """Whether all that was there is loaded; None when Spark itself knows."""
        return None

    def lag(self, after: str | None) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        return


class FollowedBySpark(Followed):
    """Kafka and Delta: Spark knows the positions."""

    def __init__(self, source: SparkStream, reading: Reading) -> None:
        self.source, self.reading = source, reading
        self.rows_are_columns = source.kind_of_rows == "columns"

    def frame(self, spark: SparkSession) -> DataFrame:
        return self.source.frame(spark, self.reading)

    def batch(self, frame: DataFrame, before: str | None, after: str | None) -> DataFrame | None:
        return frame

    def committed(self, before: str | None, after: str) -> None:
        self.source.committed(after)

    def lag(self, after: str | None) -> Mapping[str, int]:
        asked = getattr(self.source, "lag", None)
        return asked(after) if asked is not None and after is not None else {}


class FollowedBySpool(Followed):
    """RabbitMQ, Pub/Sub, Kinesis and files: received by us, and kept until every target has it."""

    IDLE_SECONDS = 2.0

    def __init__(
        self, source: Received, reading: Reading, place: StreamPlace, number: int, *, shared_by: int = 1
    ) -> None:
        from ematix_flow.backends.spool import Spool

        self.source, self.reading = source, reading
        self.rows_are_columns = source.kind_of_rows == "columns"
        self.columns: tuple[ColumnSpec, ...] | None = None
        self._shared_by = shared_by
        self._settled: dict[int, int] = {}
        self.spool: Spool = Spool(place.spool(number))
        self.spool.open()
        self._receiver = source.receiver(reading, self.spool.progress())
        self.spool.follow(self._receiver)

    def frame(self, spark: SparkSession) -> DataFrame:
        from ematix_flow.engine.streams.spooled import spool_frame

        return spool_frame(spark, self.spool.index_path)

    def batch(self, frame: DataFrame, before: str | None, after: str | None) -> DataFrame | None:
        from ematix_flow.engine.streams.spooled import segment_range

        paths = self.spool.paths(segment_range(before, after))
        if not paths:
            return None
        segments = frame.sparkSession.read.schema(MESSAGE_DDL).parquet(*(str(path) for path in paths))
        if not self.rows_are_columns:
            return segments
        named = [bytes(row["value"]).decode() for row in segments.select("value").collect()]
        return self._rows(frame.sparkSession, named)

    def _rows(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        from ematix_flow.backends.streams import ReceivedFiles

        assert isinstance(self.source, ReceivedFiles)
        return self.source.rows(spark, paths, self.reading, self.columns)

    def committed(self, before: str | None, after: str) -> None:
        """With several queries over one spool a segment is done when all of them are through with it."""
        from ematix_flow.engine.streams.spooled import segment_range

        done = []
        for number in segment_range(before, after):
            self._settled[number] = self._settled.get(number, 0) + 1
            if self._settled[number] >= self._shared_by:
                del self._settled[number]
                done.append(number)
        if done:
            self.spool.settle(done)

    def check(self) -> None:
        self.spool.check()

    def is_drained(self) -> bool | None:
        self.spool.check()
        return self.spool.drained(self.IDLE_SECONDS) and self.spool.pending_rows() == 0

    def lag(self, after: str | None) -> Mapping[str, int]:
        return self.spool.lag()

    def close(self) -> None:
        self.spool.close()


def follow(
    source: StreamSource, reading: Reading, place: StreamPlace, number: int, *, shared_by: int = 1
) -> Followed:
    """Open a source for a stream."""
    if isinstance(source, SparkStream):
        return FollowedBySpark(source, reading)
    assert isinstance(source, Received)
    return FollowedBySpool(source, reading, place, number, shared_by=shared_by)
