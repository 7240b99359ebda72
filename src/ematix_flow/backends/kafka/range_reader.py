"""Reads ranges of offsets with librdkafka.

A reader knows where its range begins and ends, so it joins no group and commits nothing. Offsets have gaps
where a topic was compacted or a transaction ended, so counting messages cannot find the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from ematix_flow.backends.kafka.clients import open_client
from ematix_flow.backends.kafka.cluster import Partition
from ematix_flow.backends.kafka.error_codes import MISSING, OUT_OF_RANGE, PATIENCE_SECONDS, is_transient
from ematix_flow.backends.kafka.failures import ClientErrors, broker_refusal, cannot_connect
from ematix_flow.backends.kafka.offset_ranges import OffsetRange, recreated_text
from ematix_flow.backends.kafka.positions import data_lost_error
from ematix_flow.backends.messages.base import message_schema
from ematix_flow.errors import CannotConnect, SourceFailed
from ematix_flow.spec.connections.brokers import KafkaConnection

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS, BATCH_BYTES = 8_192, 8 << 20  # of one Arrow batch
_MAX_CONSUME = 1_000
_POLL_SECONDS = 0.5
_SUSPECT_SECONDS = 5.0  # a broker that has just started may not know all of its messages yet
_RETRY_SECONDS = 0.2
_LOGIN_SECONDS = 10.0
_ASK_SECONDS = 5.0

# A fetch does not wait for more messages, and prefetched bytes are bounded.
CONSUMER_SETTINGS: Mapping[str, Any] = {
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 20,
    "queued.max.messages.kbytes": 16 * 1024,
    "queued.min.messages": 20_000,
    "fetch.queue.backoff.ms": 2,  # after the queue is read, fetch more at once, not after a second
    "receive.message.max.bytes": 1_000_000_000,
    "topic.metadata.propagation.max.ms": 5_000,
    "max.poll.interval.ms": 86_400_000,  # the reader of a batch may pause between two Arrow batches
}


@dataclass(frozen=True, repr=False)
class RangeReader:
    """The settings to read ranges with. Picklable; ``settings`` are librdkafka's and contain secrets."""

    connection: KafkaConnection
    settings: Mapping[str, Any]
    fail_on_data_loss: bool = True
    patience: float = PATIENCE_SECONDS

    def __repr__(self) -> str:
        return f"Reader({self.connection.name!r})"

    def open(self) -> OpenRangeReader:
        return OpenRangeReader(self)


@dataclass(frozen=True)
class RangeSplit:
    """A share of a batch that a task reads."""

    ranges: tuple[OffsetRange, ...]
    reader: RangeReader

    def read(self) -> Iterator[pa.RecordBatch]:
        opened = self.reader.open()
        try:
            yield from opened.read(self.ranges)
        finally:
            opened.close()


