"""Ranges of offsets: what lies between two positions, cut into shares, and read by librdkafka.

Who reads knows where it begins and ends, so no group is joined and nothing is committed. Offsets have gaps
where a topic was compacted or a transaction ended, so an end is never found by counting.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from ematix_flow.backends.kafka.cluster import Partition
from ematix_flow.backends.kafka.error_codes import MISSING, OUT_OF_RANGE, PATIENCE_SECONDS, is_transient
from ematix_flow.backends.kafka.failures import ClientErrors, broker_refusal, cannot_connect, invalid_settings
from ematix_flow.backends.kafka.positions import data_lost_error
from ematix_flow.backends.messages.contract import message_schema
from ematix_flow.errors import CannotConnect, SourceFailed
from ematix_flow.spec.connections.brokers import KafkaConnection

if TYPE_CHECKING:
    import pyarrow as pa

MIN_SPLIT_OFFSETS = 50_000  # offsets: fewer are not worth a task of their own
BATCH_ROWS, BATCH_BYTES = 8_192, 8 << 20  # of one batch of Arrow
_MAX_CONSUME = 1_000
_POLL_SECONDS = 0.5
_SUSPECT_SECONDS = 5.0  # a broker that has just come up may not know all of its messages yet
_RETRY_SECONDS = 0.2
_LOGIN_SECONDS = 10.0
_ASK_SECONDS = 5.0

# A fetch never waits for more than is there, and what is fetched ahead is bounded whatever its size.
CONSUMER_SETTINGS: Mapping[str, Any] = {
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 20,
    "queued.max.messages.kbytes": 16 * 1024,
    "queued.min.messages": 20_000,
    "fetch.queue.backoff.ms": 2,  # who has read what was queued does not wait a second for more
    "receive.message.max.bytes": 1_000_000_000,
    "topic.metadata.propagation.max.ms": 5_000,
    "max.poll.interval.ms": 86_400_000,  # who reads a batch may take its time between two of Arrow's
}


@dataclass(frozen=True)
class OffsetRange:
    """The messages of one partition whose offsets are at least ``begin`` and below ``end``."""

    topic: str
    partition: int
    begin: int
    end: int

    @property
    def topic_partition(self) -> Partition:
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def ranges_between(
    before: Mapping[Partition, int], after: Mapping[Partition, int], *, strict: bool
) -> list[OffsetRange]:
    """The ranges from one position to another. A partition that is new begins at its first offset.

    One that ends before it began was created again: data loss with ``strict``, and nothing to read without.
    """
    found = [OffsetRange(*place, before.get(place, 0), end) for place, end in sorted(after.items())]
    lost = [_recreated_text(each, each.end, each.begin) for each in found if each.end < each.begin]
    if lost and strict:
        raise data_lost_error(lost)
    return [each for each in found if each.begin < each.end]


def split_ranges(
    ranges: Sequence[OffsetRange], most: int, *, whole: bool = False
) -> list[tuple[OffsetRange, ...]]:
    """The ranges in at most ``most`` shares of about one size, none of which names a partition twice.

    ``whole``: no partition is cut, so that who sends on what it reads keeps the order of a key.
    """
    if whole:
        return _assign_whole_partitions(ranges, most)
    total = sum(each.end - each.begin for each in ranges)
    count = max(1, min(most, max(math.ceil(total / MIN_SPLIT_OFFSETS), len(ranges))))
    size = math.ceil(total / count)
    out: list[tuple[OffsetRange, ...]] = []
    share: list[OffsetRange] = []
    room = size
    for each in ranges:
        at = each.begin
        while at < each.end:
            stop = min(each.end, at + room)
            share.append(OffsetRange(each.topic, each.partition, at, stop))
            room, at = room - (stop - at), stop
            if not room:
                out.append(tuple(share))
                share, room = [], size
    return [*out, tuple(share)] if share else out


def _assign_whole_partitions(ranges: Sequence[OffsetRange], most: int) -> list[tuple[OffsetRange, ...]]:
    """The largest first, each to the share that has least."""
    out: list[list[OffsetRange]] = [[] for _ in range(min(most, len(ranges)))]
    for each in sorted(ranges, key=lambda each: each.begin - each.end):
        min(out, key=lambda share: sum(r.end - r.begin for r in share)).append(each)
    return [tuple(share) for share in out]


@dataclass(frozen=True, repr=False)
class RangeReader:
    """How ranges are read. Picklable; ``settings`` are librdkafka's, and hold secrets."""

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
    """A share of a batch, read inside a task."""

    ranges: tuple[OffsetRange, ...]
    reader: RangeReader

    def read(self) -> Iterator[pa.RecordBatch]:
        opened = self.reader.open()
        try:
            yield from opened.read(self.ranges)
        finally:
            opened.close()


