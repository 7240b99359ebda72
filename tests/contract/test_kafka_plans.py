"""A stream of a Kafka topic, planned and followed next to others, without Spark."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from ematix_flow import SQLiteConnection
from ematix_flow.api.streaming import StreamingPipeline, stream_spec
from ematix_flow.backends.kafka.backend import KafkaStreamBackend
from ematix_flow.backends.kafka.settings import client_settings
from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.graph.registry import Registry
from tests.contract.kafka_setup import connection
from tests.services.kafka import KafkaServer


def test_a_new_stream_is_planned_with_its_targets_before_any_message_is_read(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    spec = stream_spec(
        None,
        name=f"plan-{kafka_topic}",
        source=connection(kafka),
        source_query=kafka_topic,
        target=SQLiteConnection(name="warehouse", path=str(tmp_path / "w.sqlite")),
        target_table="orders",
        mode="merge",
        keys=["id"],
        checkpoint=str(tmp_path / "checkpoint"),
    )
    text = str(StreamingPipeline(spec, Registry()).plan())
    assert "merge     into warehouse:orders  (keys id)" in text
    assert "exactly_once: rows and the ledger entry of the batch commit together" in text
    assert "the table's columns come with the first messages" in text


def test_a_group_with_another_member_is_reported_with_the_remedy(
    kafka: KafkaServer, kafka_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.send(kafka_topic, [b"x"] * 3)
    group = f"g-{kafka_topic}"
    ours = connection(kafka, group_id=group)
    other = Consumer({**client_settings(ours), "group.id": group, "auto.offset.reset": "earliest"})
    try:
        other.subscribe([kafka_topic])
        deadline = time.monotonic() + 60
        while not other.assignment() and time.monotonic() < deadline:
            other.poll(0.2)
        assert other.assignment()
        source = KafkaStreamBackend(ours).stream_source()
        source.check(ReadRequest(kafka_topic, pipeline="ours"))
        with caplog.at_level(logging.WARNING):
            source.report_committed(json.dumps({kafka_topic: {"0": 2}}))
    finally:
        other.close()
    assert "give this connection its own group_id" in caplog.text
