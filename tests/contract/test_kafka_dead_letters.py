"""Dead letters that also go to a Kafka topic: what others see there, and what failures leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from ematix_flow import fault_points
from ematix_flow.backends.kafka.dead_letters import DeadLetterTopic
from ematix_flow.backends.state_stores.dead_letters import open_dead_letter_topic, open_stream_dead_letters
from ematix_flow.backends.state_stores.dead_letters import open_dead_letters as open_table
from ematix_flow.engine.streams.batch_report import RejectedMessage
from ematix_flow.errors import CannotConnect, ConfigError, FlowError, TargetFailed
from ematix_flow.spec.connections import KafkaConnection, PostgresConnection, RabbitMQConnection
from ematix_flow.spec.streams import DeadLetterSpec, StreamSourceSpec, StreamSpec
from ematix_flow.state.dead_letters.base import DeadLetter, LetterSelection
from ematix_flow.streams.dead_letters import StreamDeadLetters, dead_letters_of_stream
from tests.contract.kafka_setup import secured
from tests.services.kafka import PASSWORD, KafkaServer
from tests.services.shared import private_server

kafka = private_server("kafka")  # tests here stop it

ALL = LetterSelection(all=True)
Opened = Callable[[], AbstractContextManager[StreamDeadLetters]]


def connected(kafka: KafkaServer, **properties: str) -> KafkaConnection:
    settings = {f"librdkafka.{name.replace('_', '.')}": value for name, value in properties.items()}
    return KafkaConnection(name="events", bootstrap_servers=kafka.bootstrap, properties=settings)


def declared(source: Any, **letters: Any) -> StreamSpec:
    return StreamSpec(
        "orders",
        (StreamSourceSpec(source, "events"),),
        (),
        on_error="dlq",
        dead_letters=DeadLetterSpec(**letters),
    )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_connection(request: pytest.FixtureRequest) -> PostgresConnection | None:
    """Where the letters are: in the state folder or in a database."""
    if request.param == "sqlite":
        return None
    return PostgresConnection(name="state", url=request.getfixturevalue("pg_database"))


@pytest.fixture
def open_letters(kafka: KafkaServer, kafka_topic: str, store_connection: PostgresConnection | None) -> Opened:
    """Opens the letters of a stream as it does when it starts."""
    return lambda: opened(declared(connected(kafka), topic=kafka_topic, connection=store_connection))


@contextmanager
def opened(spec: StreamSpec) -> Iterator[StreamDeadLetters]:
    with dead_letters_of_stream(spec) as letters:
        assert isinstance(letters, StreamDeadLetters)
        yield letters


def rejected(number: int = 0, **given: Any) -> RejectedMessage:
    message = {"value": b"{", "topic": "events", "partition": "3", "position": str(number), **given}
    return RejectedMessage("decode", "not JSON", message)


def sent(kafka: KafkaServer, topic: str) -> list[tuple[str, bytes]]:
    """Position and payload of every letter in the topic."""
    return [(dict(m.headers())["ematix-dlq-position"].decode(), m.value()) for m in kafka.consume_all(topic)]


# ------------------------------------------------------------------ what others see


def test_others_find_the_message_as_it_was_with_its_reason_in_the_headers(
    open_letters: Opened, kafka: KafkaServer, kafka_topic: str
) -> None:
    with open_letters() as letters:
        letters.add([rejected(7, value=b"\x00raw", key=b"k", headers='{"trace": "abc"}')], "q1:1")
        (kept,) = letters.store.list()
    (message,) = kafka.consume_all(kafka_topic)
    headers = {name: value.decode() for name, value in message.headers()}
    assert (message.value(), message.key(), headers["trace"]) == (b"\x00raw", b"k", "abc")
    assert headers["ematix-dlq-failed-at"] == kept.failed_at.isoformat()
    shown = ("id", "pipeline", "stage", "reason", "source", "partition", "position", "batch", "format")
    assert [headers[f"ematix-dlq-{name}"] for name in shown] == [
        kept.id,
        "orders",
        "decode",
        "not JSON",
        "events",
        "3",
        "7",
        "q1:1",
        "json",
    ]


def test_a_batch_that_runs_again_sends_only_letters_that_are_new(
    open_letters: Opened, kafka: KafkaServer, kafka_topic: str
) -> None:
    with open_letters() as letters:
        letters.add([rejected(1), rejected(2)], "q1:1")
        letters.add([rejected(2), rejected(3)], "q1:1")
    with open_letters() as letters:
        letters.add([rejected(1), rejected(3), rejected(4)], "q1:2")
        assert [letter.position for letter in letters.store.list()] == ["1", "2", "3", "4"]
    assert sorted(sent(kafka, kafka_topic)) == [(number, b"{") for number in "1234"]


def test_a_letter_that_fails_again_after_its_replay_is_sent_again(
    open_letters: Opened, kafka: KafkaServer, kafka_topic: str
) -> None:
    with open_letters() as letters:
        letters.add([rejected(1)], "q1:1")
        lease = letters.store.lease("orders", ALL)
        letters.store.mark_replayed(lease, [lease.letters[0].id])
        letters.add([rejected(1)], "q1:1")
        assert len(sent(kafka, kafka_topic)) == 1
        letters.add([rejected(1)], "q2:1")
        assert [letter.status for letter in letters.store.list()] == ["pending"]
    assert len(sent(kafka, kafka_topic)) == 2


def test_replaying_parking_and_purging_write_nothing_to_the_topic(
    open_letters: Opened, kafka: KafkaServer, kafka_topic: str
) -> None:
    with open_letters() as letters:
        letters.add([rejected(number) for number in range(4)], "q1:1")
        store = letters.store
        lease = store.lease("orders", LetterSelection(first=2))
        store.mark_replayed(lease, [lease.letters[0].id])
        store.mark_failed(lease, lease.letters[1].id, "again")
        assert store.park("orders", LetterSelection(first=1)) == 1
        assert store.purge("orders", ALL) == 4
    assert len(sent(kafka, kafka_topic)) == 4


def test_messages_that_the_topic_loses_stay_in_the_store(
    open_letters: Opened, kafka: KafkaServer, kafka_topic: str
) -> None:
    with open_letters() as letters:
        letters.add([rejected(number) for number in range(4)], "q1:1")
        kafka.delete_records(kafka_topic, 4)
        assert [letter.payload for letter in letters.store.lease("orders", ALL).letters] == [b"{"] * 4


# ------------------------------------------------------------------ letters larger than the topic takes


def forbid_reading_settings(kafka: KafkaServer, topic: str, user: str) -> None:
    def rule(principal: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
        literal = ResourcePatternType.LITERAL
        return AclBinding(ResourceType.TOPIC, topic, literal, principal, "*", operation, permission)

    everyone = rule("User:*", AclOperation.ALL, AclPermissionType.ALLOW)
    denied = rule(f"User:{user}", AclOperation.DESCRIBE_CONFIGS, AclPermissionType.DENY)
    for done in kafka.admin().create_acls([everyone, denied]).values():
        done.result(10)


def test_a_letter_larger_than_the_topic_takes_is_cut_there_and_whole_in_the_store(
    open_letters: Opened, kafka: KafkaServer, kafka_topic: str
) -> None:
    payload = os.urandom(2_000_000)
    with open_letters() as letters:
        letters.add([rejected(value=payload)], "q1:1")
        (kept,) = letters.store.lease("orders", ALL).letters
    assert (kept.payload, kept.whole, kept.status) == (payload, True, "pending")
    (message,) = kafka.consume_all(kafka_topic)
    headers = dict(message.headers())
    assert (headers["ematix-dlq-whole"], headers["ematix-dlq-payload-size"]) == (b"false", b"2000000")
    assert payload.startswith(message.value())
    assert len(message.value()) > 1_000_000


@pytest.mark.parametrize(
    "large",
    [
        {"payload": b"p" * 30_000},
        {"headers": json.dumps({"h": "x" * 30_000})},
        {"headers": json.dumps({"h": ["x" * 6_000], "i": "y" * 6_000})},
        {"key": b"k" * 30_000, "headers": json.dumps({"h": "x" * 5_000})},
        {"payload": b"p" * 30_000, "headers": json.dumps({"h": "x" * 30_000}), "key": b"k" * 30_000},
        {"payload": b"p" * 5_000, "reason": "long " * 1_600, "headers": json.dumps({"h": "x" * 6_000})},
    ],
)
def test_a_topic_that_takes_little_gets_every_letter(kafka: KafkaServer, large: dict[str, Any]) -> None:
    topic = kafka.create_topic("small-letters", config={"max.message.bytes": "6000"})
    letters = [
        DeadLetter.create("orders", "decode", **{"reason": "x", "payload": b"{", **large}, position=str(n))
        for n in range(3)
    ]
    DeadLetterTopic(connected(kafka, compression_type="none"), topic).publish(letters)
    headers = [dict(message.headers()) for message in kafka.consume_all(topic)]
    assert {each["ematix-dlq-id"].decode() for each in headers} == {letter.id for letter in letters}
    assert {each["ematix-dlq-whole"] for each in headers} == {b"false"}


def test_many_letters_that_fit_alone_are_sent_together(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("many-letters", config={"max.message.bytes": "4000"})
    letters = [
        DeadLetter.create("orders", "decode", "x", payload=os.urandom(1_000), position=str(number))
        for number in range(50)
    ]
    DeadLetterTopic(connected(kafka, compression_type="none"), topic).publish(letters)
    assert len(kafka.consume_all(topic)) == 50


def test_a_user_who_may_not_read_the_limit_of_a_topic_sends_letters_in_smaller_sizes(
    kafka: KafkaServer,
) -> None:
    topic = kafka.create_topic("small-letters", config={"max.message.bytes": "9000"})
    forbid_reading_settings(kafka, topic, user="reader")
    login = {"sasl_plain_username": "reader", "sasl_plain_password": PASSWORD}
    plain = {"librdkafka.compression.type": "none"}
    letters = DeadLetterTopic(secured(kafka, "plain", **login, properties=plain), topic)
    payload = os.urandom(20_000)
    large = DeadLetter.create("orders", "decode", "x", payload=payload, position="large")
    small = [DeadLetter.create("orders", "decode", "x", payload=b"{", position=str(n)) for n in range(50)]
    letters.publish([*small, large])
    messages = [(m.value(), dict(m.headers())) for m in kafka.consume_all(topic)]
    assert {headers["ematix-dlq-id"].decode() for _, headers in messages} == {x.id for x in [*small, large]}
    (cut,) = {value for value, headers in messages if headers["ematix-dlq-whole"] == b"false"}
    assert payload.startswith(cut) and len(cut) > 3_000
    letters.publish([large])  # the limit is remembered
    assert len(kafka.consume_all(topic)) == len(messages) + 1


def test_a_topic_that_takes_no_letter_at_all_is_an_error(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("tiny-letters", config={"max.message.bytes": "100"})
    letter = DeadLetter.create("orders", "decode", "x", payload=b"{")
    with pytest.raises(TargetFailed, match="larger than the topic allows") as raised:
        DeadLetterTopic(connected(kafka), topic).publish([letter])
    assert "max.message.bytes" in str(raised.value.next_step)


# ------------------------------------------------------------------ failures

CHILD = """
import sys
from ematix_flow.spec.connections import KafkaConnection
from ematix_flow.spec.streams import DeadLetterSpec, StreamSourceSpec, StreamSpec
from ematix_flow.streams.dead_letters import dead_letters_of_stream
from ematix_flow.engine.streams.batch_report import RejectedMessage
bootstrap, topic = sys.argv[1:]
source = StreamSourceSpec(KafkaConnection(name="events", bootstrap_servers=bootstrap), "events")
spec = StreamSpec("orders", (source,), (), on_error="dlq", dead_letters=DeadLetterSpec(topic=topic))
message = {"value": b"{", "topic": "events", "partition": "3", "position": "0"}
with dead_letters_of_stream(spec) as letters:
    letters.add([RejectedMessage("decode", "not JSON", message)], "q1:1")