class OpenRangeReader:
    """A consumer that reads one set of ranges after another, in one thread at a time."""

    def __init__(self, reader: RangeReader) -> None:
        self.reader = reader
        self._client_errors = ClientErrors()
        settings = {
            **reader.settings,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "error_cb": self._client_errors,
            "stats_cb": self._record_fetch_offsets,
            "statistics.interval.ms": 1_000,
        }
        self._next_offsets: dict[
            str, int
        ] = {}  # by partition, the next offset to fetch, also over aborted messages
        self._seen_offsets: dict[str, int] = {}
        self._consumer = open_client(Consumer, reader.connection, settings)

    def read(self, ranges: Iterable[OffsetRange]) -> Generator[pa.RecordBatch, None, None]:
        """The messages of the ranges, in order within a partition; no partition may appear twice.

        DataLost when some were deleted, unless the reader allows it; CannotConnect or SourceFailed when
        nothing arrives for as long as the reader's patience.
        """
        self._client_errors.clear()
        remaining = {each.topic_partition: _RangeProgress(each) for each in ranges}
        self._assign(remaining)
        pending: list[KafkaMessage] = []
        size, heard_at = 0, time.monotonic()
        try:
            while remaining:
                polled = self._poll()
                before = len(pending)
                for message in polled:
                    progress = remaining.get((message.topic() or "", message.partition() or 0))
                    error = message.error()
                    if error is not None:
                        self._handle_error(error, message, progress, remaining)
                        continue
                    offset = message.offset()
                    if progress is None or offset is None or offset < progress.next_offset:
                        continue
                    if offset < progress.range.end:
                        pending.append(message)
                        size += _size(message)
                        progress.advance(offset)
                    if offset + 1 >= progress.range.end:
                        self._finish_partition(progress, remaining)
                if len(pending) > before or self._has_fetched_more():
                    heard_at = time.monotonic()
                else:
                    self._check_silence(remaining, time.monotonic() - heard_at)
                self._verify_suspects(remaining)
                if len(pending) >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield messages_to_batch(pending)
                    pending, size, heard_at = [], 0, time.monotonic()
            if pending:
                yield messages_to_batch(pending)
        finally:
            with suppress(KafkaException, RuntimeError):
                self._consumer.unassign()

    def close(self) -> None:
        with suppress(RuntimeError):  # already closed
            self._consumer.close()

    def _record_fetch_offsets(self, statistics: str) -> None:
        topics = json.loads(statistics).get("topics", {})
        self._next_offsets = {
            f"{name}/{number}": place["next_offset"]
            for name, topic in topics.items()
            for number, place in topic.get("partitions", {}).items()
            if place.get("next_offset", -1) >= 0
        }

    def _has_fetched_more(self) -> bool:
        """Whether the fetch position has moved since the last call, even over aborted messages."""
        seen, self._seen_offsets = self._seen_offsets, self._next_offsets
        return any(offset > seen.get(place, offset) for place, offset in self._next_offsets.items())

    def _poll(self) -> list[KafkaMessage]:
        """The messages that are fetched already; waits only for the first."""
        first = self._consumer.poll(_POLL_SECONDS)
        return [] if first is None else [first, *self._consumer.consume(_MAX_CONSUME, 0)]

    def _assign(self, remaining: Mapping[Partition, _RangeProgress]) -> None:
        self._consumer.assign(
            [TopicPartition(*each, progress.next_offset) for each, progress in remaining.items()]
        )

    def _finish_partition(self, progress: _RangeProgress, remaining: dict[Partition, _RangeProgress]) -> None:
        """Stop fetching a partition whose range is read."""
        del remaining[progress.range.topic_partition]
        if remaining:
            self._consumer.incremental_unassign([TopicPartition(*progress.range.topic_partition)])

    # -------------------------------------------------------------- errors

    def _handle_error(
        self,
        error: KafkaError,
        message: KafkaMessage,
        progress: _RangeProgress | None,
        remaining: dict[Partition, _RangeProgress],
    ) -> None:
        code = error.code()
        if progress is None:  # an error without a partition shows as silence
            return
        if is_transient(error):  # a transient error that stays shows as silence too
            progress.suspect()
            progress.stalled = True
            return
        if code == KafkaError._PARTITION_EOF:
            reached = message.offset()
            if reached is not None and reached >= progress.range.end:
                self._finish_partition(progress, remaining)
            else:
                progress.suspect()
        elif code in OUT_OF_RANGE:
            progress.suspect()
            progress.stuck = True
        elif code in MISSING:
            progress.suspect()
        else:
            failure = broker_refusal(self.reader.connection, f"read {progress.range}", error)
            raise SourceFailed(failure.what, next_step=failure.next_step)

    def _verify_suspects(self, remaining: dict[Partition, _RangeProgress]) -> None:
        """Ask the broker what it has of partitions that seem to end too early."""
        for progress in list(remaining.values()):
            if progress.suspected_since is None:
                continue
            is_old = time.monotonic() - progress.suspected_since >= _SUSPECT_SECONDS
            if not (is_old or progress.stuck):
                continue
            try:
                lost, first = self._find_loss(progress, is_sure=is_old)
            except KafkaException:
                return  # no broker answers: ask again later, until patience ends
            if lost is not None:
                if self.reader.fail_on_data_loss:
                    raise data_lost_error([lost])
                if first is None or first >= progress.range.end:
                    self._finish_partition(progress, remaining)
                    continue
                progress.next_offset, progress.suspected_since = first, None
            elif is_old and not (progress.stuck or progress.stalled):
                progress.suspected_since = time.monotonic()
                continue  # everything exists: a sequence of aborted messages may be long
            else:
                time.sleep(_RETRY_SECONDS)
            progress.stuck = progress.stalled = False
            self._assign(remaining)

    def _find_loss(self, progress: _RangeProgress, *, is_sure: bool) -> tuple[str | None, int | None]:
        """A sentence about lost messages of a range, and the next offset; None and None without loss."""
        wanted = progress.range
        if not self._partition_exists(wanted):
            return (f"{wanted} no longer exists", None) if is_sure else (None, None)
        low, high = self._consumer.get_watermark_offsets(
            TopicPartition(*wanted.topic_partition), timeout=_ASK_SECONDS, cached=False
        )
        if low > progress.next_offset:
            return f"{wanted}: {progress.next_offset} to {min(low, wanted.end) - 1} were deleted", low
        if high < wanted.end and is_sure:
            return recreated_text(wanted, high, wanted.end), None
        return None, None

    def _partition_exists(self, wanted: OffsetRange) -> bool:
        topic = self._consumer.list_topics(wanted.topic, timeout=_ASK_SECONDS).topics.get(wanted.topic)
        return topic is not None and wanted.partition in topic.partitions

    def _check_silence(self, remaining: Mapping[Partition, _RangeProgress], seconds: float) -> None:
        """Check what to do when nothing new has arrived for so many seconds."""
        if seconds >= _SUSPECT_SECONDS:
            for progress in remaining.values():
                progress.suspect()
        reader, reason = self.reader, self._client_errors.reason
        is_refused = reason is not None and reason[0] in (KafkaError._AUTHENTICATION, KafkaError._SSL)
        if seconds < (min(_LOGIN_SECONDS, reader.patience) if is_refused else reader.patience):
            return
        if is_refused or self._client_errors.all_brokers_down or not self._is_reachable():
            raise cannot_connect(reader.connection, self._client_errors, reader.patience)
        progress = next(iter(remaining.values()))
        raise CannotConnect(
            f"Kafka has sent nothing of {progress.range} at offset {progress.next_offset} for "
            f"{reader.patience:g} seconds",
            next_step="check that the partition has a leader (kafka-topics --describe), and run it again",
        )

    def _is_reachable(self) -> bool:
        try:
            return bool(self._consumer.list_topics(timeout=5).brokers)
        except KafkaException:
            return False


