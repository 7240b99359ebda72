"""Protobuf payloads with a real registry: types, presence, several messages and files, hostile bytes."""

from __future__ import annotations

import base64
import pickle
import secrets
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ematix_flow.backends.payloads.codecs import decoder_for, describe_subject, encoder_for
from ematix_flow.backends.payloads.framing import encode_message_path
from ematix_flow.backends.payloads.protobuf_schema import compile_schema, message_class, path_to_message
from ematix_flow.backends.payloads.registry import RegisteredSchema, SchemaReference
from ematix_flow.errors import SchemaMismatch
from tests.contract.payload_registry import batch, client, payload, read, register
from tests.contract.test_payload_avro import NULLS, ROW
from tests.services.registry import RegistryServer
from tests.unit.backends.payload_messages import ALL_KINDS, column, covers, messages, utc

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/duration.proto";
message Ignored { int32 x = 1; }
message Order {
  enum Kind { UNKNOWN = 0; RUSH = 1; }
  message Line { string sku = 1; int64 qty = 2; optional string note = 3; }
  int64 id = 1;
  uint64 huge = 2;
  optional string name = 3;
  Kind kind = 4;
  google.protobuf.Timestamp at = 5;
  google.protobuf.Int64Value wrapped = 6;
  google.protobuf.Struct free = 7;
  repeated Line lines = 8;
  map<string, double> prices = 9;
  bytes raw = 10;
  oneof way { string mail = 11; int32 phone = 12; }
  google.protobuf.Duration took = 13;
  Line first = 14;
  double ratio = 15;
  bool done = 16;
}
"""


def framed(schema_id: int, path: tuple[int, ...], message: Any) -> bytes:
    return struct.pack(">BI", 0, schema_id) + encode_message_path(path) + bytes(message.SerializeToString())


@pytest.fixture
def topic() -> str:
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def url(registry: RegistryServer) -> str:
    registry.start()
    return registry.url


@pytest.fixture(scope="module")
def order() -> Any:
    return message_class(compile_schema(RegisteredSchema(0, ORDER, "PROTOBUF")).find_message("shop.Order"))


def test_every_type_comes_back_as_it_was_written(url: str, topic: str) -> None:
    source = payload(url, "protobuf", topic)
    encoder = pickle.loads(pickle.dumps(encoder_for(source, ALL_KINDS)))
    written = encoder.encode(batch(ALL_KINDS, [ROW, NULLS])).to_pylist()
    wanted = tuple(c if c.name not in ("doc", "docb") else column(c.name, "text") for c in ALL_KINDS)
    decoder = pickle.loads(pickle.dumps(decoder_for(source, wanted, numeric_positions=True)))
    decoded = decoder.decode(messages([*written, None]))
    covers(decoded, 3)
    assert not decoded.bad and decoded.empty_count == 1
    assert decoded.rows.to_pylist() == [ROW, NULLS]


def test_the_library_of_confluent_writes_what_is_read_and_reads_what_is_written(
    url: str, topic: str, order: Any
) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    where = SerializationContext(topic, MessageField.VALUE)
    settings_ = {"use.deprecated.format": False}
    message = order(id=7, name="x", at={"seconds": 1704164645})
    theirs = ProtobufSerializer(order, client(url), settings_)(message, where)
    source = payload(url, "protobuf", topic, message="shop.Order")
    columns = (column("id", "big_int"), column("name", "text"), column("at", "timestamp_tz"))
    row = {"id": 7, "name": "x", "at": utc(2024, 1, 2, 3, 4, 5)}
    decoded = read(source, columns, [theirs])
    assert not decoded.bad, decoded.bad
    assert decoded.rows.to_pylist() == [row]
    [ours] = encoder_for(source, columns).encode(batch(columns, [row])).to_pylist()
    assert ProtobufDeserializer(order, settings_)(ours, where) == message


def test_well_known_nested_and_optional_fields_are_read(url: str, topic: str, order: Any) -> None:
    schema_id = register(url, f"{topic}-value", ORDER, "PROTOBUF")
    source = payload(url, "protobuf", topic, message="shop.Order")
    columns = describe_subject(source)
    assert columns is not None
    assert {c.name: str(c.type) for c in columns} == {
        "id": "BigInt",
        "huge": "Numeric[20, 0]",
        "name": "Text",
        "kind": "Text",
        "at": "TimestampTZ",
        "wrapped": "BigInt",
        "free": "JSON",
        "lines": "JSON",
        "prices": "JSON",
        "raw": "Bytes",
        "mail": "Text",
        "phone": "Integer",
        "took": "Text",
        "first": "JSON",
        "ratio": "Double",
        "done": "Boolean",
    }
    full = order(
        id=-5,
        huge=2**64 - 1,
        name="",
        kind=1,
        at={"seconds": 1704164645, "nanos": 123456789},
        wrapped={"value": 0},
        lines=[{"sku": "a", "qty": 2**60}, {"sku": "b", "note": "n"}],
        prices={"x": 1.5},
        raw=b"\x00\x01",
        phone=5,
        took={"seconds": 3, "nanos": 500_000_000},
        first={"sku": "c"},
        ratio=float("inf"),
    )
    full.free.update({"a": [1, None, "x"]})
    decoded = read(source, columns, [framed(schema_id, (1,), full), framed(schema_id, (1,), order())])
    assert not decoded.bad
    assert decoded.rows.to_pylist() == [
        {
            "id": -5,
            "huge": 2**64 - 1,
            "name": "",
            "kind": "RUSH",
            "at": utc(2024, 1, 2, 3, 4, 5, 123456),
            "wrapped": 0,
            "free": '{"a":[1.0,null,"x"]}',
            "lines": '[{"sku":"a","qty":1152921504606846976},{"sku":"b","qty":0,"note":"n"}]',
            "prices": '{"x":1.5}',
            "raw": b"\x00\x01",
            "mail": None,
            "phone": 5,
            "took": "3.500s",
            "first": '{"sku":"c","qty":0}',
            "ratio": float("inf"),
            "done": False,
        },
        {
            "id": 0,
            "huge": 0,
            "name": None,
            "kind": "UNKNOWN",
            "at": None,
            "wrapped": None,
            "free": None,
            "lines": "[]",
            "prices": "{}",
            "raw": b"",
            "mail": None,
            "phone": None,
            "took": None,
            "first": None,
            "ratio": 0.0,
            "done": False,
        },
    ]


def test_each_payload_says_which_message_of_the_file_it_is(url: str, topic: str, order: Any) -> None:
    schema_id = register(url, f"{topic}-value", ORDER, "PROTOBUF")
    line = order.DESCRIPTOR.nested_types_by_name["Line"]
    values = [
        framed(schema_id, (1,), order(id=1)),
        framed(schema_id, path_to_message(line), message_class(line)(sku="s", qty=2)),
        struct.pack(">BI", 0, schema_id) + b"\x00",  # the short form of the first message
        framed(schema_id, (9,), order(id=1)),
    ]
    columns = (
        column("id", "big_int"),
        column("sku", "text"),
        column("qty", "big_int"),
        column("x", "integer"),
    )
    decoded = read(payload(url, "protobuf", topic), columns, list(values))
    assert [each.reason for each in decoded.bad] == [f"schema id {schema_id} has no message at (9,)"]
    assert decoded.rows.to_pylist() == [
        {"id": 1, "sku": None, "qty": None, "x": None},
        {"id": None, "sku": "s", "qty": 2, "x": None},
        {"id": None, "sku": None, "qty": None, "x": 0},
    ]


def test_a_file_that_imports_another_is_read(url: str, topic: str) -> None:
    inner = 'syntax = "proto3"; package geo; message Point { double x = 1; double y = 2; }'
    outer = 'syntax = "proto3"; import "geo/point.proto"; message Stop { int32 id = 1; geo.Point at = 2; }'
    register(url, f"{topic}-point", inner, "PROTOBUF")
    references = [("geo/point.proto", f"{topic}-point", 1)]
    schema_id = register(url, f"{topic}-value", outer, "PROTOBUF", references)
    known = RegisteredSchema(
        0, outer, "PROTOBUF", (SchemaReference("geo/point.proto", RegisteredSchema(0, inner, "PROTOBUF")),)
    )
    stop = message_class(compile_schema(known).find_message("Stop"))
    source = payload(url, "protobuf", topic)
    assert [(c.name, c.type.kind) for c in describe_subject(source) or ()] == [
        ("id", "integer"),
        ("at", "json"),
    ]
    decoded = read(
        source, describe_subject(source) or (), [framed(schema_id, (0,), stop(id=1, at={"x": 1, "y": 2.5}))]
    )
    assert decoded.rows.to_pylist() == [{"id": 1, "at": '{"x":1.0,"y":2.5}'}]


def test_two_versions_of_a_schema_in_one_batch_are_both_read(url: str, topic: str) -> None:
    old = 'syntax = "proto3"; message Order { int64 id = 1; }'
    new = 'syntax = "proto3"; message Order { int64 id = 1; optional string name = 2; }'
    ids = [register(url, f"{topic}-value", text, "PROTOBUF") for text in (old, new)]
    made = [
        message_class(compile_schema(RegisteredSchema(0, text, "PROTOBUF")).find_message(""))
        for text in (old, new)
    ]
    values = [framed(ids[0], (0,), made[0](id=1)), framed(ids[1], (0,), made[1](id=2, name="n"))]
    columns = (column("id", "big_int"), column("name", "text"))
    decoded = read(payload(url, "protobuf", topic), columns, list(values))
    assert decoded.rows.to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "n"}]


def test_a_new_column_keeps_the_numbers_of_the_old_ones(url: str, topic: str) -> None:
    source = payload(url, "protobuf", topic)
    first = (column("b", "big_int"), column("c", "text"))
    [old] = encoder_for(source, first).encode(batch(first, [{"b": 1, "c": "x"}])).to_pylist()
    client(url).set_compatibility(f"{topic}-value", "BACKWARD")
    second = (column("a", "text"), *first)
    [new] = encoder_for(source, second).encode(batch(second, [{"a": "n", "b": 2, "c": "y"}])).to_pylist()
    assert read(source, second, [old, new]).rows.to_pylist() == [
        {"a": None, "b": 1, "c": "x"},
        {"a": "n", "b": 2, "c": "y"},
    ]
    latest = client(url).get_latest_version(f"{topic}-value").schema.schema_str
    assert latest is not None and "a = 3" in latest and "b = 1" in latest


def test_an_incompatible_or_foreign_schema_is_refused_in_words(url: str, topic: str) -> None:
    register(url, f"{topic}-value", 'syntax = "proto3"; message Order { int64 id = 1; }', "PROTOBUF")
    client(url).set_compatibility(f"{topic}-value", "BACKWARD")
    with pytest.raises(SchemaMismatch, match="refuses these columns"):
        encoder_for(payload(url, "protobuf", topic, message="Order"), (column("id", "bytes"),))
    with pytest.raises(SchemaMismatch, match="it is Protobuf, not Avro"):
        encoder_for(payload(url, "avro", topic), (column("id", "big_int"),))
    with pytest.raises(SchemaMismatch, match="the payloads are declared as avro"):
        describe_subject(payload(url, "avro", topic))
    with pytest.raises(SchemaMismatch, match="Protobuf cannot name a field 'order id'"):
        encoder_for(payload(url, "protobuf", f"{topic}2"), (column("order id", "text"),))


def test_a_schema_given_as_a_serialized_file_is_read() -> None:
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    file.message_type.add(name="M").field.add(name="id", number=1, type=3, label=1)
    text = base64.b64encode(file.SerializeToString()).decode()
    assert compile_schema(RegisteredSchema(1, text, "PROTOBUF")).find_message("M").full_name == "M"


def test_a_serialized_file_finds_what_it_imports() -> None:
    from google.protobuf import descriptor_pb2

    from ematix_flow.backends.payloads.registry import UnusableSchema

    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    file.dependency.extend(["geo/point.proto", "google/protobuf/any.proto"])
    file.message_type.add(name="M").field.add(name="at", number=1, type=11, label=1, type_name=".geo.Point")
    text = base64.b64encode(file.SerializeToString()).decode()
    inner = RegisteredSchema(2, 'syntax = "proto3"; package geo; message Point { double x = 1; }', "PROTOBUF")
    found = compile_schema(
        RegisteredSchema(1, text, "PROTOBUF", (SchemaReference("geo/point.proto", inner),))
    ).find_message("M")
    assert found.fields_by_name["at"].message_type.full_name == "geo.Point"
    with pytest.raises(UnusableSchema, match=r"imports 'geo/point.proto', which the registry does not have"):
        compile_schema(RegisteredSchema(3, text, "PROTOBUF"))


@pytest.mark.parametrize("name", ["../../evil.proto", "/etc/evil.proto", "a\\b.proto"])
def test_an_import_cannot_leave_its_folder(name: str) -> None:
    from ematix_flow.backends.payloads.registry import UnusableSchema

    reference = SchemaReference(name, RegisteredSchema(0, 'syntax = "proto3";', "PROTOBUF"))
    with pytest.raises(UnusableSchema, match="is not a file name"):
        compile_schema(RegisteredSchema(1, f'syntax = "proto3"; import "{name}";', "PROTOBUF", (reference,)))


def test_a_schema_that_does_not_compile_is_reported() -> None:
    from ematix_flow.backends.payloads.registry import UnusableSchema

    with pytest.raises(UnusableSchema, match=r"schema id 5 is not a usable Protobuf file.*Missing"):
        compile_schema(RegisteredSchema(5, 'syntax = "proto3"; message M { int32 x }', "PROTOBUF"))


def test_no_payload_makes_the_decoder_fail(url: str, topic: str, order: Any) -> None:
    schema_id = register(url, f"{topic}-value", ORDER, "PROTOBUF")
    message = order(id=5, name="n", at={"seconds": 1}, lines=[{"sku": "s"}], prices={"a": 1.0}, mail="m")
    message.free.update({"a": 1})
    good = framed(schema_id, (1,), message)
    source = payload(url, "protobuf", topic, message="shop.Order")
    decoder = decoder_for(source, describe_subject(source) or (), numeric_positions=True)

    @settings(max_examples=300, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        mutated = bytearray(good)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(5, len(mutated)))
            mutated[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        noise = good[: data.draw(st.sampled_from([5, 7]))] + data.draw(st.binary(max_size=40))
        values = [good, bytes(mutated), noise, None, data.draw(st.binary(max_size=4)), good]
        decoded = decoder.decode(messages(values))
        covers(decoded, len(values))
        assert {0, 5} <= set(decoded.indexes.to_pylist())

    run()


def test_values_out_of_range_are_bad(url: str, topic: str, order: Any) -> None:
    schema_id = register(url, f"{topic}-value", ORDER, "PROTOBUF")
    values = [
        framed(schema_id, (1,), order(huge=2**63)),
        framed(schema_id, (1,), order(at={"seconds": 2**60})),
        framed(schema_id, (1,), order(huge=1)),
    ]
    columns = (column("huge", "big_int"), column("at", "timestamp_tz"))
    decoded = read(payload(url, "protobuf", topic), columns, list(values))
    assert decoded.indexes.to_pylist() == [2]
    assert "out of the range of BigInt" in decoded.bad[0].reason
    assert "out of range" in decoded.bad[1].reason
