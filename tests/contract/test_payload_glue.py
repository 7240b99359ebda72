"""Payloads with AWS Glue's registry, by moto: an emulator, which does not check compatibility."""

from __future__ import annotations

import json
import secrets
import uuid
import zlib
from typing import Any

import pytest

from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.codecs import describe_subject, encoder_for
from ematix_flow.backends.payloads.framing import encode_varint
from ematix_flow.backends.payloads.protobuf_schema import compile_schema, message_class
from ematix_flow.backends.payloads.registry import RegisteredSchema
from ematix_flow.errors import CannotConnect, SchemaMismatch
from ematix_flow.spec.connections import GlueSchemaRegistryConnection
from tests.contract.payload_registry import avro, batch, read, record
from tests.services.glue import REGION, GlueServer
from tests.services.registry import silent_server
from tests.unit.backends.payload_messages import column, utc

COLUMNS = (column("id", "big_int"), column("name", "text"), column("at", "timestamp_tz"))
ROW = {"id": 7, "name": "x", "at": utc(2024, 1, 2)}


def source(glue: GlueServer, form: str, **more: Any) -> PayloadSpec:
    return PayloadSpec(
        form, connection(glue.endpoint, glue.create_registry()), f"t{secrets.token_hex(4)}", **more
    )


def connection(endpoint: str, name: str) -> GlueSchemaRegistryConnection:
    return GlueSchemaRegistryConnection(
        name="glue",
        registry_name=name,
        region=REGION,
        endpoint=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="glue-canary-secret",
    )


def named(payload: PayloadSpec) -> dict[str, str]:
    assert isinstance(payload.registry, GlueSchemaRegistryConnection)
    return {"RegistryName": payload.registry.registry_name, "SchemaName": payload.topic}


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_what_is_written_is_read_back(glue: GlueServer, form: str) -> None:
    payload = source(glue, form)
    [value] = encoder_for(payload, COLUMNS).encode(batch(COLUMNS, [ROW])).to_pylist()
    assert value[:2] == b"\x03\x00"
    assert read(payload, COLUMNS, [value, None]).rows.to_pylist() == [ROW]
    assert describe_subject(payload) == COLUMNS
    version = glue.client().get_schema_version(SchemaVersionId=str(uuid.UUID(bytes=value[2:18])))
    assert version["DataFormat"] == form.upper()


def test_compressed_and_broken_frames_and_unknown_schemas(glue: GlueServer) -> None:
    payload = source(glue, "avro")
    [value] = encoder_for(payload, COLUMNS).encode(batch(COLUMNS, [ROW])).to_pylist()
    unknown = uuid.UUID(int=9)
    packed = zlib.compress(value[18:])
    decoded = read(
        payload,
        COLUMNS,
        [
            b"\x03\x05" + value[2:18] + packed,
            b"\x03\x05" + value[2:18] + packed[:-4],
            b"\x03\x05" + value[2:18] + b"no zlib",
            b"\x03\x07" + value[2:],
            b"\x00\x00\x00\x00\x01" + value[5:],
            b"\x03\x00" + unknown.bytes + b"x",
            b"\x03\x00",
        ],
    )
    assert decoded.rows.to_pylist() == [ROW]
    reasons = [each.reason for each in decoded.bad]
    assert "truncated" in reasons[0]
    assert "cannot be decompressed" in reasons[1]
    assert "the compression of the payload is unknown (7)" in reasons[2]
    assert "begins with byte 0" in reasons[3]
    assert reasons[4] == f"schema id {unknown} is not in the registry"
    assert "too few" in reasons[5]


def test_two_versions_in_one_batch_are_both_read(glue: GlueServer) -> None:
    payload = source(glue, "avro")
    old, new = record(("id", "long")), record(("id", "long"), ("name", "string", "none"))
    client = glue.client()
    first = client.create_schema(
        RegistryId={"RegistryName": named(payload)["RegistryName"]},
        SchemaName=payload.topic,
        DataFormat="AVRO",
        Compatibility="BACKWARD",
        SchemaDefinition=json.dumps(old),
    )
    second = client.register_schema_version(SchemaId=named(payload), SchemaDefinition=json.dumps(new))
    values: list[bytes | None] = [
        b"\x03\x00" + uuid.UUID(first["SchemaVersionId"]).bytes + avro(0, old, {"id": 1})[5:],
        b"\x03\x00" + uuid.UUID(second["SchemaVersionId"]).bytes + avro(0, new, {"id": 2, "name": "n"})[5:],
    ]
    decoded = read(payload, COLUMNS[:2], values)
    assert decoded.rows.to_pylist() == [{"id": 1, "name": "none"}, {"id": 2, "name": "n"}]


def test_a_protobuf_message_is_found_by_its_number_among_all_names(glue: GlueServer) -> None:
    text = (
        'syntax = "proto3"; message B { message C { int32 c = 1; } message A { int32 a = 1; } int32 b = 1; }'
    )
    payload = source(glue, "protobuf")
    made = glue.client().create_schema(
        RegistryId={"RegistryName": named(payload)["RegistryName"]},
        SchemaName=payload.topic,
        DataFormat="PROTOBUF",
        Compatibility="NONE",
        SchemaDefinition=text,
    )
    prefix = b"\x03\x00" + uuid.UUID(made["SchemaVersionId"]).bytes
    file = compile_schema(RegisteredSchema(0, text, "PROTOBUF"))
    values = [
        prefix
        + encode_varint(number)
        + message_class(file.find_message(name))(**{field: 5}).SerializeToString()
        for number, name, field in ((0, "B", "b"), (1, "B.A", "a"), (2, "B.C", "c"), (3, "B", "b"))
    ]
    decoded = read(
        payload, (column("a", "integer"), column("b", "integer"), column("c", "integer")), list(values)
    )
    assert decoded.rows.to_pylist() == [
        {"a": None, "b": 5, "c": None},
        {"a": 5, "b": None, "c": None},
        {"a": None, "b": None, "c": 5},
    ]
    assert "has no message at 3" in decoded.bad[0].reason


def test_a_missing_registry_is_reported(glue: GlueServer) -> None:
    payload = PayloadSpec("avro", connection(glue.endpoint, "nowhere"), "t")
    with pytest.raises(SchemaMismatch, match="has no registry 'nowhere'"):
        encoder_for(payload, COLUMNS)


def test_glue_that_is_down_or_never_answers_stops_the_batch() -> None:
    value = b"\x03\x00" + uuid.uuid4().bytes + b"x"
    with silent_server() as silent:
        for endpoint in ("http://127.0.0.1:1", silent):
            payload = PayloadSpec("avro", connection(endpoint, "r"), "t", registry_seconds=1)
            with pytest.raises(CannotConnect, match="cannot reach Glue's schema registry") as error:
                read(payload, COLUMNS, [value])
            assert "glue-canary-secret" not in f"{error.value} {payload!r}"
