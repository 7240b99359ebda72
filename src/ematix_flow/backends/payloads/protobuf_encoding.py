"""Rows as Protobuf payloads, with a schema that a registry knows.

Types that Protobuf lacks are written as text: numerics in digits, dates, times without a zone and UUIDs as
usual, JSON as it is. A null is a field that is not set.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.payloads.base import Payload
from ematix_flow.backends.payloads.encoding import goes_into, record_of, schema_to_write
from ematix_flow.backends.payloads.framing import SchemaId, framed, write_path, write_varint
from ematix_flow.backends.payloads.protobuf_schema import (
    WRAPPERS,
    UnusableSchema,
    columns_of,
    compiled,
    loaded,
    message_class,
    path_to,
    text_of,
)
from ematix_flow.backends.payloads.registry import PROTOBUF, Schema, registry_of
from ematix_flow.errors import RowRejected, SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_AS_TEXT = ("numeric", "date", "timestamp", "json", "jsonb", "uuid")


@dataclass(frozen=True)
class ProtobufEncoder:
    """Writes with a schema that is decided: a worker needs neither registry nor compiler."""

    schema_id: SchemaId
    serialized: bytes  # the compiled file
    message: str  # its full name
    prefix: bytes
    columns: tuple[ColumnSpec, ...]

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa

        descriptor = loaded(self.serialized).chosen(self.message)
        made = message_class(descriptor)
        setters = [_setter(descriptor.fields_by_name[c.name], c) for c in self.columns]
        arrays = [rows.column(c.name).cast(c.type.arrow()).to_pylist() for c in self.columns]
        written: list[bytes] = []
        for at, values in enumerate(zip(*arrays, strict=True)):
            message = made()
            for column, put, value in zip(self.columns, setters, values, strict=True):
                if value is not None:
                    self._put(message, column, put, value, at)
            written.append(self.prefix + message.SerializeToString())
        return pa.array(written, pa.binary())

    def _put(
        self, message: Any, column: ColumnSpec, put: Callable[[Any, Any], None], value: Any, at: int
    ) -> None:
        from google.protobuf import json_format

        try:
            put(message, value)
        except (ValueError, TypeError, OverflowError, AttributeError, json_format.Error) as error:
            raise RowRejected(
                f"row {at + 1}, column {column.name!r} cannot be written with schema id {self.schema_id}:"
                f" {error}",
                state="nothing of this batch was sent",
                next_step="make the values fit the schema, or register one that holds them",
            ) from None


def _setter(field: Any, column: ColumnSpec) -> Callable[[Any, Any], None]:
    from google.protobuf import json_format

    name, kind = field.name, column.type.kind
    nested = field.message_type
    single = "" if nested is None or field.is_repeated else nested.full_name
    if single == "google.protobuf.Timestamp" and kind == "timestamp_tz":
        return lambda message, value: _put_moment(getattr(message, name), value)
    if single in WRAPPERS:
        inner = _writer(nested.fields_by_name["value"], kind)
        return lambda message, value: _put_wrapped(getattr(message, name), inner(value))
    if nested is not None or field.is_repeated:
        said: Callable[[Any], Any] = json.loads if kind in ("json", "jsonb") else _itself
        return lambda message, value: json_format.ParseDict({name: said(value)}, message) and None
    if field.enum_type is not None:
        numbers = {each.name: each.number for each in field.enum_type.values}
        return lambda message, value: setattr(message, name, _number(numbers, value))
    write = _writer(field, kind)
    return lambda message, value: setattr(message, name, write(value))


def _writer(field: Any, kind: str) -> Callable[[Any], Any]:
    """What makes the value of a plain field from that of a column of this kind."""
    if field.type == field.TYPE_STRING:
        return _text if kind in _AS_TEXT else _itself
    return _whole if kind == "numeric" else _itself


def _put_wrapped(wrapper: Any, value: Any) -> None:
    wrapper.SetInParent()
    wrapper.value = value


def _put_moment(timestamp: Any, value: dt.datetime) -> None:
    timestamp.SetInParent()
    since = value - _EPOCH
    timestamp.seconds = since.days * 86_400 + since.seconds
    timestamp.nanos = since.microseconds * 1000


def _number(numbers: dict[str, int], value: str) -> int:
    if value not in numbers:
        raise ValueError(f"the enum has no {value!r}")
    return numbers[value]


def _whole(value: Decimal) -> int:
    if value != int(value):
        raise ValueError(f"{value} is no whole number")
    return int(value)


def _itself(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    return value if isinstance(value, str) else format(value, "f")


def protobuf_encoder(payload: Payload, columns: tuple[ColumnSpec, ...]) -> ProtobufEncoder:
    """Asks the registry, and registers when it must and may."""

    def why_not(latest: Schema) -> str:
        try:
            message = compiled(latest).chosen(payload.message)
        except UnusableSchema as error:
            return str(error)
        there = {c.name: c.type.kind for c in columns_of(message)}
        for column in columns:
            if column.name not in there:
                return f"its message {message.full_name} has no field {column.name!r}"
            if not _goes_into(column, there[column.name]):
                return f"its field {column.name!r} is {there[column.name]}, and the column is {column.type}"
        return ""

    def derived(latest: Schema | None) -> str:
        numbers: dict[str, int] = {}
        if latest is not None:
            try:
                message = compiled(latest).chosen(payload.message)
                numbers = {field.name: field.number for field in message.fields}
            except UnusableSchema:
                numbers = {}
        return text_of(columns, record_of(payload), numbers)

    schema = schema_to_write(payload, PROTOBUF, why_not, derived)
    try:
        file = compiled(schema)
        message = file.chosen(payload.message)
    except UnusableSchema as error:
        raise SchemaMismatch(str(error)) from None
    if registry_of(payload).glue:
        names = [each.full_name for each in file.messages()]
        which = write_varint(names.index(message.full_name))
    else:
        which = write_path(path_to(message))
    prefix = framed(schema.id) + which
    return ProtobufEncoder(schema.id, file.serialized, message.full_name, prefix, columns)


def _goes_into(column: ColumnSpec, field_kind: str) -> bool:
    kind = column.type.kind
    if kind == "numeric" and field_kind == "numeric":  # Protobuf's own are whole
        return not column.type.scale
    return goes_into(kind, field_kind) or (field_kind == "text" and kind in _AS_TEXT)
