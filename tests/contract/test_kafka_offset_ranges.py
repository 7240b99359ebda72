"""Ranges of offsets read by librdkafka: the rows of Spark's own source, limits, and lost messages."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ematix_flow.backends.kafka import offset_ranges, range_reader
from ematix_flow.backends.kafka.backend import KafkaStreamBackend
from ematix_flow.backends.kafka.java_settings import spark_options
from ematix_flow.backends.kafka.offset_ranges import OffsetRange, ranges_between, split_ranges
from ematix_flow.backends.kafka.spark import _COLUMNS, KafkaSource
from ematix_flow.backends.messages.base import ReadRequest, message_schema
from ematix_flow.errors import CannotConnect, DataLost, SourceFailed
from tests.contract.kafka_setup import WAYS, connection, secured
from tests.services.kafka import KafkaServer, running_server


def source(kafka: KafkaServer, **fields: Any) -> KafkaSource:
    found = KafkaStreamBackend(connection(kafka, **fields)).stream_source()
    assert isinstance(found, KafkaSource)
    return found


def position(offsets: Mapping[str, Mapping[int, int]]) -> str:
    return json.dumps({topic: {str(n): at for n, at in parts.items()} for topic, parts in offsets.items()})


def by_tasks(of: KafkaSource, before: str, after: str, most: int = 4, **reading: Any) -> list[dict[str, Any]]:
    """What tasks would read, each with what was pickled for it."""
    splits = of.splits(ReadRequest("x", **reading), before, after, most)
    assert splits is not None
    found: list[dict[str, Any]] = []
    for split in pickle.loads(pickle.dumps(splits)):
        for batch in split.read():
            assert batch.schema == message_schema()
            found += batch.to_pylist()
    return ordered(found)


def by_driver(of: KafkaSource, before: str, after: str, **reading: Any) -> list[dict[str, Any]]:
    found = of.read_small_batch(ReadRequest("x", **reading), before, after, 1 << 30)
    assert found is not None
    return ordered([row for batch in found for row in batch.to_pylist()])


def by_spark(spark: SparkSession, kafka: KafkaServer, before: str, after: str) -> list[dict[str, Any]]:
    options = {
        **spark_options(connection(kafka)),
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(json.loads(after)),
        "startingOffsets": before,
        "endingOffsets": after,
        "includeHeaders": "true",
    }
    read = spark.read.format("kafka").options(**options).load().selectExpr(*_COLUMNS).toArrow()
    return ordered(read.cast(message_schema()).to_pylist())


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["topic"], int(row["partition"]), int(row["position"])))


@contextmanager
def transaction(kafka: KafkaServer, *, commits: bool) -> Iterator[Any]:
    producer = kafka.producer(**{"transactional.id": f"t-{id(object())}-{commits}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    yield producer
    producer.flush(30)
    producer.commit_transaction(30) if commits else producer.abort_transaction(30)


def offsets_of(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["position"]) for row in rows]


# ------------------------------------------------------------------ the same as Spark's


def test_our_tasks_and_the_driver_read_what_sparks_frame_holds(
    spark: SparkSession, kafka: KafkaServer
) -> None:
    topic = kafka.create_topic("same", 5)
    headers = [
        ("a", b"1"),
        ("none", None),
        ("a", 'zweı \u2028"\\'.encode()),
        ("bin", b"\xff\xe2\x82"),
        ("", b""),
    ]
    kafka.send(topic, [b"x", None, b""], partition=0, key=b"k", headers=headers, timestamp=1_700_000_000_123)
    kafka.send(topic, [b"\x00\xff", b"plain"], partition=0, timestamp=1)
    kafka.send(topic, [b"n%d" % n for n in range(300)], partition=1, key=b"")
    with transaction(kafka, commits=False) as producer:
        for n in range(5):
            producer.produce(topic, b"aborted %d" % n, partition=1)
    with transaction(kafka, commits=True) as producer:
        producer.produce(topic, b"committed", partition=1)
        producer.produce(topic, b"only of a transaction", partition=2)
    kafka.send(topic, [b"%d" % n for n in range(10)], partition=3)
    kafka.delete_records(topic, 4, partition=3)
    before = position({topic: {0: 0, 1: 10, 2: 0, 3: 4, 4: 0}})
    after = position({topic: {0: 5, 1: 308, 2: 2, 3: 10, 4: 0}})
    of, expected = source(kafka), by_spark(spark, kafka, before, after)
    assert len(expected) == 5 + 291 + 1 + 6
    for found in (by_tasks(of, before, after), by_tasks(of, before, after, 1), by_driver(of, before, after)):
        assert found == expected


def test_a_compacted_topic_is_read_over_its_gaps(spark: SparkSession, kafka: KafkaServer) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    topic = kafka.create_topic("compacted", 1, config)
    kafka.send(topic, [b"%d" % n for n in range(200)], key=b"same")
    kafka.send(topic, [b"last"], key=b"other")
    before, after = position({topic: {0: 3}}), position({topic: {0: 201}})
    assert by_tasks(source(kafka), before, after) == by_spark(spark, kafka, before, after)


def test_pieces_of_a_partition_are_the_whole(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_ranges, "MIN_SPLIT_OFFSETS", 10)
    topic = kafka.create_topic("pieces", 2)
    for number in (0, 1):
        kafka.send(topic, [b"%d" % n for n in range(95)], partition=number)
    before, after = position({topic: {0: 2, 1: 0}}), position({topic: {0: 95, 1: 90}})
    of = source(kafka)
    splits = of.splits(ReadRequest(topic), before, after, 7)
    assert splits is not None and len(splits) == 7
    found = by_tasks(of, before, after, 7)
    assert [offsets_of([r for r in found if r["partition"] == p]) for p in "01"] == [
        list(range(2, 95)),
        list(range(90)),
    ]


def test_large_messages_come_in_small_batches(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("large", 1, {"max.message.bytes": str(8 << 20)})
    producer = kafka.producer(**{"message.max.bytes": 8 << 20})
    sizes = [5 << 20, 10, 5 << 20, 5 << 20, 100, *([1 << 20] * 40)]
    for n, size in enumerate(sizes):
        producer.produce(topic, bytes([n]) * size)
    assert producer.flush(60) == 0
    of, before, after = source(kafka), position({topic: {0: 0}}), position({topic: {0: len(sizes)}})
    splits = of.splits(ReadRequest(topic), before, after, 1)
    assert splits is not None
    batches = list(splits[0].read())
    assert [len(value) for b in batches for value in b.column("value").to_pylist()] == sizes
    assert max(batch.nbytes for batch in batches) < range_reader.BATCH_BYTES + (24 << 20)
    assert of.read_small_batch(ReadRequest(topic), before, after, 20 << 20) is None
    assert len(by_driver(of, position({topic: {0: 3}}), position({topic: {0: 5}}))) == 2


def test_large_headers_count_as_much_as_large_values(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b"x"] * 60, headers=[("h", b"a" * 500_000)], key=b"k" * 100_000)
    of, before = source(kafka), position({kafka_topic: {0: 0}})
    splits = of.splits(ReadRequest(kafka_topic), before, position({kafka_topic: {0: 60}}), 1)
    assert splits is not None
    batches = list(splits[0].read())
    assert sum(batch.num_rows for batch in batches) == 60
    assert max(batch.nbytes for batch in batches) < range_reader.BATCH_BYTES + (24 << 20)


def test_the_driver_reads_batch_after_batch_by_one_consumer(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("batches", 3)
    for number in range(3):
        kafka.send(topic, [b"%d" % n for n in range(1_000)], partition=number)
    of, at = source(kafka), {0: 0, 1: 0, 2: 0}
    opened = set()
    for step in (1, 7, 100, 1, 0, 400):
        end = {n: offset + step * (n + 1) // 2 for n, offset in at.items()}
        rows = by_driver(of, position({topic: at}), position({topic: end}))
        for n in at:
            assert offsets_of([r for r in rows if r["partition"] == str(n)]) == list(range(at[n], end[n]))
        opened.add(of._open_reader)
        at = end
    assert len(opened) == 1


def test_a_partition_that_is_new_begins_at_its_first_message(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b"0"])
    kafka.add_partitions(kafka_topic, 2)
    kafka.send(kafka_topic, [b"1", b"2"], partition=1)
    before, after = position({kafka_topic: {0: 1}}), position({kafka_topic: {0: 1, 1: 2}})
    of = source(kafka)
    assert of.count_between(before, after) == 2
    assert [row["value"] for row in by_tasks(of, before, after)] == [b"1", b"2"]


@pytest.mark.parametrize("way", WAYS)
def test_ranges_are_read_in_every_way_to_log_in(kafka: KafkaServer, kafka_topic: str, way: str) -> None:
    kafka.send(kafka_topic, [b"x"])
    of = KafkaStreamBackend(secured(kafka, way)).stream_source()
    assert isinstance(of, KafkaSource)
    before, after = position({kafka_topic: {0: 0}}), position({kafka_topic: {0: 1}})
    assert [row["value"] for row in by_tasks(of, before, after)] == [b"x"]
    splits = of.splits(ReadRequest(kafka_topic), before, after, 1)
    assert "ss" not in repr(splits).replace("class", "")


# ------------------------------------------------------------------ options of Spark's


def test_options_of_sparks_client_count_or_leave_the_reading_to_spark(
    kafka: KafkaServer, kafka_topic: str
) -> None:
    with transaction(kafka, commits=False) as producer:
        producer.produce(kafka_topic, b"aborted")
    of, before, after = source(kafka), position({kafka_topic: {0: 0}}), position({kafka_topic: {0: 2}})
    every = {
        "kafka.isolation.level": "read_uncommitted",
        "kafka.fetch.max.wait.ms": "5",
        "minPartitions": "3",
    }
    assert by_tasks(of, before, after) == []
    assert [row["value"] for row in by_tasks(of, before, after, options=every)] == [b"aborted"]
    for name in ("kafka.sasl.jaas.config", "kafka.no.such.setting", "kafkaConsumer.pollTimeoutMs"):
        assert of.splits(ReadRequest(kafka_topic, options={name: "1"}), before, after, 2) is None


# ------------------------------------------------------------------ loss


def test_messages_that_are_gone_are_data_loss_or_left_out(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b"%d" % n for n in range(10)])
    kafka.delete_records(kafka_topic, 6)
    of, before, after = source(kafka), position({kafka_topic: {0: 2}}), position({kafka_topic: {0: 10}})
    for read in (by_tasks, by_driver):
        with pytest.raises(DataLost, match=f"{kafka_topic}/0: 2 to 5 were deleted") as failure:
            read(of, before, after)
        assert "fail_on_data_loss=False" in str(failure.value)
        assert offsets_of(read(of, before, after, fail_on_data_loss=False)) == [6, 7, 8, 9]
    early = position({kafka_topic: {0: 5}})
    with pytest.raises(DataLost, match="2 to 4 were deleted"):
        by_tasks(of, before, early)
    assert by_tasks(of, before, early, fail_on_data_loss=False) == []


@pytest.fixture
def quick_to_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has been up for long: what it does not have it never had."""
    monkeypatch.setattr(range_reader, "_SUSPECT_SECONDS", 0.5)


