"""Topics that Spark streams: what arrives, where a stream continues, and errors about lost data."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import Row, SparkSession

from ematix_flow.backends.kafka.backend import KafkaStreamBackend
from ematix_flow.backends.kafka.data_loss import explain_data_loss
from ematix_flow.backends.kafka.spark import KafkaSource
from ematix_flow.backends.messages.base import MESSAGE_DDL, BatchToken, ReadRequest
from ematix_flow.errors import SourceFailed
from ematix_flow.fault_points import InjectedFailure, inject
from tests.contract.kafka_setup import connection, outgoing, secured
from tests.services.kafka import KafkaServer


def source(kafka: KafkaServer, group: str = "spark-tests", **fields: Any) -> KafkaSource:
    found = KafkaStreamBackend(connection(kafka, group_id=group, **fields)).stream_source()
    assert isinstance(found, KafkaSource)
    return found


def followed(spark: SparkSession, of: KafkaSource, query: str, checkpoint: Path, **reading: Any) -> list[Row]:
    """Everything that is there, by a query that ends when it has it."""
    rows: list[Row] = []
    frame = of.streaming_frame(spark, ReadRequest(query, **reading))
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    running = writer.foreachBatch(lambda batch, _: rows.extend(batch.collect())).start()
    try:
        running.awaitTermination(120)
    finally:
        running.stop()
    return rows


def values(rows: Sequence[Row]) -> list[bytes]:
    return sorted(row["value"] for row in rows)


def test_messages_come_in_the_columns_of_all_streams(
    spark: SparkSession, kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    headers = [("a", b"1"), ("none", None), ("a", "zweı".encode()), ("bin", b"\xff")]
    kafka.send(kafka_topic, [b"x"], key=b"k", headers=headers, timestamp=1_700_000_000_123)
    kafka.send(kafka_topic, [None])
    of = source(kafka)
    expected = spark.createDataFrame([], MESSAGE_DDL).schema
    frame = of.streaming_frame(spark, ReadRequest(kafka_topic))
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in expected]
    first, second = sorted(followed(spark, of, kafka_topic, tmp_path), key=lambda row: row["position"])
    assert (first["value"], first["key"], first["topic"]) == (b"x", b"k", kafka_topic)
    assert (first["partition"], first["position"]) == ("0", "0")
    assert first["timestamp"].replace(tzinfo=dt.timezone.utc).timestamp() == 1_700_000_000.123
    read = json.loads(first["headers"])
    assert (read["a"], read["none"]) == ("zweı", None)
    assert set(read) == {"a", "none", "bin"}
    assert (second["value"], second["key"], second["headers"]) == (None, None, None)


def test_a_checkpoint_goes_on_and_takes_new_partitions(
    spark: SparkSession, kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    of = source(kafka)
    kafka.send(kafka_topic, [b"1"])
    assert values(followed(spark, of, kafka_topic, tmp_path)) == [b"1"]
    kafka.add_partitions(kafka_topic, 3)
    kafka.send(kafka_topic, [b"2"], partition=2)
    kafka.send(kafka_topic, [b"3"], partition=0)
    assert values(followed(spark, of, kafka_topic, tmp_path, max_rows=1)) == [b"2", b"3"]


def test_a_position_is_gone_on_from_and_wins_over_the_group(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka.create_topic("resumed", partitions=2)
    kafka.send(topic, [b"a0", b"a1", b"a2"], partition=0)
    kafka.send(topic, [b"b0", b"b1"], partition=1)
    of = source(kafka, f"g-{topic}")
    of.report_committed(json.dumps({topic: {"0": 3, "1": 1}}))
    assert values(followed(spark, of, topic, tmp_path / "group")) == [b"b1"]
    resume = json.dumps({topic: {"0": 2}})
    assert values(followed(spark, of, topic, tmp_path / "resume", resume=resume)) == [b"a2", b"b0", b"b1"]


def test_a_stream_starts_at_a_moment(spark: SparkSession, kafka: KafkaServer, tmp_path: Path) -> None:
    topic = kafka.create_topic("moment", partitions=2)
    for second in range(5):
        kafka.send(topic, [b"%d" % second], partition=0, timestamp=1_700_000_000_000 + second * 1000)
    kafka.send(topic, [b"old"], partition=1, timestamp=1_600_000_000_000)
    moment = dt.datetime.fromtimestamp(1_700_000_002, dt.timezone.utc)
    of = source(kafka, f"g-{topic}")
    assert values(followed(spark, of, topic, tmp_path, starting=moment)) == [b"2", b"3", b"4"]


def test_several_topics_and_a_pattern_are_followed(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    first, second = (kafka.create_topic(f"many-{end}") for end in ("a", "b"))
    kafka.send(first, [b"1"])
    kafka.send(second, [b"2"])
    of = source(kafka)
    assert values(followed(spark, of, f"{first}, {second}", tmp_path / "names")) == [b"1", b"2"]
    assert values(followed(spark, of, "^t-many-[ab]-.*", tmp_path / "pattern")) == [b"1", b"2"]


def test_only_committed_messages_are_read_unless_all_are_asked_for(
    spark: SparkSession, kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    sender = KafkaStreamBackend(connection(kafka)).message_target().sender(kafka_topic, {})
    with inject("messages.produced", "raise"), pytest.raises(InjectedFailure):
        sender.send([outgoing([b"aborted"])], BatchToken("p", kafka_topic, "1"))
    sender.send([outgoing([b"committed"])], BatchToken("p", kafka_topic, "1"))
    of, all_of_it = source(kafka), {"kafka.isolation.level": "read_uncommitted"}
    assert values(followed(spark, of, kafka_topic, tmp_path / "1")) == [b"committed"]
    rows = followed(spark, of, kafka_topic, tmp_path / "2", options=all_of_it)
    assert values(rows) == [b"aborted", b"committed"]


@pytest.mark.parametrize("way", ["plain", "scram-512", "locked certificate", "unchecked"])
def test_sparks_client_logs_in_as_ours_does(
    spark: SparkSession, kafka: KafkaServer, kafka_topic: str, tmp_path: Path, way: str
) -> None:
    kafka.send(kafka_topic, [b"x"])
    given = (
        secured(kafka, "plain over TLS", tls_ca_path="", tls_verify=False)
        if way == "unchecked"
        else secured(kafka, way)
    )
    of = KafkaStreamBackend(given).stream_source()
    assert isinstance(of, KafkaSource)
    assert values(followed(spark, of, kafka_topic, tmp_path)) == [b"x"]


# ------------------------------------------------------------------ without Spark


def test_a_missing_topic_is_reported_with_the_name_that_was_probably_meant(kafka: KafkaServer) -> None:
    topic = kafka.create_topic("clicks")
    with pytest.raises(SourceFailed, match=f"Did you mean '{topic}'") as failure:
        source(kafka).check(ReadRequest(f"{topic}x"))
    assert f"--topic {topic}x" in str(failure.value.next_step)
    source(kafka).check(ReadRequest(topic))
    with pytest.raises(SourceFailed, match="pattern"):
        source(kafka).check(ReadRequest("^(["))
    with pytest.raises(SourceFailed, match="needs a topic"):
        source(kafka).check(ReadRequest(" , "))


def test_progress_is_committed_to_the_group_and_never_backwards(kafka: KafkaServer, kafka_topic: str) -> None:
    kafka.send(kafka_topic, [b"x"] * 10)
    group = f"g-{kafka_topic}"
    of = source(kafka, group)
    of.report_committed(json.dumps({kafka_topic: {"0": 7}}))
    of.report_committed(json.dumps({kafka_topic: {"0": 4}}))
    source(kafka, group).report_committed(json.dumps({kafka_topic: {"0": 3}}))
    assert kafka.committed(group, kafka_topic) == {0: (7, None)}
    assert of.lag(json.dumps({kafka_topic: {"0": 7}})) == {f"{kafka_topic}/0": 3}


def test_progress_that_cannot_be_committed_is_a_warning(
    kafka: KafkaServer, kafka_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = f"g-{kafka_topic}"
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group}
    with closing(Consumer(settings)) as member:
        member.subscribe([kafka_topic])
        for _ in range(100):
            member.poll(0.1)
            if member.assignment():
                break
        with caplog.at_level(logging.WARNING):
            source(kafka, group).report_committed(json.dumps({kafka_topic: {"0": 1}}))
    assert "was not committed" in caplog.text
    source(kafka, group).report_committed("nonsense")


def test_a_position_whose_messages_are_gone_is_data_loss(kafka: KafkaServer, kafka_topic: str) -> None:
    from ematix_flow.backends.kafka.positions import starting_offsets

    kafka.send(kafka_topic, [b"x"] * 10)
    kafka.delete_records(kafka_topic, 5)
    cluster = KafkaStreamBackend(connection(kafka)).cluster
    lost = ReadRequest(kafka_topic, resume=json.dumps({kafka_topic: {"0": 2}}))
    with pytest.raises(SourceFailed, match=f"{kafka_topic}/0: 2 to 4 were deleted") as failure:
        starting_offsets(cluster, lost)
    assert "fail_on_data_loss=False" in str(failure.value.next_step)
    ahead = ReadRequest(kafka_topic, resume=json.dumps({kafka_topic: {"0": 99, "4": 1}}))
    with pytest.raises(SourceFailed, match=r"/4 no longer exists; .*/0 ends at 10, before 99"):
        starting_offsets(cluster, ahead)
    assert starting_offsets(cluster, ReadRequest(**{**vars(ahead), "fail_on_data_loss": False})) == "earliest"
    dropped = ReadRequest(kafka_topic, resume=json.dumps({kafka_topic: {"0": 6}, "another-topic": {"0": 1}}))
    assert json.loads(starting_offsets(cluster, dropped)) == {kafka_topic: {"0": 6}}


def test_a_group_without_a_position_starts_as_configured(kafka: KafkaServer, kafka_topic: str) -> None:
    from ematix_flow.backends.kafka.positions import starting_offsets

    def start(reset: str, starts: str = "earliest") -> str:
        made = connection(kafka, group_id="nobody", auto_offset_reset=reset)
        return starting_offsets(KafkaStreamBackend(made).cluster, ReadRequest(kafka_topic, starting=starts))

    assert (start(""), start("latest"), start("", "latest")) == ("earliest", "latest", "latest")
    with pytest.raises(SourceFailed, match="group 'nobody' has no position"):
        start("error")


# ------------------------------------------------------------------ data loss while a query runs


def told(error: PySparkException) -> SourceFailed:
    found = explain_data_loss(str(error))
    assert found is not None, str(error)
    return found


def test_messages_deleted_before_they_were_read_stop_the_stream(
    spark: SparkSession, kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    of = source(kafka)
    kafka.send(kafka_topic, [b"1", b"2", b"3"])
    followed(spark, of, kafka_topic, tmp_path)
    kafka.send(kafka_topic, [b"4", b"5", b"6"])
    kafka.delete_records(kafka_topic, 5)
    with pytest.raises(PySparkException) as failure:
        followed(spark, of, kafka_topic, tmp_path)
    assert f"{kafka_topic}/0: 3 to 5 were deleted" in told(failure.value).what
    rows = followed(spark, of, kafka_topic, tmp_path, fail_on_data_loss=False)
    assert values(rows) == [b"6"]


def test_a_topic_that_was_created_again_stops_the_stream(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    of, topic = source(kafka), kafka.create_topic("again", partitions=2)
    kafka.send(topic, [b"1", b"2"], partition=0)
    followed(spark, of, topic, tmp_path)
    kafka.drop_topic(topic)
    kafka.create_topic(name=topic, partitions=2)
    with pytest.raises(PySparkException) as failure:
        followed(spark, of, topic, tmp_path)
    assert f"{topic}/0 ends at 0, before 2: it was created again" in told(failure.value).what
