"""MySQL's and MariaDB's column types and the canonical types."""

from __future__ import annotations

import re

from ematix_flow.spec.types import MAX_PRECISION, DataType

TIMESTAMP_TYPE = "DATETIME(6)"
_NATIVE = {
    "small_int": "SMALLINT",
    "integer": "INT",
    "big_int": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "TINYINT(1)",
    "text": "LONGTEXT",
    "date": "DATE",
    "timestamp": TIMESTAMP_TYPE,
    "timestamp_tz": TIMESTAMP_TYPE,  # MySQL's TIMESTAMP ends in 2038
    "json": "JSON",
    "jsonb": "JSON",
    "uuid": "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin",
    "bytes": "LONGBLOB",
}
_CANONICAL = {
    "smallint": "small_int",
    "int": "integer",
    "integer": "integer",
    "bigint": "big_int",
    "float": "float",
    "double": "double",
    "longtext": "text",
    "date": "date",
    "json": "json",
    "longblob": "bytes",
}
_NAMED = re.compile(r"([a-z]+)(?:\((\d+)(?:,\s*(\d+))?\))?(.*)")
_LONGEST_VARCHAR = 16_383


def native_type(data_type: DataType) -> str:
    if data_type.kind == "string":
        length = data_type.length or 0
        return f"VARCHAR({length})" if length <= _LONGEST_VARCHAR else "LONGTEXT"
    if data_type.kind == "bytes" and data_type.length is not None:  # a key column
        return f"VARBINARY({data_type.length})"
    if data_type.kind == "numeric":
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    return _NATIVE[data_type.kind]


def canonical_type(native: str) -> DataType | None:
    """The canonical type of a live column's type; None when there is no exact one."""
    match = _NAMED.fullmatch(native.lower())
    if match is None or "unsigned" in match[4]:
        return None
    word, size, scale = match[1], int(match[2] or 0), int(match[3] or 0)
    if "collate" in match[4] and not (word == "char" and "_bin" in match[4]):
        return None  # a key that treats different texts as equal
    if word == "varchar":
        return DataType("string", length=size)
    if word == "varbinary":
        return DataType("bytes", length=size)
    if word == "char":
        return DataType("uuid") if size == 36 else None
    if word == "decimal":
        within = 0 < size <= MAX_PRECISION
        return DataType("numeric", precision=size, scale=scale) if within else None
    if word == "tinyint":
        return DataType("boolean") if size == 1 else None
    if word in ("datetime", "timestamp"):
        kind = "timestamp" if word == "datetime" else "timestamp_tz"
        return DataType(kind) if size == 6 else None
    return DataType(_CANONICAL[word]) if word in _CANONICAL else None
