"""The messages of the stream benchmark, and their sender: all at once, or at a steady rate.

``python -m benchmarks.stream_messages`` sends at a rate from a separate process, so that neither the
contestant nor the watcher of the target waits for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PARTITIONS = 2
DDL = "id bigint, customer string, product string, amount double, created_at timestamp, sent_at bigint"
POSTGRES_TABLE = (
    "CREATE TABLE events (id bigint NOT NULL, customer text, product text, amount double precision,"
    " created_at timestamptz, sent_at bigint)"
)
TEXT_NOTE = "created_at arrived as text: it cannot write a time of JSON into a timestamptz"
TICK_SECONDS = 0.005
COMMIT_EVERY = 10_000  # messages, while RabbitMQ is filled

Send = Callable[[int, bytes], None]  # the number of a message, and its payload


def message(number: int, sent_at: int) -> bytes:
    """About 150 bytes of JSON, six fields; ``sent_at`` in milliseconds since 1970."""
    return (
        b'{"id": %d, "customer": "customer %07d", "product": "product %05d", "amount": %d.%02d,'
        b' "created_at": "2026-01-01T08:%02d:%02dZ", "sent_at": %d}'
    ) % (
        number,
        number * 7919 % 1_000_000,
        number % 20_000,
        *divmod(cents(number), 100),
        number // 60 % 60,
        number % 60,
        sent_at,
    )


def cents(number: int) -> int:
    """The amount of a message, which is summed up at the end."""
    return number * 37 % 100_000


def sums(count: int) -> tuple[int, int, int]:
    """What the first so many messages must add up to: their number, their ids, their amounts in cents."""
    return count, count * (count - 1) // 2, sum(map(cents, range(count)))


def send_all(kind: str, address: str, topic: str, first: int, count: int) -> None:
    with sender(kind, address, topic) as send:
        for number in range(first, first + count):
            send(number, message(number, time.time_ns() // 1_000_000))


def send_steadily(kind: str, address: str, topic: str, first: int, count: int, rate: float) -> None:
    """Every few milliseconds those that are due, each with the time at which it is sent."""
    with sender(kind, address, topic, hurried=True) as send:
        began, sent = time.monotonic(), 0
        while sent < count:
            due = min(count, int((time.monotonic() - began) * rate) + 1)
            for number in range(first + sent, first + due):
                send(number, message(number, time.time_ns() // 1_000_000))
            sent = due
            time.sleep(TICK_SECONDS)


@contextmanager
def sender(kind: str, address: str, topic: str, *, hurried: bool = False) -> Iterator[Send]:
    """Send to a topic or a queue; at the end the broker has everything. ``hurried`` sends each at once."""
    if kind == "kafka":
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": address, "linger.ms": 0 if hurried else 50})

        def produce(number: int, payload: bytes) -> None:
            while True:
                try:
                    producer.produce(topic, payload, partition=number % PARTITIONS)
                    producer.poll(0)
                    return
                except BufferError:
                    producer.poll(0.1)

        yield produce
        if producer.flush(120):
            raise RuntimeError(f"topic {topic} did not take all messages")
        return
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(address))
    channel = connection.channel()
    persistent = pika.BasicProperties(delivery_mode=2)
    if not hurried:
        channel.tx_select()

    def publish(number: int, payload: bytes) -> None:
        channel.basic_publish("", topic, payload, persistent)
        if not hurried and number % COMMIT_EVERY == 0:
            channel.tx_commit()

    yield publish
    if not hurried:
        channel.tx_commit()
    connection.close()


if __name__ == "__main__":
    kind, address, topic, first, count, rate = sys.argv[1:]
    send_steadily(kind, address, topic, int(first), int(count), float(rate))
