"""MySQL's and MariaDB's types in plain words: as the catalog names them, and as a result describes itself."""

from __future__ import annotations

import re
from typing import Any

from ematix_probe.column_types import family_of, plain_type
from ematix_probe.sources.base import ColumnInfo

_NAMES = {
    "tinyint": "smallint",
    "smallint": "smallint",
    "mediumint": "integer",
    "int": "integer",
    "bigint": "bigint",
    "year": "smallint",
    "float": "real",
    "double": "double",
    "tinytext": "text",
    "mediumtext": "text",
    "longtext": "text",
    "enum": "text",
    "set": "text",
    "tinyblob": "bytes",
    "mediumblob": "bytes",
    "longblob": "bytes",
    "binary": "bytes",
    "varbinary": "bytes",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "time": "time",
    "json": "json",
}
_WIDER = {"smallint": "integer", "integer": "bigint", "bigint": "hugeint"}
_BINARY = 63  # the character set of bytes
_UNSIGNED = 32
# pymysql.constants.FIELD_TYPE
_CODES = {
    1: "tinyint",
    2: "smallint",
    3: "int",
    4: "float",
    5: "double",
    7: "timestamp",
    8: "bigint",
    9: "mediumint",
    10: "date",
    11: "time",
    12: "datetime",
    13: "year",
    14: "date",
    245: "json",
}
_DECIMALS = (0, 246)
_TEXTS = (15, 249, 250, 251, 252, 253, 254)
_TINY = 1


def catalog_column(name: str, native: str, nullable: bool) -> ColumnInfo:
    """A column by its COLUMN_TYPE in the catalog, as in ``decimal(10,2) unsigned``."""
    lowered = native.lower()
    base = re.match(r"[a-z]+", lowered)
    word = base[0] if base else ""
    if lowered.startswith("tinyint(1)"):
        plain = "boolean"
    elif word in _NAMES:
        plain = _NAMES[word]
        if "unsigned" in lowered:
            plain = _WIDER.get(plain, plain)
    else:
        try:
            plain = plain_type(lowered.replace(" unsigned", "").replace(" zerofill", ""))
        except ValueError:
            plain = "other"
    return ColumnInfo(name, family_of(plain), plain, nullable, native)  # type: ignore[arg-type]


def result_column(field: Any) -> ColumnInfo:
    """A column by the description that comes with a result."""
    code = field.type_code
    unsigned = bool(field.flags & _UNSIGNED)
    native = _CODES.get(code, "")
    if code == _TINY and field.length == 1:
        plain = "boolean"
    elif code in _DECIMALS:
        precision = field.length - (field.scale > 0) - (not unsigned)
        plain = f"numeric({precision},{field.scale})"
        native = plain.replace("numeric", "decimal")
    elif code in _TEXTS:
        plain = "bytes" if field.charsetnr == _BINARY else "text"
        native = "blob" if plain == "bytes" else "text"
    else:
        plain = _NAMES.get(native, native or "other")
        if unsigned:
            plain = _WIDER.get(plain, plain)
    return ColumnInfo(field.name, family_of(plain), plain, None, native)  # type: ignore[arg-type]
