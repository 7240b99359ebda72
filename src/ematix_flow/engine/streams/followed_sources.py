"""The open sources of a running stream: the frame Spark follows, the messages of a batch, committed
positions.
"""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.backends.messages.base import (
    LagUnit,
    ReadRequest,
    ReceivedFileSource,
    ReceivedSource,
    SparkStreamSource,
    StreamSource,
    collect_up_to,
)
from ematix_flow.backends.spool.spool import MAX_ROWS, Spool
from ematix_flow.engine.streams.checkpoint import Checkpoint, lowest_position
from ematix_flow.engine.streams.incoming_batch import IncomingBatch, TaskReadBatch, max_tasks
from ematix_flow.engine.streams.spool_segments import SEGMENT_DDL, all_segments, count_rows, segment_splits
from ematix_flow.engine.streams.spool_source import segment_range, spool_frame
from ematix_flow.errors import CannotConnect, SourceFailed
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_log = logging.getLogger(__name__)
RejectedPositions = Callable[[Iterable[int]], list[tuple[int, int]]]


class FollowedSource(ABC):
    """An open source of a stream. ``rows_are_columns``: its rows need no decoding."""

    rows_are_columns = False

    @abstractmethod
    def frame(self, spark: SparkSession) -> DataFrame:
        """The streaming frame that Spark follows."""

    @abstractmethod
    def read_batch(self, frame: DataFrame, before: str | None, after: str | None) -> IncomingBatch | None:
        """The messages of a batch, or None if it has none. ``frame`` is Spark's frame of the batch."""

    @abstractmethod
    def mark_committed(self, before: str | None, after: str) -> None:
        """Note that every target holds all messages up to ``after``."""

    def verify_resources(self, after: str | None) -> None:
        """Raise if a topic was deleted and created again since its position was recorded."""
        return

    @property
    def resource_ids(self) -> Mapping[str, str]:
        """The known ids of the topics."""
        return {}

    def position_for_ledger(self, position: str | None) -> str | None:
        """The position in the form that ledgers store."""
        return position

    def max_messages(self, before: str | None, after: str | None) -> int | None:
        """The most messages that a batch can hold; None if unknown."""
        return None

    def raise_background_error(self) -> None:
        """Raise the error of a background thread, if there is one."""
        return

    def is_drained(self) -> bool | None:
        """Whether all waiting messages are loaded; None if Spark decides that."""
        return None

    def lag(self, after: str | None) -> Mapping[str, int]:
        """The lag of each ``topic/partition``, in `lag_unit`."""
        return {}

    @property
    def lag_unit(self) -> LagUnit:
        return "messages"


class SharedPositions:
    """The positions of all queries of a stream in one source.

    The source learns only what all queries loaded.
    """

    def __init__(self, source: StreamSource, shares: int) -> None:
        self.source = source
        self._reached: dict[int, str | None] = dict.fromkeys(range(shares))
        self._lock = threading.Lock()

    def resume(self, share: int, checkpoint: Checkpoint, place: int) -> None:
        """Set the position of a query that resumes from its checkpoint."""
        done = checkpoint.last_committed()
        if done is not None:
            found = checkpoint.positions(done)
            self._reached[share] = found[place] if place < len(found) else None

    def advance(self, share: int, position: str) -> None:
        with self._lock:
            self._reached[share] = position
            all_of_them = [each for each in self._reached.values() if each is not None]
            if len(all_of_them) == len(self._reached):
                self.source.report_committed(
                    lowest_position(all_of_them) if len(all_of_them) > 1 else position
                )


class SparkFollowedSource(FollowedSource):
    """A source whose positions Spark keeps: Kafka and Delta."""

    def __init__(
        self,
        shared: SharedPositions,
        share: int,
        reading: ReadRequest,
        *,
        left: str | None = None,
        in_order: bool = False,
        resource_ids: Mapping[str, str] | None = None,
    ) -> None:
        """``left`` are the positions of topics that are no longer declared; they are kept with each new one.

        ``in_order``: messages are sent to a broker, so those of a partition keep their order.
        ``resource_ids`` are the ids of the topics when the start position was chosen.
        """
        assert isinstance(shared.source, SparkStreamSource)
        self._resource_ids = dict(resource_ids or {})
        self.shared, self.share, self.source, self.reading = shared, share, shared.source, reading
        self.dropped_positions, self.in_order = left, in_order
        self.rows_are_columns = self.source.kind_of_rows == "columns"

    def frame(self, spark: SparkSession) -> DataFrame:
        return self.source.streaming_frame(spark, self.reading)

    def read_batch(self, frame: DataFrame, before: str | None, after: str | None) -> IncomingBatch | None:
        expected = self.max_messages(before, after)
        if before is None or after is None:
            return IncomingBatch(frame, expected)
        source, reading, spark = self.source, self.reading, frame.sparkSession
        splits = source.splits(reading, before, after, max_tasks(spark), whole=self.in_order)
        if splits is None:
            return IncomingBatch(frame, expected)
        return TaskReadBatch(
            spark, splits, expected, lambda most: source.read_small_batch(reading, before, after, most)
        )

    def verify_resources(self, after: str | None) -> None:
        """Finds a topic that was created again, at the latest two batches later."""
        if after is None:
            return
        try:
            now = self.source.resource_ids(self.reading, after)
        except CannotConnect as error:  # reading the batch waits for the server or fails
            _log.debug("cannot check the topics of %s: %s", self.reading.query, error)
            return
        replaced = self.source.describe_recreated(self._resource_ids, now, self.reading)
        if replaced:
            raise SourceFailed(
                f"{'; '.join(replaced)} while the stream was reading",
                state="nothing was read past the last committed batch",
                next_step="start the stream again: it reads what was created again from its beginning",
            )
        self._resource_ids |= now

    @property
    def resource_ids(self) -> Mapping[str, str]:
        return self._resource_ids

    def position_for_ledger(self, position: str | None) -> str | None:
        if position is None:
            return None
        noted = (
            position
            if self.dropped_positions is None
            else self.source.with_dropped_position(position, self.dropped_positions)
        )
        return self.source.with_resource_ids(
            noted, {**self.source.resource_ids_in(noted), **self._resource_ids}
        )

    def max_messages(self, before: str | None, after: str | None) -> int | None:
        return self.source.count_between(before, after) if before is not None and after is not None else None

    def mark_committed(self, before: str | None, after: str) -> None:
        self.shared.advance(self.share, after)

    def lag(self, after: str | None) -> Mapping[str, int]:
        asked = getattr(self.source, "lag", None)
        return asked(after) if asked is not None and after is not None else {}


