"""PostgreSQL's column types and the canonical types."""

from __future__ import annotations

import re

from ematix_flow.backends.postgres.result_types import exact_numeric
from ematix_flow.spec.types import DataType

_NATIVE = {
    "small_int": "SMALLINT",
    "integer": "INTEGER",
    "big_int": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE PRECISION",
    "boolean": "BOOLEAN",
    "text": "TEXT",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_tz": "TIMESTAMPTZ",
    "json": "JSON",
    "jsonb": "JSONB",
    "uuid": "UUID",
    "bytes": "BYTEA",
}
# as format_type() writes them
_CANONICAL = {
    "smallint": "small_int",
    "integer": "integer",
    "bigint": "big_int",
    "real": "float",
    "double precision": "double",
    "boolean": "boolean",
    "text": "text",
    "character varying": "text",
    "varchar": "text",
    "date": "date",
    "timestamp without time zone": "timestamp",
    "timestamp": "timestamp",
    "timestamp with time zone": "timestamp_tz",
    "timestamptz": "timestamp_tz",
    "json": "json",
    "jsonb": "jsonb",
    "uuid": "uuid",
    "bytea": "bytes",
}
_SIZED = re.compile(r"(character varying|varchar|numeric|decimal)\((\d+)(?:,\s*(-?\d+))?\)")


def native_type(data_type: DataType) -> str:
    if data_type.kind == "string":
        return f"VARCHAR({data_type.length})"
    if data_type.kind == "numeric":
        return f"NUMERIC({data_type.precision},{data_type.scale})"
    return _NATIVE[data_type.kind]


def canonical_type(native: str) -> DataType | None:
    """The canonical type of a live column's type; None when there is no exact one."""
    lowered = native.lower()
    if lowered in _CANONICAL:
        return DataType(_CANONICAL[lowered])
    match = _SIZED.fullmatch(lowered)
    if match is None:
        return None
    if match[1] in ("numeric", "decimal"):
        precision, scale = int(match[2]), int(match[3] or 0)
        # a scale below 0 or above the precision rounds or refuses values that a canonical type keeps
        return exact_numeric(precision, scale) if 0 <= scale <= precision else None
    return DataType("string", length=int(match[2]))


def cast_name(kind: str) -> str:
    """The type that a constant of this kind is cast to."""
    if kind == "string":
        return "TEXT"
    return "NUMERIC" if kind == "numeric" else _NATIVE[kind]
