"""Where a stream's dead letters lie, and a stream's way to put some there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from ematix_flow.engine.streams.batches import Unloadable
from ematix_flow.errors import Unsupported
from ematix_flow.graph.connections import resolve, resolve_for_use
from ematix_flow.spec.connections import KafkaConnection
from ematix_flow.spec.pipelines import connection_label
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.dead_letters import DeadLetter, DeadLetterStore, Stage
from ematix_flow.state.root import state_root


class StreamLetters:
    """A stream's share of a store. To add a letter again does nothing: its id says what and where it is."""

    def __init__(self, spec: StreamSpec, store: DeadLetterStore, payload_format: str) -> None:
        self.spec, self.store, self.payload_format = spec, store, payload_format

    def add(self, letters: Sequence[Unloadable]) -> None:
        self.store.add([self._letter(letter) for letter in letters])

    def _letter(self, letter: Unloadable) -> DeadLetter:
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
    with open_store(spec) as store:
        yield StreamLetters(spec, store, getattr(source, "payload_format", "") or "json")


def open_store(spec: StreamSpec) -> DeadLetterStore:
    """The topic, the table or the file on this machine that holds a stream's dead letters."""
    declared = spec.dead_letters
    if declared.topic is not None and declared.store != "table":
        return _topic(spec)
    if declared.connection is not None:
        from ematix_flow.state.dead_letters_sql import open_dead_letters

        connection = resolve_for_use(declared.connection)
        return open_dead_letters(
            connection, table=declared.table, max_attempts=declared.max_attempts
        )
    from ematix_flow.state.dead_letters_sql import open_dead_letter_file

    return open_dead_letter_file(
        state_root(os.environ) / "dead_letters.db", table=declared.table, max_attempts=declared.max_attempts
    )


def _topic(spec: StreamSpec) -> DeadLetterStore:
    from ematix_flow.backends.kafka.dead_letters import KafkaDeadLetters

    declared = spec.dead_letters
    references = [declared.connection] if declared.connection is not None else [s.connection for s in spec.sources]
    for reference in references:
        connection = resolve_for_use(reference)
        if isinstance(connection, KafkaConnection):
            assert declared.topic is not None
            return KafkaDeadLetters(connection, declared.topic, max_attempts=declared.max_attempts)
    raise Unsupported(
        f"dead_letter_topic= of {spec.name!r} is a Kafka topic, and {connection_label(references[0])!r} is no Kafka",
        where=spec.where,
        next_step="pass dead_letter_connection= with a Kafka connection, or dead_letter_table=",
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _aware(moment: Any) -> Any:
    """Spark hands over moments without their zone, which is UTC."""
    import datetime as dt

    return moment.replace(tzinfo=dt.timezone.utc) if moment is not None and moment.tzinfo is None else moment