class OpenRangeReader:
    """A consumer for range after range, of one thread at a time."""

    def __init__(self, how: RangeReader) -> None:
        self.reader = how
        self._client_errors = ClientErrors()
        settings = {
            **how.settings,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "error_cb": self._client_errors,
            "stats_cb": self._record_fetch_offsets,
            "statistics.interval.ms": 1_000,
        }
        self._next_offsets: dict[
            str, int
        ] = {}  # by partition, what is fetched next; also over aborted messages
        self._seen_offsets: dict[str, int] = {}
        try:
            self._consumer = Consumer(settings)
        except (KafkaException, ValueError, TypeError) as error:
            raise invalid_settings(how.connection, error) from error

    def read(self, ranges: Iterable[OffsetRange]) -> Generator[pa.RecordBatch, None, None]:
        """Their messages, those of a partition in order; no partition is named twice.

        DataLost when some are gone, unless the reader takes what is there; CannotConnect or SourceFailed
        when nothing comes for as long as its patience.
        """
        self._client_errors.clear()
        left = {each.topic_partition: _RangeProgress(each) for each in ranges}
        self._assign(left)
        waiting: list[KafkaMessage] = []
        size, heard = 0, time.monotonic()
        try:
            while left:
                found = self._poll()
                before = len(waiting)
                for message in found:
                    place = left.get((message.topic() or "", message.partition() or 0))
                    error = message.error()
                    if error is not None:
                        self._handle_error(error, message, place, left)
                        continue
                    offset = message.offset()
                    if place is None or offset is None or offset < place.next_offset:
                        continue
                    if offset < place.range.end:
                        waiting.append(message)
                        size += _size(message)
                        place.next_offset, place.suspected_since, place.stalled = offset + 1, None, False
                    if offset + 1 >= place.range.end:
                        self._finish_partition(place, left)
                if len(waiting) > before or self._has_fetched_more():
                    heard = time.monotonic()
                else:
                    self._check_silence(left, time.monotonic() - heard)
                self._verify_suspects(left)
                if len(waiting) >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield messages_to_batch(waiting)
                    waiting, size, heard = [], 0, time.monotonic()
            if waiting:
                yield messages_to_batch(waiting)
        finally:
            with suppress(KafkaException, RuntimeError):
                self._consumer.unassign()

    def close(self) -> None:
        with suppress(RuntimeError):  # it is closed already
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
        """Whether something came since the last question, be it none of the messages that count."""
        seen, self._seen_offsets = self._seen_offsets, self._next_offsets
        return any(offset > seen.get(place, offset) for place, offset in self._next_offsets.items())

    def _poll(self) -> list[KafkaMessage]:
        """What is fetched already, waiting for the first only: no more than what is queued comes at once."""
        first = self._consumer.poll(_POLL_SECONDS)
        return [] if first is None else [first, *self._consumer.consume(_MAX_CONSUME, 0)]

    def _assign(self, left: Mapping[Partition, _RangeProgress]) -> None:
        self._consumer.assign([TopicPartition(*each, place.next_offset) for each, place in left.items()])

    def _finish_partition(self, place: _RangeProgress, left: dict[Partition, _RangeProgress]) -> None:
        """Done with a partition: nothing more of it is fetched."""
        del left[place.range.topic_partition]
        if left:
            self._consumer.incremental_unassign([TopicPartition(*place.range.topic_partition)])

    # -------------------------------------------------------------- what goes wrong

    def _handle_error(
        self,
        error: KafkaError,
        message: KafkaMessage,
        place: _RangeProgress | None,
        left: dict[Partition, _RangeProgress],
    ) -> None:
        code = error.code()
        if place is None:  # what is no partition's shows as silence
            return
        if is_transient(error):  # so does this, if it does not pass
            place.suspect()
            place.stalled = True
            return
        if code == KafkaError._PARTITION_EOF:
            reached = message.offset()
            if reached is not None and reached >= place.range.end:
                self._finish_partition(place, left)
            else:
                place.suspect()
        elif code in OUT_OF_RANGE:
            place.suspect()
            place.stuck = True
        elif code in MISSING:
            place.suspect()
        else:
            failure = broker_refusal(self.reader.connection, f"read {place.range}", error)
            raise SourceFailed(failure.what, next_step=failure.next_step)

    def _verify_suspects(self, left: dict[Partition, _RangeProgress]) -> None:
        """Ask what the broker holds of partitions that seem to end too soon."""
        for place in list(left.values()):
            if place.suspected_since is None:
                continue
            old = time.monotonic() - place.suspected_since >= _SUSPECT_SECONDS
            if not (old or place.stuck):
                continue
            try:
                lost, first = self._find_loss(place, sure=old)
            except KafkaException:
                return  # nobody answers now: patience ends, or it is asked again
            if lost is not None:
                if self.reader.fail_on_data_loss:
                    raise data_lost_error([lost])
                if first is None or first >= place.range.end:
                    self._finish_partition(place, left)
                    continue
                place.next_offset, place.suspected_since = first, None
            elif old and not (place.stuck or place.stalled):
                place.suspected_since = time.monotonic()
                continue  # all of it is there: a stretch of aborted messages may be long
            else:
                time.sleep(_RETRY_SECONDS)
            place.stuck = place.stalled = False
            self._assign(left)

    def _find_loss(self, place: _RangeProgress, *, sure: bool) -> tuple[str | None, int | None]:
        """What is gone of the rest of a range, in words, and where it goes on; None and None for nothing."""
        wanted = place.range
        if not self._partition_exists(wanted):
            return (f"{wanted} is not there any more", None) if sure else (None, None)
        low, high = self._consumer.get_watermark_offsets(
            TopicPartition(*wanted.topic_partition), timeout=_ASK_SECONDS, cached=False
        )
        if low > place.next_offset:
            return f"{wanted}: {place.next_offset} to {min(low, wanted.end) - 1} were deleted", low
        if high < wanted.end and sure:
            return _recreated_text(wanted, high, wanted.end), None
        return None, None

    def _partition_exists(self, wanted: OffsetRange) -> bool:
        topic = self._consumer.list_topics(wanted.topic, timeout=_ASK_SECONDS).topics.get(wanted.topic)
        return topic is not None and wanted.partition in topic.partitions

    def _check_silence(self, left: Mapping[Partition, _RangeProgress], seconds: float) -> None:
        """Nothing new has come for so long."""
        if seconds >= _SUSPECT_SECONDS:
            for place in left.values():
                place.suspect()
        how, reason = self.reader, self._client_errors.reason
        refuses = reason is not None and reason[0] in (KafkaError._AUTHENTICATION, KafkaError._SSL)
        if seconds < (min(_LOGIN_SECONDS, how.patience) if refuses else how.patience):
            return
        if refuses or self._client_errors.all_brokers_down or not self._is_reachable():
            raise cannot_connect(how.connection, self._client_errors, how.patience)
        place = next(iter(left.values()))
        raise CannotConnect(
            f"Kafka sends nothing of {place.range} at offset {place.next_offset} for "
            f"{how.patience:g} seconds",
            next_step="check that its leader is there (kafka-topics --describe), and run it again",
        )

    def _is_reachable(self) -> bool:
        try:
            return bool(self._consumer.list_topics(timeout=5).brokers)
        except KafkaException:
            return False


