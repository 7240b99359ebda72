"""Dead letters in a Kafka topic: what others see there, and what happens when Kafka does not play along."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from ematix_flow.backends.state_stores.dead_letters import open_dead_letters, open_stream_dead_letters
from ematix_flow.errors import CannotConnect, ConfigError, FlowError, TargetFailed
from ematix_flow.spec.connections import KafkaConnection, PostgresConnection
from ematix_flow.spec.streams import DeadLetterSpec, StreamSourceSpec, StreamSpec
from ematix_flow.state.dead_letters.base import DeadLetter, DeadLetterStore, LetterSelection
from tests.services.kafka import KafkaServer
from tests.services.shared import private_server

kafka = private_server("kafka")  # tests here stop it

ALL = LetterSelection(all=True)


@pytest.fixture
def store(kafka: KafkaServer, kafka_topic: str) -> Iterator[DeadLetterStore]:
    with open_dead_letters(f"kafka://{kafka.bootstrap}", env={}, table=kafka_topic) as opened:
        yield opened


def a_letter(number: int = 0, **given: Any) -> DeadLetter:
    values: dict[str, Any] = {"payload": b"{", "source": "events", "partition": "3", "position": str(number)}
    return DeadLetter.create("orders", "decode", "not JSON", **{**values, **given})


def uncompressed(kafka: KafkaServer, topic: str) -> DeadLetterStore:
    """A store whose messages are as large as they are."""
    plain = KafkaConnection(
        name="events",
        bootstrap_servers=kafka.bootstrap,
        properties={"librdkafka.compression.type": "none"},
    )
    return open_stream_dead_letters(declared(plain, topic=topic), env={})


def test_others_find_the_message_as_it_was_with_its_reason_in_the_headers(
    store: DeadLetterStore, kafka: KafkaServer, kafka_topic: str
) -> None:
    letter = a_letter(7, payload=b"\x00raw", key=b"k", headers='{"trace": "abc"}')
    store.add([letter])
    (message,) = kafka.consume_all(kafka_topic)
    headers = dict(message.headers())
    assert (message.value(), message.key(), headers["trace"]) == (b"\x00raw", b"k", b"abc")
    shown = {
        name: headers[f"ematix-dlq-{name}"].decode()
        for name in (
            "id",
            "pipeline",
            "stage",
            "reason",
            "source",
            "partition",
            "position",
            "attempt",
            "format",
        )
    }
    assert shown == {
        "id": letter.id,
        "pipeline": "orders",
        "stage": "decode",
        "reason": "not JSON",
        "source": "events",
        "partition": "3",
        "position": "7",
        "attempt": "1",
        "format": "json",
    }
    assert headers["ematix-dlq-failed-at"].decode() == letter.failed_at.isoformat()


def test_messages_of_others_in_the_topic_are_left_alone(
    store: DeadLetterStore, kafka: KafkaServer, kafka_topic: str
) -> None:
    kafka.send(kafka_topic, [b"something", None])
    store.add([a_letter()])
    kafka.send(kafka_topic, [b"more"])
    assert [letter.position for letter in store.list()] == ["0"]


def test_the_group_stands_at_the_oldest_pending_letter(
    store: DeadLetterStore, kafka: KafkaServer, kafka_topic: str
) -> None:
    store.add([a_letter(number) for number in range(3)])
    lease = store.lease("orders", LetterSelection(first=2))
    store.mark_replayed(lease, [letter.id for letter in lease.letters])
    assert kafka.committed("ematix-flow.dlq.orders", kafka_topic)[0][0] == 2


def test_letters_that_retention_removed_are_not_there_for_the_next_opening(
    store: DeadLetterStore, kafka: KafkaServer, kafka_topic: str
) -> None:
    store.add([a_letter(number) for number in range(4)])
    kafka.delete_records(kafka_topic, 2)
    assert [letter.position for letter in store.lease("orders", ALL).letters] == ["2", "3"]
    with open_dead_letters(f"kafka://{kafka.bootstrap}", env={}, table=kafka_topic) as again:
        assert [letter.position for letter in again.list()] == ["2", "3"]


def test_a_payload_longer_than_the_topic_takes_is_cut_and_parked(store: DeadLetterStore) -> None:
    assert store.add([a_letter(payload=b"x" * 2_000_000)]) == 1
    (kept,) = store.list()
    assert (kept.whole, kept.status, kept.payload_size) == (False, "parked", 2_000_000)


@pytest.mark.parametrize(
    "large",
    [
        {"payload": b"p" * 30_000},
        {"headers": json.dumps({"h": "x" * 30_000})},
        {"headers": json.dumps({"h": ["x" * 6_000], "i": "y" * 6_000})},
        {"key": b"k" * 30_000, "headers": json.dumps({"h": "x" * 5_000})},
        {"payload": b"p" * 30_000, "headers": json.dumps({"h": "x" * 5_000}), "key": b"k" * 1_000},
        {"payload": b"p" * 30_000, "headers": json.dumps({"h": "x" * 30_000}), "key": b"k" * 30_000},
    ],
)
def test_a_letter_larger_than_the_topic_takes_is_put_aside_cut(
    kafka: KafkaServer, large: dict[str, Any]
) -> None:
    topic = kafka.create_topic("small-letters", config={"max.message.bytes": "12000"})
    with uncompressed(kafka, topic) as store:
        assert store.add([a_letter(number, **large) for number in range(3)]) == 3
        kept = store.list()
    assert [(letter.whole, letter.status) for letter in kept] == [(False, "parked")] * 3
    assert kept[0].payload_size == len(large.get("payload", b"{"))
    assert "it cannot be replayed" in kept[0].reason


def test_a_long_reason_is_cut_where_the_topic_takes_less(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("tiny-letters", config={"max.message.bytes": "4000"})
    letter = DeadLetter.create("orders", "decode", "long " * 1_600, payload=b"p" * 5_000, source="events")
    with uncompressed(kafka, topic) as store:
        assert store.add([letter]) == 1
        (kept,) = store.list()
    assert kept.reason.startswith("long long")
    assert not kept.whole


def test_many_letters_that_fit_alone_are_sent_together(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("many-letters", config={"max.message.bytes": "4000"})
    with uncompressed(kafka, topic) as store:
        assert store.add([a_letter(number, payload=os.urandom(1_000)) for number in range(50)]) == 50
        assert all(letter.whole for letter in store.list(limit=100))


def test_what_becomes_of_a_letter_stays_in_its_partition_when_others_are_added(
    store: DeadLetterStore, kafka: KafkaServer, kafka_topic: str
) -> None:
    store.add([a_letter(number) for number in range(8)])
    lease = store.lease("orders", ALL)
    kafka.add_partitions(kafka_topic, 5)
    assert len(store.list()) == 8  # it knows of the new ones now
    store.mark_replayed(lease, [letter.id for letter in lease.letters])
    assert {message.partition() for message in kafka.consume_all(kafka_topic)} == {0}
    with open_dead_letters(f"kafka://{kafka.bootstrap}", env={}, table=kafka_topic) as again:
        assert {letter.status for letter in again.list()} == {"replayed"}
    assert store.add([a_letter(number) for number in range(8, 16)]) == 8


def test_a_topic_that_is_not_there_is_told_with_the_command_that_makes_it(kafka: KafkaServer) -> None:
    with pytest.raises(TargetFailed, match="there is no topic 'nowhere'") as raised:
        open_dead_letters(f"kafka://{kafka.bootstrap}", env={}, table="nowhere")
    assert "kafka-topics" in str(raised.value.next_step)


def test_a_cluster_that_is_away_is_told(kafka: KafkaServer) -> None:
    with pytest.raises(CannotConnect):
        open_dead_letters("kafka://127.0.0.1:9", env={}, table="letters")


@pytest.mark.fault
def test_letters_outlive_the_broker_and_the_store_goes_on_after_it_is_back(
    store: DeadLetterStore, kafka: KafkaServer
) -> None:
    store.add([a_letter(1)])
    kafka.restart()
    assert store.add([a_letter(1), a_letter(2)]) == 1
    assert [letter.position for letter in store.lease("orders", ALL).letters] == ["1", "2"]


# ------------------------------------------------------------------ as a stream declares it


def declared(connection: Any, **letters: Any) -> StreamSpec:
    return StreamSpec(
        "orders", (StreamSourceSpec(connection, "events"),), (), dead_letters=DeadLetterSpec(**letters)
    )


def test_a_stream_of_kafka_keeps_its_letters_in_the_topic_it_names(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    source = KafkaConnection(name="events", bootstrap_servers=kafka.bootstrap)
    with open_stream_dead_letters(declared(source, topic=kafka_topic, max_attempts=7), env={}) as store:
        assert store.location == f"topic {kafka_topic!r} of connection 'events'"
        assert store.max_attempts == 7


def test_a_topic_without_a_kafka_or_without_a_name_is_refused() -> None:
    source = PostgresConnection(name="db", url="postgres://localhost/x")
    with pytest.raises(ConfigError, match="has no Kafka"):
        open_stream_dead_letters(declared(source, topic="letters"), env={})
    with pytest.raises(FlowError, match="names none"):
        open_stream_dead_letters(declared(source, store="topic"), env={})
