"""DuckDB's types in plain words, and the other way round."""

from __future__ import annotations

import re

from ematix_probe.column_types import family_of, plain_type
from ematix_probe.sources.base import ColumnInfo

_PLAIN = {
    "TINYINT": "smallint",
    "UTINYINT": "smallint",
    "USMALLINT": "integer",
    "UINTEGER": "bigint",
    "UBIGINT": "hugeint",
    "UHUGEINT": "hugeint",
    "FLOAT": "real",
    "VARCHAR": "text",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP_NS": "timestamp",
    "TIMESTAMPTZ_NS": "timestamptz",
    "TIME_NS": "time",
    '"NULL"': "other",
    "NULL": "other",
}
_NATIVE = {
    "text": "VARCHAR",
    "char": "VARCHAR",
    "varchar": "VARCHAR",
    "bytes": "BLOB",
    "numeric": "DECIMAL(38,9)",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timetz": "TIME WITH TIME ZONE",
    "array": "JSON",
    "struct": "JSON",
    "map": "JSON",
    "other": "VARCHAR",
}


def column_info(name: str, native: str, nullable: bool | None = None) -> ColumnInfo:
    """A column as DuckDB's DESCRIBE shows it."""
    plain = plain_of(native)
    return ColumnInfo(name, family_of(plain), plain, nullable, native)  # type: ignore[arg-type]


def plain_of(native: str) -> str:
    """``DECIMAL(10,2)`` is ``numeric(10,2)``, ``BIGINT[]`` is ``array``."""
    written = native.strip()
    if written.endswith("]"):
        return "array"
    if written.startswith("ENUM"):
        return "text"
    base = re.match(r"[\w ]+", written)
    if base and base[0] in ("STRUCT", "MAP", "UNION", "ROW"):
        return {"STRUCT": "struct", "ROW": "struct", "MAP": "map"}.get(base[0], "other")
    if written in _PLAIN:
        return _PLAIN[written]
    try:
        return plain_type(written)
    except ValueError:
        return "other"


def duckdb_type(plain: str) -> str:
    """The type of DuckDB in which values of a type in plain words are read from text."""
    base, bracket, arguments = plain.partition("(")
    if base == "numeric" and bracket:
        return f"DECIMAL({arguments}"
    return _NATIVE.get(base, base.upper())