"""


@pytest.mark.fault
def test_a_process_killed_between_topic_and_store_loses_no_letter(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    arguments = [sys.executable, "-c", CHILD, kafka.bootstrap, kafka_topic]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    dying = {**env, fault_points.FAULT_VARIABLE: "stream.dead_letters_sent=kill"}
    assert subprocess.run(arguments, env=dying, timeout=120).returncode == -signal.SIGKILL
    spec = declared(connected(kafka), topic=kafka_topic)
    with open_stream_dead_letters(spec, env=os.environ) as store:
        assert store.list() == []
        subprocess.run(arguments, env=env, timeout=120, check=True)
        subprocess.run(arguments, env=env, timeout=120, check=True)
        (kept,) = store.list()
    ids = [dict(message.headers())["ematix-dlq-id"].decode() for message in kafka.consume_all(kafka_topic)]
    assert ids == [kept.id, kept.id]


@pytest.mark.fault
def test_letters_that_the_broker_does_not_confirm_are_not_stored(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    with opened(declared(connected(kafka, delivery_timeout_ms="2000"), topic=kafka_topic)) as letters:
        letters.add([rejected(1)], "q1:1")
        kafka.stop()
        try:
            with pytest.raises(TargetFailed, match="were not confirmed"):
                letters.add([rejected(1), rejected(2)], "q1:1")
            assert [letter.position for letter in letters.store.list()] == ["1"]
        finally:
            kafka.start()
        letters.add([rejected(1), rejected(2)], "q1:1")
        assert [letter.position for letter in letters.store.list()] == ["1", "2"]
    assert set(sent(kafka, kafka_topic)) == {("1", b"{"), ("2", b"{")}


@pytest.mark.fault
def test_letters_are_sent_after_the_broker_was_restarted(kafka: KafkaServer, kafka_topic: str) -> None:
    with opened(declared(connected(kafka), topic=kafka_topic)) as letters:
        letters.add([rejected(1)], "q1:1")
        kafka.restart()
        letters.add([rejected(1), rejected(2)], "q1:1")
        assert [letter.position for letter in letters.store.list()] == ["1", "2"]
    assert sorted(sent(kafka, kafka_topic)) == [("1", b"{"), ("2", b"{")]


def test_a_topic_that_is_not_there_is_reported_with_the_command_that_makes_it(kafka: KafkaServer) -> None:
    with pytest.raises(TargetFailed, match="there is no topic 'nowhere'") as raised:
        open_dead_letter_topic(declared(connected(kafka), topic="nowhere"))
    assert "kafka-topics" in str(raised.value.next_step)


def test_a_cluster_that_is_away_is_reported() -> None:
    away = KafkaConnection(name="events", bootstrap_servers="127.0.0.1:9")
    with pytest.raises(CannotConnect):
        open_dead_letter_topic(declared(away, topic="letters"))


# ------------------------------------------------------------------ as a stream declares it


def test_the_letters_can_be_seen_while_the_cluster_is_away() -> None:
    away = KafkaConnection(name="events", bootstrap_servers="127.0.0.1:9")
    with open_stream_dead_letters(declared(away, topic="letters", max_attempts=7), env=os.environ) as store:
        assert store.location.endswith("dead_letters.db")
        assert (store.list(), store.max_attempts) == ([], 7)


def test_a_stream_of_another_broker_names_the_kafka_of_its_topic(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    rabbit = RabbitMQConnection(name="rabbit", url="amqp://localhost:9")
    with opened(declared(rabbit, topic=kafka_topic, connection=connected(kafka))) as letters:
        letters.add([rejected(1)], "q1:1")
        assert letters.store.location.endswith("dead_letters.db")
    assert sent(kafka, kafka_topic) == [("1", b"{")]


def test_the_letters_of_a_topic_are_stored_in_the_table_that_the_stream_names(
    kafka: KafkaServer, kafka_topic: str, store_connection: PostgresConnection | None
) -> None:
    named = {"topic": kafka_topic, "table": "rejected", "connection": store_connection}
    with opened(declared(connected(kafka), **named)) as letters:
        letters.add([rejected(1)], "q1:1")
    assert sent(kafka, kafka_topic) == [("1", b"{")]
    with open_table(store_connection, env=os.environ, table="rejected") as store:
        assert [letter.position for letter in store.list()] == ["1"]
    with open_table(store_connection, env=os.environ) as store:
        assert store.list() == []


def test_a_stream_that_wants_its_letters_in_a_table_sends_none(kafka: KafkaServer) -> None:
    assert open_dead_letter_topic(declared(connected(kafka), topic="nowhere", store="table")) is None
    assert open_dead_letter_topic(declared(connected(kafka))) is None


def test_a_topic_without_a_kafka_or_without_a_name_is_refused() -> None:
    source = PostgresConnection(name="db", url="postgres://localhost/x")
    with pytest.raises(ConfigError, match="but no Kafka connection"):
        open_dead_letter_topic(declared(source, topic="letters"))
    with pytest.raises(FlowError, match="but no topic"):
        open_dead_letter_topic(declared(source, store="topic"))
