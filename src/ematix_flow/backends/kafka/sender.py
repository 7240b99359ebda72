"""Sends messages from inside a task with librdkafka, and returns when every in-sync replica has them.

Without a token, messages are sent twice only if the whole task runs again. With a token, messages and token
commit in one transaction: see `transactions`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ematix_flow.backends.kafka.clients import open_client
from ematix_flow.backends.kafka.failures import (
    ClientErrors,
    broker_refusal,
    cannot_connect,
    error_summary,
)
from ematix_flow.backends.kafka.settings import client_settings
from ematix_flow.backends.messages.contract import BatchToken
from ematix_flow.errors import FlowError, RowRejected, TargetFailed
from ematix_flow.spec.connections.brokers import KafkaConnection

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.backends.kafka.transactions import TransactionalSender

_DELIVERY_MS = 120_000
_UNREACHABLE = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
)
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_BATCH_SIZE = 1_000_000  # librdkafka's own maximum
_BATCH_BYTES, _RECORD_BYTES = 61, 3  # protocol overhead; a record has flags, time and offset
_PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 20,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",  # as Java's producers: a key has the same partition for all senders
    "delivery.timeout.ms": _DELIVERY_MS,
    "queue.buffering.max.kbytes": 64 * 1024,
    "queue.buffering.max.messages": 100_000,
    "message.max.bytes": 256 * 1024 * 1024,  # the broker enforces the topic's own limit
    "topic.metadata.propagation.max.ms": 5_000,
}


@dataclass(frozen=True, repr=False)
class KafkaSender:
    """Sends to one topic. ``options`` are settings of librdkafka's producer that override ours."""

    connection: KafkaConnection
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)
    max_message_bytes: int | None = None  # the topic's limit, when the broker tells it
    partitions: int | None = None  # how many the topic has

    def __repr__(self) -> str:
        return f"KafkaSender({self.topic!r})"

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken | None = None) -> int:
        if token is not None:
            from ematix_flow.backends.kafka.transactions import TransactionalSender

            return TransactionalSender(self, token).send(batches, token)
        outbox = self.open_producer()
        sent = outbox.produce_all(batches)
        outbox.confirm()
        return sent

    def check(self, batch: pa.RecordBatch) -> None:
        for message in _produce_arguments(batch):
            partition = message.get("partition")
            if partition is not None and self.partitions is not None and partition >= self.partitions:
                raise RowRejected(
                    f"a message names partition {partition}, but topic {self.topic!r} has {self.partitions}",
                    next_step="fix what the partition is computed from, or add partitions",
                )
            size = _batch_size(message)
            if (
                self.max_message_bytes is not None
                and size > self.max_message_bytes
                and _compressed_size(message) > self.max_message_bytes
            ):
                raise RowRejected(
                    f"a message has {size:,} bytes, and topic {self.topic!r} takes "
                    f"{self.max_message_bytes:,}",
                    next_step="raise max.message.bytes of the topic (kafka-configs --alter), or send less",
                )

    def keep_open(self) -> OpenKafkaSender:
        return OpenKafkaSender(self)

    def open_producer(self) -> TopicProducer:
        return TopicProducer(self.connection, self.topic, self.producer_settings())

    def producer_settings(self) -> dict[str, Any]:
        ours = dict(_PRODUCER)
        if self.max_message_bytes is not None:  # the topic's limit applies to a batch too
            ours["batch.size"] = min(self.max_message_bytes, _BATCH_SIZE)
        settings = {**client_settings(self.connection, ours), **self.options}
        return {**settings, "delivery.report.only.error": True}


class OpenKafkaSender:
    """Sends many batches with one producer, because a new producer waits half a second for its id."""

    def __init__(self, sender: KafkaSender) -> None:
        self._sender = sender
        self._producer: TopicProducer | None = None
        self._transactional: TransactionalSender | None = None

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken | None = None) -> int:
        if token is not None:
            from ematix_flow.backends.kafka.transactions import TransactionalSender

            self._transactional = self._transactional or TransactionalSender(self._sender, token)
            return self._transactional.send(batches, token)
        self._producer = self._producer or self._sender.open_producer()
        sent = self._producer.produce_all(batches)
        self._producer.confirm()
        return sent

    def check(self, batch: pa.RecordBatch) -> None:
        self._sender.check(batch)

    def keep_open(self) -> OpenKafkaSender:
        return self


