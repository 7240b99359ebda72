"""A newer schema from each kind of registry in each format: `on_drift=` works the same way."""

from __future__ import annotations

import json
import sqlite3
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.payloads.framing import encode_varint
from ematix_flow.backends.payloads.protobuf_schema import compile_schema, message_class
from ematix_flow.backends.payloads.registry import RegisteredSchema
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.connections import (
    GlueSchemaRegistryConnection,
    KafkaConnection,
    SchemaRegistryConnection,
    SQLiteConnection,
)
from tests.contract.payload_registry import avro, record, register
from tests.services.glue import REGION
from tests.services.kafka import KafkaServer
from tests.stream_runs import load, produce, stream

SCHEMAS: dict[str, tuple[Any, Any]] = {
    "avro": (
        record(("id", "int")),
        record(("id", "long"), ("tier", ["null", "string"], None)),
    ),
    "protobuf": (
        'syntax = "proto3"; message Order { int32 id = 1; }',
        'syntax = "proto3"; message Order { int64 id = 1; optional string tier = 2; }',
    ),
}
BIG = 3_000_000_000


def _body(form: str, schema: Any, row: dict[str, Any]) -> bytes:
    if form == "avro":
        return avro(0, schema, row)[5:]
    made = message_class(compile_schema(RegisteredSchema(0, schema, "PROTOBUF")).find_message("Order"))
    return encode_varint(0) + bytes(made(**row).SerializeToString())  # the first message of the file


class _Confluent:
    def __init__(self, server: Any, topic: str) -> None:
        server.start()
        self.topic, self.connection = topic, SchemaRegistryConnection(name="reg", url=server.url)

    def prefix(self, form: str, schema: Any) -> bytes:
        known = register(self.connection.url, f"{self.topic}-value", schema, form.upper())
        return struct.pack(">BI", 0, known)


class _Glue:
    def __init__(self, server: Any, topic: str) -> None:
        self.topic, self.client, self.name = topic, server.client(), server.create_registry()
        self.connection = GlueSchemaRegistryConnection(
            name="reg",
            registry_name=self.name,
            region=REGION,
            endpoint=server.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="testtest",
        )
        self._is_made = False

    def prefix(self, form: str, schema: Any) -> bytes:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        if self._is_made:
            answer = self.client.register_schema_version(
                SchemaId={"RegistryName": self.name, "SchemaName": self.topic}, SchemaDefinition=text
            )
        else:
            answer = self.client.create_schema(
                RegistryId={"RegistryName": self.name},
                SchemaName=self.topic,
                DataFormat=form.upper(),
                Compatibility="NONE",
                SchemaDefinition=text,
            )
            self._is_made = True
        return b"\x03\x00" + uuid.UUID(answer["SchemaVersionId"]).bytes


@pytest.mark.parametrize(
    ("fixture", "form"),
    [
        ("registry", "protobuf"),
        pytest.param("glue", "avro", marks=pytest.mark.long),
        pytest.param("glue", "protobuf", marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_newer_schema_is_an_error_until_the_table_may_evolve(
    fixture: str,
    form: str,
    kafka: KafkaServer,
    kafka_topic: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    server = request.getfixturevalue(fixture)
    registry: Any = (_Confluent if fixture == "registry" else _Glue)(server, kafka_topic)
    source = KafkaConnection(
        name="kafka",
        bootstrap_servers=kafka.bootstrap,
        payload_format=form,
        schema_registry=registry.connection,
    )

    def send(version: int, row: dict[str, Any]) -> None:
        schema = SCHEMAS[form][version]
        produce(kafka, kafka_topic, [registry.prefix(form, schema) + _body(form, schema, row)])

    def followed(**options: Any) -> Any:
        lite = SQLiteConnection(name="lite", path=str(tmp_path / "w.db"))
        return stream(source=source, source_query=kafka_topic, target=lite, target_table="events", **options)

    def rows(columns: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(tmp_path / "w.db") as opened:
            return opened.execute(f"SELECT {columns} FROM events ORDER BY id").fetchall()

    send(0, {"id": 1})
    assert load(followed()).total_rows == 1
    send(1, {"id": BIG, "tier": "gold"})
    with pytest.raises(SchemaMismatch, match=r"(?s)tier.*on_drift='evolve'"):
        load(followed())
    assert rows("id") == [(1,)]
    assert load(followed(on_drift="evolve")).total_rows == 1
    send(0, {"id": 2})  # a producer that was not deployed yet
    assert load(followed(on_drift="evolve")).total_rows == 1
    assert rows("id, tier") == [(1, None), (2, None), (BIG, "gold")]
