"""Sends messages from inside a task with librdkafka, and returns when every in-sync replica has them.

Without a token, messages are sent twice only if the whole task runs again. With a token, messages and token
commit in one transaction: see `transactions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.kafka.producer import TopicProducer, produce_arguments, producer_settings
from ematix_flow.backends.kafka.transactions import TransactionalSender
from ematix_flow.backends.messages.base import BatchToken
from ematix_flow.errors import RowRejected
from ematix_flow.spec.connections.brokers import KafkaConnection

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES, _RECORD_BYTES = 61, 3  # protocol overhead; a record has flags, time and offset


@dataclass(frozen=True, repr=False)
class KafkaSender:
    """Sends to one topic. ``options`` are settings of librdkafka's producer that override ours."""

    connection: KafkaConnection
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)
    max_message_bytes: int | None = None  # the topic's limit, if the broker reports it
    partitions: int | None = None  # how many the topic has

    def __repr__(self) -> str:
        return f"KafkaSender({self.topic!r})"

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken | None = None) -> int:
        if token is not None:
            return self.open_transactional(token).send(batches, token)
        outbox = self.open_producer()
        sent = outbox.produce_all(batches)
        outbox.confirm()
        return sent

    def check(self, batch: pa.RecordBatch) -> None:
        for message in produce_arguments(batch):
            partition = message.get("partition")
            if partition is not None and self.partitions is not None and partition >= self.partitions:
                raise RowRejected(
                    f"a message names partition {partition}, but topic {self.topic!r} has {self.partitions}",
                    next_step="fix what the partition is computed from, or add partitions",
                )
            size = message_batch_size(message)
            if (
                self.max_message_bytes is not None
                and size > self.max_message_bytes
                and _compressed_size(message) > self.max_message_bytes
            ):
                raise RowRejected(
                    f"a message has {size:,} bytes, and topic {self.topic!r} allows "
                    f"{self.max_message_bytes:,}",
                    next_step="raise max.message.bytes (kafka-configs --alter), or send smaller messages",
                )

    def keep_open(self) -> OpenKafkaSender:
        return OpenKafkaSender(self)

    def open_producer(self) -> TopicProducer:
        return TopicProducer(self.connection, self.topic, self._producer_settings())

    def open_transactional(self, stream: BatchToken) -> TransactionalSender:
        return TransactionalSender(self.connection, self.topic, self._producer_settings(), stream)

    def _producer_settings(self) -> dict[str, Any]:
        return producer_settings(self.connection, self.options, self.max_message_bytes)


class OpenKafkaSender:
    """Sends many batches with one producer, because a new producer waits half a second for its id."""

    def __init__(self, sender: KafkaSender) -> None:
        self._sender = sender
        self._producer: TopicProducer | None = None
        self._transactional: TransactionalSender | None = None

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken | None = None) -> int:
        if token is not None:
            self._transactional = self._transactional or self._sender.open_transactional(token)
            return self._transactional.send(batches, token)
        self._producer = self._producer or self._sender.open_producer()
        sent = self._producer.produce_all(batches)
        self._producer.confirm()
        return sent

    def check(self, batch: pa.RecordBatch) -> None:
        self._sender.check(batch)

    def keep_open(self) -> OpenKafkaSender:
        return self


def message_batch_size(message: Mapping[str, Any]) -> int:
    """The size of a batch with this message only, which the topic limits."""
    headers = message.get("headers", ())
    texts = [message.get("key") or b"", message["value"] or b""]
    for name, value in headers:
        texts += [name.encode(), value or b""]
    record = _RECORD_BYTES + _length_bytes(len(headers)) + sum(_length_bytes(len(t)) + len(t) for t in texts)
    return _BATCH_BYTES + _length_bytes(record) + record


def _length_bytes(length: int) -> int:
    """The size of a length in Kafka's format: a zigzag varint with seven bits per byte."""
    return max(1, -(-(2 * length).bit_length() // 7))


def _compressed_size(message: Mapping[str, Any]) -> int:
    """The size of a batch with this message only, compressed."""
    import pyarrow as pa

    value = message["value"] or b""
    return message_batch_size({**message, "value": pa.compress(value, "lz4", asbytes=True)})
