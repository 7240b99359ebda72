"""Streams with bad first messages, changed declarations, unreachable targets, and replayed letters."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ematix_flow import Target
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.engine.streams import incoming_batch
from ematix_flow.engine.streams.sinks import TableSink
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import FlowError, TargetFailed, Unsupported
from ematix_flow.graph.registry import DeclaredStream
from ematix_flow.observe.stream_listener import StreamListener
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.spec.connections import (
    DuckDBConnection,
    ObjectStoreLocalConnection,
    RabbitMQConnection,
    SQLiteConnection,
)
from ematix_flow.state.dead_letters.base import LetterSelection
from ematix_flow.streaming import Source
from ematix_flow.streams.dead_letter_replay import letter_runner, replay_letters
from tests.services.kafka import KafkaServer
from tests.stream_runs import events_into, kafka_connection, load, produce, query, stream

pytestmark = pytest.mark.usefixtures("spark")


def lite(tmp_path: Path, name: str = "lite") -> SQLiteConnection:
    return SQLiteConnection(name=name, path=str(tmp_path / f"{name}.db"))


def rows_in(tmp_path: Path, sql: str, name: str = "lite") -> list[tuple[Any, ...]]:
    with sqlite3.connect(tmp_path / f"{name}.db") as database:
        return database.execute(sql).fetchall()


def test_columns_are_found_behind_messages_that_cannot_be_read(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    produce(kafka, kafka_topic, [b"no", b"[1]", None, b"{}"] + [{"id": n} for n in range(3)])
    result = load(
        stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            target=lite(tmp_path),
            target_table="events",
            transform_on_error="dlq",
        )
    )
    assert result.dead_letters == 2
    assert rows_in(tmp_path, "SELECT id FROM events WHERE id IS NOT NULL ORDER BY id") == [(0,), (1,), (2,)]


def test_a_stream_waits_for_its_columns_when_the_first_messages_are_empty(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    followed = stream(
        source=kafka_connection(kafka), source_query=kafka_topic, target=lite(tmp_path), target_table="events"
    )
    produce(kafka, kafka_topic, [None, None])
    assert load(followed).total_rows == 0
    produce(kafka, kafka_topic, [{"id": 1}])
    assert load(followed).total_rows == 1


def test_a_letter_that_the_table_refused_is_replayed_once_the_table_takes_it(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL, name varchar(3))")
    produce(kafka, kafka_topic, [{"id": 1, "name": "abc"}, {"id": 2, "name": "too long"}, {"id": 3}])
    followed = events_into(pg_database, kafka, kafka_topic, transform_on_error="dlq")
    assert load(followed).dead_letters == 1
    assert query(pg_database, "SELECT id FROM events ORDER BY id") == [(1,), (3,)]
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        [letter] = store.list("events", limit=5)
        assert (letter.stage, letter.position) == ("decode", "1")
        run = letter_runner(DeclaredStream(followed.spec, followed))
        assert replay_letters("events", store, LetterSelection(all=True), run).failed == 1
        query(pg_database, "ALTER TABLE events ALTER COLUMN name TYPE text")
        run = letter_runner(DeclaredStream(followed.spec, followed))
        assert replay_letters("events", store, LetterSelection(all=True), run).replayed == 1
        assert replay_letters("events", store, LetterSelection(all=True), run).taken == 0
    assert query(pg_database, "SELECT id, name FROM events WHERE id = 2") == [(2, "too long")]
    assert load(followed).total_rows == 0


def test_of_messages_in_a_queue_the_last_of_a_key_is_merged(
    rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path
) -> None:
    updates = [{"id": 1, "name": f"v{n}"} for n in range(9)]
    rabbitmq.publish(rabbitmq_queue, [json.dumps(update).encode() for update in updates], ids=True)
    load(
        stream(
            source=RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url()),
            source_query=rabbitmq_queue,
            target=lite(tmp_path),
            target_table="events",
            mode="merge",
            keys=["id"],
        )
    )
    assert rows_in(tmp_path, "SELECT id, name FROM events") == [(1, "v8")]


def test_messages_of_a_queue_are_sent_on_in_order(
    rabbitmq: Any, rabbitmq_queue: str, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming_batch, "MAX_ROWS", 0)  # by tasks
    out = kafka.create_topic("out", 1)
    rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode() for n in range(300)], ids=True)
    load(
        stream(
            source=RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url()),
            source_query=rabbitmq_queue,
            source_options={"prefetch": "50"},  # several segments
            target=kafka_connection(kafka, "sink"),
            target_topic=out,
        )
    )
    assert [json.loads(sent.value())["id"] for sent in kafka.consume_all(out)] == list(range(300))


def test_a_message_that_cannot_be_read_goes_to_the_dead_letter_exchange_of_its_queue(
    rabbitmq: Any, tmp_path: Path
) -> None:
    dead = rabbitmq.create_queue("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = rabbitmq.create_queue("events", arguments)
    rabbitmq.publish(queue, [b'{"id": 1}', b"no JSON", b'{"id": 2}', b"no JSON"])
    result = load(
        stream(
            source=RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url()),
            source_query=queue,
            target=lite(tmp_path),
            target_table="events",
            transform_on_error="dlq",
            dlq_store="broker",
        )
    )
    assert result.dead_letters == 2
    assert rows_in(tmp_path, "SELECT id FROM events ORDER BY id") == [(1,), (2,)]
    assert (rabbitmq.count(queue), rabbitmq.count(dead)) == (0, 2)


def test_a_queue_into_two_targets_ends_when_the_one_that_is_there_has_all(
    rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path
) -> None:
    late = DuckDBConnection(name="late", path=str(tmp_path / "not-yet" / "late.duckdb"))
    followed = stream(
        source=RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url()),
        source_query=rabbitmq_queue,
        targets=[
            Target(connection=lite(tmp_path), table="events"),
            Target(connection=late, table=("main", "events")),
        ],
        continue_on_target_failure=True,
    )
    rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode() for n in range(5)])
    with pytest.raises(FlowError, match="not-yet"):
        load(followed)
    assert rows_in(tmp_path, "SELECT count(*) FROM events") == [(5,)]
    (tmp_path / "not-yet").mkdir()
    rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode() for n in range(5, 8)])
    load(followed)
    import duckdb

    with duckdb.connect(late.path) as database:
        assert database.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchall() == [(8, 8)]
    assert rows_in(tmp_path, "SELECT count(*), count(DISTINCT id) FROM events") == [(8, 8)]


class _Batches(StreamListener):
    def __init__(self) -> None:
        self.rows: list[int] = []

    def batch_committed(self, name: str, number: int, rows_read: int, *_: Any, **__: Any) -> None:
        self.rows.append(rows_read)


def test_a_batch_of_a_queue_has_no_more_rows_than_it_may(
    rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode() for n in range(35)])
    seen = _Batches()
    options: dict[str, Any] = {
        "source": RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url()),
        "source_query": rabbitmq_queue,
        "target": lite(tmp_path),
        "target_table": "events",
    }
    load(stream(**options, max_rows_per_batch=10), watch=seen)
    assert sum(seen.rows) == 35 and max(seen.rows) <= 10
    rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode() for n in range(35, 50)])
    load(stream(**options, max_rows_per_batch=5), watch=seen)
    assert max(seen.rows) <= 10 and max(seen.rows[-3:]) <= 5
    assert rows_in(tmp_path, "SELECT count(*), count(DISTINCT id) FROM events") == [(50, 50)]
    assert rabbitmq.count(rabbitmq_queue) == 0


def test_a_batch_of_a_folder_has_no_more_files_than_it_may(tmp_path: Path) -> None:
    (tmp_path / "in" / "events").mkdir(parents=True)
    for number in range(7):
        (tmp_path / "in" / "events" / f"{number}.jsonl").write_text(f'{{"id": {number}}}\n')
    seen = _Batches()
    followed = stream(
        source=ObjectStoreLocalConnection(name="in", path=str(tmp_path / "in"), format="jsonl"),
        source_query="events",
        source_options={"max_files": 3},
        target=lite(tmp_path),
        target_table="events",
    )
    load(followed, watch=seen)
    assert sum(seen.rows) == 7 and max(seen.rows) <= 3
    assert rows_in(tmp_path, "SELECT count(DISTINCT id) FROM events") == [(7,)]


def test_health_names_a_target_that_fails_alone_until_it_is_back(tmp_path: Path) -> None:
    (tmp_path / "in" / "events").mkdir(parents=True)
    (tmp_path / "in" / "events" / "1.jsonl").write_text('{"id": 1}\n')
    late = DuckDBConnection(name="late", path=str(tmp_path / "not-yet" / "late.duckdb"))
    metrics = StreamMetrics()

    def until(status: str) -> dict[str, Any]:
        deadline = time.monotonic() + 120
        while metrics.health().status != status:
            assert time.monotonic() < deadline and running.is_running, metrics.health()
            time.sleep(0.1)
        return dict(metrics.health().pipelines["events"]["failing_targets"])

    running = stream(
        source=ObjectStoreLocalConnection(name="in", path=str(tmp_path / "in"), format="jsonl"),
        source_query="events",
        targets=[
            Target(connection=lite(tmp_path), table="events"),
            Target(connection=late, table=("main", "events")),
        ],
        continue_on_target_failure=True,
    ).start(metrics=metrics)
    try:
        [(failing, told)] = until("degraded").items()
        assert failing == "late:main.events" and "not-yet" in told["last_error"]
        (tmp_path / "not-yet").mkdir()
        assert until("ok") == {}
        deadline = time.monotonic() + 120
        there = "SELECT name FROM sqlite_master WHERE name = 'events'"
        while not (rows_in(tmp_path, there) and rows_in(tmp_path, "SELECT id FROM events")):
            assert time.monotonic() < deadline and running.is_running, "the other target got nothing"
            time.sleep(0.1)
    finally:
        running.stop()
        running.wait()
    assert rows_in(tmp_path, "SELECT id FROM events") == [(1,)]


def test_a_checkpoint_from_before_the_targets_moved_apart_does_not_come_alive_again(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "source": kafka_connection(kafka),
        "source_query": kafka_topic,
        "targets": [
            Target(connection=lite(tmp_path, "one"), table="events"),
            Target(connection=lite(tmp_path, "two"), table="events"),
        ],
    }
    produce(kafka, kafka_topic, [{"id": n} for n in range(3)])
    load(stream(**options))
    produce(kafka, kafka_topic, [{"id": n} for n in range(3, 6)])
    load(stream(**options, continue_on_target_failure=True))
    produce(kafka, kafka_topic, [{"id": n} for n in range(6, 8)])
    load(stream(**options))
    for name in ("one", "two"):
        assert rows_in(tmp_path, "SELECT count(*), count(DISTINCT id) FROM events", name) == [(8, 8)]


def test_a_queue_whose_spool_is_lost_is_loaded_all_the_same(
    rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path
) -> None:
    import shutil

    followed = stream(
        source=RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url()),
        source_query=rabbitmq_queue,
        target=lite(tmp_path),
        target_table="events",
    )
    rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode() for n in range(3)])
    load(followed)
    shutil.rmtree(stream_folder_for(followed.spec).folder / "spools")
    rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode() for n in range(3, 6)])
    load(followed)
    assert rows_in(tmp_path, "SELECT count(*), count(DISTINCT id) FROM events") == [(6, 6)]
    assert rabbitmq.count(rabbitmq_queue) == 0


def test_a_stream_that_is_started_again_and_again_leaves_no_process_behind(
    rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path, spark: SparkSession
) -> None:
    followed = stream(
        source=RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url()),
        source_query=rabbitmq_queue,
        target=lite(tmp_path),
        target_table="events",
    )
    children: list[int] = []
    for n in range(3):
        rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode()])
        load(followed)
        assert spark._jvm is not None
        children.append(spark._jvm.java.lang.ProcessHandle.current().children().count())
    assert children[0] == children[1] == children[2]


def test_a_kinesis_stream_whose_folder_is_lost_goes_on_where_the_ledger_ends(
    kinesis: Any, kinesis_stream: str, tmp_path: Path
) -> None:
    """Against an emulator: the service itself cannot run here."""
    import shutil

    from ematix_flow.spec.connections import KinesisConnection

    followed = stream(
        source=KinesisConnection(name="kinesis", **kinesis.connection_fields(kinesis_stream)),
        source_query=kinesis_stream,
        target=lite(tmp_path),
        target_table="events",
    )
    kinesis.put(kinesis_stream, [(str(n), json.dumps({"id": n}).encode()) for n in range(6)])
    load(followed)
    shutil.rmtree(stream_folder_for(followed.spec).folder)
    kinesis.put(kinesis_stream, [(str(n), json.dumps({"id": n}).encode()) for n in range(6, 9)])
    load(followed)
    assert rows_in(tmp_path, "SELECT count(*), count(DISTINCT id) FROM events") == [(9, 9)]


def test_a_text_that_the_database_refuses_is_put_aside(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL, page text)")
    produce(kafka, kafka_topic, [{"id": n, "page": "a\x00b" if n == 7 else "a"} for n in range(10)])
    followed = events_into(pg_database, kafka, kafka_topic, transform_on_error="dlq")
    assert load(followed).dead_letters == 1
    assert query(pg_database, "SELECT count(*), count(DISTINCT id) FROM events WHERE id <> 7") == [(9, 9)]
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        [letter] = store.list("events", limit=10)
    assert (letter.stage, letter.position) == ("write", "7")


def test_no_row_is_blamed_for_a_database_that_goes_away_while_it_is_looked_for(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL CHECK (id <> 3), page text)")
    produce(kafka, kafka_topic, [{"id": n, "page": "a"} for n in range(6)])

    def away(*_: object, **options: object) -> None:
        raise TargetFailed("the connection to the target broke")

    followed = events_into(pg_database, kafka, kafka_topic, transform_on_error="drop")
    with monkeypatch.context() as broken, pytest.raises(TargetFailed, match="broke"):
        broken.setattr(TableSink, "rehearse", away)
        load(followed)
    result = load(followed)
    assert (result.dropped, result.total_rows) == (1, 5)


def test_what_is_left_out_is_counted(kafka: KafkaServer, kafka_topic: str, pg_database: str) -> None:
    query(pg_database, "CREATE TABLE events (id bigint NOT NULL)")
    produce(kafka, kafka_topic, [{"id": 1}, b"{", None, b"", {"id": 2}])
    metrics = StreamMetrics()
    followed = events_into(pg_database, kafka, kafka_topic, transform_on_error="drop")
    result = followed.start(once=True, metrics=metrics).wait()
    assert (result.rows_read, result.total_rows, result.dropped, result.empty) == (5, 2, 1, 2)
    counted = {
        name: metrics.registry.get_sample_value(f"ematix_flow_stream_{name}_total", {"pipeline": "events"})
        for name in ("skipped", "tombstones")
    }
    assert counted == {"skipped": 1, "tombstones": 2}


def test_a_table_that_is_gone_does_not_begin_in_the_middle(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    followed = events_into(pg_database, kafka, kafka_topic)
    produce(kafka, kafka_topic, [{"id": 1}])
    load(followed)
    query(pg_database, "DROP TABLE events")
    produce(kafka, kafka_topic, [{"id": 2}])
    with pytest.raises(TargetFailed, match="is gone, and this stream has loaded it before"):
        load(followed)


def test_two_topics_are_one_stream(kafka: KafkaServer, kafka_topic: str, tmp_path: Path) -> None:
    other = kafka.create_topic("other")
    followed = stream(
        sources=[Source(kafka_connection(kafka), kafka_topic), Source(kafka_connection(kafka, "two"), other)],
        target=lite(tmp_path),
        target_table="events",
    )
    produce(kafka, kafka_topic, [{"id": 1}])
    produce(kafka, other, [{"id": 2}])
    load(followed)
    produce(kafka, other, [{"id": 3}])
    load(followed)
    assert rows_in(tmp_path, "SELECT id FROM events ORDER BY id") == [(1,), (2,), (3,)]


def test_a_topic_and_a_queue_are_not_one_stream(
    kafka: KafkaServer, kafka_topic: str, rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path
) -> None:
    rabbit = RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url())
    with pytest.raises(Unsupported, match="Kafka"):
        load(
            stream(
                sources=[Source(kafka_connection(kafka), kafka_topic), Source(rabbit, rabbitmq_queue)],
                target=lite(tmp_path),
                target_table="events",
            )
        )