class SharedSpool:
    """The received messages of one source, shared by all queries of a stream.

    For RabbitMQ, Pub/Sub, Kinesis and files: the spool keeps the messages until every target holds them.
    """

    IDLE_SECONDS = 2.0

    def __init__(
        self,
        source: ReceivedSource,
        reading: ReadRequest,
        folder: Path,
        shares: int,
        remembered: str | None = None,
        refused: RejectedPositions | None = None,
    ) -> None:
        """``remembered`` is the last position in a ledger: a new spool resumes from it.

        ``refused`` returns the messages of finished segments that the source must treat as rejected.
        """
        self.source, self.reading, self._refused = source, reading, refused
        self.most = source.max_batch_messages(reading)
        self._reached: dict[int, int] = dict.fromkeys(range(shares), 0)
        self._settled = 0
        self._lock = threading.Lock()
        self.spool = Spool(folder)
        self.spool.open()
        try:
            progress = self.spool.progress()
            if not progress and remembered is not None:
                progress = json.loads(remembered).get("progress") or {}
                self.spool.restore_progress(progress)  # those of later batches do not repeat them
            rows = MAX_ROWS if self.most is None else min(self.most, MAX_ROWS)
            self.spool.follow(source.receiver(reading, progress), max_rows=rows)
        except BaseException:
            self.spool.close()
            raise

    def resume(self, share: int, checkpoint: Checkpoint) -> None:
        """Set the last segment of a query that resumes from its checkpoint."""
        done = checkpoint.last_committed()
        position = checkpoint.positions(done)[0] if done is not None else None
        if position is not None and json.loads(position).get("spool") == self.spool.id:
            self.advance(share, json.loads(position)["segment"])

    def segment_reached(self, share: int) -> int:
        return self._reached[share]

    def advance(self, share: int, segment: int) -> None:
        """Note that a query has loaded all segments up to this one.

        Release the segments that all queries loaded.
        """
        with self._lock:
            self._reached[share] = max(segment, self._reached[share])
            through = min(self._reached.values())
            done = range(self._settled + 1, through + 1)
            self._settled = max(through, self._settled)
        if done:
            self.spool.settle(done, self._refused(done) if self._refused is not None else ())

    def open_share(
        self,
        number: int,
        columns: tuple[ColumnSpec, ...] | None,
        checkpoint: Checkpoint,
        *,
        in_order: bool = False,
    ) -> FollowedSource:
        """With ``in_order`` messages keep their order of arrival, because they are sent to a broker."""
        return _SpoolFollowedSource(self, number, columns, checkpoint, in_order)

    def close(self) -> None:
        self.spool.close()


class _SpoolFollowedSource(FollowedSource):
    """A spool as a source of one query."""

    def __init__(
        self,
        shared: SharedSpool,
        number: int,
        columns: tuple[ColumnSpec, ...] | None,
        checkpoint: Checkpoint,
        in_order: bool,
    ) -> None:
        self.shared, self.number, self.columns, self.checkpoint = shared, number, columns, checkpoint
        self.in_order = in_order
        self.rows_are_columns = shared.source.kind_of_rows == "columns"

    def frame(self, spark: SparkSession) -> DataFrame:
        return spool_frame(spark, self.shared.spool, self.checkpoint.folder, self.shared.most)

    def read_batch(self, frame: DataFrame, before: str | None, after: str | None) -> IncomingBatch | None:
        paths = self.shared.spool.segment_paths(segment_range(before, after, self.shared.spool.id))
        if not paths:
            return None
        spark = frame.sparkSession
        if not self.rows_are_columns:
            whole = all_segments(paths, self.shared.spool.id)
            splits = [whole] if self.in_order else segment_splits(paths, whole.spool, max_tasks(spark))
            return TaskReadBatch(
                spark, splits, count_rows(paths), lambda most: collect_up_to(whole.read(), most), SEGMENT_DDL
            )
        source = self.shared.source
        assert isinstance(source, ReceivedFileSource)
        named = [value.decode() for value in all_segments(paths, self.shared.spool.id).values()]
        return IncomingBatch(source.read_files(spark, named, self.shared.reading, self.columns))

    def mark_committed(self, before: str | None, after: str) -> None:
        position = json.loads(after)
        if position.get("spool") == self.shared.spool.id:
            self.shared.advance(self.number, position["segment"])

    def raise_background_error(self) -> None:
        self.shared.spool.raise_failure()

    def is_drained(self) -> bool | None:
        spool = self.shared.spool
        if not spool.is_drained(SharedSpool.IDLE_SECONDS):
            return False
        newest = int(json.loads(spool.newest_file.read_text())["segment"])
        return self.shared.segment_reached(self.number) >= newest

    def lag(self, after: str | None) -> Mapping[str, int]:
        return self.shared.spool.lag()

    @property
    def lag_unit(self) -> LagUnit:
        return self.shared.spool.lag_unit
