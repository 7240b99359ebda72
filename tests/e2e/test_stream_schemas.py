"""Fields that a message lacks or a newer schema adds: ``source_columns=`` and ``on_drift=``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, ManagedTable, Text, pk
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.errors import SchemaMismatch, SourceFailed
from ematix_flow.spec.connections import (
    DeltaLocalConnection,
    KafkaConnection,
    ObjectStoreLocalConnection,
    SchemaRegistryConnection,
    SQLiteConnection,
)
from tests.contract.payload_registry import avro, record, register
from tests.services.kafka import KafkaServer
from tests.services.registry import RegistryServer
from tests.stream_runs import events_into, kafka_connection, load, produce, query, stream, until, warehouse

pytestmark = pytest.mark.usefixtures("spark")


class Orders(ManagedTable):
    __tablename__ = "orders"
    id: Annotated[BigInt, pk()]
    kind: Text
    note: Text | None


MESSAGES = [
    {"id": 1, "kind": "a", "note": "n"},
    {"kind": "a"},
    {"id": None, "kind": "a"},
    {"ID": 4, "kind": "a"},
    {"Id": 5, "KIND": "a", "NOTE": "n"},
    {"id": 6},
    {"id": 7, "kind": "a", "note": None},
    {"id": 8, "kind": "a"},
]


@pytest.mark.parametrize("sql", [None, "SELECT id, kind, note FROM source"])
def test_a_message_without_a_field_that_is_declared_without_nulls_is_put_aside(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, sql: str | None
) -> None:
    produce(kafka, kafka_topic, MESSAGES)
    followed = events_into(
        pg_database,
        kafka,
        kafka_topic,
        source_columns=Orders,
        transform_sql=sql,
        transform_on_error="dlq",
    )
    assert load(followed).dead_letters == 5
    assert query(pg_database, "SELECT id, kind, note FROM events ORDER BY id") == [
        (1, "a", "n"),
        (7, "a", None),
        (8, "a", None),
    ]
    with open_stream_dead_letters(followed.spec, env=os.environ) as store:
        reasons = {int(letter.position or -1): letter.reason for letter in store.list("events", limit=10)}
    assert set(reasons) == {1, 2, 3, 4, 5}
    assert all("'id' is missing or null" in reasons[n] for n in (1, 2, 3, 4))
    assert "'kind' is missing or null" in reasons[5]
    assert "the payload has 'ID'" in reasons[3] and "the payload has 'Id'" in reasons[4]
    assert not any("the payload has" in reasons[n] for n in (1, 2, 5))


def test_a_row_of_a_file_without_what_is_declared_stops_the_stream(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "orders"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text('{"id": 1, "kind": "a"}\n{"kind": "b"}\n')
    followed = stream(
        source=ObjectStoreLocalConnection(name="files", path=str(tmp_path / "in"), format="json"),
        source_query="orders",
        source_columns=Orders,
        target=SQLiteConnection(name="lite", path=str(tmp_path / "w.db")),
        target_table="events",
    )
    with pytest.raises(SourceFailed, match="column 'id' is null or missing"):
        load(followed)


# ------------------------------------------------------------------ a registry's newer schemas

FIRST = record(("id", "int"), ("name", ["null", "string"], None))
SECOND = record(
    ("id", "long"), ("name", ["null", "string"], None), ("tier", ["null", "string"], None), ("size", "int", 3)
)
THIRD = record(("id", "long"), ("name", ["null", "string"], None), ("size", "int", 3))


class Registered:
    """A topic whose messages name their schemas in a registry."""

    def __init__(self, kafka: KafkaServer, topic: str, registry: RegistryServer) -> None:
        self.kafka, self.topic, self.url = kafka, topic, registry.url
        self.connection = KafkaConnection(
            name="kafka",
            bootstrap_servers=kafka.bootstrap,
            payload_format="avro",
            schema_registry=SchemaRegistryConnection(name="reg", url=registry.url),
        )

    def send(self, schema: Any, *rows: dict[str, Any]) -> None:
        known = register(self.url, f"{self.topic}-value", schema)
        produce(self.kafka, self.topic, [avro(known, schema, row) for row in rows])

    def into(self, target: Any, table: Any, **options: Any) -> Any:
        return stream(
            source=self.connection, source_query=self.topic, target=target, target_table=table, **options
        )


@pytest.fixture
def registered(kafka: KafkaServer, kafka_topic: str, registry: RegistryServer) -> Registered:
    return Registered(kafka, kafka_topic, registry)


EXISTS, COUNT = "SELECT to_regclass('public.events') IS NOT NULL", "SELECT count(*) FROM events"
BIG = 3_000_000_000
NEW = {"id": BIG, "name": "b", "tier": "gold", "size": 9}


def test_by_default_a_newer_schema_stops_the_stream_before_anything_of_it_is_loaded(
    registered: Registered, pg_database: str
) -> None:
    registered.send(FIRST, {"id": 1, "name": "a"})
    followed = registered.into(warehouse(pg_database), ("public", "events"))
    load(followed)
    registered.send(SECOND, NEW)
    with pytest.raises(SchemaMismatch, match=r"(?s)tier.*on_drift='evolve'"):
        load(followed)
    assert query(pg_database, "SELECT id, name FROM events") == [(1, "a")]
    # an undeclared field is loaded after the policy allows it
    warned = registered.into(warehouse(pg_database), ("public", "events"), on_drift="warn")
    assert any("tier" in text for text in warned.plan().targets[0].warnings)
    with pytest.raises(SourceFailed, match="out of the range of Integer"):
        load(warned)
    evolved = registered.into(warehouse(pg_database), ("public", "events"), on_drift="evolve")
    assert load(evolved).total_rows == 1
    assert query(pg_database, "SELECT id, name, tier, size FROM events ORDER BY id") == [
        (1, "a", None, None),
        (BIG, "b", "gold", 9),
    ]
    registered.send(THIRD, {"id": 5, "name": "c", "size": 1})
    load(evolved)
    assert query(pg_database, "SELECT tier, size FROM events WHERE id = 5") == [(None, 1)]


@pytest.mark.parametrize("policy", ["error", "warn", "evolve"])
def test_a_schema_that_appears_while_the_stream_runs_is_judged_before_its_batch(
    registered: Registered, pg_database: str, policy: str
) -> None:
    registered.send(FIRST, {"id": 1, "name": "a"})
    followed = registered.into(
        warehouse(pg_database), ("public", "events"), on_drift=policy, max_rows_per_batch=5
    )
    running = followed.start()
    try:
        until(
            lambda: query(pg_database, EXISTS) == [(True,)] and query(pg_database, COUNT) == [(1,)], running
        )
        registered.send(SECOND, {**NEW, "id": 2})
        if policy == "error":
            with pytest.raises(SchemaMismatch, match="tier"):
                running.wait(120)
        else:
            until(lambda: query(pg_database, COUNT) == [(2,)], running)
    finally:
        running.stop()
    if policy != "error":
        running.wait(60)
    columns = "id, name, tier, size" if policy == "evolve" else "id, name"
    more = {"error": [], "warn": [(2, "b")], "evolve": [(2, "b", "gold", 9)]}[policy]
    old = (1, "a", None, None) if policy == "evolve" else (1, "a")
    assert query(pg_database, f"SELECT {columns} FROM events ORDER BY id") == [old, *more]


@pytest.mark.parametrize("kind", ["sqlite", "delta", "sql"])
def test_a_newer_schema_adds_its_columns_to_every_kind_of_table(
    registered: Registered, tmp_path: Path, spark: Any, kind: str
) -> None:
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "w.db"))
    lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
    sql = {"transform_sql": "SELECT *, 1 AS one FROM source"} if kind == "sql" else {}
    followed = (
        registered.into(lake, ("s", "events"), on_drift="evolve")
        if kind == "delta"
        else registered.into(lite, "events", on_drift="evolve", **sql)
    )
    registered.send(FIRST, {"id": 1, "name": "a"})
    load(followed)
    registered.send(SECOND, NEW)
    load(followed)
    if kind == "delta":
        frame = spark.read.format("delta").load(str(tmp_path / "lake" / "s" / "events"))
        rows = [tuple(row) for row in frame.select("id", "tier", "size").orderBy("id").collect()]
    else:
        import sqlite3

        with sqlite3.connect(tmp_path / "w.db") as connection:
            rows = connection.execute("SELECT id, tier, size FROM events ORDER BY id").fetchall()
    assert rows == [(1, None, None), (BIG, "gold", 9)]


def test_a_table_of_others_gets_no_columns_and_the_plan_names_what_is_left_out(
    registered: Registered, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE events (id bigint)")
    registered.send(SECOND, NEW)
    followed = registered.into(warehouse(pg_database), ("public", "events"), on_drift="evolve")
    assert "has no column name, tier, size" in str(followed.plan())
    assert load(followed).total_rows == 1


def test_a_column_that_the_sql_brings_later_is_an_error_until_the_table_has_it(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    def of(sql: str, **options: Any) -> Any:
        return stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            source_columns=Orders,
            target=warehouse(pg_database),
            target_table=("public", "events"),
            transform_sql=sql,
            **options,
        )

    produce(kafka, kafka_topic, MESSAGES[:1])
    load(of("SELECT id FROM source"))
    produce(kafka, kafka_topic, MESSAGES[-1:])
    with pytest.raises(SchemaMismatch, match="kind"):
        load(of("SELECT id, kind FROM source"))
    load(of("SELECT id, kind FROM source", on_drift="evolve"))
    assert query(pg_database, "SELECT id, kind FROM events ORDER BY id") == [(1, None), (8, "a")]
