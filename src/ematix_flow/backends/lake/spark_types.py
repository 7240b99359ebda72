"""Maps Spark's type names to canonical types; the inverse is `SparkFunctions.type_name`."""

from __future__ import annotations

import re

from ematix_flow.spec.types import DataType

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


def canonical_type(native: str) -> DataType | None:
    """The canonical type of a Spark type name; None if there is none, as for structs."""
    shown = native.strip().upper()
    decimal = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", shown)
    if decimal:
        return DataType("numeric", precision=int(decimal[1]), scale=int(decimal[2]))
    if re.fullmatch(r"(VAR)?CHAR\(\d+\)", shown):
        return DataType("text")
    kind = _CANONICAL.get(shown)
    return DataType(kind) if kind is not None else None