@pytest.mark.usefixtures("quick_to_suspect")
def test_a_topic_that_ends_too_soon_was_created_again(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b"%d" % n for n in range(3)])
    of = source(kafka)
    within, beyond = position({kafka_topic: {0: 1}}), position({kafka_topic: {0: 8}})
    with pytest.raises(DataLost, match=f"{kafka_topic}/0 ends at 3, before 9"):
        by_tasks(of, within, position({kafka_topic: {0: 9}}))
    with pytest.raises(DataLost, match=f"{kafka_topic}/0 ends at 3, before 9"):
        by_tasks(of, beyond, position({kafka_topic: {0: 9}}))
    after = position({kafka_topic: {0: 9}})
    assert offsets_of(by_tasks(of, within, after, fail_on_data_loss=False)) == [1, 2]
    assert by_tasks(of, beyond, after, fail_on_data_loss=False) == []
    with pytest.raises(DataLost, match="ends at 1, before 8"):
        of.splits(ReadRequest(kafka_topic), beyond, within, 1)


@pytest.mark.usefixtures("quick_to_suspect")
def test_a_topic_that_is_gone_is_data_loss(kafka: KafkaServer) -> None:
    of, gone = source(kafka), "t-never-there"
    before, after = position({gone: {0: 0}}), position({gone: {0: 9}})
    with pytest.raises(DataLost, match=f"{gone}/0 no longer exists"):
        by_tasks(of, before, after)
    assert by_tasks(of, before, after, fail_on_data_loss=False) == []


