"""Sends the messages of the benchmark of stateful streams: a backlog at once, or at a steady rate.

``python -m benchmarks.stateful_sending`` sends at a rate from a separate process, so that neither the
contestant nor the watcher of the target waits for it. Each message is sent at its event time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from benchmarks.stateful_messages import TRAFFIC, Message, Traffic
from benchmarks.stream_messages import TICK_SECONDS


def send(
    bootstrap: str, topics: Sequence[str], messages: Iterable[Message], *, hurried: bool = False
) -> None:
    """Send these messages; at the end the broker has all of them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0 if hurried else 50})
    for message in messages:
        while True:
            try:
                producer.produce(topics[message.topic], message.payload, partition=message.partition)
                producer.poll(0)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError(f"the topics {', '.join(topics)} did not take all messages")


def send_steadily(bootstrap: str, topics: Sequence[str], traffic: Traffic) -> None:
    send(bootstrap, topics, _paced(traffic), hurried=True)


def _paced(traffic: Traffic) -> Iterable[Message]:
    """The steady messages, each not before its time."""
    for number, message in _numbered(traffic):
        due = traffic.event_time(number) / 1_000
        while time.time() < due:
            time.sleep(TICK_SECONDS)
        yield message


def _numbered(traffic: Traffic) -> Iterable[tuple[int, Message]]:
    number = traffic.rows - 1
    for message in traffic.messages(traffic.rows, traffic.rows + traffic.steady):
        if message.payload is not None:  # a tombstone comes at the time of its delete
            number += 1
        yield number, message


if __name__ == "__main__":
    kind, bootstrap, topics, rows, began, rate, steady = sys.argv[1:]
    send_steadily(bootstrap, topics.split(","), TRAFFIC[kind](int(rows), int(began), int(rate), int(steady)))
