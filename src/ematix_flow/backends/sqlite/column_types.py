"""SQLite's column types: the names that we declare, what a declared name means, and its affinity.

SQLite stores any value in any column; a declared type only sets a preferred storage class (affinity). The
declared names are chosen for an affinity that changes no value. A ``Numeric`` of up to 15 digits is a number,
which SQLite can sort and sum exactly (a double keeps 15 digits). A longer ``Numeric``, JSON and UUID are
text, and their names end in ``_TEXT`` so that SQLite turns no digits into a float.
"""

from __future__ import annotations

import re

from ematix_flow.spec.types import DataType

EXACT_DIGITS = 15

_NATIVE = {
    "small_int": "SMALLINT",
    "integer": "INTEGER",
    "big_int": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "text": "TEXT",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_tz": "TIMESTAMPTZ",
    "json": "JSON_TEXT",
    "jsonb": "JSONB_TEXT",
    "uuid": "UUID_TEXT",
    "bytes": "BLOB",
}
_CANONICAL = {native: kind for kind, native in _NATIVE.items()} | {
    "INT": "integer",
    "MEDIUMINT": "integer",
    "INT8": "big_int",
    "INT2": "small_int",
    "TINYINT": "small_int",
    "DOUBLE PRECISION": "double",
    "FLOAT": "double",
    "BOOL": "boolean",
    "CLOB": "text",
    "VARCHAR": "text",
    "DATETIME": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamp_tz",
    "JSON": "json",
    "JSONB": "jsonb",
    "UUID": "uuid",
}
_SIZED = re.compile(
    r"(VARCHAR|CHARACTER VARYING|NVARCHAR|CHAR|CHARACTER|NCHAR|NUMERIC|DECIMAL|DECIMAL_TEXT)"
    r"\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)"
)
_NUMERIC_NAMES = ("NUMERIC", "DECIMAL", "DECIMAL_TEXT")
# such a column may contain more than its type name says
_SOURCE_TYPES = {"small_int": "big_int", "integer": "big_int", "float": "double", "string": "text"}


def is_exact_number(data_type: DataType) -> bool:
    """Whether this ``Numeric`` is stored as a number; a longer one is stored as text."""
    return data_type.kind == "numeric" and (data_type.precision or 0) <= EXACT_DIGITS


def native_type(data_type: DataType) -> str:
    if data_type.kind == "string":
        return f"VARCHAR({data_type.length})"
    if data_type.kind == "numeric":
        name = "NUMERIC" if is_exact_number(data_type) else "DECIMAL_TEXT"
        return f"{name}({data_type.precision},{data_type.scale})"
    return _NATIVE[data_type.kind]


def canonical_type(native: str) -> DataType | None:
    """The canonical type of a declared type name; None when it is not certain."""
    name = " ".join(native.upper().split())
    if name in _CANONICAL:
        return DataType(_CANONICAL[name])
    match = _SIZED.fullmatch(name)
    if match is None:
        return None
    if match[1] in _NUMERIC_NAMES:
        precision, scale = int(match[2]), int(match[3] or 0)
        if not (0 < precision <= 38 and scale <= precision):
            return None
        return DataType("numeric", precision=precision, scale=scale)
    return DataType("string", length=int(match[2])) if int(match[2]) > 0 else None


def source_type(native: str) -> DataType | None:
    """The type for reading a source column: SQLite enforces neither width nor length.

    ``BLOB`` is unknown: newer versions of SQLite report it for untyped expressions too.
    """
    found = canonical_type(native)
    if found is None or found.kind == "bytes":
        return None
    wider = _SOURCE_TYPES.get(found.kind)
    return DataType(wider) if wider else found


def affinity(native: str) -> str:
    """``INTEGER``, ``TEXT``, ``BLOB``, ``REAL`` or ``NUMERIC``, by SQLite's own rules and in their order."""
    name = native.upper()
    if "INT" in name:
        return "INTEGER"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in name or not name.strip():
        return "BLOB"
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"


_INTEGERS = frozenset({"small_int", "integer", "big_int"})
_FLOATS = frozenset({"float", "double"})
_JSON = frozenset({"json", "jsonb"})
_MOMENTS = frozenset({"date", "timestamp", "timestamp_tz"})
# a NUMERIC column keeps text that is not a number
_KEPT_BY = {
    "INTEGER": _INTEGERS | {"boolean"},
    "NUMERIC": _INTEGERS | _MOMENTS | _JSON | {"boolean", "number", "uuid"},
    "REAL": _FLOATS | {"number"},
    "TEXT": _MOMENTS | _JSON | {"text", "string", "uuid", "digits"},
    "BLOB": frozenset({*_INTEGERS, *_FLOATS, *_MOMENTS, *_JSON})
    | {"boolean", "number", "digits", "text", "string", "uuid", "bytes"},
}


def holds(declared: DataType, native: str) -> bool:
    """Whether a live column stores every value of the declared type unchanged."""
    kind = declared.kind
    if kind == "numeric":
        kind = "number" if is_exact_number(declared) else "digits"
    if kind not in _KEPT_BY[affinity(native)]:
        return False
    found = canonical_type(native)
    if found is None or found == canonical_type(native_type(declared)):
        return True
    if found.kind == "text":  # takes any text of any length
        return True
    if found.kind == "string":
        return declared.kind == "string" and (declared.length or 0) <= (found.length or 0)
    if found.kind in _INTEGERS:  # 64 bits in SQLite; only SMALLINT is treated as narrow
        return declared.kind in _INTEGERS and found.kind != "small_int"
    return any({declared.kind, found.kind} <= family for family in (_FLOATS, _JSON))