class TopicProducer:
    """An open producer for one topic, with its delivery failures."""

    def __init__(self, connection: KafkaConnection, topic: str, settings: Mapping[str, Any]) -> None:
        self.connection, self.topic = connection, topic
        self._client_errors = ClientErrors()
        self._failures: list[KafkaError] = []
        self.producer = open_client(Producer, connection, {**settings, "error_cb": self._client_errors})

    def produce_all(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Give all messages to the producer, waiting while its queue is full; return their number."""
        sent = 0
        for batch in batches:
            for message in _produce_arguments(batch):
                self._produce(message)
                sent += 1
            self._poll_producer(self.producer.poll, 0)
            self._raise_failures()
        return sent

    def confirm(self) -> None:
        """Wait until the broker has confirmed everything; TargetFailed with its error otherwise."""
        deadline = time.monotonic() + _DELIVERY_MS / 1000 + 10
        while self._poll_producer(self.producer.flush, 1.0) > 0:
            self._raise_failures()
            if time.monotonic() >= deadline:
                self.discard_unsent()
                raise self.failure([])
        self._raise_failures()

    def discard_unsent(self) -> None:
        """Discard unsent messages, so that the producer ends at once."""
        self.producer.purge()

    @property
    def fencing_error(self) -> KafkaError | None:
        """The error that says that another producer with the same transactional id has started."""
        return next(
            (error for error in (*self._failures, *self._client_errors.errors) if error.code() in FENCED),
            None,
        )

    def failure(self, errors: list[KafkaError]) -> FlowError:
        """The error for messages that were not delivered."""
        first = errors[0] if errors else None
        doing = f"send to topic {self.topic!r}"
        state = "some messages may have arrived; the same batch sent again may double them"
        if first is not None and first.code() not in _UNREACHABLE:
            failure = broker_refusal(self.connection, doing, first)
            return TargetFailed(failure.what, state=state, next_step=failure.next_step)
        away = cannot_connect(self.connection, self._client_errors, _DELIVERY_MS / 1000)
        reason = f" ({error_summary(errors)})" if errors else ""
        return TargetFailed(
            f"messages to topic {self.topic!r} were not confirmed{reason}: {away.what}",
            state=state,
            next_step=away.next_step,
        )

    def _produce(self, message: dict[str, Any]) -> None:
        deadline = time.monotonic() + _DELIVERY_MS / 1000 + 10
        while True:
            try:
                self.producer.produce(self.topic, on_delivery=self._on_delivery, **message)
                return
            except BufferError:  # the broker is slower than we are
                self._poll_producer(self.producer.poll, 0.5)
                self._raise_failures()
                if time.monotonic() >= deadline:
                    self.discard_unsent()
                    raise self.failure([]) from None
            except KafkaException as error:
                self._failures.append(error.args[0])
                self.discard_unsent()
                raise self.failure([error.args[0]]) from error

    def _poll_producer(self, call: Callable[[float], int], seconds: float) -> int:
        """Let the producer run its callbacks; record an error that ends it."""
        try:
            return call(seconds)
        except (KafkaException, SystemError) as error:
            self._failures.append(kafka_error_of(error, self.producer.begin_transaction))
            return 0

    def _on_delivery(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None and len(self._failures) < 100:
            self._failures.append(error)

    def _raise_failures(self) -> None:
        if self._failures:
            failed = list(self._failures)
            self.discard_unsent()
            raise self.failure(failed)


def kafka_error_of(error: KafkaException | SystemError, ask_again: Callable[[], Any]) -> KafkaError:
    """The KafkaError in an exception of a producer.

    The client raises a fatal error from inside ``error_cb``. A callback that runs in the same call turns that
    exception into the cause of a SystemError, or drops it. When it is dropped, ``ask_again`` calls the
    producer once more: after a fatal error a producer fails each transactional call with that error.
    """
    exception = error if isinstance(error, KafkaException) else error.__cause__
    if isinstance(exception, KafkaException):
        kafka_error: KafkaError = exception.args[0]
        return kafka_error
    try:
        ask_again()
    except KafkaException as again:
        if again.args[0].code() == KafkaError._NOT_CONFIGURED:  # a producer without transactions
            return KafkaError(KafkaError._FATAL, str(error), True)
        return kafka_error_of(again, ask_again)
    raise error


def _produce_arguments(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The keyword arguments of ``produce`` for each message."""
    values, keys = batch.column("value").to_pylist(), batch.column("key").to_pylist()
    partitions = batch.column("partition").to_pylist()
    headers = batch.column("headers").to_pylist()
    for value, key, partition, header in zip(values, keys, partitions, headers, strict=True):
        message: dict[str, Any] = {"value": value}
        if key is not None:
            message["key"] = key
        if partition is not None:
            if partition < 0:
                raise RowRejected(f"a message names partition {partition}; partitions count from 0")
            message["partition"] = partition
        if header is not None:
            message["headers"] = header_pairs(header)
        yield message


def _batch_size(message: Mapping[str, Any]) -> int:
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
    return _batch_size({**message, "value": pa.compress(value, "lz4", asbytes=True)})


def header_pairs(text: str) -> list[tuple[str, bytes | None]]:
    """Headers from a JSON object: texts unchanged, null without a value, all else as JSON."""
    try:
        read = json.loads(text)
        if not isinstance(read, dict):
            raise ValueError("it is not an object")
    except ValueError as error:
        raise RowRejected(f"headers of a message are not a JSON object: {text[:200]} ({error})") from error
    return [
        (name, None if value is None else (value if isinstance(value, str) else json.dumps(value)).encode())
        for name, value in read.items()
    ]
