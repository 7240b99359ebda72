"""The offsets of consumer groups: which pipeline they belong to, and where a stream continues."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ematix_flow.backends.kafka.backend import KafkaStreamBackend
from ematix_flow.backends.kafka.positions import starting_offsets
from ematix_flow.backends.kafka.spark import KafkaSource
from ematix_flow.backends.messages.base import ReadRequest
from tests.contract.kafka_setup import connection
from tests.services.kafka import KafkaServer


def source(kafka: KafkaServer, group: str, reading: ReadRequest) -> KafkaSource:
    """A source that a stream has begun with."""
    found = KafkaStreamBackend(connection(kafka, group_id=group)).stream_source()
    assert isinstance(found, KafkaSource)
    found.check(reading)
    return found


def start(kafka: KafkaServer, group: str, reading: ReadRequest) -> str:
    return starting_offsets(KafkaStreamBackend(connection(kafka, group_id=group)).cluster, reading)


def at(topic: str, offset: int) -> str:
    return json.dumps({topic: {"0": offset}}, separators=(",", ":"))


@pytest.fixture
def topic(kafka: KafkaServer, kafka_topic: str) -> str:
    kafka.send(kafka_topic, [b"x"] * 10)
    return kafka_topic


def test_a_pipeline_goes_on_from_its_own_offsets_and_not_from_those_of_another(
    kafka: KafkaServer, topic: str
) -> None:
    group = f"g-{topic}"
    first, second = (
        ReadRequest(topic, pipeline="first"),
        ReadRequest(topic, starting="latest", pipeline="second"),
    )
    source(kafka, group, first).report_committed(at(topic, 7))
    assert kafka.committed(group, topic) == {0: (7, "ematix-flow:first")}
    assert start(kafka, group, first) == at(topic, 7)
    assert start(kafka, group, second) == "latest"
    assert start(kafka, group, ReadRequest(topic, pipeline="third")) == "earliest"

    source(kafka, group, second).report_committed(at(topic, 4))
    assert kafka.committed(group, topic) == {0: (7, "ematix-flow:first")}
    assert kafka.committed(f"{group}.second", topic) == {0: (4, "ematix-flow:second")}
    assert start(kafka, group, second) == at(topic, 4)


def test_offsets_that_another_tool_has_committed_are_gone_on_from(kafka: KafkaServer, topic: str) -> None:
    group, ours = f"g-{topic}", ReadRequest(topic, pipeline="ours")
    source(kafka, group, ReadRequest(topic)).report_committed(at(topic, 3))
    assert kafka.committed(group, topic) == {0: (3, None)}
    assert start(kafka, group, ours) == at(topic, 3)
    source(kafka, group, ours).report_committed(at(topic, 3))
    assert kafka.committed(group, topic) == {0: (3, "ematix-flow:ours")}


def test_pipelines_that_begin_together_do_not_move_each_others_offsets(
    kafka: KafkaServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = f"g-{topic}"
    first = source(kafka, group, ReadRequest(topic, pipeline="first"))
    second = source(kafka, group, ReadRequest(topic, pipeline="second"))
    with caplog.at_level(logging.WARNING):
        for offset in (2, 5):
            first.report_committed(at(topic, offset))
            second.report_committed(at(topic, offset + 1))
    assert kafka.committed(group, topic) == {0: (5, "ematix-flow:first")}
    assert kafka.committed(f"{group}.second", topic) == {0: (6, "ematix-flow:second")}
    told = [record.getMessage() for record in caplog.records if group in record.getMessage()]
    assert len(told) == 1
    assert "'first'" in told[0]
    assert f"'{group}.second'" in told[0]


def test_a_pipeline_with_its_own_group_keeps_it_when_the_others_offsets_are_gone(
    kafka: KafkaServer, topic: str
) -> None:
    group, second = f"g-{topic}", ReadRequest(topic, pipeline="second")
    source(kafka, group, ReadRequest(topic, pipeline="first")).report_committed(at(topic, 2))
    source(kafka, group, second).report_committed(at(topic, 5))
    kafka.admin().delete_consumer_groups([group])[group].result(30)
    assert start(kafka, group, second) == at(topic, 5)
    source(kafka, group, second).report_committed(at(topic, 6))
    assert start(kafka, group, second) == at(topic, 6)


def test_pipelines_that_follow_other_topics_share_the_group(kafka: KafkaServer, topic: str) -> None:
    other = kafka.create_topic("other")
    kafka.send(other, [b"x"] * 3)
    group = f"g-{topic}"
    source(kafka, group, ReadRequest(topic, pipeline="first")).report_committed(at(topic, 2))
    source(kafka, group, ReadRequest(other, pipeline="second")).report_committed(at(other, 1))
    assert kafka.committed(group, other) == {0: (1, "ematix-flow:second")}
    assert kafka.committed(group, topic) == {0: (2, "ematix-flow:first")}


def test_a_second_pipeline_reads_what_the_first_has_read(
    spark: SparkSession, kafka: KafkaServer, topic: str, tmp_path: Path
) -> None:
    group = f"g-{topic}"
    source(kafka, group, ReadRequest(topic, pipeline="first")).report_committed(at(topic, 10))
    found = KafkaStreamBackend(connection(kafka, group_id=group)).stream_source()
    assert isinstance(found, KafkaSource)
    counts: list[int] = []
    frame = found.streaming_frame(spark, ReadRequest(topic, pipeline="second"))
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    running = writer.foreachBatch(lambda batch, _: counts.append(batch.count())).start()
    try:
        running.awaitTermination(120)
    finally:
        running.stop()
    found.report_committed(at(topic, 10))
    assert sum(counts) == 10
    assert kafka.committed(f"{group}.second", topic) == {0: (10, "ematix-flow:second")}
