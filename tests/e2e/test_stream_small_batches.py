"""Batches that are small enough for the driver: the same rows as by tasks, and bounded in size."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from ematix_flow import BigInt, ManagedTable
from ematix_flow.backends.messages.base import MESSAGE_DDL
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.engine.streams import incoming_batch, small_batches
from ematix_flow.errors import UnreadableMessages
from tests.services.kafka import KafkaServer
from tests.stream_runs import events_into, kafka_connection, ledger, load, produce, query, stream

pytestmark = pytest.mark.usefixtures("spark")


class Ids(ManagedTable):
    id: BigInt


def messages(spark: Any, values: list[bytes]) -> Any:
    rows = [(value, None, "t", "0", str(n), None, None) for n, value in enumerate(values)]
    return spark.createDataFrame(rows, MESSAGE_DDL)


def test_a_few_messages_come_to_the_driver(spark: Any) -> None:
    taken = small_batches.take_small_batch(messages(spark, [b"a", b"b"]), expected=2)
    assert taken is not None
    assert [value for batch in taken for value in batch.column("value").to_pylist()] == [b"a", b"b"]


@pytest.mark.parametrize("expected", [None, small_batches.MAX_ROWS + 1])
def test_many_messages_or_nobody_knows_how_many_stay_where_they_are(spark: Any, expected: int | None) -> None:
    assert small_batches.take_small_batch(messages(spark, [b"a"]), expected) is None


def test_one_large_message_keeps_the_batch_from_the_driver(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_batches, "MAX_BYTES", 1_000)
    assert small_batches.take_small_batch(messages(spark, [b"a" * 100, b"b" * 100]), expected=2) is not None
    assert small_batches.take_small_batch(messages(spark, [b"a" * 100, b"b" * 101]), expected=2) is None


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the driver took every batch that it could. For such a batch Spark has nothing to do."""
    told: list[bool] = []

    plain = incoming_batch.TaskReadBatch.small_batch

    def spied(of: incoming_batch.TaskReadBatch) -> Any:
        found = plain(of)
        assert found is None or not of.has_frame
        told.append(found is not None)
        return found

    monkeypatch.setattr(incoming_batch.TaskReadBatch, "small_batch", spied)
    return told


@pytest.mark.parametrize("rows", [0, 10_000])
def test_a_table_gets_the_same_rows_from_driver_and_tasks(
    kafka: KafkaServer,
    kafka_topic: str,
    pg_database: str,
    rows: int,
    taken: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(incoming_batch, "MAX_ROWS", rows)
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL, name varchar(3))")
    followed = events_into(pg_database, kafka, kafka_topic, transform_on_error="dlq")
    produce(kafka, kafka_topic, [{"id": 0, "name": "a"}])
    load(followed)
    produce(kafka, kafka_topic, [{"id": 1, "name": "b"}, b"{not json", {"id": 2, "name": "long"}, {"id": 3}])
    result = load(followed)
    assert taken == [rows > 0, rows > 0]
    assert result.dead_letters == 2
    assert query(pg_database, "SELECT id, name FROM events ORDER BY id") == [(0, "a"), (1, "b"), (3, None)]
    assert [count for _, count in ledger(pg_database)] == [1, 2]
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        assert sorted(letter.stage for letter in store.list("events", limit=10)) == ["decode"] * 2


def test_a_message_that_cannot_be_read_stops_the_stream_before_anything_is_sent(
    kafka: KafkaServer, kafka_topic: str, taken: list[bool]
) -> None:
    out = kafka.create_topic("out", 1)
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        source_columns=Ids,
        target=kafka_connection(kafka, "out"),
        target_topic=out,
    )
    produce(kafka, kafka_topic, [{"id": 0}])
    load(followed)
    produce(kafka, kafka_topic, [{"id": 1}])
    load(followed)
    produce(kafka, kafka_topic, [{"id": 2}, b"{not json"])
    with pytest.raises(UnreadableMessages):
        load(followed)
    assert taken == [True, True, True]
    assert [json.loads(sent.value())["id"] for sent in kafka.consume_all(out)] == [0, 1]
