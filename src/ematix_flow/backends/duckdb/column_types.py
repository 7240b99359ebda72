"""DuckDB's column types and the canonical types, and how a source's column is exported to Arrow."""

from __future__ import annotations

import re

from ematix_flow.spec.types import DataType

_NATIVE = {
    "small_int": "SMALLINT",
    "integer": "INTEGER",
    "big_int": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "text": "VARCHAR",
    "string": "VARCHAR",  # DuckDB ignores a length; a CHECK enforces it
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_tz": "TIMESTAMP WITH TIME ZONE",
    "json": "JSON",
    "jsonb": "JSON",
    "uuid": "UUID",
    "bytes": "BLOB",
}
_CANONICAL = {native: kind for kind, native in _NATIVE.items() if kind not in ("string", "jsonb")}
_SOURCE_TYPES = {
    "TINYINT": "small_int",
    "UTINYINT": "small_int",
    "USMALLINT": "integer",
    "UINTEGER": "big_int",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP_NS": "timestamp",
    "TIME": "text",
    "TIME_NS": "text",
    "TIME WITH TIME ZONE": "text",
    "INTERVAL": "text",
    "BIT": "text",
    '"NULL"': "text",
}
_WIDE = {"HUGEINT": 38, "UHUGEINT": 38, "UBIGINT": 20, "BIGNUM": 38}
_LENGTH = re.compile(r"VARCHAR\((\d+)\)")  # how a VARCHAR with our CHECK is written
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_NESTED = re.compile(r"(STRUCT|MAP|UNION|VARIANT)\b.*|.*\[\d*\]", re.DOTALL)

WHOLE = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?")
FRACTIONAL = re.compile(r"FLOAT|DOUBLE|DECIMAL\(.*\)")


def native_type(data_type: DataType) -> str:
    if data_type.kind == "numeric":
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    return _NATIVE[data_type.kind]


def canonical_type(native: str) -> DataType | None:
    """The canonical type of a live column's type; None when there is no exact one."""
    if native in _CANONICAL:
        return DataType(_CANONICAL[native])
    length = _LENGTH.fullmatch(native)
    if length:
        return DataType("string", length=int(length[1]))
    decimal = _DECIMAL.fullmatch(native)
    return DataType("numeric", precision=int(decimal[1]), scale=int(decimal[2])) if decimal else None


def source_type(native: str) -> DataType | None:
    """The narrowest canonical type that holds every value of a result column."""
    exact = canonical_type(native)
    if exact is not None:
        return exact
    if native in _WIDE:
        return DataType("numeric", precision=_WIDE[native], scale=0)
    if native in _SOURCE_TYPES:
        return DataType(_SOURCE_TYPES[native])
    if _NESTED.fullmatch(native):
        return DataType("json")
    return DataType("text") if native.startswith("ENUM") else None


def export_cast(native: str) -> str | None:
    """The type that a column is cast to before the export, when Arrow's own form is unsuitable."""
    if native in ("HUGEINT", "UHUGEINT", "BIGNUM"):
        return "DECIMAL(38,0)"
    if native.startswith("ENUM") or _SOURCE_TYPES.get(native) == "text":
        return "VARCHAR"
    return "JSON" if _NESTED.fullmatch(native) else None
