"""`row_hash` in DuckDB's SQL: SHA-256 over the exact text of each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.sql.row_hash import render_row_hash
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import TAGS, Columns, canonical_json, row_hash_sql
from ematix_flow.strategies.sql import concat_texts, fill_template

if TYPE_CHECKING:
    import duckdb

_NORMAL_JSON = "ematix_flow_normal_json"
_MANTISSA = "split_part(CAST(abs(v) AS VARCHAR), 'e', 1)"
_DIGITS = f"replace({_MANTISSA}, '.', '')"
_FLOAT = f"""
CASE WHEN v = 0 THEN '0' WHEN isnan(v) THEN 'NaN'
  WHEN isinf(v) THEN CASE WHEN v > 0 THEN 'Infinity' ELSE '-Infinity' END
  ELSE CASE WHEN v < 0 THEN '-' ELSE '' END || rtrim(ltrim({_DIGITS}, '0'), '0') || 'e' ||
    CAST(CAST(coalesce(nullif(split_part(CAST(abs(v) AS VARCHAR), 'e', 2), ''), '0') AS INTEGER)
      + length(split_part({_MANTISSA}, '.', 1)) - 1
      - (length({_DIGITS}) - length(ltrim({_DIGITS}, '0'))) AS VARCHAR)
END
"""
_TEXT = {
    "i": "CAST(v AS VARCHAR)",
    "f": _FLOAT.replace("abs(v)", "abs(CAST(v AS DOUBLE))"),
    "b": "CASE WHEN v THEN 'true' ELSE 'false' END",
    "t": "CAST(v AS VARCHAR)",
    "d": "strftime(v, '%Y-%m-%d')",
    "s": "strftime(v, '%Y-%m-%dT%H:%M:%S.%f')",
    "z": "strftime(v AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%f')",
    "j": f"{_NORMAL_JSON}(CAST(v AS VARCHAR))",
    "u": "CAST(v AS VARCHAR)",
    "x": "lower(hex(v))",
}


def register_normal_json(connection: duckdb.DuckDBPyConnection) -> None:
    """Register the function that DuckDB lacks: JSON in its normal form.

    A database keeps the function as long as this process has it open, for example in the user's code.
    """
    import duckdb

    try:
        connection.create_function(_NORMAL_JSON, canonical_json, ["VARCHAR"], "VARCHAR")
    except duckdb.CatalogException as error:
        if "already exists" not in str(error):
            raise


def row_hash(columns: Columns) -> exp.Expr:
    return render_row_hash(columns, "duckdb", _row_hash)


def _row_hash(columns: Columns) -> exp.Expr:
    return row_hash_sql(
        columns,
        text=lambda value, data_type: exp.paren(_value_text(value, data_type)),
        size=lambda text: fill_template("CAST(strlen(v) AS VARCHAR)", text, "duckdb"),
        concat=concat_texts,
        sha256=lambda text: fill_template("unhex(sha256(v))", text, "duckdb"),
    )


def _value_text(value: exp.Expr, data_type: DataType) -> exp.Expr:
    tag = TAGS[data_type.kind]
    if tag == "n":
        digits = "CAST(v AS VARCHAR)"
        if data_type.precision == data_type.scale:  # DuckDB prints no zero before the point
            digits = f"regexp_replace({digits}, '^(-?)[.]', '\\10.')"
        return fill_template(
            f"rtrim(rtrim({digits}, '0'), '.')" if data_type.scale else digits, value, "duckdb"
        )
    return fill_template(_TEXT[tag], value, "duckdb")