# ------------------------------------------------------------------ a broker that is away


@pytest.fixture(scope="module")
def own() -> Iterator[KafkaServer]:
    """A broker that may be killed."""
    with running_server() as server:
        server.start()
        yield server


def test_a_broker_that_stays_away_is_an_error_in_bounded_time(own: KafkaServer) -> None:
    topic = own.create_topic("away")
    own.send(topic, [b"x"])
    of, before, after = source(own), position({topic: {0: 0}}), position({topic: {0: 1}})
    splits = of.splits(ReadRequest(topic), before, after, 1)
    assert splits is not None
    own.stop()
    try:
        with pytest.raises(CannotConnect, match="connection refused"):
            list(range_reader.RangeSplit(splits[0].ranges, impatient(splits[0].reader)).read())
    finally:
        own.start()
    assert len(list(splits[0].read())) == 1


def test_a_broker_that_comes_back_is_read_on(own: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "BATCH_ROWS", 10)
    topic = own.create_topic("back")
    own.send(topic, [b"%07d" % n * 500 for n in range(20_000)])
    of = source(own)
    splits = of.splits(ReadRequest(topic), position({topic: {0: 0}}), position({topic: {0: 20_000}}), 1)
    assert splits is not None
    reading = splits[0].read()
    first = next(reading)
    own.restart()
    found = [first, *reading]
    assert [int(p) for batch in found for p in batch.column("position").to_pylist()] == list(range(20_000))


