"""Sends messages to a topic: large requests, several in parallel, in order for messages with a key.

Delivery is at least once. A window of messages is built, sent and confirmed before the next one starts, so
that memory is bounded and the messages of a key stay in order across windows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.pubsub_v1 import PublisherClient, PublishRequest, PubsubMessage

from ematix_flow.backends.messages.base import HEADERS, KEY, VALUE, BatchToken
from ematix_flow.backends.pubsub.clients import publisher_client, short_retry
from ematix_flow.backends.pubsub.failures import translate_errors
from ematix_flow.backends.pubsub.names import short_name
from ematix_flow.errors import RowRejected, TargetFailed
from ematix_flow.spec.connections import PubSubConnection

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST_MESSAGES = 1000
REQUEST_BYTES = 4_000_000  # for several messages; the service takes 10,000,000, emulators 4 MiB
MESSAGE_BYTES = 10_000_000
KEY_BYTES = 1024
ATTRIBUTES, ATTRIBUTE_NAME_BYTES, ATTRIBUTE_BYTES = 100, 256, 1024
WINDOW_MESSAGES, WINDOW_BYTES = 20_000, 32_000_000
AT_ONCE = 8
REQUEST_SECONDS = 30.0
_RawMessage = PubsubMessage.pb()
_RawRequest = PublishRequest.pb()


@dataclass(frozen=True)
class PubSubSender:
    """Picklable. ``patience`` is how many seconds a request is retried while the service is unreachable."""

    connection: PubSubConnection
    topic: str  # the whole path
    ordered: bool = True
    patience: float = 60.0

    def keep_open(self) -> PubSubSender:
        return self  # each batch opens its own connection

    def check(self, batch: pa.RecordBatch) -> None:
        for _ in self._windows([batch]):
            pass

    def send(self, batches: Iterable[pa.RecordBatch], token: BatchToken | None = None) -> int:
        sent = 0
        with publisher_client(self.connection) as client, ThreadPoolExecutor(AT_ONCE) as pool:
            for window in self._windows(batches):
                chains = [pool.submit(self._publish, client, chain) for chain in window.chains()]
                try:
                    sent += sum(chain.result() for chain in chains)
                finally:
                    for chain in chains:  # after a failure start nothing more
                        chain.cancel()
        return sent

    def _windows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_SendWindow]:
        window, row = _SendWindow(), 0
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in (VALUE, KEY, HEADERS)]
            for value, key, headers in zip(*columns, strict=True):
                window.add(self._new_message(row, value, key, headers), row)
                row += 1
                if window.messages >= WINDOW_MESSAGES or window.size >= WINDOW_BYTES:
                    yield window
                    window = _SendWindow()
        if window.messages:
            yield window

    def _new_message(self, row: int, value: bytes | None, key: bytes | None, headers: str | None) -> Any:
        attributes = _parse_attributes(row, headers)
        text = _key_text(row, key)
        if text and not self.ordered:
            attributes.setdefault("key", text)
            text = ""
        _check_attributes(row, attributes)
        if not value and not attributes and not text:
            raise RowRejected(
                f"message {row} has no payload, no key and no headers, which Pub/Sub does not accept",
                next_step="send a payload, or filter such rows out",
            )
        return _RawMessage(data=value or b"", attributes=attributes, ordering_key=text)

    def _publish(self, client: PublisherClient, chain: list[list[Any]]) -> int:
        """Send the requests of one chain in order."""
        sent = 0
        for messages in chain:
            request = PublishRequest.wrap(_RawRequest(topic=self.topic, messages=messages))
            doing = f"publish {len(messages)} messages to topic {short_name(self.topic)!r}"
            state = "messages that were sent before stay; a new attempt sends all again"
            with translate_errors(self.connection, doing, TargetFailed, away=TargetFailed, state=state):
                client.publish(request=request, retry=short_retry(self.patience), timeout=REQUEST_SECONDS)
            sent += len(messages)
        return sent


class _SendWindow:
    """The requests of a window: those of one ordering key form a chain, every other is independent."""

    def __init__(self) -> None:
        self.messages = self.size = 0
        self._keyed: dict[str, list[list[Any]]] = {}
        self._sizes: dict[str, int] = {}
        self._single: list[list[Any]] = []

    def add(self, message: Any, row: int) -> None:
        size = message.ByteSize() + 8  # with the overhead in a list of messages
        if size > MESSAGE_BYTES:
            raise RowRejected(
                f"message {row} has {size:,} bytes; Pub/Sub allows {MESSAGE_BYTES:,}",
                next_step="send smaller messages, or store the content elsewhere and send its address",
            )
        key = message.ordering_key
        requests = self._keyed.setdefault(key, []) if key else self._single
        full = not requests or len(requests[-1]) >= REQUEST_MESSAGES
        if full or self._sizes[key] + size > REQUEST_BYTES:
            requests.append([])
            self._sizes[key] = 0
        requests[-1].append(message)
        self._sizes[key] += size
        self.messages += 1
        self.size += size

    def chains(self) -> list[list[list[Any]]]:
        return [*self._keyed.values(), *([request] for request in self._single)]


def _parse_attributes(row: int, headers: str | None) -> dict[str, str]:
    """The headers as attributes, which are texts; other values are written as JSON."""
    try:
        found = json.loads(headers) if headers else {}
    except (ValueError, RecursionError) as error:
        raise _row_rejected(row, f"has headers that are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _row_rejected(row, "has headers that are not a JSON object")
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
        if value is not None
    }


def _check_attributes(row: int, attributes: Mapping[str, str]) -> None:
    """Check the limits of attributes: the service refuses a whole request for one bad attribute."""
    if len(attributes) > ATTRIBUTES:
        raise _row_rejected(row, f"has {len(attributes)} headers; Pub/Sub allows {ATTRIBUTES}")
    for name, value in attributes.items():
        try:
            sizes = len(name.encode()), len(value.encode())
        except UnicodeEncodeError as error:
            raise _row_rejected(row, f"has a header {name[:40]!a} that is not valid text") from error
        if not name or name.lower().startswith("goog"):
            raise _row_rejected(row, f"has a header {name[:40]!r}, a name that Pub/Sub does not accept")
        if sizes[0] > ATTRIBUTE_NAME_BYTES:
            raise _row_rejected(row, f"has a header whose name is too long: {name[:40]!r}…")
        if sizes[1] > ATTRIBUTE_BYTES:
            raise _row_rejected(
                row, f"has {sizes[1]:,} bytes in header {name!r}; Pub/Sub allows {ATTRIBUTE_BYTES:,}"
            )


def _row_rejected(row: int, why: str) -> RowRejected:
    return RowRejected(
        f"message {row} {why}", next_step="fix the row, or filter such rows out before they are sent"
    )


def _key_text(row: int, key: bytes | None) -> str:
    if not key:
        return ""
    try:
        text = key.decode()
    except UnicodeDecodeError as error:
        raise RowRejected(
            f"the key of message {row} is not UTF-8 text, as an ordering key must be",
            next_step="take a text column as the key",
        ) from error
    if len(key) > KEY_BYTES:
        raise RowRejected(f"the key of message {row} has {len(key):,} bytes; Pub/Sub allows {KEY_BYTES:,}")
    return text