class _RangeProgress:
    """The reading progress of a range."""

    def __init__(self, wanted: OffsetRange) -> None:
        self.range, self.next_offset = wanted, wanted.begin
        self.suspected_since: float | None = None  # since when it seems to end too early
        self.stuck = False  # librdkafka has stopped fetching it
        self.stalled = False  # no message since a transient error

    def advance(self, offset: int) -> None:
        """Record that the message at this offset was read."""
        self.next_offset, self.suspected_since, self.stalled = offset + 1, None, False

    def suspect(self) -> None:
        if self.suspected_since is None:
            self.suspected_since = time.monotonic()


def _size(message: KafkaMessage) -> int:
    """The size of a message with all its parts."""
    headers: Any = message.headers() or ()
    return len(message) + len(message.key() or b"") + sum(len(n) + len(v or b"") for n, v in headers)


# ------------------------------------------------------------------ as Arrow


def messages_to_batch(messages: Sequence[KafkaMessage]) -> pa.RecordBatch:
    """Messages with the columns of all streams, like `spark._COLUMNS` for Spark's rows."""
    import pyarrow as pa

    moments = pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms", tz="UTC"))
    schema = message_schema()
    return pa.RecordBatch.from_arrays(
        [
            pa.array([message.value() for message in messages], pa.binary()),
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.topic() for message in messages], pa.string()),
            pa.array([message.partition() for message in messages], pa.int32()).cast(pa.string()),
            pa.array([message.offset() for message in messages], pa.int64()).cast(pa.string()),
            moments.cast(schema.field("timestamp").type),
            pa.array([header_text(message.headers()) for message in messages], pa.string()),
        ],
        schema=schema,
    )


def header_text(pairs: Any) -> str | None:
    """The headers as a JSON object; the last of several with one name wins. None without headers."""
    if not pairs:
        return None
    texts: dict[str, str | None] = {}
    for name, value in pairs:
        texts.pop(name, None)
        texts[name] = None if value is None else value.decode("utf-8", "replace")
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
