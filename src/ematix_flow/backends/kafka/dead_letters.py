"""Publishes dead letters to a Kafka topic, for other consumers.

A letter is a message with the original payload, key and headers, and headers ``ematix-dlq-*`` in addition.
The status of a letter is in the stream's store, never in the topic.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.backends.kafka.cluster import KafkaCluster
from ematix_flow.backends.kafka.producer import TopicProducer
from ematix_flow.backends.kafka.sender import message_batch_size
from ematix_flow.backends.kafka.target import KafkaTarget
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.connections.brokers import KafkaConnection
from ematix_flow.state.dead_letters.base import DeadLetter, DeadLetterPublisher, storable_text

PREFIX = "ematix-dlq-"

_DEFAULT_MAX_BYTES = 1_000_000  # if this user may not read the topic's settings
_LEAST_MAX_BYTES = 1_000  # about the size of the headers alone

Headers = list[tuple[str, bytes | None]]

_HEADER_FIELDS = {
    "id": "id",
    "pipeline": "pipeline",
    "stage": "stage",
    "reason": "reason",
    "source": "source",
    "partition": "partition",
    "position": "position",
    "target": "target",
    "batch": "batch",
    "format": "payload_format",
}


class DeadLetterTopic(DeadLetterPublisher):
    """An existing topic. Raises TargetMissing if it does not exist. Targets of a stream may share it."""

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        target = KafkaTarget(KafkaCluster(connection))
        target.check_destination(topic)
        self._sender = target.sender(topic, {})
        self._max_bytes = self._sender.max_message_bytes or _DEFAULT_MAX_BYTES
        self._producer: TopicProducer | None = None
        self._lock = threading.Lock()

    def publish(self, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        with self._lock:
            while True:
                producer, self._producer = self._producer, None  # a producer that fails is not used again
                producer = producer or self._sender.open_producer()
                try:
                    for letter in letters:
                        producer.produce(letter_message(fit_letter(letter, self._max_bytes)))
                    producer.confirm()
                except TargetFailed:
                    if not producer.message_was_too_large or self._max_bytes <= _LEAST_MAX_BYTES:
                        raise
                    self._halve_limit()
                else:
                    self._producer = producer
                    return

    def _halve_limit(self) -> None:
        """Lower the limit for letters and for batches of them: the topic takes less than we assumed."""
        self._max_bytes //= 2
        self._sender = replace(self._sender, max_message_bytes=self._max_bytes)


def fit_letter(letter: DeadLetter, max_bytes: int) -> DeadLetter:
    """The letter, cut where needed to fit into a message of ``max_bytes`` before compression.

    The payload is cut first. If that is not enough, key and headers are dropped, and last the reason is cut.
    """
    if _excess_bytes(letter, max_bytes) <= 0:
        return letter
    letter = replace(letter, whole=False)
    if _excess_bytes(letter, max_bytes) > len(letter.payload):
        letter = replace(letter, key=None, headers=None)
    excess = _excess_bytes(letter, max_bytes) - len(letter.payload)
    if excess > 0:
        reason = letter.reason.encode("utf-8")
        kept = reason[: max(0, len(reason) - excess)].decode("utf-8", "ignore")
        letter = replace(letter, reason=kept)
    kept_bytes = len(letter.payload) - max(0, _excess_bytes(letter, max_bytes))
    return replace(letter, payload=letter.payload[: max(0, kept_bytes)])


def _excess_bytes(letter: DeadLetter, max_bytes: int) -> int:
    return message_batch_size(letter_message(letter)) - max_bytes


def letter_message(letter: DeadLetter) -> dict[str, Any]:
    """The keyword arguments of ``produce`` for a letter."""
    message: dict[str, Any] = {"value": letter.payload, "headers": letter_headers(letter)}
    if letter.key is not None:
        message["key"] = letter.key
    return message


def letter_headers(letter: DeadLetter) -> Headers:
    """The original headers, then ours."""
    texts: dict[str, str | None] = {name: getattr(letter, field) for name, field in _HEADER_FIELDS.items()}
    texts |= {
        "attempt": str(letter.attempt),
        "failed-at": letter.failed_at.isoformat(),
        "event-ts": None if letter.event_ts is None else letter.event_ts.isoformat(),
        "payload-size": str(letter.payload_size),
        "whole": "true" if letter.whole else "false",
    }
    original = _original_headers(letter.headers)
    sent = [(name, value) for name, value in original or () if name and not name.startswith(PREFIX)]
    if original is None or len(sent) < len(original):
        texts["headers"] = letter.headers  # some cannot be sent under their own name
    ours = [(PREFIX + name, text.encode("utf-8")) for name, text in texts.items() if text is not None]
    return [*sent, *ours]


def _original_headers(text: str | None) -> Headers | None:
    """Headers from a JSON object: texts unchanged, all else as JSON. None if it is not an object."""
    try:
        read = json.loads(text or "{}")
    except ValueError:
        return None
    if not isinstance(read, dict):
        return None
    return [(storable_text(name), _header_value(value)) for name, value in read.items()]


def _header_value(value: Any) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "backslashreplace")
