"""Writes a stream's dead letters: messages that it cannot load go to its store, and to its topic if any."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from ematix_flow import fault_points
from ematix_flow.backends.state_stores.dead_letters import open_dead_letter_topic, open_stream_dead_letters
from ematix_flow.engine.streams.batch_report import MessagePlace, RejectedMessage
from ematix_flow.engine.streams.message_names import ARRIVAL
from ematix_flow.engine.streams.spool_segments import parse_arrival
from ematix_flow.graph.connections import resolve
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.dead_letters.base import DeadLetter, DeadLetterPublisher, DeadLetterStore, LetterStage


class StreamDeadLetters:
    """The dead letters of one stream in a store. Adding a letter twice does nothing: its id identifies it.

    ``topic`` gets each letter before the store. A crash between the two sends it once more, with the same id.
    """

    def __init__(
        self,
        spec: StreamSpec,
        store: DeadLetterStore,
        payload_format: str,
        topic: DeadLetterPublisher | None = None,
    ) -> None:
        self.spec, self.store, self.payload_format, self.topic = spec, store, payload_format, topic

    def add(self, letters: Sequence[RejectedMessage], batch: str) -> None:
        found = [self._dead_letter(letter, batch) for letter in letters]
        if self.topic is not None:
            self.topic.publish(self.store.select_new(found))
            fault_points.point("stream.dead_letters_sent")
        self.store.add(found)

    def failing_in(self, batch: str, target: str) -> Mapping[MessagePlace, str]:
        return {
            (letter.source, letter.partition, letter.position): letter.reason
            for letter in self.store.of_batch(self.spec.name, "expectation", batch)
            if letter.target in (None, target)
        }

    def _dead_letter(self, letter: RejectedMessage, batch: str) -> DeadLetter:
        message = letter.message
        return DeadLetter.create(
            self.spec.name,
            cast(LetterStage, letter.stage),
            letter.reason,
            payload=_bytes(message.get("value")) or b"",
            payload_format=self.payload_format,
            source=message.get("topic") or self.spec.sources[0].query,
            partition=message.get("partition"),
            position=message.get("position"),
            batch=batch,
            target=letter.target,
            event_ts=_as_utc(message.get("timestamp")),
            key=_bytes(message.get("key")),
            headers=message.get("headers"),
        )


class BrokerDeadLetters:
    """Messages to reject at the broker: their segments and rows in the spool, until these are settled."""

    def __init__(self) -> None:
        self._rows: dict[int, set[int]] = {}
        self._lock = threading.Lock()

    def add(self, letters: Sequence[RejectedMessage], batch: str) -> None:
        with self._lock:
            for letter in letters:
                segment, row = parse_arrival(str(letter.message[ARRIVAL]))
                self._rows.setdefault(segment, set()).add(row)

    def failing_in(self, batch: str, target: str) -> Mapping[MessagePlace, str]:
        """None: no letter outlives the process."""
        return {}

    def refused_in(self, segments: Iterable[int]) -> list[tuple[int, int]]:
        """Return and forget the segment and row of each refused message in these settled segments."""
        with self._lock:
            return [(segment, row) for segment in segments for row in sorted(self._rows.pop(segment, ()))]


@contextmanager
def dead_letters_of_stream(spec: StreamSpec) -> Iterator[StreamDeadLetters | BrokerDeadLetters | None]:
    """Open the dead letters of a stream; None if it declares none."""
    if spec.on_error != "dlq":
        yield None
        return
    if spec.dead_letters.store == "broker":
        yield BrokerDeadLetters()
        return
    source = resolve(spec.sources[0].connection)
    with open_stream_dead_letters(spec, env=os.environ) as store:
        payload_format = getattr(source, "payload_format", "") or "json"
        yield StreamDeadLetters(spec, store, payload_format, open_dead_letter_topic(spec))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _as_utc(moment: Any) -> Any:
    """Add the time zone: Spark returns UTC times without it."""
    return moment.replace(tzinfo=dt.timezone.utc) if moment is not None and moment.tzinfo is None else moment
