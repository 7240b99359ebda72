"""Change events of Debezium in Avro: each with the schema that it would have in JSON.

Kafka Connect's converter keeps Debezium's name of a type in `connect.name`; a type of Avro's own that has
none gets the name of Debezium's type that means the same. So the same rules read the values of both formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.payloads.avro_decoding import AvroDecoder, load_schema
from ematix_flow.backends.payloads.avro_schema import fields_of
from ematix_flow.backends.payloads.debezium_values import DECIMAL, LOGICAL_TYPES
from ematix_flow.backends.payloads.framing import FramedPayload
from ematix_flow.backends.payloads.registered_decoder import PayloadReader
from ematix_flow.backends.payloads.registry import RegisteredSchema, SchemaRegistry
from ematix_flow.spec.types import MAX_PRECISION

_TYPES = {"int": "int32", "long": "int64", "enum": "string", "fixed": "bytes"}


@dataclass(frozen=True)
class AvroEnvelopeDecoder(AvroDecoder):
    """Reads a payload as an object of its ``schema`` and its ``payload``, as Debezium's JSON is."""

    def _open_reader(self, registry: SchemaRegistry, schema: RegisteredSchema) -> PayloadReader:
        reader = super()._open_reader(registry, schema)
        return _EnvelopeReader(reader, envelope_schema(load_schema(registry, schema)))


@dataclass(frozen=True)
class _EnvelopeReader:
    reader: PayloadReader
    schema: Mapping[str, Any]

    def read_row(self, payload: FramedPayload) -> Mapping[str, Any]:
        return {"schema": self.schema, "payload": self.reader.read_row(payload)}


def envelope_schema(writer: Any) -> dict[str, Any]:
    """The schemas of the fields of each record in a parsed envelope, as Debezium writes them in JSON."""
    named = writer.get("__named_schemas", {})
    parts = []
    for part in fields_of(writer):
        fields = [_field_schema(field, named) for field in fields_of(_declared_type(part["type"], named))]
        parts.append({"field": part["name"], "fields": fields})
    return {"fields": parts}


def _field_schema(field: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    declared = _declared_type(field["type"], named)
    known: Mapping[str, Any] = declared if isinstance(declared, dict) else {"type": declared}
    kind, logical = known.get("type"), str(known.get("logicalType") or "")
    found = {"field": field["name"], "type": _TYPES.get(str(kind), kind)}
    if logical.startswith("time-"):
        return {**found, "type": "string"}  # it is read as a time of day, not as a number
    name = known.get("connect.name") or LOGICAL_TYPES.get(logical)
    if logical == "decimal":
        digits, scale = known.get("precision", 0), known.get("scale", 0)
        parameters = {"scale": scale}
        if digits <= MAX_PRECISION:  # Connect writes 64 for a precision that it does not know
            parameters["connect.decimal.precision"] = digits
        return {**found, "name": DECIMAL, "parameters": parameters}
    return {**found, "name": name} if name else found


def _declared_type(declared: Any, named: Mapping[str, Any]) -> Any:
    """The type of a field: the first of a union that is not null, by its definition."""
    if isinstance(declared, list):
        declared = next((branch for branch in declared if branch != "null"), "null")
    return named.get(declared, declared) if isinstance(declared, str) else declared
