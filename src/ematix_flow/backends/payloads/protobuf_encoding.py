"""Encodes rows as Protobuf payloads, with a registered schema.

Types that Protobuf lacks are written as text: numerics as digits, dates, times without a zone and UUIDs in
their usual form, JSON unchanged. A null is a field that is not set.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.framing import SchemaId, encode_message_path, encode_varint, frame_prefix
from ematix_flow.backends.payloads.protobuf_schema import (
    WRAPPERS,
    columns_of,
    compile_schema,
    load_file,
    message_class,
    path_to_message,
    proto_text,
)
from ematix_flow.backends.payloads.registered_encoder import RegisteredEncoder, RowWriter, cannot_write
from ematix_flow.backends.payloads.registry import PROTOBUF, RegisteredSchema, UnusableSchema
from ematix_flow.backends.payloads.registry_clients import registry_of
from ematix_flow.backends.payloads.writer_schema import choose_schema, fits_without_loss, target_record_name
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_AS_TEXT = ("numeric", "date", "timestamp", "json", "jsonb", "uuid")


@dataclass(frozen=True)
class ProtobufEncoder(RegisteredEncoder):
    """Encodes rows as Protobuf payloads. A worker needs no compiler either."""

    schema_id: SchemaId
    serialized: bytes  # the compiled file
    message: str  # its full name
    prefix: bytes
    columns: tuple[ColumnSpec, ...]

    def _row_writer(self) -> RowWriter:
        from google.protobuf import json_format

        descriptor = load_file(self.serialized).find_message(self.message)
        new_message = message_class(descriptor)
        names = [column.name for column in self.columns]
        setters = [_setter(descriptor.fields_by_name[column.name], column) for column in self.columns]

        def write(row: int, values: Sequence[Any]) -> bytes:
            message = new_message()
            for name, set_field, value in zip(names, setters, values, strict=True):
                if value is None:
                    continue
                try:
                    set_field(message, value)
                except (ValueError, TypeError, OverflowError, AttributeError, json_format.Error) as error:
                    raise cannot_write(row, self.schema_id, error, name) from None
            serialized: bytes = message.SerializeToString()
            return self.prefix + serialized

        return write


def _setter(field: Any, column: ColumnSpec) -> Callable[[Any, Any], None]:
    from google.protobuf import json_format

    name, kind = field.name, column.type.kind
    nested = field.message_type
    single = "" if nested is None or field.is_repeated else nested.full_name
    if single == "google.protobuf.Timestamp" and kind == "timestamp_tz":
        return lambda message, value: _set_timestamp(getattr(message, name), value)
    if single in WRAPPERS:
        inner = _value_writer(nested.fields_by_name["value"], kind)
        return lambda message, value: _set_wrapper(getattr(message, name), inner(value))
    if nested is not None or field.is_repeated:
        parse_json: Callable[[Any], Any] = json.loads if kind in ("json", "jsonb") else _identity
        return lambda message, value: json_format.ParseDict({name: parse_json(value)}, message) and None
    if field.enum_type is not None:
        numbers = {each.name: each.number for each in field.enum_type.values}
        return lambda message, value: setattr(message, name, _enum_number(numbers, value))
    write = _value_writer(field, kind)
    return lambda message, value: setattr(message, name, write(value))


def _value_writer(field: Any, kind: str) -> Callable[[Any], Any]:
    """A function that converts values of a column of this kind for a plain field."""
    if field.type == field.TYPE_STRING:
        return _text_value if kind in _AS_TEXT else _identity
    return _whole_number if kind == "numeric" else _identity


def _set_wrapper(wrapper: Any, value: Any) -> None:
    wrapper.SetInParent()
    wrapper.value = value


def _set_timestamp(timestamp: Any, value: dt.datetime) -> None:
    timestamp.SetInParent()
    since = value - _EPOCH
    timestamp.seconds = since.days * 86_400 + since.seconds
    timestamp.nanos = since.microseconds * 1000


def _enum_number(numbers: dict[str, int], value: str) -> int:
    if value not in numbers:
        raise ValueError(f"the enum has no {value!r}")
    return numbers[value]


def _whole_number(value: Decimal) -> int:
    if value != int(value):
        raise ValueError(f"{value} is not a whole number")
    return int(value)


def _identity(value: Any) -> Any:
    return value


def _text_value(value: Any) -> str:
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    return value if isinstance(value, str) else format(value, "f")


def protobuf_encoder(payload: PayloadSpec, columns: tuple[ColumnSpec, ...]) -> ProtobufEncoder:
    """An encoder with the schema from the registry; registers a new schema if needed and allowed."""

    def why_not(latest: RegisteredSchema) -> str:
        try:
            message = compile_schema(latest).find_message(payload.message)
        except UnusableSchema as error:
            return str(error)
        kinds = {c.name: c.type.kind for c in columns_of(message)}
        for column in columns:
            if column.name not in kinds:
                return f"its message {message.full_name} has no field {column.name!r}"
            if not _fits_field(column, kinds[column.name]):
                return f"its field {column.name!r} is {kinds[column.name]}, and the column is {column.type}"
        return ""

    def derived(latest: RegisteredSchema | None) -> str:
        numbers: dict[str, int] = {}
        if latest is not None:
            try:
                message = compile_schema(latest).find_message(payload.message)
                numbers = {field.name: field.number for field in message.fields}
            except UnusableSchema:
                numbers = {}
        return proto_text(columns, target_record_name(payload), numbers)

    schema = choose_schema(payload, PROTOBUF, why_not, derived)
    try:
        file = compile_schema(schema)
        message = file.find_message(payload.message)
    except UnusableSchema as error:
        raise SchemaMismatch(str(error)) from None
    if registry_of(payload).is_glue:
        names = [each.full_name for each in file.messages()]
        which = encode_varint(names.index(message.full_name))
    else:
        which = encode_message_path(path_to_message(message))
    prefix = frame_prefix(schema.id) + which
    return ProtobufEncoder(schema.id, file.serialized, message.full_name, prefix, columns)


def _fits_field(column: ColumnSpec, field_kind: str) -> bool:
    kind = column.type.kind
    if kind == "numeric" and field_kind == "numeric":  # Protobuf's numeric fields are integers
        return not column.type.scale
    return fits_without_loss(kind, field_kind) or (field_kind == "text" and kind in _AS_TEXT)
