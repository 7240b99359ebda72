"""Sends messages to a queue or an exchange; a batch is sent when the broker has confirmed every message.

The driver's blocking connection waits for every single confirm; here a window of messages is unconfirmed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pika

from ematix_flow.backends.messages.base import HEADERS, KEY, VALUE, BatchToken
from ematix_flow.backends.rabbitmq.address import RabbitMQAddress
from ematix_flow.backends.rabbitmq.amqp_messages import SHORT_BYTES, amqp_headers, row_rejected
from ematix_flow.backends.rabbitmq.failures import send_failure, target_refusal
from ematix_flow.errors import FlowError, TargetFailed, TargetMissing

if TYPE_CHECKING:
    import pyarrow as pa

EXCHANGE = "exchange:"
KEY_HEADER = "message_key"  # holds a row's key when the routing key is the queue's name
_WINDOW, _WINDOW_BYTES = 4_000, 32 * 1024 * 1024
_HEARTBEAT = 600  # nothing answers the broker while the next batch is computed
_STALLED_SECONDS = 60.0
_PERSISTENT = 2
_NAMESPACE = uuid.UUID("6f6d1d0e-6f5c-5a53-9a55-0f3f0d2f6c11")


@dataclass(frozen=True)
class Destination:
    """Where messages go: a queue (through the default exchange), or a named exchange."""

    exchange: str
    routing_key: str

    @property
    def is_queue(self) -> bool:
        return not self.exchange


def parse_destination(text: str) -> Destination:
    """Parse ``queue``, ``exchange:name`` (rows have the routing key) or ``exchange:name/routing.key``."""
    if not text.startswith(EXCHANGE):
        return Destination("", text)
    exchange, _, routing_key = text.removeprefix(EXCHANGE).partition("/")
    if not exchange:
        raise TargetMissing(
            f"{text!r} names no exchange", next_step="write  exchange:name  or  exchange:name/routing.key"
        )
    return Destination(exchange, routing_key)


@dataclass(frozen=True)
class OutgoingMessage:
    routing_key: str
    body: bytes
    headers: dict[str, str | None] | None
    message_id: str


@dataclass(frozen=True)
class RabbitMQSender:
    """Has no connection: each task opens its own. At least once: a failed batch is sent again.

    The id of a message is made from the token and its number in the batch, so that a reader can drop
    duplicates; without a token ids are random. ``content_type`` is set on each message.
    """

    address: RabbitMQAddress
    place: str
    content_type: str | None = None

    def keep_open(self) -> RabbitMQSender:
        return self  # each batch opens its own connection

    def check(self, batch: pa.RecordBatch) -> None:
        for _ in _outgoing_messages([batch], parse_destination(self.place), None):
            pass

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken | None = None) -> int:
        place = parse_destination(self.place)
        sending = _BatchPublisher(self, place, _outgoing_messages(batches, place, token))
        return sending.run()


def _outgoing_messages(
    batches: Iterable[pa.RecordBatch], place: Destination, token: BatchToken | None
) -> Iterator[OutgoingMessage]:
    space = uuid.uuid4() if token is None else _id_namespace(token)
    number = 0
    for batch in batches:
        names = batch.schema.names
        keys = batch.column(names.index(KEY)).to_pylist() if KEY in names else [None] * batch.num_rows
        headers = (
            batch.column(names.index(HEADERS)).to_pylist() if HEADERS in names else [None] * batch.num_rows
        )
        for value, key, text in zip(batch.column(names.index(VALUE)).to_pylist(), keys, headers, strict=True):
            table = amqp_headers(text, number)
            routing_key = place.routing_key
            if key is not None and place.is_queue:
                table = {**(table or {}), KEY_HEADER: _key_text(key)}
            elif key is not None:
                routing_key = _key_text(key)
                if len(routing_key.encode()) > SHORT_BYTES:
                    raise row_rejected(
                        number, f"has a key of more than {SHORT_BYTES} bytes, the limit of a routing key"
                    )
            yield OutgoingMessage(routing_key, value or b"", table, str(uuid.uuid5(space, str(number))))
            number += 1


def _id_namespace(token: BatchToken) -> uuid.UUID:
    # lengths separate the parts unambiguously
    parts = (token.pipeline, token.target, token.batch_key)
    return uuid.uuid5(_NAMESPACE, "".join(f"{len(part)}:{part}" for part in parts))


def _key_text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


class _BatchPublisher:
    """Publishes one batch on one connection, in the driver's event loop."""

    def __init__(
        self, sender: RabbitMQSender, place: Destination, messages: Iterator[OutgoingMessage]
    ) -> None:
        self._sender, self._address, self._place = sender, sender.address, place
        self._messages = messages
        self._exhausted = False
        self._sent = 0
        self._underway: dict[int, int] = {}  # delivery tag -> bytes
        self._lowest = 1
        self._bytes = 0
        self._moved_at = time.monotonic()  # the last answer of the broker, or the last message sent
        self._refused = 0
        self._returned: list[str] = []
        self._returns = 0
        self._failure: BaseException | None = None
        self._channel: Any = None
        self._open = False
        self._connection: Any = None

    def run(self) -> int:
        """Send all messages, and return their number. Raises when one was not confirmed or has no queue."""
        self._connection = pika.SelectConnection(
            self._address.parameters(heartbeat=_HEARTBEAT),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_open_error,
            on_close_callback=self._on_close,
        )
        loop = self._connection.ioloop
        loop.call_later(_STALLED_SECONDS, self._check_stalled)
        try:
            loop.start()
        finally:
            loop.close()
        self._raise_failure()
        return self._sent

    def _raise_failure(self) -> None:
        address, place = self._address, self._sender.place
        if self._failure is not None:
            if isinstance(self._failure, FlowError) or not isinstance(self._failure, Exception):
                raise self._failure
            if not self._open:
                raise address.connection_error(self._failure) from self._failure
            if self._sent == 0:
                raise target_refusal(self._failure, address.name, place) from self._failure
            raise send_failure(self._failure, address.name, place, address.label) from self._failure
        rest = "the other messages of the batch were sent; they are sent again with the batch"
        if self._returns:
            raise TargetFailed(
                f"connection {address.name!r}: no queue accepts {self._returns} of {self._sent} messages "
                f"to {place!r}: {self._returned[0]}",
                state=rest,
                next_step="declare the queue, or bind one to the exchange",
            )
        if self._refused:
            raise TargetFailed(
                f"connection {address.name!r}: RabbitMQ refused {self._refused} of {self._sent} messages "
                f"to {place!r}; the queue may be full",
                state=rest,
                next_step="check the queue's length, its limits and the server's log",
            )

    # -------------------------------------------------------------- callbacks of the driver

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_open_error(self, connection: Any, error: BaseException) -> None:
        self._failure = self._failure or error
        connection.ioloop.stop()

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=self._on_ready)

    def _on_ready(self, _frame: Any) -> None:
        self._open = True
        self._moved_at = time.monotonic()
        self._publish_window()

    def _on_return(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        self._returns += 1
        if not self._returned:
            self._returned.append(f"{method.reply_text}, routing key {method.routing_key!r}")

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        first = self._lowest if method.multiple else method.delivery_tag
        count = 0
        for tag in range(first, method.delivery_tag + 1):
            size = self._underway.pop(tag, None)
            if size is not None:
                self._bytes -= size
                count += 1
        if method.multiple:
            self._lowest = method.delivery_tag + 1
        self._moved_at = time.monotonic()
        if method.NAME == "Basic.Nack":
            self._refused += count
        if len(self._underway) <= _WINDOW // 2:
            self._publish_window()

    def _on_channel_closed(self, _channel: Any, reason: BaseException) -> None:
        if not self._is_done():
            self._failure = self._failure or reason
        if not (self._connection.is_closing or self._connection.is_closed):
            self._connection.close()

    def _on_close(self, connection: Any, reason: BaseException) -> None:
        if not self._is_done():
            self._failure = self._failure or reason
        connection.ioloop.stop()

    # -------------------------------------------------------------- the work

    def _publish_window(self) -> None:
        """Publish until the window is full; close when all messages are confirmed."""
        try:
            while not self._exhausted and len(self._underway) < _WINDOW and self._bytes < _WINDOW_BYTES:
                message = next(self._messages, None)
                if message is None:
                    self._exhausted = True
                    break
                self._publish(message)
        except BaseException as error:  # from computing the rows; raised when the loop has ended
            self._failure = error
            self._connection.close()
            return
        finally:
            self._moved_at = time.monotonic()  # do not count the time to compute rows as the broker's
        if self._is_done() and not self._connection.is_closing:
            self._connection.close()

    def _publish(self, message: OutgoingMessage) -> None:
        properties = pika.BasicProperties(
            content_type=self._sender.content_type,
            delivery_mode=_PERSISTENT,
            headers=message.headers,
            message_id=message.message_id,
        )
        self._channel.basic_publish(
            self._place.exchange, message.routing_key, message.body, properties, mandatory=True
        )
        self._sent += 1
        self._underway[self._sent] = len(message.body)
        self._bytes += len(message.body)

    def _is_done(self) -> bool:
        return self._exhausted and not self._underway

    def _check_stalled(self) -> None:
        """Give up on a broker that does not open a channel, stops confirming, or does not answer our close.

        With no unconfirmed and no unsent message, it is our close that waits for an answer.
        """
        left = self._moved_at + _STALLED_SECONDS - time.monotonic()
        if left <= 0:
            what = "no confirm" if self._open else "no open channel"
            if not self._is_done():
                self._failure = self._failure or TimeoutError(f"{what} for {_STALLED_SECONDS:.0f} seconds")
            self._connection.ioloop.stop()
            return
        self._connection.ioloop.call_later(left, self._check_stalled)
