"""Converts Avro schemas to columns, and columns to Avro schemas."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ematix_flow.backends.payloads.registry import RegisteredSchema, UnusableSchema
from ematix_flow.backends.payloads.schema_names import as_schema_name, require_field_names
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import MAX_PRECISION, DataType

_PRIMITIVES = {
    "int": "integer",
    "long": "big_int",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "text",
    "bytes": "bytes",
    "fixed": "bytes",
    "enum": "text",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp_tz",
    "timestamp-micros": "timestamp_tz",
    "timestamp-nanos": "timestamp_tz",
    "local-timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp",
    "local-timestamp-nanos": "timestamp",
    "time-millis": "text",
    "time-micros": "text",
    "uuid": "uuid",
}
_WRITTEN: dict[str, Any] = {
    "small_int": "int",
    "integer": "int",
    "big_int": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "text": "string",
    "string": "string",
    "json": "string",
    "jsonb": "string",
    "bytes": "bytes",
    "uuid": {"type": "string", "logicalType": "uuid"},
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "local-timestamp-micros"},
    "timestamp_tz": {"type": "long", "logicalType": "timestamp-micros"},
}


def parse_avro_schema(schema: RegisteredSchema) -> Any:
    """The schema in fastavro's form, with its references; raises UnusableSchema."""
    from fastavro import parse_schema

    if schema.flaw:
        raise UnusableSchema(schema.flaw)
    try:
        named: dict[str, Any] = {}
        _parse_references(schema, named)
        return parse_schema(json.loads(schema.text), named_schemas=named)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UnusableSchema(f"schema id {schema.id} is not a usable Avro schema: {error}") from None
    except Exception as error:  # fastavro's own errors, which have no common base
        if not type(error).__module__.startswith("fastavro"):
            raise
        raise UnusableSchema(f"schema id {schema.id} is not a usable Avro schema: {error}") from None


def _parse_references(schema: RegisteredSchema, named: dict[str, Any]) -> None:
    from fastavro import parse_schema

    for reference in schema.references:
        _parse_references(reference.schema, named)
        parse_schema(json.loads(reference.schema.text), named_schemas=named)


def fields_of(schema: Any) -> list[dict[str, Any]]:
    """The fields of a record; empty for any other schema."""
    if isinstance(schema, dict) and schema.get("type") == "record":
        return list(schema.get("fields", ()))
    return []


def record_name(schema: Any) -> str:
    return str(schema.get("name", "")) if isinstance(schema, dict) else ""


def columns_of(schema: Any) -> tuple[ColumnSpec, ...]:
    """A column for each field; raises UnusableSchema when the schema is not a record."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise UnusableSchema("the schema is not a record, and has no columns")
    return tuple(ColumnSpec(f["name"], *_column_type(f["type"])) for f in fields_of(schema))


def _column_type(declared: Any) -> tuple[DataType, bool]:
    """The canonical type of a field, and whether it may be null."""
    if isinstance(declared, list):
        branches = [branch for branch in declared if _kind(branch) != "null"]
        types = {_column_type(branch)[0] for branch in branches}
        nullable = len(branches) < len(declared)
        if len(types) == 1:
            return types.pop(), nullable
        nested = not types or any(each.kind == "json" for each in types)
        return DataType("json" if nested else "text"), nullable
    kind = _kind(declared)
    if kind == "null":
        return DataType("text"), True
    logical = declared.get("logicalType") if isinstance(declared, dict) else None
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = declared.get("precision", 0), declared.get("scale", 0)
        if 0 < precision <= MAX_PRECISION and 0 <= scale <= precision:
            return DataType("numeric", precision=precision, scale=scale), False
        return DataType("text"), False
    if logical in _LOGICAL and kind in ("int", "long", "string", "fixed"):
        return DataType(_LOGICAL[logical]), False
    return DataType(_PRIMITIVES.get(kind, "json")), False


def _kind(declared: Any) -> str:
    if isinstance(declared, dict):
        return str(declared.get("type"))
    return str(declared) if not isinstance(declared, list) else "union"


def default_value(field: dict[str, Any]) -> Any:
    """A field's default as a decoded value; a schema has defaults without their logical type."""
    from fastavro import schemaless_reader, schemaless_writer

    default, declared = field["default"], field["type"]
    if isinstance(declared, list):  # a default belongs to the first branch
        declared = declared[0]
    if default is None or not isinstance(declared, dict):
        return default.encode("latin-1") if declared == "bytes" else default
    if declared.get("type") in ("bytes", "fixed"):
        default = default.encode("latin-1")
    bare = {key: value for key, value in declared.items() if key != "logicalType"}
    written = io.BytesIO()
    schemaless_writer(written, bare, default)
    written.seek(0)
    return schemaless_reader(written, declared, None)


def schema_for_columns(columns: Sequence[ColumnSpec], name: str) -> dict[str, Any]:
    """The record schema for these columns; SchemaMismatch for a name that Avro does not allow."""
    require_field_names(columns, "Avro")
    namespace, _, short = name.rpartition(".")
    schema: dict[str, Any] = {"type": "record", "name": as_schema_name(short)}
    if namespace:
        schema["namespace"] = ".".join(map(as_schema_name, namespace.split(".")))
    schema["fields"] = [_field(column) for column in columns]
    return schema


def _field(column: ColumnSpec) -> dict[str, Any]:
    kind: Any = _WRITTEN.get(column.type.kind)
    if column.type.kind == "numeric":
        kind = {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": column.type.precision,
            "scale": column.type.scale,
        }
    if column.nullable:
        return {"name": column.name, "type": ["null", kind], "default": None}
    return {"name": column.name, "type": kind}


def is_millisecond_type(declared: Any) -> bool:
    """Whether a field has timestamps in milliseconds; ours have microseconds."""
    if isinstance(declared, list):
        return any(map(is_millisecond_type, declared))
    logical = declared.get("logicalType") if isinstance(declared, dict) else None
    return logical in ("timestamp-millis", "local-timestamp-millis")


# ------------------------------------------------------------------ lists of zero-byte items


def has_zero_byte_items(schema: Any) -> bool:
    """Whether it has a list whose items take no bytes, so that a short payload can claim billions of them.

    ``schema`` is parsed, so it contains the types that it names, those of other schemas too.
    """
    named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    return any(_has_zero_byte_list(each, named) for each in (schema, *named.values()))


def _has_zero_byte_list(schema: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(schema, list):
        return any(_has_zero_byte_list(each, named) for each in schema)
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "array" and _is_zero_byte(schema.get("items"), named, frozenset()):
        return True
    inner = [schema.get("items"), schema.get("values"), *(f.get("type") for f in schema.get("fields", ()))]
    if isinstance(schema.get("type"), (dict, list)):
        inner.append(schema["type"])
    return any(_has_zero_byte_list(each, named) for each in inner)


def _is_zero_byte(schema: Any, named: Mapping[str, Any], within: frozenset[str]) -> bool:
    """``within`` are the types being checked; a type that contains itself adds no bytes by that."""
    if isinstance(schema, str):
        if schema not in named:
            return schema == "null"
        return schema in within or _is_zero_byte(named[schema], named, within | {schema})
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if kind == "fixed":
        return schema.get("size") == 0
    if kind in ("record", "error"):
        inside = within | {str(schema.get("name"))}
        return all(_is_zero_byte(field.get("type"), named, inside) for field in schema.get("fields", ()))
    return _is_zero_byte(kind, named, within)
