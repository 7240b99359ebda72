"""Reads one topic of dead letters, first as a whole and then its new messages, and writes to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, ResourceType

from ematix_flow.backends.kafka.clients import open_client
from ematix_flow.backends.kafka.cluster import KafkaCluster
from ematix_flow.backends.kafka.dead_letter_records import (
    LetterChange,
    LetterView,
    TopicOffset,
    change_headers,
    letter_headers,
)
from ematix_flow.backends.kafka.error_codes import MISSING, is_transient
from ematix_flow.backends.kafka.failures import ClientErrors, broker_refusal, cannot_connect
from ematix_flow.backends.kafka.producer import TopicProducer, producer_settings
from ematix_flow.backends.kafka.settings import client_settings
from ematix_flow.backends.kafka.target import KafkaTarget
from ematix_flow.errors import FlowError, SourceFailed, TargetFailed
from ematix_flow.spec.connections.brokers import KafkaConnection
from ematix_flow.state.dead_letters.base import DeadLetter

GROUP = "ematix-flow.dlq"
MAX_LETTERS = 1_000_000

_MAX_CONSUME = 500
_PATIENCE = 30.0  # seconds without any message, though there must be some
_GAP = 200  # a gap of at most so many messages is read through; a larger one is skipped by seeking
_DEFAULT_MAX_BYTES = 1_000_000

_log = logging.getLogger(__name__)

FetchedPayloads = dict[TopicOffset, tuple[bytes, bytes | None]]  # payload and key


class LetterTopic:
    """An existing topic, with the state of its letters. Used by one thread at a time.

    ``read_up_to`` is the next offset to read, by partition.
    """

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        self.connection, self.topic = connection, topic
        self.label = f"topic {topic!r} of connection {connection.name!r}"
        self.view = LetterView()
        self.read_up_to: dict[int, int] = {}
        self._cluster = KafkaCluster(connection)
        self._consumer: Consumer | None = None
        self._fetcher: Consumer | None = None
        self._producer: _LetterProducer | None = None
        self._client_errors = ClientErrors()
        self._max_bytes = _DEFAULT_MAX_BYTES
        KafkaTarget(self._cluster).check_destination(topic)

    def close(self) -> None:
        for consumer in (self._consumer, self._fetcher):
            if consumer is not None:
                consumer.close()
        self._consumer = self._fetcher = self._producer = None
        self.view, self.read_up_to = LetterView(), {}

    def max_message_bytes(self) -> int:
        """The maximum size of a message in the topic."""
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        answer = self._cluster.admin.describe_configs([resource])[resource]
        try:
            self._max_bytes = int(
                self._cluster.wait_for(answer, f"look at {self.label}")["max.message.bytes"].value
            )
        except FlowError:
            self._max_bytes = _DEFAULT_MAX_BYTES  # this user may not read the topic's settings
        return self._max_bytes

    # ------------------------------------------------------------------ writing

    def send_letters(self, letters: Sequence[DeadLetter], operation: str, first: int) -> None:
        """Write letters; ``first`` is the sequence number of the first."""
        self._send(
            {
                "value": letter.payload,
                "partition": self._partition_of(letter.id),
                "headers": letter_headers(letter, operation, first + number),
                **({} if letter.key is None else {"key": letter.key}),
            }
            for number, letter in enumerate(letters)
        )

    def send_changes(self, changes: Sequence[LetterChange]) -> None:
        self._send(
            {
                "value": b"",
                "key": change.id.encode("utf-8"),
                "partition": self._partition_of(change.id),
                "headers": change_headers(change),
            }
            for change in changes
        )

    def _partition_of(self, id: str) -> int:
        """The partition for all messages of a letter, which stays the same when partitions are added."""
        entry = self.view.entries.get(id)
        if entry is not None and entry.topic_offset is not None:
            return entry.topic_offset[0]
        partitions = len(self.read_up_to or self._partitions())
        return int.from_bytes(id.encode("utf-8")[:8], "big") % partitions

    def _send(self, messages: Iterable[dict[str, Any]]) -> None:
        outbox, self._producer = self._producer, None  # a producer that fails is not used again
        for message in messages:
            if outbox is None:
                options = {
                    "batch.size": str(min(_DEFAULT_MAX_BYTES, self._max_bytes))
                }  # a batch has the same limit
                settings = producer_settings(self.connection, options)
                outbox = _LetterProducer(self.connection, self.topic, settings)
            outbox.produce(message)
        if outbox is not None:
            outbox.confirm()
        self._producer = outbox

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """Commit a group's offsets. Nothing relies on it, so a missing permission is not an error."""
        places = [TopicPartition(self.topic, number, offset) for number, offset in offsets.items()]
        if not places:
            return
        try:
            request = [ConsumerGroupTopicPartitions(group, places)]
            answers = self._cluster.admin.alter_consumer_group_offsets(request)
            self._cluster.wait_for(answers[group], f"commit offsets of group {group!r}")
        except (FlowError, KafkaException, ValueError) as error:
            _log.info("cannot commit the progress of group %s: %s", group, error)

    # ------------------------------------------------------------------ reading

    def read_new_messages(self) -> None:
        """Read all messages that the topic has now into the view."""
        partitions = self._partitions()
        ends = self._end_offsets(partitions)
        consumer = self._view_consumer(partitions)
        last = time.monotonic()
        while any(self.read_up_to[number] < end for number, end in ends.items()):
            messages = self._consume(consumer)
            for message in messages:
                number, offset = message.partition(), message.offset()
                if message.error() is None:
                    self.view.read_message((number, offset), message.headers())
                    offset += 1
                else:
                    self._raise_if_permanent(message.error())
                    if message.error().code() != KafkaError._PARTITION_EOF:
                        continue
                self.read_up_to[number] = max(self.read_up_to[number], offset)
            last = self._check_silence(last, any(_is_progress(message) for message in messages))
        if len(self.view.entries) > MAX_LETTERS:
            raise TargetFailed(
                f"{self.label} holds more than {MAX_LETTERS:,} dead letters",
                next_step="keep dead letters in a table, or shorten the retention of the topic",
            )

    def _end_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        """The end offsets. Retries while brokers do not know the topic yet, as after its creation."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                ends = self._cluster.end_offsets(
                    [(self.topic, number) for number in partitions], committed=False
                )
                return {number: end for (_, number), end in ends.items()}
            except SourceFailed as error:
                kafka_error = error.__cause__.args[0] if isinstance(error.__cause__, KafkaException) else None
                if kafka_error is None or kafka_error.code() not in MISSING or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def fetch_payloads(self, places: set[TopicOffset]) -> FetchedPayloads:
        """Payload and key of these messages, without those that no longer exist."""
        found: FetchedPayloads = {}
        if not places:
            return found
        if self._fetcher is None:
            self._fetcher = self._new_consumer()
        try:
            for number in sorted({partition for partition, _ in places}):
                wanted = sorted((offset for partition, offset in places if partition == number), reverse=True)
                while wanted:
                    self._fetch(self._fetcher, number, wanted, found)
        finally:
            self._fetcher.unassign()  # so that it fetches nothing until the next call
        return found

    def _fetch(self, consumer: Consumer, number: int, left: list[int], found: FetchedPayloads) -> None:
        """Read from the smallest offset in ``left`` up to a large gap, and remove what was passed."""
        at = left[-1]
        consumer.assign([TopicPartition(self.topic, number, at)])
        last = time.monotonic()
        while left and left[-1] - at <= _GAP:
            messages = self._consume(consumer)
            for message in messages:
                if message.error() is not None:
                    self._raise_if_permanent(message.error())
                    if message.error().code() != KafkaError._PARTITION_EOF:
                        continue
                    left.clear()  # the rest no longer exists
                    return
                at = message.offset()
                while left and left[-1] < at:
                    left.pop()
                if left and left[-1] == at:
                    found[(number, left.pop())] = (message.value() or b"", message.key())
                if not left:
                    return
            last = self._check_silence(last, any(_is_progress(message) for message in messages))

    def _raise_if_permanent(self, error: KafkaError) -> None:
        """Raise an error that is not transient."""
        if error.code() != KafkaError._PARTITION_EOF and not is_transient(error):
            raise broker_refusal(self.connection, f"read {self.label}", error)

    def _partitions(self) -> list[int]:
        partitions = self._cluster.topics().get(self.topic, [])
        if not partitions:
            raise TargetFailed(
                f"{self.label} no longer exists", next_step="create it again, or name another store"
            )
        return partitions

    def _view_consumer(self, partitions: Sequence[int]) -> Consumer:
        """The view's consumer, at the next unread message of every partition."""
        if self._consumer is None:
            self._consumer = self._new_consumer()
        if set(partitions) != set(self.read_up_to):
            self._producer = None  # an old producer learns of new partitions only after a while
            for number in partitions:
                self.read_up_to.setdefault(number, 0)
            places = [(number, self.read_up_to[number] or OFFSET_BEGINNING) for number in partitions]
            self._consumer.assign([TopicPartition(self.topic, number, at) for number, at in places])
        return self._consumer

    def _new_consumer(self) -> Consumer:
        settings = {
            **client_settings(self.connection),
            "group.id": GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",  # a foreign open transaction would hide the rest
            "queued.max.messages.kbytes": 16 * 1024,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "error_cb": self._client_errors,
        }
        return open_client(Consumer, self.connection, settings)

    def _consume(self, consumer: Consumer) -> list[Any]:
        try:
            first = consumer.consume(1, timeout=0.5)  # asking for more would wait for the last one
            return first + consumer.consume(_MAX_CONSUME, timeout=0) if first else first
        except KafkaException as error:
            raise broker_refusal(self.connection, f"read {self.label}", error.args[0]) from error

    def _check_silence(self, last: float, came: bool) -> float:
        now = time.monotonic()
        if not came and now - last > _PATIENCE:
            raise cannot_connect(self.connection, self._client_errors, _PATIENCE)
        return now if came else last


def _is_progress(message: Any) -> bool:
    """Whether it is a message or the end of a partition, not a transient error."""
    return message.error() is None or message.error().code() == KafkaError._PARTITION_EOF


class _LetterProducer(TopicProducer):
    def produce(self, message: dict[str, Any]) -> None:
        self._produce(message)
