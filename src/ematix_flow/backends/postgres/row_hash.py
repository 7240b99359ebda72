"""`row_hash` in PostgreSQL's SQL: SHA-256 over the exact text of each value."""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.backends.sql.row_hash import render_row_hash
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import TAGS, Columns, row_hash_sql
from ematix_flow.strategies.sql import concat_texts, fill_template

_MANTISSA = "split_part(abs(v)::text, 'e', 1)"
_DIGITS = f"replace({_MANTISSA}, '.', '')"
# Half way between two doubles PostgreSQL prints more digits than needed: 9.999999999999999e+22 for 1e23.
# A short number is half way between two others only among these integers.
_IS_WHOLE = "abs(v) > 9e15 AND abs(v) < 1e42"
_WHOLE = """
(SELECT rtrim(ematix_b.c::text, '0') || 'e' || (length(ematix_b.c::text) - 1)::text
 FROM (SELECT round(ematix_a.x, ematix_n.n - length(ematix_a.x::text)) AS c, ematix_n.n AS n
       FROM (SELECT abs(v)::text::numeric AS x) AS ematix_a,
         generate_series(1, 17) AS ematix_n(n)) AS ematix_b
 WHERE ematix_b.c::float8 = abs(v) ORDER BY ematix_b.n LIMIT 1)
"""
# the shortest digits that identify the number, and the exponent of the first digit
_FLOAT = f"""
CASE WHEN v = 0 THEN '0' WHEN v = 'NaN' THEN 'NaN' WHEN v = 'Infinity' THEN 'Infinity'
  WHEN v = '-Infinity' THEN '-Infinity'
  WHEN {_IS_WHOLE} THEN CASE WHEN v < 0 THEN '-' ELSE '' END || {_WHOLE}
  ELSE CASE WHEN v < 0 THEN '-' ELSE '' END || rtrim(ltrim({_DIGITS}, '0'), '0') || 'e' ||
    (CAST(coalesce(nullif(split_part(abs(v)::text, 'e', 2), ''), '0') AS INTEGER)
      + length(split_part({_MANTISSA}, '.', 1)) - 1
      - (length({_DIGITS}) - length(ltrim({_DIGITS}, '0'))))::text
END
"""
_TEXT = {
    "i": "v::text",
    "n": "trim_scale(v)::text",
    "f": _FLOAT.replace("abs(v)", "abs(v::float8)"),
    "b": "CASE WHEN v THEN 'true' ELSE 'false' END",
    "t": "v::text",
    "d": "to_char(v, 'YYYY-MM-DD')",
    "s": "to_char(v, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')",
    "z": "to_char(v AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')",
    "j": "(v::jsonb)::text",
    "u": "v::text",
    "x": "encode(v, 'hex')",
}


def row_hash(columns: Columns) -> exp.Expr:
    return render_row_hash(columns, "postgres", _row_hash)


def _row_hash(columns: Columns) -> exp.Expr:
    return row_hash_sql(
        columns,
        text=lambda value, data_type: exp.paren(_value_text(value, data_type)),
        size=lambda text: fill_template("octet_length(v)::text", text, "postgres"),
        concat=concat_texts,
        sha256=lambda text: fill_template("sha256(convert_to(v, 'UTF8'))", text, "postgres"),
    )


def _value_text(value: exp.Expr, data_type: DataType) -> exp.Expr:
    return fill_template(_TEXT[TAGS[data_type.kind]], value, "postgres")
