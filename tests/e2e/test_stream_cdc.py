"""Change events from Kafka into databases and Delta: Debezium, Maxwell, custom envelopes, and crashes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from ematix_flow import (
    CDC,
    Annotated,
    BigInt,
    Integer,
    ManagedTable,
    String,
    Target,
    Text,
    fault_points,
    nullable,
    pk,
)
from ematix_flow.backends.payloads.change_events import UNAVAILABLE
from ematix_flow.engine.streams import incoming_batch, small_batches
from ematix_flow.errors import FlowError, UnreadableMessages
from ematix_flow.spec.connections import (
    DeltaLocalConnection,
    DeltaS3Connection,
    DuckDBConnection,
    MySQLConnection,
    SQLiteConnection,
)
from tests.contract import mysql_setup
from tests.services.kafka import KafkaServer
from tests.services.s3 import S3Server
from tests.stream_runs import kafka_connection, load, produce, query, stream, warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


class Customers(ManagedTable):
    __schema__ = "public"
    __tablename__ = "customers"
    region: Annotated[String[10], pk()]
    id: Annotated[BigInt, pk()]
    email: Annotated[Text, nullable()]
    score: Annotated[BigInt, nullable()]


def change(op: str, lsn: int, before: Any, after: Any, **source: Any) -> dict[str, Any]:
    return {
        "op": op,
        "before": before,
        "after": after,
        "source": {"connector": "postgresql", "lsn": lsn, "ts_ms": 1_700_000_000_000, **source},
    }


def customer(id: int, email: str | None, score: int = 0, region: str = "eu") -> dict[str, Any]:
    return {"region": region, "id": id, "email": email, "score": score}


FIRST = [
    change("r", 10, None, customer(1, "a")),
    change("r", 10, None, customer(2, "b")),
    change("c", 20, None, customer(3, "c")),
    change("u", 30, None, customer(1, UNAVAILABLE, 5)),
    change("d", 40, {"region": "eu", "id": 2}, None),
    None,  # the tombstone after a delete
]
SECOND = [
    *FIRST[:4],  # delivered again
    change("u", 50, {"region": "eu", "id": 3}, customer(4, "c")),
    change("c", 60, None, customer(2, "again")),
]
EXPECTED = [("eu", 1, "a", 5), ("eu", 2, "again", 0), ("eu", 4, "c", 0)]


def mirror(kafka: KafkaServer, topic: str, target: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"cdc": CDC(envelope="debezium"), "target_table": Customers, **options}
    return stream(source=kafka_connection(kafka), source_query=topic, target=target, **given)


@pytest.mark.parametrize("point", ["stream.staged", "apply.before_commit", "apply.after_commit"])
def test_a_mirror_that_dies_there_is_right_after_the_next_start(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, point: str
) -> None:
    followed = mirror(kafka, kafka_topic, warehouse(pg_database))
    produce(kafka, kafka_topic, FIRST)
    with fault_points.inject(point, "crash") as fault, pytest.raises(fault_points.InjectedCrash):
        load(followed)
    assert fault.has_fired
    load(followed)
    produce(kafka, kafka_topic, SECOND)
    with fault_points.inject(point, "crash"), pytest.raises(fault_points.InjectedCrash):
        load(followed)
    load(followed)
    select = "SELECT region, id, email, score FROM customers ORDER BY 1, 2"
    assert query(pg_database, select) == EXPECTED
    positions = dict(query(pg_database, "SELECT id, _position FROM customers__changes"))
    assert {id: int(text.split(".")[0]) for id, text in positions.items()} == {1: 30, 2: 60, 3: 50, 4: 50}


def test_a_large_batch_is_folded_by_tasks(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming_batch, "MAX_ROWS", 0)
    monkeypatch.setattr(small_batches, "MAX_ROWS", 0)
    produce(kafka, kafka_topic, [*FIRST, *SECOND])
    load(mirror(kafka, kafka_topic, warehouse(pg_database)))
    assert query(pg_database, "SELECT region, id, email, score FROM customers ORDER BY 1, 2") == EXPECTED


class DeclaredPayload(ManagedTable):
    region: Text
    id: Integer
    email: Annotated[Text, nullable()]
    score: Annotated[Integer, nullable()]


def test_a_large_batch_has_the_types_of_its_columns_until_it_is_staged(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming_batch, "MAX_ROWS", 0)
    monkeypatch.setattr(small_batches, "MAX_ROWS", 0)
    produce(kafka, kafka_topic, [*FIRST, *SECOND])
    load(mirror(kafka, kafka_topic, warehouse(pg_database), source_columns=DeclaredPayload))
    assert query(pg_database, "SELECT region, id, email, score FROM customers ORDER BY 1, 2") == EXPECTED


def test_a_table_that_was_dropped_alone_begins_without_old_positions(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    produce(kafka, kafka_topic, [*FIRST, *SECOND])
    load(mirror(kafka, kafka_topic, warehouse(pg_database)))
    query(pg_database, "DROP TABLE customers")
    again = mirror(kafka, kafka_topic, warehouse(pg_database), name="again")
    with fault_points.inject("apply.before_commit", "crash"), pytest.raises(fault_points.InjectedCrash):
        load(again)
    load(again)
    assert query(pg_database, "SELECT region, id, email, score FROM customers ORDER BY 1, 2") == EXPECTED


@pytest.mark.long  # a minute; a folder is always loaded
def test_a_delta_table_in_a_bucket_mirrors_the_source(
    kafka: KafkaServer, kafka_topic: str, s3: S3Server, s3_bucket: str
) -> None:
    from deltalake import DeltaTable

    lake = DeltaS3Connection(name="lake", prefix="lake", **s3.connection_fields(s3_bucket))  # type: ignore[arg-type]
    followed = mirror(kafka, kafka_topic, lake)
    for messages in (FIRST, SECOND):
        produce(kafka, kafka_topic, messages)
        load(followed)
    options = {
        "AWS_ENDPOINT_URL": lake.endpoint,
        "AWS_ACCESS_KEY_ID": lake.access_key_id,
        "AWS_SECRET_ACCESS_KEY": lake.secret_access_key,
        "AWS_REGION": lake.region or "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    table = DeltaTable(f"s3://{s3_bucket}/lake/public/customers", storage_options=options)
    rows = table.to_pyarrow_table(columns=["region", "id", "email", "score"]).to_pylist()
    found = [tuple(row.values()) for row in rows]
    assert sorted(found) == EXPECTED


def test_a_delta_table_mirrors_the_source_after_a_crash(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
    followed = mirror(kafka, kafka_topic, lake)
    produce(kafka, kafka_topic, FIRST)
    load(followed)
    produce(kafka, kafka_topic, SECOND)
    with fault_points.inject("apply.before_commit", "crash"), pytest.raises(fault_points.InjectedCrash):
        load(followed)
    load(followed)
    table = spark.read.format("delta").load(str(tmp_path / "lake" / "public" / "customers"))
    assert sorted(tuple(row) for row in table.select("region", "id", "email", "score").collect()) == EXPECTED


def field(name: str, kind: str, meaning: str | None = None, **parameters: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": kind, "optional": True, "field": name}
    if meaning is not None:
        found |= {"name": meaning, "parameters": parameters}
    return found


def test_a_new_table_has_the_types_of_the_schema_and_marks_deleted_rows(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    fields = [
        field("id", "int32"),
        field("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2"),
        field("day", "int32", "io.debezium.time.Date"),
        field("at", "int64", "io.debezium.time.MicroTimestamp"),
    ]
    schema = {"type": "struct", "fields": [{"type": "struct", "fields": fields, "field": "after"}]}
    row = {"id": 1, "price": "AMg=", "day": 19000, "at": 1_700_000_000_123_456}
    messages = [
        {"schema": schema, "payload": change("c", 1, None, row)},
        {"schema": schema, "payload": change("c", 2, None, {**row, "id": 2})},
        {"schema": schema, "payload": change("d", 3, {"id": 1}, None)},
    ]
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    followed = mirror(
        kafka,
        kafka_topic,
        lite,
        target_table="items",
        cdc=CDC(delete_mode="soft", soft_delete_column="deleted_at"),
    )
    produce(kafka, kafka_topic, messages)
    load(followed)
    with closing(sqlite3.connect(lite.path)) as database:
        found = database.execute(
            "SELECT id, price, day, at, deleted_at IS NULL FROM items ORDER BY id"
        ).fetchall()
    assert [row[0] for row in found] == [1, 2] and [row[4] for row in found] == [0, 1]
    assert str(found[0][1]) in ("2", "2.0", "2.00") and found[0][2] == "2022-01-08"
    assert str(found[0][3]).startswith("2023-11-14") and ".123456" in str(found[0][3])


def test_maxwell_changes_an_existing_table(kafka: KafkaServer, kafka_topic: str, pg_database: str) -> None:
    query(pg_database, "CREATE TABLE people (id bigint PRIMARY KEY, name text, extra text DEFAULT 'kept')")
    query(pg_database, "INSERT INTO people VALUES (7, 'old', 'mine')")

    def maxwell(type: str, pos: int, data: Any, old: Any = None) -> dict[str, Any]:
        found = {"database": "shop", "table": "people", "type": type, "ts": 1_449_786_310, "data": data}
        found["position"] = f"master.000006:{pos}"
        return found if old is None else {**found, "old": old}

    produce(
        kafka,
        kafka_topic,
        [
            maxwell("insert", 100, {"id": 1, "name": "Ada"}),
            maxwell("update", 200, {"id": 7, "name": "new"}, {"name": "old"}),
            maxwell("update", 300, {"id": 2, "name": "Ada"}, {"id": 1}),
            maxwell("insert", 50, {"id": 2, "name": "older"}),
            {"type": "table-alter", "database": "shop", "table": "people", "ts": 1},
        ],
    )
    load(
        mirror(
            kafka,
            kafka_topic,
            warehouse(pg_database),
            target_table=("public", "people"),
            cdc=CDC(envelope="maxwell"),
        )
    )
    assert query(pg_database, "SELECT id, name, extra FROM people ORDER BY id") == [
        (2, "Ada", None),
        (7, "new", "mine"),
    ]


def test_a_custom_envelope_names_its_parts(kafka: KafkaServer, kafka_topic: str, pg_database: str) -> None:
    def event(kind: str, version: int, row: Any, id: int) -> dict[str, Any]:
        return {"meta": {"kind": kind, "version": version, "id": id}, "row": row}

    produce(
        kafka,
        kafka_topic,
        [
            event("ADD", 2, {"name": "two"}, 1),
            event("ADD", 1, {"name": "one"}, 1),
            event("ADD", 1, {"name": "x"}, 2),
            event("DEL", 2, None, 2),
        ],
    )
    cdc = CDC(
        envelope="custom",
        op_field="meta.kind",
        after_field="row",
        key_field="meta.id",
        ts_field="meta.version",
        op_map={"ADD": "insert", "DEL": "delete"},
    )
    query(pg_database, "CREATE TABLE things (id bigint PRIMARY KEY, name text)")
    load(
        mirror(
            kafka,
            kafka_topic,
            warehouse(pg_database),
            target_table=("public", "things"),
            cdc=cdc,
        )
    )
    assert query(pg_database, "SELECT id, name FROM things") == [(1, "two")]


# ------------------------------------------------------------------ new fields


def test_new_fields_become_columns_of_a_declared_table(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    followed = mirror(kafka, kafka_topic, warehouse(pg_database), cdc=CDC(schema_evolution="evolve"))
    produce(kafka, kafka_topic, [change("c", 1, None, customer(1, "a"))])
    load(followed)
    wider = {**customer(2, "b"), "tier": None, "since": "2026-01-02T03:04:05Z"}
    produce(kafka, kafka_topic, [change("c", 2, None, wider)])
    with fault_points.inject("apply.before_commit", "crash"), pytest.raises(fault_points.InjectedCrash):
        load(followed)
    load(followed)
    select = "SELECT id, email, since::text FROM customers ORDER BY id"
    assert query(pg_database, select) == [(1, "a", None), (2, "b", "2026-01-02 03:04:05+00")]
    columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'customers'"
    assert ("tier",) not in query(pg_database, columns)  # only nulls so far: it has no type yet
    produce(kafka, kafka_topic, [change("u", 3, None, {**wider, "tier": 3})])
    load(followed)
    produce(kafka, kafka_topic, [change("u", 4, None, {**customer(1, "a"), "tier": 5})])
    load(mirror(kafka, kafka_topic, warehouse(pg_database), cdc=CDC(schema_evolution="evolve")))
    select = "SELECT id, tier, since IS NULL FROM customers ORDER BY id"
    assert query(pg_database, select) == [(1, 5, True), (2, 3, False)]


def test_a_target_gets_the_columns_that_another_one_has_already(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    """As after a crash between the commits of two targets."""
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    with closing(sqlite3.connect(lite.path)) as database:
        database.execute("CREATE TABLE ahead (id INTEGER PRIMARY KEY, name TEXT, size INTEGER)")
        database.execute("CREATE TABLE behind (id INTEGER PRIMARY KEY, name TEXT)")
    targets = [Target(connection=lite, table=name) for name in ("ahead", "behind")]
    cdc = CDC(schema_evolution="evolve")
    followed = stream(source=kafka_connection(kafka), source_query=kafka_topic, targets=targets, cdc=cdc)
    long_name = "n" * 100
    produce(kafka, kafka_topic, [change("c", 1, None, {"id": 1, "name": "a", "size": 7, long_name: 1})])
    load(followed)
    with closing(sqlite3.connect(lite.path)) as database:
        for table in ("ahead", "behind"):
            assert database.execute(f"SELECT id, name, size FROM {table}").fetchall() == [(1, "a", 7)]


@pytest.mark.parametrize("mode", ["merge", "scd2"])
def test_a_large_batch_with_new_fields_is_searched_by_tasks(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(incoming_batch, "MAX_ROWS", 0)
    monkeypatch.setattr(small_batches, "MAX_ROWS", 0)
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    followed = mirror(
        kafka,
        kafka_topic,
        lite,
        target_table="people",
        mode=mode,
        cdc=CDC(schema_evolution="evolve"),
    )
    produce(kafka, kafka_topic, [change("c", 1, None, {"id": 1, "name": "a"})])
    load(followed)
    rows = [{"id": n, "name": "b", "size": n if n < 3 else n + 0.5, "Name": "x"} for n in range(2, 5)]
    produce(kafka, kafka_topic, [change("c", n, None, row) for n, row in enumerate(rows, 2)])
    load(followed)
    with closing(sqlite3.connect(lite.path)) as database:
        found = database.execute("SELECT id, name, size FROM people ORDER BY id").fetchall()
    assert found == [(1, "a", None), (2, "b", 2.0), (3, "b", 3.5), (4, "b", 4.5)]


@pytest.mark.parametrize("kind", ["mysql", "duckdb"])
def test_new_fields_become_columns_after_a_crash_between_the_change_and_its_rows(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    """MySQL commits a change of a table by itself, DuckDB together with the rows."""
    target: Any = DuckDBConnection(name="duck", path=str(tmp_path / "duck.db"))
    if kind == "mysql":
        target = MySQLConnection(name="my", url=request.getfixturevalue("mariadb_database"))
    cdc = CDC(schema_evolution="evolve")
    followed = mirror(kafka, kafka_topic, target, target_table="people", cdc=cdc)
    produce(kafka, kafka_topic, [change("c", 1, None, {"id": 1, "name": "a"})])
    load(followed)
    produce(kafka, kafka_topic, [change("u", 2, None, {"id": 1, "name": "b", "size": 7, "tags": ["x"]})])
    with fault_points.inject("apply.table_changed", "crash") as fault:
        with pytest.raises(fault_points.InjectedCrash):
            load(followed)
        assert fault.has_fired
    load(followed)
    produce(kafka, kafka_topic, [change("u", 3, None, {"id": 1, "name": "c"})])  # the field is gone again
    load(followed)
    select = "SELECT id, name, size FROM people"
    if kind == "mysql":
        found = mysql_setup.sql(target.url, select)
    else:
        with duckdb.connect(target.path) as database:
            found = database.execute(select).fetchall()
    assert found == [(1, "c", 7)]


def test_new_fields_become_columns_of_a_delta_table(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
    cdc = CDC(schema_evolution="evolve")
    followed = mirror(kafka, kafka_topic, lake, target_table=("public", "people"), cdc=cdc)
    produce(kafka, kafka_topic, [change("c", 1, None, {"id": 1, "name": "a"})])
    load(followed)
    produce(kafka, kafka_topic, [change("u", 2, None, {"id": 1, "name": "b", "size": 7})])
    load(followed)
    table = spark.read.format("delta").load(str(tmp_path / "lake" / "public" / "people"))
    assert [tuple(row) for row in table.select("id", "name", "size").collect()] == [(1, "b", 7)]


def test_fields_with_names_of_load_columns_get_no_column(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    row = {"id": 1, "name": "a", "_loaded_at": "never", "_offset": 5}
    produce(kafka, kafka_topic, [change("c", 1, None, row)])
    load(mirror(kafka, kafka_topic, lite, target_table="people"))
    with closing(sqlite3.connect(lite.path)) as database:
        (found,) = database.execute("SELECT * FROM people").fetchall()
    assert found[:2] == (1, "a") and len(found) == 4 and found[2] != "never"


# ------------------------------------------------------------------ versions

T0 = 1_700_000_000_000


def timed(op: str, lsn: int, seconds: float, before: Any, after: Any) -> dict[str, Any]:
    return change(op, lsn, before, after, ts_ms=T0 + int(seconds * 1000))


HISTORY = [
    timed("r", 10, 0, None, customer(1, "a")),
    timed("r", 10, 0, None, customer(2, "b")),
    timed("u", 20, 5, None, customer(1, UNAVAILABLE, 5)),
    timed("u", 21, 5, None, customer(1, UNAVAILABLE, 6)),  # in the same millisecond: this one holds
    timed("u", 30, 7, None, customer(1, "a", 6)),  # changes nothing
    timed("d", 40, 8, {"region": "eu", "id": 2}, None),
    None,
    timed("c", 50, 9, None, customer(2, "again")),
    timed("u", 60, 10, {"region": "eu", "id": 1}, customer(3, "a", 6)),
]
VERSIONS = [
    (1, "a", 0, 0, 5, False),
    (1, "a", 6, 5, 10, False),
    (2, "again", 0, 9, None, True),
    (2, "b", 0, 0, 8, False),
    (3, "a", 6, 10, None, True),
]


@pytest.mark.parametrize("large", [False, True])
def test_changes_become_versions_with_the_times_of_the_source(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(incoming_batch, "MAX_ROWS", 0)
        monkeypatch.setattr(small_batches, "MAX_ROWS", 0)
    followed = mirror(kafka, kafka_topic, warehouse(pg_database), mode="scd2")
    for cut in (HISTORY[:4], HISTORY[2:6], HISTORY[3:]):  # delivered again, as after a crash of the source
        produce(kafka, kafka_topic, cut)
        with fault_points.inject("apply.before_commit", "crash"), pytest.raises(fault_points.InjectedCrash):
            load(followed)
        load(followed)
    epoch = f"extract(epoch FROM {{}})::int - {T0 // 1000}"
    select = (
        f"SELECT id, email, score, {epoch.format('valid_from')}, {epoch.format('valid_to')}, is_current "
        "FROM customers ORDER BY id, email, score"
    )
    assert query(pg_database, select) == VERSIONS
    assert "exactly_once" in str(followed.plan())


def test_a_delta_table_keeps_the_versions_of_changes_after_a_crash(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
    followed = mirror(kafka, kafka_topic, lake, mode="scd2")
    produce(kafka, kafka_topic, HISTORY[:5])
    load(followed)
    produce(kafka, kafka_topic, HISTORY[3:])
    with fault_points.inject("apply.before_commit", "crash"), pytest.raises(fault_points.InjectedCrash):
        load(followed)
    load(followed)
    table = spark.read.format("delta").load(str(tmp_path / "lake" / "public" / "customers"))
    seconds = [f"cast({name} as long) - {T0 // 1000}" for name in ("valid_from", "valid_to")]
    found = table.selectExpr("id", "email", "score", *seconds, "is_current").collect()
    assert sorted(map(tuple, found), key=lambda row: row[:3]) == VERSIONS


def test_versions_of_a_large_batch_end_at_a_truncate(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field that the new row does not have is null, as the row before the truncate is another one."""
    monkeypatch.setattr(incoming_batch, "MAX_ROWS", 0)
    monkeypatch.setattr(small_batches, "MAX_ROWS", 0)
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    new_row = {"region": "eu", "id": 1, "score": 2}
    changes = [
        timed("c", 5, 0, None, customer(1, "old")),
        timed("t", 6, 3, None, None),
        timed("c", 9, 5, None, new_row),
    ]
    produce(kafka, kafka_topic, changes)
    load(mirror(kafka, kafka_topic, lite, mode="scd2"))
    with closing(sqlite3.connect(lite.path)) as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        (table,) = [name for name in names if name.endswith("customers")]
        select = f"SELECT email, score, valid_to IS NULL FROM {table} ORDER BY valid_from"
        assert database.execute(select).fetchall() == [("old", 0, 0), (None, 2, 1)]


