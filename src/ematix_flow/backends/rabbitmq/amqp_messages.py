"""Converts AMQP deliveries to messages, and message headers to AMQP headers."""

from __future__ import annotations

import datetime as dt
from typing import Any

import orjson

from ematix_flow.backends.messages.base import Message
from ematix_flow.errors import RowRejected

# counters of the broker that change with every delivery
_COUNTED = frozenset({"x-delivery-count", "x-acquired-count"})
SHORT_BYTES = 255  # AMQP's limit for names and routing keys
_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
    "user_id",
    "expiration",
    "priority",
)


def message_from_delivery(queue: str, generation: int, method: Any, properties: Any, body: bytes) -> Message:
    """``key`` is the routing key; ``topic`` is the exchange, or the queue for the default exchange."""
    return Message(
        body,
        _bytes(method.routing_key),
        _text(method.exchange) or queue,
        None,
        _text(properties.message_id) if properties.message_id is not None else None,
        _timestamp(properties.timestamp),
        _headers_json(properties),
        (generation, method.delivery_tag),
        bool(method.redelivered),
    )


def amqp_headers(text: str | None, row: int) -> dict[str, str | None] | None:
    """A JSON object as an AMQP table of texts; RowRejected for a row with other headers."""
    if text is None:
        return None
    try:
        found = orjson.loads(text)
    except ValueError as error:
        raise row_rejected(row, f"has headers that are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise row_rejected(row, "has headers that are not a JSON object")
    for name in found:
        if len(name.encode()) > SHORT_BYTES:
            raise row_rejected(
                row, f"has a header whose name is longer than {SHORT_BYTES} bytes: {name[:40]!r}…"
            )
    return {name: _header_text(value) for name, value in found.items()} or None


def row_rejected(row: int, why: str) -> RowRejected:
    return RowRejected(
        f"message {row} {why}", next_step="fix the row, or filter such rows out before they are sent"
    )


def _headers_json(properties: Any) -> str | None:
    found: dict[str, str | None] = {}
    for name, value in (properties.headers or {}).items():
        if name not in _COUNTED:
            found[_text(name)] = _header_text(value)
    for name in _PROPERTIES:
        value = getattr(properties, name)
        if value is not None:
            found[f"amqp_{name}"] = _header_text(value)
    return orjson.dumps(found).decode() if found else None


def _timestamp(seconds: int | None) -> dt.datetime | None:
    if seconds is None:
        return None
    try:
        return dt.datetime.fromtimestamp(int(seconds), dt.timezone.utc)
    except (OverflowError, ValueError, OSError):  # AMQP uses seconds; some senders write something else
        return None


def _header_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, bytes)):
        return _text(value)
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, (list, dict)):
        return orjson.dumps(value, default=_text, option=orjson.OPT_NON_STR_KEYS).decode()
    return str(value)


def _text(value: Any) -> str:
    """The text; the driver returns texts that are not UTF-8 as bytes."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
