"""Avro payloads with a real registry: types, evolution, subjects, and a registry that is away."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import secrets
import struct
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ematix_flow.backends.payloads import registry as registries
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.codecs import decoder_for, describe_subject, encoder_for
from ematix_flow.errors import CannotConnect, ConfigError, SchemaMismatch
from ematix_flow.spec.connections import SchemaRegistryConnection
from tests.contract.payload_registry import avro, batch, client, payload, read, record, register
from tests.services.registry import RegistryServer, silent_server
from tests.unit.backends.payload_messages import ALL_KINDS, column, covers, messages, numeric, utc

ROW = {
    "small": -5,
    "int": 7,
    "big": 2**62,
    "single": 1.5,
    "double": 0.1,
    "num": Decimal("12.34"),
    "flag": True,
    "text": "grüße",
    "short": "abc",
    "day": dt.date(2024, 2, 29),
    "clock": dt.datetime(2024, 1, 2, 3, 4, 5, 6),
    "moment": utc(2024, 1, 2, 3, 4, 5, 123456),
    "doc": '{"a":1}',
    "docb": "[1]",
    "uid": "8f14e45f-ceea-467a-9b36-34a1b0c5c5ab",
    "raw": b"\x00\xff",
}
NULLS: dict[str, Any] = dict.fromkeys(ROW)


@pytest.fixture
def topic() -> str:
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def url(registry: RegistryServer) -> str:
    registry.start()
    return registry.url


def test_every_type_comes_back_as_it_was_written(url: str, topic: str) -> None:
    source = payload(url, "avro", topic)
    encoder = pickle.loads(pickle.dumps(encoder_for(source, ALL_KINDS)))
    written = encoder.encode(batch(ALL_KINDS, [ROW, NULLS])).to_pylist()
    # a json column is written as text, and read into one as what the text is
    wanted = tuple(c if c.name not in ("doc", "docb") else column(c.name, "text") for c in ALL_KINDS)
    decoded = read(source, wanted, [*written, None])
    assert not decoded.bad and decoded.empty_count == 1
    assert decoded.rows.to_pylist() == [ROW, NULLS]


def test_the_library_of_confluent_reads_what_is_written_and_writes_what_is_read(url: str, topic: str) -> None:
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    columns = (column("id", "big_int", nullable=False), column("name", "text"), column("at", "timestamp_tz"))
    source = payload(url, "avro", topic)
    row = {"id": 1, "name": "x", "at": utc(2024, 1, 2)}
    [value] = encoder_for(source, columns).encode(batch(columns, [row])).to_pylist()
    where = SerializationContext(topic, MessageField.VALUE)
    assert AvroDeserializer(client(url))(value, where) == row
    schema = client(url).get_latest_version(f"{topic}-value").schema.schema_str
    theirs = AvroSerializer(client(url), schema)({**row, "id": 2}, where)
    assert read(source, columns, [theirs]).rows.to_pylist() == [{**row, "id": 2}]


def test_logical_and_nested_types_of_others_are_read(url: str, topic: str) -> None:
    inner = record(("street", "string"), ("no", "int"), name="shop.Address")
    schema = record(
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
        ("hash", {"type": "fixed", "name": "Hash", "size": 3}),
        ("tags", {"type": "array", "items": "string"}),
        (
            "prices",
            {
                "type": "map",
                "values": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
        ),
        ("address", ["null", inner]),
        ("millis", {"type": "long", "logicalType": "timestamp-millis"}),
        ("nanos", {"type": "long", "logicalType": "timestamp-nanos"}),
        ("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
        ("clock", {"type": "int", "logicalType": "time-millis"}),
        ("uid", {"type": "string", "logicalType": "uuid"}),
        ("either", ["null", "string", "long"]),
    )
    schema_id = register(url, f"{topic}-value", schema)
    source = payload(url, "avro", topic)
    columns = describe_subject(source)
    assert columns is not None
    assert [(c.name, c.type.kind, c.nullable) for c in columns] == [
        ("kind", "text", False),
        ("hash", "bytes", False),
        ("tags", "json", False),
        ("prices", "json", False),
        ("address", "json", True),
        ("millis", "timestamp_tz", False),
        ("nanos", "timestamp_tz", False),
        ("local", "timestamp", False),
        ("clock", "text", False),
        ("uid", "uuid", False),
        ("either", "text", True),
    ]
    value = {
        "kind": "B",
        "hash": b"abc",
        "tags": ["x", "y"],
        "prices": {"a": Decimal("1.50")},
        "address": {"street": "s", "no": 4},
        "millis": utc(2024, 1, 2, 3, 4, 5, 123000),
        "nanos": 1704164645123456789,
        "local": dt.datetime(2024, 1, 2),
        "clock": dt.time(3, 4, 5),
        "uid": uuid.UUID(int=5),
        "either": 7,
    }
    decoded = read(source, columns, [avro(schema_id, schema, value)])
    assert not decoded.bad
    [row] = decoded.rows.to_pylist()
    assert row == {
        **value,
        "tags": '["x","y"]',
        "prices": '{"a":1.50}',
        "address": '{"street":"s","no":4}',
        "nanos": utc(2024, 1, 2, 3, 4, 5, 123456),
        "clock": "03:04:05",
        "uid": str(uuid.UUID(int=5)),
        "either": "7",
    }


def test_two_versions_of_a_schema_in_one_batch_are_both_read(url: str, topic: str) -> None:
    old = record(("id", "long"), ("gone", "string"))
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    new = record(
        ("id", "long"),
        ("added", "string", "none"),
        ("at", moment, 1704164645000000),
        ("extra", ["null", "int"], None),
    )
    old_id, new_id = register(url, f"{topic}-value", old), register(url, f"{topic}-value", new)
    columns = (
        column("id", "big_int", nullable=False),
        column("gone", "text"),
        column("added", "text"),
        column("at", "timestamp_tz", nullable=False),
        column("extra", "integer"),
    )
    values = [
        avro(old_id, old, {"id": 1, "gone": "g"}),
        avro(new_id, new, {"id": 2, "added": "a", "at": utc(2025, 1, 1), "extra": 3}),
        avro(old_id, old, {"id": 3, "gone": "h"}),
    ]
    decoded = read(payload(url, "avro", topic), columns, values)
    assert not decoded.bad
    assert decoded.rows.to_pylist() == [
        {"id": 1, "gone": "g", "added": "none", "at": utc(2024, 1, 2, 3, 4, 5), "extra": None},
        {"id": 2, "gone": None, "added": "a", "at": utc(2025, 1, 1), "extra": 3},
        {"id": 3, "gone": "h", "added": "none", "at": utc(2024, 1, 2, 3, 4, 5), "extra": None},
    ]


def test_what_cannot_be_read_is_bad_and_the_rest_goes_on(url: str, topic: str) -> None:
    schema = record(("id", "long"), ("name", "string"))
    schema_id = register(url, f"{topic}-value", schema)
    proto_id = register(url, f"{topic}-other", 'syntax = "proto3"; message M { int32 x = 1; }', "PROTOBUF")
    good = avro(schema_id, schema, {"id": 1, "name": "x"})
    unknown = 0x7FFFFFF0
    values = [
        good,
        struct.pack(">BI", 0, unknown) + b"x",
        b'{"id": 1}',
        b"\x00\x00",
        good[:-1],
        good + b"more",
        struct.pack(">BI", 0, proto_id) + b"x",
        struct.pack(">BI", 0, 0xFFFFFFFF) + b"x",
        good,
    ]
    decoded = read(payload(url, "avro", topic), (column("id", "integer"),), values)
    assert decoded.rows.num_rows == 2
    reasons = {each.index: each.reason for each in decoded.bad}
    assert reasons[1] == f"schema id {unknown} is not in the registry"
    assert "begins with byte 123" in reasons[2]
    assert "too few" in reasons[3]
    assert "does not match its schema" in reasons[4]
    assert "4 bytes more" in reasons[5]
    assert reasons[6] == f"schema id {proto_id} is Protobuf, not Avro"
    assert "is not in the registry" in reasons[7]


def test_a_schema_that_refers_to_another_is_read(url: str, topic: str) -> None:
    inner = record(("street", "string"), name="shop.Address")
    register(url, f"{topic}-address", inner)
    outer = record(("id", "long"), ("home", "shop.Address"))
    schema_id = register(url, f"{topic}-value", outer, references=[("shop.Address", f"{topic}-address", 1)])
    whole = record(("id", "long"), ("home", inner))
    columns = (column("id", "big_int"), column("home", "json"))
    source = payload(url, "avro", topic)
    assert [c.type.kind for c in describe_subject(source) or ()] == ["big_int", "json"]
    decoded = read(source, columns, [avro(schema_id, whole, {"id": 1, "home": {"street": "s"}})])
    assert decoded.rows.to_pylist() == [{"id": 1, "home": '{"street":"s"}'}]


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("topic_name", "{t}-value"), ("record_name", "shop.{t}"), ("topic_record_name", "{t}-shop.{t}")],
)
def test_the_subject_is_named_by_the_strategy(url: str, topic: str, strategy: str, subject: str) -> None:
    columns = (column("id", "big_int"),)
    source = payload(url, "avro", topic, subject_strategy=strategy, message=f"shop.{topic}")
    encoder_for(source, columns)
    assert subject.format(t=topic) in client(url).get_subjects()
    assert describe_subject(source) == columns


def test_an_incompatible_schema_is_refused_in_words(url: str, topic: str) -> None:
    register(url, f"{topic}-value", record(("id", "long"), ("name", "string")))
    client(url).set_compatibility(f"{topic}-value", "BACKWARD")
    with pytest.raises(SchemaMismatch, match=f"refuses these columns for subject '{topic}-value'"):
        encoder_for(payload(url, "avro", topic), (column("id", "text", nullable=False),))


def test_without_registration_the_latest_schema_is_used_or_refused(url: str, topic: str) -> None:
    columns = (column("id", "integer", nullable=False),)
    closed = payload(url, "avro", topic, register=False)
    with pytest.raises(SchemaMismatch, match="there is none yet"):
        encoder_for(closed, columns)
    schema_id = register(url, f"{topic}-value", record(("id", "long"), ("more", "string", "d")))
    [value] = encoder_for(closed, columns).encode(batch(columns, [{"id": 5}])).to_pylist()
    assert int.from_bytes(value[1:5], "big") == schema_id
    assert read(closed, (*columns, column("more", "text")), [value]).rows.to_pylist() == [
        {"id": 5, "more": "d"}
    ]
    with pytest.raises(SchemaMismatch, match="it has no field 'other'"):
        encoder_for(closed, (*columns, column("other", "text")))
    with pytest.raises(SchemaMismatch, match="its field 'id' is BigInt, and the column is Text"):
        encoder_for(closed, (column("id", "text", nullable=False),))


def test_a_new_column_is_registered_as_a_new_version(url: str, topic: str) -> None:
    source = payload(url, "avro", topic)
    encoder_for(source, (column("id", "big_int"),))
    client(url).set_compatibility(f"{topic}-value", "BACKWARD")
    encoder_for(source, (column("id", "big_int"), column("name", "text")))
    assert client(url).get_versions(f"{topic}-value") == [1, 2]
    encoder_for(source, (column("id", "big_int"), column("name", "text")))
    assert client(url).get_versions(f"{topic}-value") == [1, 2]


def test_a_column_that_avro_cannot_name_is_refused(url: str, topic: str) -> None:
    with pytest.raises(SchemaMismatch, match="Avro cannot name a field 'order id'"):
        encoder_for(payload(url, "avro", topic), (column("order id", "text"),))


def test_a_missing_subject_is_reported(url: str, topic: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"no subject '{topic}-value'"):
        describe_subject(payload(url, "avro", topic))


def test_avro_without_a_registry_is_refused() -> None:
    with pytest.raises(ConfigError, match="avro payloads need a schema registry"):
        decoder_for(PayloadSpec("avro"), (column("x", "text"),), numeric_positions=True)
    assert describe_subject(PayloadSpec("avro")) is None


# ------------------------------------------------------------------ a registry that is away


def framed(schema_id: int = 1) -> list[bytes | None]:
    return [struct.pack(">BI", 0, schema_id) + b"x"]


def test_a_registry_that_is_down_stops_the_batch_and_shows_no_secret() -> None:
    connection = SchemaRegistryConnection(
        name="reg", url="http://127.0.0.1:1/x", basic_auth_user="u", basic_auth_password="pa55w0rd-secret"
    )
    source = PayloadSpec("avro", connection, "t", registry_seconds=2)
    with pytest.raises(
        CannotConnect, match=r"cannot reach the schema registry at http://127\.0\.0\.1:1/x"
    ) as error:
        read(source, (column("x", "text"),), framed())
    assert "pa55w0rd-secret" not in str(error.value)
    decoder = decoder_for(source, (column("x", "text"),), numeric_positions=True)
    assert "pa55w0rd-secret" not in repr(decoder)
    assert b"pa55w0rd-secret" in pickle.dumps(decoder)
    assert pickle.loads(pickle.dumps(decoder)) == decoder


def test_a_registry_that_never_answers_is_given_up() -> None:
    with silent_server() as silent:
        source = payload(silent, "avro", "t", registry_seconds=1)
        with pytest.raises(CannotConnect, match="cannot reach the schema registry"):
            read(source, (column("x", "text"),), framed())


def test_a_server_that_is_no_registry_is_reported(url: str) -> None:
    source = payload(url.replace("/apis/ccompat/v7", "/nowhere"), "avro", "t")
    with pytest.raises(CannotConnect, match="there is no schema registry at"):
        read(source, (column("x", "text"),), framed())


def test_known_schemas_keep_working_while_the_registry_hangs(registry: RegistryServer, topic: str) -> None:
    registry.start()
    schema = record(("id", "long"))
    schema_id = register(registry.url, f"{topic}-value", schema)
    source = payload(registry.url, "avro", topic, registry_seconds=2)
    values: list[bytes | None] = [avro(schema_id, schema, {"id": 1})]
    read(source, (column("id", "big_int"),), values)
    with registry.paused():
        assert read(source, (column("id", "big_int"),), values).rows.num_rows == 1
        with pytest.raises(CannotConnect):
            read(source, (column("id", "big_int"),), framed(0x7FFFFF))


def test_a_schema_that_was_missing_is_found_once_it_is_there(
    url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "_MISSING_SECONDS", 0.0)
    newest = register(url, f"{topic}-probe", record(("id", "long"), name=f"shop.{topic}"))
    schema = record(("id", "long"), name=f"shop.later_{topic}")
    value = avro(newest + 1, schema, {"id": 1})
    source = payload(url, "avro", topic)
    assert read(source, (column("id", "big_int"),), [value]).bad
    assert register(url, f"{topic}-value", schema) == newest + 1
    assert read(source, (column("id", "big_int"),), [value]).rows.num_rows == 1


# ------------------------------------------------------------------ hostile bytes

FUZZED = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("amount", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("tags", {"type": "array", "items": "string"}),
    ("uid", {"type": "string", "logicalType": "uuid"}),
    ("more", {"type": "map", "values": ["null", "double", "bytes"]}),
)


def test_no_payload_makes_the_decoder_fail(url: str, topic: str) -> None:
    schema_id = register(url, f"{topic}-value", FUZZED)
    value = {
        "id": 1,
        "name": "n",
        "amount": Decimal("1.25"),
        "at": utc(2024, 1, 2),
        "day": dt.date(2024, 1, 2),
        "tags": ["a", "b"],
        "uid": str(uuid.UUID(int=7)),
        "more": {"x": 1.5, "y": None, "z": b"b"},
    }
    good = avro(schema_id, FUZZED, value)
    source = payload(url, "avro", topic)
    columns = (*(describe_subject(source) or ()), column("absent", "text"))
    decoder = decoder_for(source, columns, numeric_positions=True)

    @settings(max_examples=300, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        mutated = bytearray(good)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(5, len(mutated)))
            mutated[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        noise = good[:5] + data.draw(st.binary(max_size=40))
        values = [good, bytes(mutated), noise, None, data.draw(st.binary(max_size=4)), good]
        decoded = decoder.decode(messages(values))
        covers(decoded, len(values))
        assert {0, 5} <= set(decoded.indexes.to_pylist())

    run()


def test_a_list_of_nothing_that_claims_to_be_endless_is_refused(url: str, topic: str) -> None:
    schema = record(("void", {"type": "array", "items": "null"}))
    schema_id = register(url, f"{topic}-value", schema)
    huge = struct.pack(">BI", 0, schema_id) + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00"
    decoded = read(payload(url, "avro", topic), (column("void", "json"),), [huge])
    assert "could grow without limit" in decoded.bad[0].reason


def test_numbers_too_large_for_a_column_are_bad(url: str, topic: str) -> None:
    schema = record(("id", "long"))
    schema_id = register(url, f"{topic}-value", schema)
    values: list[bytes | None] = [avro(schema_id, schema, {"id": n}) for n in (1, 2**40)]
    decoded = read(payload(url, "avro", topic), (column("id", "integer"), numeric("none")), values)
    assert decoded.bad[0].reason == f"field 'id' is {2**40}, out of the range of Integer"
    assert isinstance(decoded.rows, pa.RecordBatch) and json.dumps(decoded.indexes.to_pylist()) == "[0]"
