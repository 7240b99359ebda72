"""Streams from every other source, and into every kind of target: what was published is there, once."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.spec.connections import (
    Connection,
    DeltaLocalConnection,
    DuckDBConnection,
    IcebergConnection,
    KinesisConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PubSubConnection,
    RabbitMQConnection,
    SQLiteConnection,
)
from ematix_flow.streams.running_stream import StreamResult
from tests.services.kafka import KafkaServer
from tests.stream_runs import kafka_connection, load, produce, stream

pytestmark = pytest.mark.usefixtures("spark")


def lite(tmp_path: Path) -> SQLiteConnection:
    return SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))


def ids(tmp_path: Path) -> list[int]:
    with sqlite3.connect(tmp_path / "lite.db") as database:
        return [row[0] for row in database.execute("SELECT id FROM events ORDER BY id")]


def into_lite(tmp_path: Path, source: Connection, query: str, **options: Any) -> StreamResult:
    return load(
        stream(source=source, source_query=query, target=lite(tmp_path), target_table="events", **options)
    )


def test_a_queue_is_loaded_and_acknowledged_when_it_is_in_the_table(
    rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path
) -> None:
    source = RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url())
    rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode() for n in range(20)])
    assert into_lite(tmp_path, source, rabbitmq_queue).total_rows == 20
    assert rabbitmq.count(rabbitmq_queue) == 0
    rabbitmq.publish(rabbitmq_queue, [json.dumps({"id": n}).encode() for n in range(20, 25)])
    into_lite(tmp_path, source, rabbitmq_queue)
    assert ids(tmp_path) == list(range(25))


def test_a_batch_without_messages_is_not_counted(rabbitmq: Any, rabbitmq_queue: str, tmp_path: Path) -> None:
    """Spark begins with one when it finds the queue before the first message."""
    followed = stream(
        source=RabbitMQConnection(name="rabbit", amqp_url=rabbitmq.url()),
        source_query=rabbitmq_queue,
        target=lite(tmp_path),
        target_table="events",
    )
    running = followed.start()
    try:
        first = stream_folder_for(followed.spec).checkpoint("all") / "commits" / "0"
        deadline = time.monotonic() + 120
        while not first.exists():
            assert time.monotonic() < deadline and running.is_running, "no batch has come"
            time.sleep(0.1)
    finally:
        running.stop()
    assert running.wait().iterations == 0


def test_a_subscription_is_loaded(pubsub: Any, pubsub_topic: Any, tmp_path: Path) -> None:
    """Against Google's own test server: the service itself cannot run here."""
    source = PubSubConnection(name="pubsub", **pubsub.connection_fields())
    pubsub.publish(pubsub_topic, [{"data": json.dumps({"id": n}).encode()} for n in range(20)])
    into_lite(tmp_path, source, pubsub_topic.subscription)
    assert ids(tmp_path) == list(range(20))


def test_the_shards_of_a_kinesis_stream_are_loaded(kinesis: Any, kinesis_stream: str, tmp_path: Path) -> None:
    """Against an emulator: the service itself cannot run here."""
    source = KinesisConnection(name="kinesis", **kinesis.connection_fields(kinesis_stream))
    kinesis.put(kinesis_stream, [(str(n), json.dumps({"id": n}).encode()) for n in range(20)])
    into_lite(tmp_path, source, kinesis_stream)
    kinesis.put(kinesis_stream, [(str(n), json.dumps({"id": n}).encode()) for n in range(20, 30)])
    into_lite(tmp_path, source, kinesis_stream)
    assert ids(tmp_path) == list(range(30))


def test_files_with_any_names_are_loaded_once_each(tmp_path: Path) -> None:
    folder = tmp_path / "landing" / "raw"
    folder.mkdir(parents=True)
    source = ObjectStoreLocalConnection(name="landing", path=str(tmp_path / "landing"), format="csv")
    (folder / "m.csv").write_text("id,name\n1,a\n2,b\n")
    into_lite(tmp_path, source, "raw")
    (folder / "a.csv").write_text("id,name\n3,c\n")
    into_lite(tmp_path, source, "raw")
    into_lite(tmp_path, source, "raw")
    assert ids(tmp_path) == [1, 2, 3]


