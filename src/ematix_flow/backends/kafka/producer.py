"""A producer of librdkafka for one topic: its settings, its messages, and the errors that it reports."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from ematix_flow.errors import FlowError, RowRejected, TargetFailed
from ematix_flow.spec.connections.brokers import KafkaConnection

if TYPE_CHECKING:
    import pyarrow as pa

_DELIVERY_MS = 120_000
_UNREACHABLE = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
)
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_BATCH_SIZE = 1_000_000  # librdkafka's own maximum
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


def producer_settings(
    connection: KafkaConnection,
    options: Mapping[str, str] | None = None,
    max_message_bytes: int | None = None,
) -> dict[str, Any]:
    """librdkafka's settings of a producer; ``options`` override ours."""
    ours = dict(_PRODUCER)
    if max_message_bytes is not None:  # the topic's limit applies to a batch too
        ours["batch.size"] = min(max_message_bytes, _BATCH_SIZE)
    settings = {**client_settings(connection, ours), **(options or {})}
    return {**settings, "delivery.report.only.error": True}


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
            for message in produce_arguments(batch):
                self.produce(message)
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

    @property
    def message_was_too_large(self) -> bool:
        """Whether the client or the broker refused a message for its size."""
        return any(error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in self._failures)

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

    def produce(self, message: dict[str, Any]) -> None:
        """Give one message to the producer, waiting while its queue is full."""
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
        if again.args[0].code() != KafkaError._STATE:  # a transaction is open: there was no fatal error
            return kafka_error_of(again, ask_again)
    raise error


def produce_arguments(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
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
