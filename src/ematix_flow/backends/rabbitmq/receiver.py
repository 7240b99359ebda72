"""Consumes one queue: receives and acknowledges messages, and reconnects."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pika
from pika.exceptions import AMQPError

from ematix_flow.backends.messages.base import Message, Receiver
from ematix_flow.backends.rabbitmq.address import RabbitMQAddress
from ematix_flow.backends.rabbitmq.amqp_messages import message_from_delivery
from ematix_flow.backends.rabbitmq.failures import (
    DRIVER_ERRORS,
    connection_lost,
    is_transient,
    source_refusal,
)
from ematix_flow.errors import CannotConnect

PREFETCH = 10_000
BUFFERED_BYTES = 64 * 1024 * 1024
PATIENCE = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_STEADY = 10.0  # seconds after which a connection counts as stable
_QUIET = 0.2  # a queue counts as empty when it is empty twice, so many seconds apart

Receipt = tuple[int, int]  # generation and delivery tag


class RabbitMQReceiver(Receiver):
    """Reconnects when a connection ends, for up to ``patience`` seconds.

    ``prefetch`` is the maximum number of received, unacknowledged messages, and so the maximum of one batch.
    About `BUFFERED_BYTES` of them are buffered for the next poll; beyond that, only as much is read as the
    heartbeat needs, and the rest stays with the broker.
    """

    acknowledges = True
    flags_redelivery = True

    def __init__(
        self, address: RabbitMQAddress, queue: str, *, prefetch: int = PREFETCH, patience: float = PATIENCE
    ) -> None:
        self.queue = queue
        self.generation = 0
        self._address = address
        self._prefetch = prefetch
        self._patience = patience
        self._connection: pika.BlockingConnection | None = None
        self._channel: Any = None
        self._buffer: deque[Message] = deque()
        self._bytes = 0  # of the values in the buffer
        self._floor = 0  # all tags up to this one are answered
        self._answered: set[int] = set()  # answered tags above the floor
        self._was_there = False
        self._down_since: float | None = None
        self._up_since = 0.0
        self._next_try = 0.0
        self._pause = _FIRST_PAUSE
        self._reason: BaseException | None = None
        self._empty_since: float | None = None
        self._connect()

    # -------------------------------------------------------------- receiving

    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        deadline = time.monotonic() + timeout
        if self._connection is None and not self._reconnect(deadline):
            return ()
        try:
            self._process_events(max(0.0, timeout) if not self._buffer else 0)
            while len(self._buffer) < max_messages and not self._is_full():
                before = len(self._buffer)
                left = deadline - time.monotonic()
                if before == 0 and left > 0:
                    self._process_events(left)
                else:
                    self._process_events(0)
                    if len(self._buffer) == before:
                        break
        except DRIVER_ERRORS as error:
            self._drop_connection(error)
            return ()
        messages = [self._buffer.popleft() for _ in range(min(max_messages, len(self._buffer)))]
        self._bytes -= sum(len(message.value or b"") for message in messages)
        if messages:
            self._empty_since = None
        return messages

    def keep_alive(self) -> None:
        """Answer heartbeats; messages that arrive are buffered for the next poll."""
        if self._connection is None:
            return
        try:
            self._process_events(0)
        except DRIVER_ERRORS as error:
            self._drop_connection(error)

    def is_drained(self) -> bool | None:
        if self._buffer or self._count_ready() != 0:
            self._empty_since = None
            return False
        # messages that were in transit during the first question have arrived with the second answer
        if self._count_ready() != 0:
            return False
        self.keep_alive()
        if self._buffer or self._connection is None:
            self._empty_since = None
            return False
        now = time.monotonic()
        self._empty_since = self._empty_since or now
        return now - self._empty_since >= _QUIET

    def _is_full(self) -> bool:
        """Whether the buffer is full. Then ask nothing: the answer would come after all sent messages."""
        return self._bytes >= BUFFERED_BYTES

    def lag(self) -> Mapping[str, int]:
        if self._is_full():
            return {}
        ready = self._count_ready()
        return {} if ready is None else {self.queue: ready + len(self._buffer)}

    def _count_ready(self) -> int | None:
        """The number of messages in the queue; None while disconnected."""
        if self._connection is None:
            return None
        try:
            return int(self._channel.queue_declare(self.queue, passive=True).method.message_count)
        except DRIVER_ERRORS as error:
            self._drop_connection(error)
            return None

    # -------------------------------------------------------------- answering

    def acknowledge(self, receipts: Sequence[Receipt]) -> bool | None:
        tags = self._open_tags(receipts)
        if not tags:
            return True
        try:
            floor = self._next_floor(tags)
            if floor > self._floor:
                self._channel.basic_ack(floor, multiple=True)
            for tag in tags:
                if tag > floor:
                    self._channel.basic_ack(tag)
            self._settle_tags(floor, tags)
        except DRIVER_ERRORS as error:
            self._drop_connection(error)
            return False
        return self._is_confirmed()

    def reject(self, receipts: Sequence[Receipt], requeue: bool = False) -> bool | None:
        """Refuse messages: they go to the queue's dead-letter exchange, or are dropped if it has none.

        With ``requeue`` they go back into the queue instead.
        """
        tags = self._open_tags(receipts)
        if not tags:
            return True
        try:
            for tag in tags:
                self._channel.basic_nack(tag, multiple=False, requeue=requeue)
            self._settle_tags(self._next_floor(tags), tags)
        except DRIVER_ERRORS as error:
            self._drop_connection(error)
            return False
        return self._is_confirmed()

    def _is_confirmed(self) -> bool | None:
        """Whether the broker has answered a question after the acknowledgements; None if not asked."""
        return None if self._is_full() else self._count_ready() is not None

    def _open_tags(self, receipts: Sequence[Receipt]) -> list[int]:
        """The unanswered tags of this connection, sorted. Answering a tag twice is an error."""
        if self._connection is None:
            return []
        current = {tag for generation, tag in receipts if generation == self.generation}
        return sorted(tag for tag in current if tag > self._floor and tag not in self._answered)

    def _next_floor(self, tags: Sequence[int]) -> int:
        answered, floor = self._answered.union(tags), self._floor
        while floor + 1 in answered:
            floor += 1
        return floor

    def _settle_tags(self, floor: int, tags: Sequence[int]) -> None:
        self._floor = floor
        self._answered = {tag for tag in self._answered.union(tags) if tag > floor}

    # -------------------------------------------------------------- the connection

    def _connect(self) -> None:
        connection = self._address.connect()
        try:
            channel = connection.channel()
            channel.queue_declare(self.queue, passive=True)
            channel.basic_qos(prefetch_count=self._prefetch)
            channel.add_on_cancel_callback(self._on_cancel)
            tag = self._address.consumer_tag
            channel.basic_consume(self.queue, self._on_delivery, **({"consumer_tag": tag} if tag else {}))
        except DRIVER_ERRORS as error:
            with suppress(AMQPError, OSError):
                connection.close()
            if is_transient(error):
                raise self._address.connection_error(error) from error
            raise source_refusal(error, self._address.name, self.queue, was_there=self._was_there) from error
        self._connection, self._channel = connection, channel
        self._floor, self._answered = 0, set()
        self._was_there = True
        self._up_since = time.monotonic()

    def _process_events(self, seconds: float) -> None:
        assert self._connection is not None
        if not self._connection.is_open:
            raise AMQPError("the connection was closed")
        self._connection.process_data_events(time_limit=seconds)
        if not self._channel.is_open:
            raise AMQPError("the channel was closed")

    def _on_delivery(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._buffer.append(message_from_delivery(self.queue, self.generation, method, properties, body))
        self._bytes += len(body)

    def _on_cancel(self, _method: Any) -> None:
        """The queue was deleted or moved; connecting again shows which."""
        raise AMQPError("the broker has ended the consumer")

    def _drop_connection(self, error: BaseException) -> None:
        """Drop the connection. The broker delivers all unacknowledged messages again, buffered ones too."""
        connection, self._connection, self._channel = self._connection, None, None
        self.generation += 1
        self._buffer.clear()
        self._bytes = 0
        self._empty_since = None
        self._reason = error
        now = time.monotonic()
        if self._down_since is None or now - self._up_since >= _STEADY:
            self._down_since, self._pause = now, _FIRST_PAUSE
        self._next_try = now
        if connection is not None and connection.is_open:
            with suppress(AMQPError, OSError):
                connection.close()

    def _reconnect(self, deadline: float) -> bool:
        """Try to reconnect when the pause has passed; wait for it at most until the deadline."""
        now = time.monotonic()
        if now < self._next_try:
            time.sleep(max(0.0, min(deadline, self._next_try) - now))
            if time.monotonic() < self._next_try:
                return False
        try:
            self._connect()
        except CannotConnect as error:
            now = time.monotonic()
            away = now - (self._down_since if self._down_since is not None else now)
            if away >= self._patience:
                raise connection_lost(self._address.name, self._address.label, error, away) from error
            self._next_try = now + self._pause
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            return False
        return True

    def close(self) -> None:
        """Close the connection. Unacknowledged messages go back into the queue."""
        connection, self._connection, self._channel = self._connection, None, None
        self._buffer.clear()
        self._bytes = 0
        if connection is not None and connection.is_open:
            with suppress(AMQPError, OSError):
                connection.close()