def test_rows_and_versions_are_not_mixed_in_one_table(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path
) -> None:
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    produce(kafka, kafka_topic, HISTORY)
    given: dict[str, Any] = {"keys": ["region", "id"], "on_drift": "evolve"}
    load(mirror(kafka, kafka_topic, lite, name="versions", target_table="kept", mode="scd2", **given))
    with pytest.raises(FlowError, match="has versions of rows"):
        load(mirror(kafka, kafka_topic, lite, name="rows", target_table="kept", **given))
    load(mirror(kafka, kafka_topic, lite, name="mirror", target_table="mirrored", **given))
    with pytest.raises(FlowError, match="has rows without the times of their changes"):
        load(mirror(kafka, kafka_topic, lite, name="history", target_table="mirrored", mode="scd2", **given))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (change("c", 1, None, customer(1, "a"), ts_ms=None), "no 'source.ts_ms', the time from which"),
        (timed("u", 1, 0, None, customer(1, UNAVAILABLE)), "leave out long values"),
    ],
)
def test_a_change_that_makes_no_version_is_refused_with_the_reason(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, message: Any, words: str
) -> None:
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    produce(kafka, kafka_topic, [message])
    with pytest.raises(FlowError, match=words):
        load(mirror(kafka, kafka_topic, lite, mode="scd2"))
    assert load(mirror(kafka, kafka_topic, lite, mode="scd2", transform_on_error="drop")).dropped == 1


