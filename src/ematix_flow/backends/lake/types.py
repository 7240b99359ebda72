"""The canonical types as Spark's own, for tables that Spark writes."""

from __future__ import annotations

import re

from ematix_flow.spec.types import DataType

_NATIVE = {
    "small_int": "SMALLINT",
    "integer": "INT",
    "big_int": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "text": "STRING",
    "string": "STRING",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamp_tz": "TIMESTAMP",
    "json": "STRING",
    "jsonb": "STRING",
    "uuid": "STRING",
    "bytes": "BINARY",
}
_CANONICAL = {
    "TINYINT": "small_int",
    "SMALLINT": "small_int",
    "INT": "integer",
    "BIGINT": "big_int",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "STRING": "text",
    "DATE": "date",
    "TIMESTAMP_NTZ": "timestamp",
    "TIMESTAMP": "timestamp_tz",
    "BINARY": "bytes",
}


def native_type(data_type: DataType) -> str:
    if data_type.kind == "numeric":
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    return _NATIVE[data_type.kind]


def canonical_type(native: str) -> DataType | None:
    """What Spark's name of a type means; None for one that no canonical type holds (structs, for one)."""
    shown = native.strip().upper()
    decimal = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", shown)
    if decimal:
        return DataType("numeric", precision=int(decimal[1]), scale=int(decimal[2]))
    if re.fullmatch(r"(VAR)?CHAR\(\d+\)", shown):
        return DataType("text")
    kind = _CANONICAL.get(shown)
    return DataType(kind) if kind is not None else None
