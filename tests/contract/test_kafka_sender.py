"""Messages sent to Kafka: what arrives, what is refused, and what a transaction promises."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from ematix_flow import fault_points
from ematix_flow.backends.kafka.producer import FENCED, kafka_error_of
from ematix_flow.backends.kafka.sender import KafkaSender
from ematix_flow.backends.kafka.transactions import marker_group, transactional_id
from ematix_flow.backends.messages.base import BatchToken, Sender
from ematix_flow.errors import ConfigError, RowRejected, TargetFailed
from ematix_flow.spec.connections.brokers import KafkaConnection
from tests.contract.kafka_setup import WAYS, backend, outgoing, secured
from tests.services.kafka import PASSWORD, KafkaServer
from tests.services.shared import private_server
from tests.waiting import wait_until

kafka = private_server("kafka")  # tests here stop it

REPOSITORY = Path(__file__).resolve().parents[2]


def sender(kafka: KafkaServer, topic: str, **options: str) -> Sender:
    """One that was pickled into a task."""
    made = backend(kafka).message_target().sender(topic, options)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def values(kafka: KafkaServer, topic: str, *, read_committed: bool = True) -> list[bytes | None]:
    return [message.value() for message in kafka.consume_all(topic, read_committed=read_committed)]


# ------------------------------------------------------------------ plain sends


def test_values_keys_headers_and_partitions_arrive_as_they_were_given(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("sent", partitions=4)
    batch = outgoing(
        [b"one", b"", None, "ü€".encode()],
        keys=[b"k", None, b"gone", b"\x00\xff"],
        partitions=[3, None, 0, 1],
        headers=[{"a": "x", "n": None, "deep": {"b": 1}}, None, {}, {"ünï": "wert"}],
    )
    assert sender(kafka, topic).send([batch]) == 4
    found = {message.value(): message for message in kafka.consume_all(topic)}
    assert found.keys() == {b"one", b"", None, "ü€".encode()}
    assert found[b"one"].partition() == 3
    assert found[b"one"].key() == b"k"
    assert found[b"one"].headers() == [("a", b"x"), ("n", None), ("deep", b'{"b": 1}')]
    assert found[b""].headers() is None
    assert found[None].partition() == 0
    assert found["ü€".encode()].key() == b"\x00\xff"
    assert found["ü€".encode()].headers() == [("ünï", b"wert")]


@pytest.mark.parametrize("way", WAYS)
def test_messages_are_sent_by_every_way_to_log_in(kafka: KafkaServer, kafka_topic: str, way: str) -> None:
    assert KafkaSender(secured(kafka, way), kafka_topic).send([outgoing([b"x"])]) == 1
    assert values(kafka, kafka_topic) == [b"x"]


def test_more_messages_than_the_producer_holds_are_sent_in_order(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    small = sender(kafka, kafka_topic, **{"queue.buffering.max.messages": "50", "compression.type": "zstd"})
    batches = (outgoing([b"%d" % n for n in range(first, first + 500)]) for first in range(0, 3_000, 500))
    assert small.send(batches) == 3_000
    assert values(kafka, kafka_topic) == [b"%d" % n for n in range(3_000)]


def java_partition(key: bytes, partitions: int) -> int:
    """Where Java's producers put a key, by the hashes that Kafka's own tests name."""
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    return (hashes[key] & 0x7FFFFFFF) % partitions


def test_a_key_goes_to_the_partition_in_which_javas_producers_put_it(kafka: KafkaServer) -> None:
    topic, keys = kafka.create_topic("keyed", partitions=7), [b"21", b"foobar", b"a-little-bit-long-string"]
    sender(kafka, topic).send([outgoing(keys, keys=keys)])
    found = {message.key(): message.partition() for message in kafka.consume_all(topic)}
    assert found == {key: java_partition(key, 7) for key in keys}


def test_no_messages_are_no_work(kafka: KafkaServer, kafka_topic: str) -> None:
    assert sender(kafka, kafka_topic).send([]) == 0
    assert sender(kafka, kafka_topic).send([outgoing([])]) == 0


def test_a_missing_topic_is_reported_with_the_command_that_creates_it(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("orders")
    with pytest.raises(TargetFailed, match=f"no topic '{topic}s'.*Did you mean '{topic}'") as failure:
        backend(kafka).message_target().check_destination(f"{topic}s")
    assert f"kafka-topics --bootstrap-server {kafka.bootstrap} --create" in str(failure.value.next_step)
    backend(kafka).message_target().check_destination(topic)


def test_sending_to_a_missing_topic_fails_in_words(kafka: KafkaServer) -> None:
    gone = sender(kafka, "never-made", **{"topic.metadata.propagation.max.ms": "500"})
    with pytest.raises(TargetFailed, match=r"send to topic 'never-made'"):
        gone.send([outgoing([b"x"])])


def test_a_partition_that_is_not_there_is_reported(kafka: KafkaServer, kafka_topic: str) -> None:
    with pytest.raises(TargetFailed, match="partition that the topic does not have"):
        sender(kafka, kafka_topic).send([outgoing([b"x"], partitions=[7])])
    with pytest.raises(RowRejected, match="partition -1"):
        sender(kafka, kafka_topic).send([outgoing([b"x"], partitions=[-1])])


def test_a_message_larger_than_the_topic_takes_is_reported(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("small", config={"max.message.bytes": "2000"})
    with pytest.raises(TargetFailed, match="larger than the topic allows") as failure:
        sender(kafka, topic).send([outgoing([os.urandom(5_000)])])
    assert "max.message.bytes" in str(failure.value.next_step)


def test_what_the_check_lets_through_the_topic_takes(kafka: KafkaServer) -> None:
    """Bytes that cannot be compressed, of every size around the limit: the check is exact for them."""
    topic = kafka.create_topic("exact", config={"max.message.bytes": "2000"})
    exact = sender(kafka, topic, **{"compression.type": "none"})

    def message(size: int) -> pa.RecordBatch:
        return outgoing([os.urandom(size)], keys=[b"key"], headers=[{"name": "value"}])

    def is_let_through(size: int) -> bool:
        try:
            exact.check(message(size))
        except RowRejected:
            return False
        return True

    largest = max(filter(is_let_through, range(1_500, 2_001)))
    assert exact.send([message(largest)]) == 1
    with pytest.raises(TargetFailed, match="larger than the topic allows"):
        exact.send([message(largest + 1)])


def test_many_messages_go_to_a_topic_that_takes_few_bytes_at_once(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("narrow", config={"max.message.bytes": "2000"})
    many = [os.urandom(1_500) for _ in range(50)]
    assert sender(kafka, topic).send([outgoing(many)]) == 50
    assert values(kafka, topic) == many


def test_a_message_of_megabytes_goes_to_a_topic_that_takes_it(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("large", config={"max.message.bytes": "8000000"})
    large = os.urandom(4_000_000)
    assert sender(kafka, topic).send([outgoing([large])]) == 1
    assert values(kafka, topic) == [large]


def test_headers_that_are_no_object_are_refused(kafka: KafkaServer, kafka_topic: str) -> None:
    batch = outgoing([b"x"]).set_column(3, "headers", pa.array(["[1]"]))
    with pytest.raises(RowRejected, match="not a JSON object"):
        sender(kafka, kafka_topic).send([batch])
    assert values(kafka, kafka_topic) == []


def test_a_wrong_option_is_reported(kafka: KafkaServer, kafka_topic: str) -> None:
    with pytest.raises(ConfigError, match=r"compression\.(codec|type)"):
        sender(kafka, kafka_topic, **{"compression.type": "fast"}).send([outgoing([b"x"])])


def test_a_missing_right_to_a_topic_is_reported(kafka: KafkaServer, kafka_topic: str) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    rule = AclBinding(
        ResourceType.TOPIC,
        kafka_topic,
        ResourcePatternType.LITERAL,
        "User:reader",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    for done in kafka.admin().create_acls([rule]).values():
        done.result(10)
    barred = secured(kafka, "plain", sasl_plain_username="reader", sasl_plain_password=PASSWORD)
    with pytest.raises(TargetFailed, match="does not allow user 'reader'") as failure:
        KafkaSender(barred, kafka_topic).send([outgoing([b"x"])])
    assert "kafka-acls" in str(failure.value.next_step)


def test_a_broker_that_stays_away_fails_the_send(kafka: KafkaServer) -> None:
    away = KafkaConnection(name="away", bootstrap_servers="localhost:1")
    short = {"delivery.timeout.ms": "1000"}
    with pytest.raises(TargetFailed, match="nothing listens at localhost:1"):
        KafkaSender(away, "t", short).send([outgoing([b"x"])])


# ------------------------------------------------------------------ with a token


def token(batch: str, topic: str, position: str | None = None) -> BatchToken:
    return BatchToken(f"pipe-{topic}", "out", batch, position)


def test_a_batch_arrives_once_however_often_it_is_sent(kafka: KafkaServer, kafka_topic: str) -> None:
    first, second = token("b1", kafka_topic, '{"t":{"0":1}}'), token("b2", kafka_topic)
    out, target = sender(kafka, kafka_topic), backend(kafka).message_target()
    assert target.last_token(first.pipeline, "out") is None
    assert out.send([outgoing([b"1", b"2"])], first) == 2
    assert out.send([outgoing([b"1", b"2"])], first) == 0
    assert target.last_token(first.pipeline, "out") == ("b1", '{"t":{"0":1}}')
    assert out.send([outgoing([b"3"])], second) == 1
    assert target.last_token(first.pipeline, "out") == ("b2", None)
    assert values(kafka, kafka_topic) == [b"1", b"2", b"3"]


def test_two_targets_of_one_pipeline_keep_their_own_tokens(kafka: KafkaServer, kafka_topic: str) -> None:
    pipeline = f"two-{kafka_topic}"
    out, target = sender(kafka, kafka_topic), backend(kafka).message_target()
    assert out.send([outgoing([b"a"])], BatchToken(pipeline, "left", "b1")) == 1
    assert out.send([outgoing([b"b"])], BatchToken(pipeline, "right", "b1")) == 1
    assert target.last_token(pipeline, "left") == target.last_token(pipeline, "right") == ("b1", None)


def test_a_batch_without_messages_leaves_its_token(kafka: KafkaServer, kafka_topic: str) -> None:
    empty = token("nothing", kafka_topic)
    assert sender(kafka, kafka_topic).send([], empty) == 0
    assert backend(kafka).message_target().last_token(empty.pipeline, "out") == ("nothing", None)


def test_a_position_that_does_not_fit_is_left_out_of_the_token(kafka: KafkaServer, kafka_topic: str) -> None:
    wide = json.dumps({kafka_topic: {str(n): n for n in range(1_000)}})
    assert sender(kafka, kafka_topic).send([outgoing([b"x"])], token("wide", kafka_topic, wide)) == 1
    found = backend(kafka).message_target().last_token(f"pipe-{kafka_topic}", "out")
    assert found == ("wide", None)


def test_a_position_that_does_not_fit_is_reported_once(
    kafka: KafkaServer, kafka_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    out, wide = sender(kafka, kafka_topic), json.dumps({kafka_topic: {str(n): n for n in range(1_000)}})
    with caplog.at_level(logging.WARNING):
        for batch in ("b1", "b2"):
            out.send([outgoing([b"x"])], token(batch, kafka_topic, wide))
    (told,) = [record.getMessage() for record in caplog.records if kafka_topic in record.getMessage()]
    assert "if the checkpoint is lost, the stream resumes from the group's offsets" in told


def test_an_older_batch_of_the_same_query_is_there_already(kafka: KafkaServer, kafka_topic: str) -> None:
    out = sender(kafka, kafka_topic)
    for key, sent in [("q:9", 1), ("q:10", 1), ("q:9", 0), ("q:10", 0), ("other:9", 1), ("q:11", 1)]:
        assert out.send([outgoing([key.encode()])], token(f"stream:{key}", kafka_topic)) == sent, key
    assert values(kafka, kafka_topic) == [b"q:9", b"q:10", b"other:9", b"q:11"]


def test_a_replay_of_dead_letters_leaves_the_streams_token(kafka: KafkaServer, kafka_topic: str) -> None:
    out, target = sender(kafka, kafka_topic), backend(kafka).message_target()
    batch, replay = token("stream:q:1", kafka_topic, "{}"), token("dlq:abc", kafka_topic)
    assert out.send([outgoing([b"1"])], batch) == 1
    assert out.send([outgoing([b"letter"])], replay) == 1
    assert target.last_token(batch.pipeline, "out") == ("stream:q:1", "{}")
    assert (out.send([outgoing([b"1"])], batch), out.send([outgoing([b"letter"])], replay)) == (0, 0)
    assert marker_group(replay) == f"{marker_group(batch)}.dlq"
    assert transactional_id(replay) == f"{transactional_id(batch)}.dlq"


def failing(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    raise RowRejected("the second batch is bad")


def test_what_fails_half_way_leaves_nothing_for_readers_of_committed(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    half, out = token("b1", kafka_topic), sender(kafka, kafka_topic)
    with pytest.raises(RowRejected):
        out.send(failing(outgoing([b"half"])), half)
    assert values(kafka, kafka_topic) == []
    assert backend(kafka).message_target().last_token(half.pipeline, "out") is None
    assert out.send([outgoing([b"whole"])], half) == 1
    assert values(kafka, kafka_topic) == [b"whole"]


@pytest.mark.fault
@pytest.mark.parametrize("point", ["messages.produced", "messages.before_commit", "messages.after_commit"])
def test_a_process_killed_around_the_commit_leaves_all_or_nothing(
    kafka: KafkaServer, kafka_topic: str, point: str
) -> None:
    batch = token("b1", kafka_topic)
    script = (
        "import json, sys\n"
        "from ematix_flow.backends.kafka.sender import KafkaSender\n"
        "from ematix_flow.backends.messages.base import BatchToken\n"
        "from ematix_flow.spec.connections.brokers import KafkaConnection\n"
        "from tests.contract.kafka_setup import outgoing\n"
        "made = KafkaConnection(name='events', bootstrap_servers=sys.argv[1])\n"
        "batch = outgoing([b'1', b'2'])\n"
        "KafkaSender(made, sys.argv[2]).send([batch], BatchToken(sys.argv[3], 'out', 'b1'))\n"
    )
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, "-c", script, kafka.bootstrap, kafka_topic, batch.pipeline],
        env={**os.environ, "PYTHONPATH": paths, fault_points.FAULT_VARIABLE: f"{point}=kill"},
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    arrived = point == "messages.after_commit"
    if arrived:
        assert values(kafka, kafka_topic) == [b"1", b"2"]
    else:
        assert values(kafka, kafka_topic, read_committed=False)[:2] == [b"1", b"2"]
    told = backend(kafka).message_target().last_token(batch.pipeline, "out")
    assert told == (("b1", None) if arrived else None)
    assert sender(kafka, kafka_topic).send([outgoing([b"1", b"2"])], batch) == (0 if arrived else 2)
    assert values(kafka, kafka_topic) == [b"1", b"2"]


@pytest.mark.fault
@pytest.mark.parametrize("goes_on", [False, True])
def test_an_older_attempt_is_fenced_by_a_newer_one(
    kafka: KafkaServer, kafka_topic: str, goes_on: bool
) -> None:
    batch, out = token("b1", kafka_topic), sender(kafka, kafka_topic)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield outgoing([b"old"])
        assert out.send([outgoing([b"new"])], batch) == 1
        for _ in range(20 if goes_on else 0):
            yield outgoing([b"old"] * 100)
            time.sleep(0.05)

    with pytest.raises(TargetFailed, match="has taken over topic") as failure:
        out.send(overtaken(), batch)
    assert "stop one of the two runs" in str(failure.value.next_step)
    assert values(kafka, kafka_topic) == [b"new"]


def test_a_fatal_error_that_the_client_dropped_is_read_from_the_producer(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka_topic}
    fenced, newer = Producer(settings), Producer(settings)
    for producer in (fenced, newer):
        producer.init_transactions(30)
    dropped = SystemError("flush returned NULL without setting an exception")
    fenced.begin_transaction()
    fenced.produce(kafka_topic, b"x")
    with pytest.raises(KafkaException):
        fenced.flush(30)
    assert kafka_error_of(dropped, fenced.begin_transaction).code() in FENCED
    with pytest.raises(KafkaException):
        fenced.commit_transaction(30)
    assert kafka_error_of(dropped, lambda: fenced.commit_transaction(30)).code() in FENCED
    plain = Producer({"bootstrap.servers": kafka.bootstrap})
    assert kafka_error_of(dropped, plain.begin_transaction).code() == KafkaError._FATAL
    for _ in range(2):  # it begins a transaction, and the second call finds it open
        with pytest.raises(SystemError, match="returned NULL"):
            kafka_error_of(dropped, newer.begin_transaction)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_batch_that_takes_longer_than_a_transaction_may_is_reported(
    kafka: KafkaServer, kafka_topic: str, goes_on: bool
) -> None:
    short = {"transaction.timeout.ms": "1000", "delivery.timeout.ms": "1000", "socket.timeout.ms": "1000"}
    out = sender(kafka, kafka_topic, **short)

    def slow() -> Iterator[pa.RecordBatch]:
        yield outgoing([b"old"])
        wait_until(lambda: kafka.last_stable_offset(kafka_topic) > 0)  # the broker has aborted
        if goes_on:
            yield outgoing([b"more"])

    with pytest.raises(TargetFailed, match=r"longer than transaction\.timeout\.ms") as failure:
        out.send(slow(), token("b1", kafka_topic))
    assert "max_rows_per_batch" in str(failure.value.next_step)
    assert values(kafka, kafka_topic) == []
    assert sender(kafka, kafka_topic).send([outgoing([b"again"])], token("b1", kafka_topic)) == 1


@pytest.mark.fault
def test_a_broker_that_is_killed_between_messages_and_commit_loses_and_doubles_nothing(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    batch, out = token("b1", kafka_topic), sender(kafka, kafka_topic)

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield outgoing([b"1"])
        kafka.restart()
        yield outgoing([b"2"])

    try:
        assert out.send(interrupted(), batch) == 2
    except TargetFailed:
        out.send([outgoing([b"1"]), outgoing([b"2"])], batch)
    assert values(kafka, kafka_topic) == [b"1", b"2"]
    assert out.send([outgoing([b"1"]), outgoing([b"2"])], batch) == 0


def test_another_programs_commit_in_our_group_is_not_taken_for_a_token(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    batch = token("b1", kafka_topic)
    stranger = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": marker_group(batch)})
    stranger.commit(offsets=[TopicPartition(kafka_topic, 0, 3)], asynchronous=False)
    stranger.close()
    with pytest.raises(TargetFailed, match="commits of another program"):
        sender(kafka, kafka_topic).send([outgoing([b"x"])], batch)


def test_long_names_give_bounded_ids_that_differ() -> None:
    tokens = [BatchToken("p" * 300, end, key) for end in ("a", "b") for key in ("b1", "dlq:1")]
    ids = {transactional_id(each) for each in tokens} | {marker_group(each) for each in tokens}
    assert len(ids) == 8
    assert all(len(each.encode()) <= 249 for each in ids)
    assert transactional_id(BatchToken("orders", "warehouse", "b1")) == "ematix-flow.orders.warehouse"