def test_a_delta_table_is_followed_by_its_versions(spark: Any, tmp_path: Path) -> None:
    table = tmp_path / "lake" / "sales" / "events"
    source = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
    spark.createDataFrame([(1,), (2,)], "id bigint").write.format("delta").save(str(table))
    into_lite(tmp_path, source, "sales.events")
    spark.createDataFrame([(3,)], "id bigint").write.format("delta").mode("append").save(str(table))
    into_lite(tmp_path, source, "sales.events")
    assert ids(tmp_path) == [1, 2, 3]


LONG = pytest.mark.long
TARGETS = (
    "sqlite",
    pytest.param("duckdb", marks=LONG),
    "mariadb",
    "delta",
    pytest.param("iceberg", marks=LONG),
    "parquet",
)


@pytest.mark.parametrize("kind", TARGETS)
def test_every_kind_of_target_takes_a_stream_and_no_batch_twice(
    kind: str,
    kafka: KafkaServer,
    kafka_topic: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    spark: Any,
) -> None:
    from ematix_flow.engine.streams.stream_folder import stream_folder_for

    connection, options = _target(kind, tmp_path, request)
    followed = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        target=connection,
        **options,
        **({} if kind == "parquet" else {"mode": "merge", "keys": ["id"]}),
    )
    produce(kafka, kafka_topic, [{"id": n, "name": "first"} for n in range(5)])
    load(followed)
    produce(kafka, kafka_topic, [{"id": n, "name": "second"} for n in range(3, 8)])
    load(followed)
    for commit in (stream_folder_for(followed.spec).checkpoint("all") / "commits").iterdir():
        if commit.name.lstrip(".").startswith("1"):
            commit.unlink()
    load(followed)
    rows = _read(kind, connection, tmp_path, spark)
    if kind == "parquet":
        assert sorted(rows) == sorted([(n, "first") for n in range(5)] + [(n, "second") for n in range(3, 8)])
    else:
        assert sorted(rows) == [(n, "first" if n < 3 else "second") for n in range(8)]


def _target(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Connection, dict[str, Any]]:
    if kind == "sqlite":
        return lite(tmp_path), {"target_table": "events"}
    if kind == "duckdb":
        path = str(tmp_path / "w.duckdb")
        return DuckDBConnection(name="duck", path=path), {"target_table": ("main", "events")}
    if kind == "mariadb":
        url = request.getfixturevalue("mariadb_database")
        return MySQLConnection(name="maria", url=url), {"target_table": "events"}
    if kind == "delta":
        return DeltaLocalConnection(name="lake", path=str(tmp_path / "lake")), {
            "target_table": ("s", "events")
        }
    if kind == "iceberg":
        fields: dict[str, Any] = {"catalog_type": "hadoop", "warehouse": str(tmp_path / "ice")}
        return IcebergConnection(name="ice", **fields), {"target_table": ("s", "events")}
    files = ObjectStoreLocalConnection(name="files", path=str(tmp_path / "files"), format="parquet")
    return files, {"target_prefix": "events"}


def _read(kind: str, connection: Any, tmp_path: Path, spark: Any) -> list[tuple[Any, ...]]:
    from ematix_flow.backends.registry import open_backend
    from ematix_flow.spec.tables import ColumnSpec, TableSpec
    from ematix_flow.spec.types import DataType
    from tests.reading import read_table

    columns = (ColumnSpec("id", DataType("big_int")), ColumnSpec("name", DataType("text"), nullable=True))
    if kind == "delta":
        path = tmp_path / "lake" / "s" / "events"
        return [tuple(r) for r in spark.read.format("delta").load(str(path)).select("id", "name").collect()]
    if kind == "iceberg":
        from pyiceberg.table import StaticTable

        found = sorted((tmp_path / "ice" / "s" / "events" / "metadata").glob("v*.metadata.json"))
        newest = max(found, key=lambda path: int(path.name[1:].split(".")[0]))
        table = StaticTable.from_metadata(str(newest)).scan(selected_fields=("id", "name")).to_arrow()
        return [(row["id"], row["name"]) for row in table.to_pylist()]
    schema, name = {"duckdb": ("main", "events")}.get(kind, (None, "events"))
    return [
        (row["id"], row["name"])
        for row in read_table(open_backend(connection), TableSpec(schema, name, columns))
    ]