class _RangeProgress:
    """How far a range is read."""

    def __init__(self, wanted: OffsetRange) -> None:
        self.range, self.next_offset = wanted, wanted.begin
        self.suspected_since: float | None = None  # since when it seems to end too soon
        self.stuck = False  # librdkafka fetches no more of it by itself
        self.stalled = False  # a passing error came, and no message since

    def suspect(self) -> None:
        if self.suspected_since is None:
            self.suspected_since = time.monotonic()


def _size(message: KafkaMessage) -> int:
    """The bytes that a message brings, all parts of it."""
    headers: Any = message.headers() or ()
    return len(message) + len(message.key() or b"") + sum(len(n) + len(v or b"") for n, v in headers)


def _recreated_text(wanted: OffsetRange, ends: int, before: int) -> str:
    return f"{wanted} ends at {ends}, before {before}: it was created again"


# ------------------------------------------------------------------ as Arrow


def messages_to_batch(messages: Sequence[KafkaMessage]) -> pa.RecordBatch:
    """Messages in the columns of all streams, as `spark._COLUMNS` makes them of Spark's rows."""
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
    """A JSON object, of several headers with one name the last, where that stands; None without any."""
    if not pairs:
        return None
    texts: dict[str, str | None] = {}
    for name, value in pairs:
        texts.pop(name, None)
        texts[name] = None if value is None else value.decode("utf-8", "replace")
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
