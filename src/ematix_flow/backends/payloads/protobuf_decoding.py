"""Decodes Protobuf payloads that name their schema in a registry.

A message is read with its writer's schema, and its fields are matched to columns by name. A field with
presence that is not set is null; one without presence has its type's default. Enums become their names,
``google.protobuf.Timestamp`` a timestamp, wrappers their values, and lists, maps and messages become JSON
with the field names of the file. `value_conversion` has the rules for all other values.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.payloads.framing import (
    FramedPayload,
    SchemaId,
    read_message_number,
    read_message_path,
)
from ematix_flow.backends.payloads.protobuf_schema import (
    WRAPPERS,
    ProtoFile,
    compile_schema,
    message_class,
)
from ematix_flow.backends.payloads.registered_decoder import RegisteredDecoder, UnreadablePayload
from ematix_flow.backends.payloads.registry import PROTOBUF, LruCache, RegisteredSchema, SchemaRegistry

_CACHE_SIZE = 500
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MESSAGE, _GROUP, _ENUM = 11, 10, 14
_JSON_TYPES = frozenset(
    f"google.protobuf.{name}" for name in ("Duration", "FieldMask", "Struct", "Value", "ListValue")
)

Getter = Callable[[Any], Any]
Getters = tuple[Any, tuple[tuple[str, Getter], ...]]  # a message's class, and the getters of its fields
_getters: LruCache[tuple[int, int, SchemaId, object, tuple[str, ...]], Getters] = LruCache(_CACHE_SIZE)


@dataclass(frozen=True)
class ProtobufDecoder(RegisteredDecoder):
    """Decodes Protobuf payloads."""

    schema_type = PROTOBUF

    def _open_reader(self, registry: SchemaRegistry, schema: RegisteredSchema) -> _ProtobufReader:
        names = tuple(column.name for column in self.columns)
        return _ProtobufReader(registry, schema.id, compile_schema(schema), names)


@dataclass(frozen=True)
class _ProtobufReader:
    """Reads the fields ``names`` of payloads of one schema, whose file may have several messages."""

    registry: SchemaRegistry
    schema_id: SchemaId
    file: ProtoFile
    names: tuple[str, ...]

    def read_row(self, payload: FramedPayload) -> dict[str, Any]:
        from google.protobuf.message import DecodeError

        which: object
        which, start = read_message_number(payload) if self.registry.is_glue else read_message_path(payload)
        message, getters = self._getters_for(which)
        try:
            decoded = message.FromString(payload.data[start:])
            return {name: get(decoded) for name, get in getters}
        except (DecodeError, UnicodeDecodeError) as error:
            raise UnreadablePayload(f"the payload does not match its schema: {str(error)[:200]}") from None
        except RecursionError:
            raise UnreadablePayload("the payload is nested too deeply") from None

    def _getters_for(self, which: object) -> Getters:
        key = (os.getpid(), id(self.registry), self.schema_id, which, self.names)
        known = _getters.get(key)
        if known is not None:
            return known
        descriptor = _find_message(self.file, which)
        if descriptor is None:
            raise UnreadablePayload(f"schema id {self.schema_id} has no message at {which}")
        fields = {field.json_name: field for field in descriptor.fields}
        fields |= {field.name: field for field in descriptor.fields}
        getters = tuple((name, _field_getter(fields[name])) for name in self.names if name in fields)
        return _getters.put(key, (message_class(descriptor), getters))


def _find_message(file: ProtoFile, which: object) -> Any | None:
    if isinstance(which, tuple):
        return file.message_at(which)
    messages = file.messages()
    return messages[which] if isinstance(which, int) and which < len(messages) else None


# ------------------------------------------------------------------ values


def _field_getter(field: Any) -> Getter:
    name = field.name
    if field.is_repeated:
        return lambda message: _read_repeated(field, getattr(message, name))
    one = _value_getter(field)
    if field.has_presence:
        return lambda message: one(getattr(message, name)) if message.HasField(name) else None
    return lambda message: one(getattr(message, name))


def _read_repeated(field: Any, values: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        one = _value_getter(field.message_type.fields_by_name["value"])
        return {_map_key(key): one(values[key]) for key in values}
    one = _value_getter(field)
    return [one(value) for value in values]


def _map_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value_getter(field: Any) -> Getter:
    if field.type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.type in (_MESSAGE, _GROUP):
        return _message_value
    return _identity


def _identity(value: Any) -> Any:
    return value


def _message_value(message: Any) -> Any:
    """The value of a message: for well-known types their own, for others a dictionary of fields."""
    from google.protobuf import json_format

    descriptor = message.DESCRIPTOR
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        try:
            return _EPOCH + dt.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
        except OverflowError:
            raise UnreadablePayload(f"a Timestamp of {message.seconds} seconds is out of range") from None
    if name in WRAPPERS:
        return message.value
    if name in _JSON_TYPES:
        try:
            return json_format.MessageToDict(message)
        except (json_format.Error, ValueError, AttributeError) as error:
            raise UnreadablePayload(f"the payload has an invalid {descriptor.name}: {error}") from None
    if name == "google.protobuf.Any":
        return {"@type": message.type_url, "value": message.value}
    return {
        field.name: _field_getter(field)(message) for field in descriptor.fields if _is_set(field, message)
    }


def _is_set(field: Any, message: Any) -> bool:
    return field.is_repeated or not field.has_presence or message.HasField(field.name)
