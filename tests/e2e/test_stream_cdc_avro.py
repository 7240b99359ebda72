"""Change events of Debezium in Avro, with the schemas that Kafka Connect's converter registers."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import CDC, Annotated, BigInt, ManagedTable, Numeric, Text, TimestampTZ, fault_points, pk
from ematix_flow import nullable as may_be_null
from ematix_flow.backends.payloads.change_events import UNAVAILABLE
from ematix_flow.spec.connections import KafkaConnection, SchemaRegistryConnection, SQLiteConnection
from tests.contract.payload_registry import avro, record, register
from tests.services.kafka import KafkaServer
from tests.services.registry import RegistryServer
from tests.stream_runs import load, produce, query, stream, warehouse

pytestmark = pytest.mark.usefixtures("spark")


def connect_type(kind: str, name: str, **more: Any) -> list[Any]:
    return ["null", {"type": kind, "connect.version": 1, "connect.name": name, **more}]


def decimal_type(precision: int, scale: int) -> list[Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    more = {"scale": scale, "precision": precision, "connect.parameters": parameters}
    name = "org.apache.kafka.connect.data.Decimal"
    return connect_type("bytes", name, logicalType="decimal", **more)


VALUE_FIELDS: list[tuple[Any, ...]] = [
    ("id", "long"),
    ("note", ["null", "string"], None),
    ("amount", decimal_type(12, 2), None),
    ("made", connect_type("long", "io.debezium.time.MicroTimestamp"), None),
    ("day", connect_type("int", "io.debezium.time.Date"), None),
    (
        "seen",
        connect_type("long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis"),
        None,
    ),
    ("changed", connect_type("string", "io.debezium.time.ZonedTimestamp"), None),
]
SOURCE = record(
    ("connector", "string"),
    ("ts_ms", "long"),
    ("sequence", ["null", "string"], None),
    ("lsn", ["null", "long"], None),
    name="io.debezium.connector.postgresql.Source",
)


def envelope(*more_fields: tuple[Any, ...]) -> dict[str, Any]:
    """The row's type is defined in ``before``, and ``after`` has only its name."""
    value = record(*VALUE_FIELDS, *more_fields, name="source.public.orders.Value")
    return record(
        ("before", ["null", value], None),
        ("after", ["null", value["name"]], None),
        ("source", SOURCE),
        ("op", "string"),
        ("ts_ms", ["null", "long"], None),
        name="source.public.orders.Envelope",
    )


UTC = dt.timezone.utc
SEEN = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
FULL = {
    "note": "ä",
    "amount": Decimal("1234567890.10"),
    "made": 86_400_000_001,  # the second day of 1970
    "day": -1,
    "seen": SEEN,
    "changed": "2026-01-02T03:04:05.123456+02:00",
}


def change(op: str, lsn: int, before: Any, after: Any) -> dict[str, Any]:
    source = {"connector": "postgresql", "ts_ms": 1_700_000_000_000 + lsn, "lsn": lsn}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1_700_000_000_000}


FIRST = [
    change("r", 10, None, {"id": 1, **FULL}),
    change("c", 20, None, {"id": 2, "note": "b", "amount": Decimal("-0.01")}),
    change("c", 30, None, {"id": 3, "note": None}),
]
SECOND = [
    FIRST[0],  # delivered again
    change("u", 40, None, {"id": 1, **FULL, "note": UNAVAILABLE, "amount": Decimal("2.00")}),
    change("d", 50, {"id": 2}, None),
    None,
    change("u", 60, {"id": 3}, {"id": 4, "note": "moved"}),
]


