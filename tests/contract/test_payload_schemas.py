"""Schemas that another client registered, and with which payloads cannot be read or written."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from ematix_flow.backends.payloads import protobuf_schema, registry
from ematix_flow.backends.payloads.codecs import describe_subject, encoder_for
from ematix_flow.backends.payloads.protobuf_schema import compile_schema, message_class
from ematix_flow.backends.payloads.registry import RegisteredSchema, SchemaReference, UnusableSchema
from ematix_flow.engine.streams.registry_schemas import KnownSchemas
from ematix_flow.errors import RowRejected, SchemaMismatch
from tests.contract.payload_registry import avro, batch, payload, read, record
from tests.contract.registry_fake import FakeRegistry, fake_registry
from tests.unit.backends.payload_messages import column, messages, numeric, utc

X = (column("x", "integer"),)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as server:
        yield server


def framed(schema_id: int, rest: bytes) -> bytes:
    return struct.pack(">BI", 0, schema_id) + rest


def proto(fields: str, more: str = "") -> str:
    imports = 'import "google/protobuf/wrappers.proto"; import "google/protobuf/timestamp.proto";'
    duration = 'import "google/protobuf/duration.proto";'
    return f'syntax = "proto3"; package shop; {imports} {duration} message Order {{ {fields} }} {more}'


def written(fake: FakeRegistry, text: str, columns: Any, row: dict[str, Any]) -> Any:
    """The message that a row becomes with this schema, parsed."""
    fake.put("t-value", text, "PROTOBUF")
    source = payload(fake.url, "protobuf", "t", register=False)
    [value] = encoder_for(source, columns).encode(batch(columns, [row])).to_pylist()
    made = message_class(compile_schema(RegisteredSchema(1, text, "PROTOBUF")).find_message("shop.Order"))
    return made.FromString(value[6:])


# ------------------------------------------------------------------ references


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_a_schema_that_refers_to_what_is_gone_is_a_reason_and_no_failure(
    fake: FakeRegistry, kind: str
) -> None:
    good: Any = record(("x", "int"))
    text = good if kind == "AVRO" else 'syntax = "proto3"; message M { int32 x = 1; }'
    gone = fake.put("gone-value", text, kind, references=[("other", "gone")])
    schema_id = fake.put("t-value", text, kind)
    source = payload(fake.url, kind.lower(), "t")
    fine = avro(schema_id, good, {"x": 1}) if kind == "AVRO" else framed(schema_id, b"\x00\x08\x01")
    for _ in range(3):
        decoded = read(source, X, [framed(gone, b"\x00\x02"), fine])
        assert [each.index for each in decoded.bad] == [0]
        assert "refers to version 1 of 'gone', which does not exist" in decoded.bad[0].reason
        assert decoded.rows.to_pylist() == [{"x": 1}]
    assert sum("/subjects/gone/" in path for path in fake.asked) == 1


def test_a_schema_that_refers_to_itself_for_ever_is_a_reason(fake: FakeRegistry) -> None:
    schema_id = fake.put("round", record(("x", "int")), references=[("round", "round")])
    [bad] = read(payload(fake.url, "avro", "t"), X, [framed(schema_id, b"\x02")]).bad
    assert "more than 32 deep" in bad.reason


def test_defaults_of_a_latest_schema_that_lacks_references_are_not_missed(fake: FakeRegistry) -> None:
    schema = record(("x", "int"))
    schema_id = fake.put("old", schema)
    fake.put("t-value", record(("x", "int"), ("y", "int", 7)), references=[("other", "gone")])
    columns = (*X, column("y", "integer"))
    decoded = read(payload(fake.url, "avro", "t"), columns, [avro(schema_id, schema, {"x": 1})])
    assert decoded.rows.to_pylist() == [{"x": 1, "y": None}]


def test_writing_and_describing_report_what_is_gone(fake: FakeRegistry) -> None:
    fake.put("t-value", record(("x", "int")), references=[("other", "gone")])
    source = payload(fake.url, "avro", "t", register=False)
    with pytest.raises(SchemaMismatch, match="refers to version 1 of 'gone'"):
        encoder_for(source, X)
    with pytest.raises(SchemaMismatch, match="refers to version 1 of 'gone'"):
        describe_subject(source)


def test_a_file_that_does_not_compile_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[RegisteredSchema] = []
    compile_ = protobuf_schema._compile

    def counted(schema: RegisteredSchema) -> Any:
        tried.append(schema)
        return compile_(schema)

    monkeypatch.setattr(protobuf_schema, "_compile", counted)
    for _ in range(3):
        with pytest.raises(UnusableSchema, match="not a usable Protobuf file"):
            compile_schema(RegisteredSchema(1, 'syntax = "proto3"; message { once }', "PROTOBUF"))
    assert len(tried) == 1


def test_an_import_whose_name_no_file_can_have_is_refused() -> None:
    other = SchemaReference("x" * 300, RegisteredSchema(0, 'syntax = "proto3";', "PROTOBUF"))
    with pytest.raises(UnusableSchema, match="which is not a file name"):
        compile_schema(RegisteredSchema(1, f'syntax = "proto3"; import "{"x" * 300}";', "PROTOBUF", (other,)))


# ------------------------------------------------------------------ lists of nothing

NOTHING = {"type": "record", "name": "shop.Nothing", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    "fields",
    [
        [("n", NOTHING), ("xs", {"type": "array", "items": "shop.Nothing"})],
        [("n", NOTHING), ("xs", ["null", {"type": "array", "items": "shop.Nothing"}])],
        [
            ("f", {"type": "fixed", "name": "shop.Zero", "size": 0}),
            ("xs", {"type": "array", "items": record(("z", "shop.Zero"), name="shop.Holder")}),
        ],
        [("xs", {"type": "array", "items": record(("me", "shop.Loop"), name="shop.Loop")})],
    ],
)
def test_a_list_of_a_named_nothing_is_refused(fake: FakeRegistry, fields: Any) -> None:
    schema_id = fake.put("t-value", record(*fields))
    [bad] = read(payload(fake.url, "avro", "t"), X, [framed(schema_id, b"\x80\x80\x80\x80\x10\x00")]).bad
    assert "could grow without limit" in bad.reason


def test_a_list_of_nothing_in_another_schema_is_refused(fake: FakeRegistry) -> None:
    fake.put("nothing", NOTHING)
    lists = record(("xs", {"type": "array", "items": "shop.Nothing"}), name="shop.Lists")
    fake.put("lists", lists, references=[("shop.Nothing", "nothing")])
    schema_id = fake.put("t-value", record(("a", "shop.Lists")), references=[("shop.Lists", "lists")])
    [bad] = read(payload(fake.url, "avro", "t"), X, [framed(schema_id, b"\x80\x80\x80\x80\x10\x00")]).bad
    assert "could grow without limit" in bad.reason


def test_a_tree_that_names_itself_is_read(fake: FakeRegistry) -> None:
    tree = record(("x", "int"), ("inner", {"type": "array", "items": "shop.Order"}))
    schema_id = fake.put("t-value", tree)
    value = avro(schema_id, tree, {"x": 1, "inner": [{"x": 2, "inner": []}]})
    assert read(payload(fake.url, "avro", "t"), X, [value]).rows.to_pylist() == [{"x": 1}]


# ------------------------------------------------------------------ digits


@pytest.mark.parametrize("declared", ["uint64 n = 1;", "google.protobuf.UInt64Value n = 1;"])
def test_a_number_with_digits_after_the_point_does_not_go_into_a_whole_one(
    fake: FakeRegistry, declared: str
) -> None:
    with pytest.raises(SchemaMismatch, match="'n' is"):
        written(fake, proto(declared), (numeric("n"),), {"n": Decimal("12.34")})


def test_wrappers_hold_what_a_field_would(fake: FakeRegistry) -> None:
    text = proto(
        "google.protobuf.UInt64Value n = 1; google.protobuf.StringValue t = 2; uint64 m = 3;"
        "google.protobuf.Int32Value zero = 4; google.protobuf.BoolValue b = 5;"
        "google.protobuf.Duration d = 6;"
    )
    columns = (numeric("n", 20, 0), numeric("t"), numeric("m", 20, 0), column("zero", "integer"))
    columns += (column("b", "boolean"), column("d", "text"))
    row = {"n": Decimal(7), "t": Decimal("12.34"), "m": Decimal(2**64 - 1), "zero": 0, "b": None, "d": "3s"}
    message = written(fake, text, columns, row)
    assert (message.n.value, message.t.value, message.m) == (7, "12.34", 2**64 - 1)
    assert message.HasField("zero") and not message.HasField("b")
    assert message.d.seconds == 3


def test_a_message_whose_name_ends_like_a_wrapper_is_no_wrapper(fake: FakeRegistry) -> None:
    text = proto("PriceValue p = 1;", "message PriceValue { string value = 1; int32 cents = 2; }")
    message = written(fake, text, (column("p", "json"),), {"p": '{"value": "a", "cents": 5}'})
    assert (message.p.value, message.p.cents) == ("a", 5)
    with pytest.raises(SchemaMismatch, match="'p' is json"):
        written(fake, text, (column("p", "text"),), {"p": "a"})


def test_the_first_moment_of_all_is_written(fake: FakeRegistry) -> None:
    text = proto("google.protobuf.Timestamp at = 1;")
    assert written(fake, text, (column("at", "timestamp_tz"),), {"at": utc(1970, 1, 1)}).HasField("at")


@pytest.mark.parametrize("kind", ["timestamp_tz", "timestamp"])
def test_microseconds_are_not_cut_off_by_a_schema_of_milliseconds(fake: FakeRegistry, kind: str) -> None:
    logical = {"timestamp_tz": "timestamp-millis", "timestamp": "local-timestamp-millis"}[kind]
    schema = record(("at", ["null", {"type": "long", "logicalType": logical}]))
    fake.put("t-value", schema)
    source, columns = payload(fake.url, "avro", "t", register=False), (column("at", kind),)
    zone = {} if kind == "timestamp_tz" else {"tzinfo": None}
    whole = {"at": utc(2024, 1, 2, 3, 4, 5, 123_000).replace(**zone)}
    lost = {"at": utc(2024, 1, 2, 3, 4, 5, 123_456).replace(**zone)}
    encoder = encoder_for(source, columns)
    values = encoder.encode(batch(columns, [whole, {"at": None}])).to_pylist()
    assert read(source, columns, values).rows.to_pylist() == [whole, {"at": None}]
    with pytest.raises(RowRejected, match=r"row 2, column 'at'.*milliseconds"):
        encoder.encode(batch(columns, [whole, lost]))


def test_a_schema_that_the_registry_gets_after_its_first_message_is_judged_then(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_MISSING_SECONDS", 0.0)
    first = fake.put("t-value", record(("x", "int")))
    known = KnownSchemas(payload(fake.url, "avro", "t"), X)

    def batch_with(schema_id: int) -> Any:
        return SimpleNamespace(small_batch=lambda: [messages([framed(schema_id, b"\x02")])])

    assert not known.has_new_fields(batch_with(first))
    assert not known.has_new_fields(batch_with(first + 1))  # it is not registered yet
    fake.put("t-value", record(("x", "int"), ("tier", "string")))
    assert known.has_new_fields(batch_with(first + 1))
    assert not known.has_new_fields(batch_with(first + 1))  # it was judged
