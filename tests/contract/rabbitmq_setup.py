"""RabbitMQ as its tests reach it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ematix_flow.backends.messages.base import Message, ReadRequest, outgoing_schema
from ematix_flow.backends.rabbitmq.backend import RabbitMQStreamBackend
from ematix_flow.backends.rabbitmq.receiver import RabbitMQReceiver
from ematix_flow.backends.spool.spool import Spool
from ematix_flow.spec.connections.brokers import RabbitMQConnection
from tests.services.rabbitmq import RabbitMQServer


def backend(server: RabbitMQServer, **fields: Any) -> RabbitMQStreamBackend:
    fields = {"amqp_url": server.url(), **fields}
    return RabbitMQStreamBackend(RabbitMQConnection(name="broker", **fields))


@contextmanager
def receiving(server: RabbitMQServer, queue: str, **options: str) -> Iterator[RabbitMQReceiver]:
    receiver = backend(server).stream_source().receiver(ReadRequest(queue, options=options), {})
    try:
        yield receiver
    finally:
        receiver.close()


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def polled(receiver: RabbitMQReceiver, count: int) -> list[Message]:
    found: list[Message] = []

    def enough() -> bool:
        found.extend(receiver.poll(count - len(found), 0.2))
        return len(found) >= count

    until(enough)
    return found


def outgoing(rows: Sequence[dict[str, Any]]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(list(rows), schema=outgoing_schema())]


class Target:
    """Commits each segment once, by its name, as a ledger does."""

    def __init__(self) -> None:
        self.committed: dict[str, list[bytes]] = {}

    def load(self, spool: Spool) -> None:
        names = spool.pending_segments()
        for name in names:
            rows = pq.read_table(spool.segments / name).column("value").to_pylist()
            assert self.committed.setdefault(name, rows) == rows
        spool.settle(names)

    @property
    def values(self) -> list[bytes]:
        return sorted(value for rows in self.committed.values() for value in rows)
