"""A stream's way to its dead letters: what it cannot load becomes letters of the store that it declares."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from ematix_flow.backends.dead_letters import open_for_stream
from ematix_flow.engine.streams.batches import Unloadable
from ematix_flow.graph.connections import resolve
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.dead_letters import DeadLetter, DeadLetterStore, Stage


class StreamLetters:
    """A stream's share of a store. To add a letter again does nothing: its id says what and where it is."""

    def __init__(self, spec: StreamSpec, store: DeadLetterStore, payload_format: str) -> None:
        self.spec, self.store, self.payload_format = spec, store, payload_format

    def add(self, letters: Sequence[Unloadable], batch: str) -> None:
        self.store.add([self._letter(letter, batch) for letter in letters])

    def _letter(self, letter: Unloadable, batch: str) -> DeadLetter:
        message = letter.message
        return DeadLetter.of(
            self.spec.name,
            cast(Stage, letter.stage),
            letter.reason,
            payload=_bytes(message.get("value")) or b"",
            payload_format=self.payload_format,
            source=message.get("topic") or self.spec.sources[0].query,
            partition=message.get("partition"),
            position=message.get("position"),
            batch=batch,
            target=letter.target,
            event_ts=_aware(message.get("timestamp")),
            key=_bytes(message.get("key")),
            headers=message.get("headers"),
        )


@contextmanager
def open_letters(spec: StreamSpec) -> Iterator[StreamLetters | None]:
    """The letters of a stream that puts some aside; None for one that does not."""
    if spec.on_error != "dlq":
        yield None
        return
    source = resolve(spec.sources[0].connection)
    with open_for_stream(spec, env=os.environ) as store:
        yield StreamLetters(spec, store, getattr(source, "payload_format", "") or "json")


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _aware(moment: Any) -> Any:
    """Spark hands over moments without their zone, which is UTC."""
    return moment.replace(tzinfo=dt.timezone.utc) if moment is not None and moment.tzinfo is None else moment
