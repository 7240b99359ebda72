"""What tests of streams share: declare one, load what is there, and read what arrived."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg

from ematix_flow.api.streaming import StreamingPipeline, stream_spec
from ematix_flow.graph.registry import current_registry
from ematix_flow.spec.connections import KafkaConnection, PostgresConnection
from ematix_flow.streams.running_stream import RunningStream, StreamResult
from tests.services.kafka import KafkaServer


def stream(name: str = "events", **options: Any) -> StreamingPipeline:
    """A stream as declared by call; nothing runs yet."""
    return StreamingPipeline(stream_spec(None, name=name, **options), current_registry())


def load(pipeline: StreamingPipeline, **options: Any) -> StreamResult:
    """Load what is there now."""
    return pipeline.run(once=True, **options)


def kafka_connection(kafka: KafkaServer, name: str = "kafka", **fields: Any) -> KafkaConnection:
    return KafkaConnection(name=name, bootstrap_servers=kafka.bootstrap, **fields)


def warehouse(url: str, name: str = "warehouse") -> PostgresConnection:
    return PostgresConnection(name=name, url=url)


def events_into(url: str, kafka: KafkaServer, topic: str, **options: Any) -> StreamingPipeline:
    """A topic into the table ``public.events`` of a PostgreSQL database."""
    return stream(
        source=kafka_connection(kafka),
        source_query=topic,
        target=warehouse(url),
        target_table=("public", "events"),
        **options,
    )


def produce(
    kafka: KafkaServer,
    topic: str,
    values: Iterable[Any],
    *,
    keys: Sequence[str] | None = None,
    partition: int | None = None,
    **options: Any,
) -> None:
    """Send values, as JSON unless they are bytes already."""
    producer = kafka.producer()
    for number, value in enumerate(values):
        body = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        where = {} if partition is None else {"partition": partition}
        key = keys[number].encode() if keys is not None else None
        producer.produce(topic, value=body, key=key, **where, **options)
        producer.poll(0)
    assert producer.flush(30) == 0


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def ledger(url: str) -> list[tuple[Any, ...]]:
    return query(url, "SELECT batch_key, rows_in FROM ematix_flow.ledger ORDER BY committed_at")


def until(holds: Callable[[], bool], running: RunningStream, seconds: float = 120) -> None:
    """Wait for an effect of a running stream."""
    deadline = time.monotonic() + seconds
    while not holds():
        if not running.is_running:
            running.wait(1)
            raise AssertionError("the stream ended by itself")
        assert time.monotonic() < deadline, "what was waited for did not come"
        threading.Event().wait(0.1)