@pytest.mark.parametrize(
    ("cdc", "message", "words"),
    [
        (CDC(), change("c", 1, None, {"id": 1, "email": "x"}), "no 'after.region', which is the key"),
        (CDC(), {"id": 1}, "no operation at 'op'"),
        (CDC(), change("z", 1, None, customer(1, "a")), "'op' is 'z'"),
        (CDC(), change("c", 1, None, None), "no 'after'"),
        (CDC(schema_evolution="fail"), change("c", 1, None, {**customer(1, "a"), "x": 1}), "has 'x'"),
        (CDC(), change("u", 1, None, customer(1, UNAVAILABLE)), "leave out long values"),
    ],
)
def test_a_message_that_is_no_change_stops_the_stream_with_the_reason(
    kafka: KafkaServer, kafka_topic: str, tmp_path: Path, cdc: CDC, message: Any, words: str
) -> None:
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    followed = mirror(kafka, kafka_topic, lite, cdc=cdc)
    produce(kafka, kafka_topic, [message])
    with pytest.raises(FlowError, match=words) as failed:
        load(followed)
    assert isinstance(failed.value, UnreadableMessages) or "leave out" in failed.value.what
    put_aside = mirror(kafka, kafka_topic, lite, cdc=cdc, transform_on_error="drop")
    assert load(put_aside).dropped == 1


def test_a_plan_shows_the_changes_and_the_companion(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    plan = mirror(kafka, kafka_topic, warehouse(pg_database)).plan()
    said = "debezium changes in the order of the source's log; deletes rows; leaves out new fields"
    assert said in str(plan) and "customers__changes" in str(plan)
    assert json.loads(json.dumps(plan.to_json()))["cdc"]["envelope"] == "debezium"