def test_a_login_that_is_refused_is_reported(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b"x"])
    of = KafkaStreamBackend(secured(kafka, "plain", sasl_plain_password="wrong")).stream_source()
    assert isinstance(of, KafkaSource)
    splits = of.splits(
        ReadRequest(kafka_topic), position({kafka_topic: {0: 0}}), position({kafka_topic: {0: 1}}), 1
    )
    assert splits is not None
    with pytest.raises((CannotConnect, SourceFailed), match="refuses user"):
        list(range_reader.RangeSplit(splits[0].ranges, impatient(splits[0].reader)).read())


def test_a_stretch_of_aborted_messages_that_takes_longer_than_a_readers_patience_is_got_past(
    kafka: KafkaServer,
) -> None:
    topic = kafka.create_topic("aborted", 1)
    with transaction(kafka, commits=False) as producer:
        for number in range(400):
            producer.produce(topic, b"x" * 1_000)
            if number % 10 == 9:
                producer.flush(30)  # its own batch: one is the least that is fetched
    kafka.send(topic, [b"the last"])
    kafka.throttle("slow-reader", 50_000)
    end = source(kafka)._cluster.end_offsets([(topic, 0)])[topic, 0]
    splits = source(kafka).splits(
        ReadRequest(topic), position({topic: {0: 0}}), position({topic: {0: end}}), 1
    )
    assert splits is not None
    reader = splits[0].reader
    least = {"fetch.message.max.bytes": 11_000, "fetch.max.bytes": 11_000, "message.max.bytes": 11_000}
    slow = {**reader.settings, **least, "client.id": "slow-reader"}
    hasty = range_reader.RangeReader(reader.connection, slow, patience=4.0)
    found = [
        row for batch in range_reader.RangeSplit(splits[0].ranges, hasty).read() for row in batch.to_pylist()
    ]
    assert [row["value"] for row in found] == [b"the last"]


def impatient(reader: range_reader.RangeReader) -> range_reader.RangeReader:
    return range_reader.RangeReader(
        reader.connection, reader.settings, reader.fail_on_data_loss, patience=3.0
    )


# ------------------------------------------------------------------ without a broker


def test_shares_cover_every_offset_once_and_name_no_partition_twice() -> None:
    wanted = [OffsetRange("a", 0, 5, 200_000), OffsetRange("a", 1, 0, 3), OffsetRange("b", 0, 7, 90_000)]
    for most in (1, 2, 3, 8, 100):
        found = split_ranges(wanted, most)
        assert len(found) <= most
        pieces = sorted((r.topic, r.partition, r.begin, r.end) for share in found for r in share)
        assert all(len({r.topic_partition for r in share}) == len(share) for share in found)
        for each in wanted:
            own = [(begin, end) for topic, n, begin, end in pieces if (topic, n) == each.topic_partition]
            assert own[0][0] == each.begin and own[-1][1] == each.end
            assert all(one[1] == other[0] for one, other in pairwise(own))
    assert split_ranges([], 4) == []


def test_whole_shares_cut_no_partition() -> None:
    wanted = [
        OffsetRange("a", 0, 5, 200_000),
        OffsetRange("a", 1, 0, 3),
        OffsetRange("b", 0, 7, 90_000),
        OffsetRange("b", 1, 0, 4),
    ]
    for most in (1, 2, 3, 8):
        found = split_ranges(wanted, most, whole=True)
        assert len(found) <= most and all(found)
        assert sorted(map(str, (r for share in found for r in share))) == sorted(map(str, wanted))
        assert {r for share in found for r in share} == set(wanted)


def test_partitions_without_new_messages_are_no_ranges() -> None:
    before, after = {("a", 0): 5, ("a", 1): 7, ("gone", 0): 9}, {("a", 0): 5, ("a", 1): 9, ("a", 2): 0}
    assert ranges_between(before, after, strict=True) == [OffsetRange("a", 1, 7, 9)]


def test_headers_are_one_json_object() -> None:
    assert range_reader.header_text(None) is None and range_reader.header_text([]) is None
    assert range_reader.header_text([("a", b"1"), ("b", None), ("a", b"2")]) == '{"b":null,"a":"2"}'
    assert pa.array([range_reader.header_text([("a", b"\xff")])])[0].as_py() == '{"a":"\ufffd"}'
