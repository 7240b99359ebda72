"""`row_hash` in Spark SQL: SHA-256 over the exact text of each value.

Two texts come from Python, because Java writes them differently: the shortest digits of a float, and
normalized JSON. Their functions are registered when a table has such a column.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import TAGS, Columns, canonical_text, column_prefix
from ematix_flow.strategies.sql import fill_template

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FLOAT_TEXT, _NORMAL_JSON = "ematix_flow_float_text", "ematix_flow_normal_json"
_DAY, _TIME = "date_format(v, 'yyyy-MM-dd')", "date_format(v, 'HH:mm:ss.SSSSSS')"
_TEXT = {
    "i": "CAST(v AS STRING)",
    "f": f"{_FLOAT_TEXT}(CAST(v AS DOUBLE))",
    "b": "CAST(v AS STRING)",
    "t": "v",
    "d": _DAY,
    "s": f"concat({_DAY}, 'T', {_TIME})",
    "z": f"concat({_DAY}, 'T', {_TIME})",
    "j": f"{_NORMAL_JSON}(v)",
    "u": "lower(v)",
    "x": "lower(hex(v))",
}


def register_functions(spark: SparkSession, types: Iterable[DataType]) -> None:
    """Register the functions that `row_hash` needs for columns of these types."""
    from pyspark.sql.functions import udf

    tags = {TAGS[data_type.kind] for data_type in types}
    for tag, name, given in (("f", _FLOAT_TEXT, "double"), ("j", _NORMAL_JSON, "json")):
        if tag in tags:
            spark.udf.register(name, udf(_text_function(given), "string"))


def _text_function(kind: str):  # type: ignore[no-untyped-def]  # the function's type is the UDF's business
    data_type = DataType(kind)
    return lambda value: canonical_text(value, data_type)


def row_hash(columns: Columns) -> exp.Expr:
    """As one piece of finished SQL: a load holds it several times, and trees of it cost much."""
    shown = tuple((n, kind, value.sql(dialect="spark", identify=True)) for n, kind, value in columns)
    return exp.Var(this=_row_hash_sql(shown))


@lru_cache(maxsize=256)
def _row_hash_sql(columns: tuple[tuple[str, DataType, str], ...]) -> str:
    """The SQL of the hash. A null has a null text, which `concat_ws` skips: no column needs a CASE."""
    pieces = ["''"]
    for name, data_type, value in sorted(columns, key=lambda item: item[0]):
        text = _value_text(exp.Var(this=value), data_type).sql(dialect="spark", identify=True)
        begins = exp.Literal.string(column_prefix(name, data_type)).sql(dialect="spark")
        pieces.append(f"concat({begins}, octet_length({text}), ':', {text})")
    return f"unhex(sha2(CAST(concat_ws('', {', '.join(pieces)}) AS BINARY), 256))"


def _value_text(value: exp.Expr, data_type: DataType) -> exp.Expr:
    tag = TAGS[data_type.kind]
    if tag == "n":
        digits = "CAST(v AS STRING)"
        if data_type.scale:
            digits = "regexp_replace(regexp_replace(CAST(v AS STRING), '0+$', ''), '[.]$', '')"
        return fill_template(digits, value, "spark")
    return fill_template(_TEXT[tag], value, "spark")