class Registered:
    def __init__(self, kafka: KafkaServer, topic: str, registry: RegistryServer) -> None:
        registry.start()
        self.kafka, self.topic, self.url = kafka, topic, registry.url
        self.connection = KafkaConnection(
            name="kafka",
            bootstrap_servers=kafka.bootstrap,
            payload_format="avro",
            schema_registry=SchemaRegistryConnection(name="reg", url=registry.url),
        )

    def send(self, changes: list[Any], schema: dict[str, Any]) -> None:
        known = register(self.url, f"{self.topic}-value", schema)
        produce(self.kafka, self.topic, [each and avro(known, schema, each) for each in changes])

    def into(self, target: Any, table: Any, cdc: CDC | None = None, **more: Any) -> Any:
        options = {"target": target, "target_table": table, "cdc": cdc or CDC(), **more}
        return stream(source=self.connection, source_query=self.topic, **options)


@pytest.fixture
def registered(kafka: KafkaServer, kafka_topic: str, registry: RegistryServer) -> Registered:
    return Registered(kafka, kafka_topic, registry)


class Orders(ManagedTable):
    __schema__ = "public"
    __tablename__ = "orders"
    id: Annotated[BigInt, pk()]
    note: Annotated[Text, may_be_null()]
    amount: Annotated[Numeric[12, 2], may_be_null()]
    made: Annotated[TimestampTZ, may_be_null()]


def test_a_declared_table_mirrors_the_source_after_a_crash(registered: Registered, pg_database: str) -> None:
    followed = registered.into(warehouse(pg_database), Orders)
    for changes in (FIRST, SECOND):
        registered.send(changes, envelope())
        with fault_points.inject("apply.before_commit", "crash"), pytest.raises(fault_points.InjectedCrash):
            load(followed)
        load(followed)
    made = dt.datetime(1970, 1, 2, 0, 0, 0, 1, tzinfo=UTC)
    assert query(pg_database, "SELECT id, note, amount, made FROM orders ORDER BY id") == [
        (1, "ä", Decimal("2.00"), made),
        (4, "moved", None, None),
    ]


def test_a_new_table_has_the_types_of_the_schemas(registered: Registered, pg_database: str) -> None:
    table = ("public", "orders")
    followed = registered.into(warehouse(pg_database), table, CDC(schema_evolution="evolve"))
    registered.send([*FIRST, *SECOND], envelope())
    load(followed)
    newer = envelope(("rate", decimal_type(20, 10), None))
    registered.send([change("u", 70, None, {"id": 4, "rate": Decimal("0.0000000001")})], newer)
    load(followed)
    types = """
        SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
        WHERE attrelid = 'orders'::regclass AND attnum > 0 AND attname NOT LIKE '\\_%' ORDER BY attnum"""
    assert query(pg_database, types) == [
        ("id", "bigint"),
        ("note", "text"),
        ("amount", "numeric(12,2)"),
        ("made", "timestamp without time zone"),
        ("day", "date"),
        ("seen", "timestamp without time zone"),
        ("changed", "timestamp with time zone"),
        ("rate", "numeric(20,10)"),
    ]
    names = ("id", "note", "amount", "made", "day", "seen", "changed", "rate")
    row, other = query(pg_database, f"SELECT {', '.join(names)} FROM orders ORDER BY id")
    assert row == (
        1,
        "ä",
        Decimal("2.00"),
        dt.datetime(1970, 1, 2, 0, 0, 0, 1),
        dt.date(1969, 12, 31),
        SEEN.replace(tzinfo=None),
        dt.datetime(2026, 1, 2, 1, 4, 5, 123_456, tzinfo=UTC),
        None,
    )
    assert (other[0], other[-1]) == (4, Decimal("0.0000000001"))


def test_versions_of_avro_events_have_the_times_of_the_source(registered: Registered, tmp_path: Path) -> None:
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "lite.db"))
    registered.send([*FIRST, *SECOND], envelope())
    load(registered.into(lite, "orders", mode="scd2"))
    with closing(sqlite3.connect(lite.path)) as database:
        found = database.execute("SELECT id, amount FROM orders WHERE is_current ORDER BY id").fetchall()
    assert [id for id, _ in found] == [1, 4]
