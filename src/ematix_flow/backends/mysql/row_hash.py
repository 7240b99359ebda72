"""`row_hash` in MySQL's SQL: SHA-256 over the exact text of each value."""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import TAGS, Columns, row_hash_sql
from ematix_flow.strategies.sql import fill_template

_SHORTEST = "CAST(ABS(v + 0e0) AS CHAR)"
_MANTISSA = f"SUBSTRING_INDEX({_SHORTEST}, 'e', 1)"
_DIGITS = f"REPLACE({_MANTISSA}, '.', '')"
_EXPONENT = f"CASE WHEN {_SHORTEST} LIKE '%e%' THEN SUBSTRING_INDEX({_SHORTEST}, 'e', -1) ELSE '0' END"
# the shortest digits that identify the number, and the exponent of the first digit
_FLOAT = f"""
CASE WHEN v = 0 THEN '0'
  ELSE CONCAT(CASE WHEN v < 0 THEN '-' ELSE '' END,
    TRIM(TRAILING '0' FROM TRIM(LEADING '0' FROM {_DIGITS})), 'e',
    CAST(CAST({_EXPONENT} AS SIGNED) + CHAR_LENGTH(SUBSTRING_INDEX({_MANTISSA}, '.', 1)) - 1
      - (CHAR_LENGTH({_DIGITS}) - CHAR_LENGTH(TRIM(LEADING '0' FROM {_DIGITS}))) AS CHAR))
END
"""
_TEXT = {
    "i": "CAST(v AS CHAR)",
    "f": _FLOAT,
    "b": "CASE WHEN v THEN 'true' ELSE 'false' END",
    "d": "CAST(v AS CHAR)",
    "s": "(REPLACE(CAST(CAST(v AS DATETIME(6)) AS CHAR), ' ', 'T'))",
    "z": "(REPLACE(CAST(CAST(v AS DATETIME(6)) AS CHAR), ' ', 'T'))",
    "u": "LOWER(v)",
    "x": "LOWER(HEX(v))",
}
_WHOLE = "CAST(v AS CHAR)"
_FRACTION = "TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM CAST(v AS CHAR)))"


def row_hash(columns: Columns, *, mariadb: bool) -> exp.Expr:
    return row_hash_sql(
        columns,
        text=lambda value, data_type: _as_utf8(_value_text(value, data_type, mariadb)),
        size=lambda text: fill_template("CAST(LENGTH(v) AS CHAR)", text, "mysql"),
        concat=lambda parts: exp.Anonymous(this="CONCAT", expressions=parts),
        sha256=lambda text: fill_template("UNHEX(SHA2(v, 256))", _as_utf8(text), "mysql"),
    )


def _value_text(value: exp.Expr, data_type: DataType, mariadb: bool) -> exp.Expr:
    tag = TAGS[data_type.kind]
    if tag == "t":
        return value
    if tag == "n":
        return fill_template(_FRACTION if data_type.scale else _WHOLE, value, "mysql")
    if tag == "j":
        # MySQL writes a normal form of a document; MariaDB keeps the text and can only normalize spaces
        return fill_template("JSON_LOOSE(v)" if mariadb else "CAST(CAST(v AS JSON) AS CHAR)", value, "mysql")
    return fill_template(_TEXT[tag], value, "mysql")


def _as_utf8(text: exp.Expr) -> exp.Expr:
    return fill_template("CONVERT(v USING utf8mb4)", text, "mysql")
