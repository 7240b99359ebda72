"""Maps canonical types to Spark types and back, by the names that Spark prints. Does not import pyspark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ematix_flow.backends.base import SourceColumn
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TO_SPARK = {
    "small_int": "smallint",
    "integer": "int",
    "big_int": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamp_tz": "timestamp",
    "bytes": "binary",
}
_FROM_SPARK = {spark: DataType(kind) for kind, spark in _TO_SPARK.items()} | {
    "tinyint": DataType("small_int"),
    "string": DataType("text"),
    "void": DataType("text"),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_CHARACTERS = re.compile(r"(?:var)?char\(\d+\)")


def to_spark(data_type: DataType) -> str:
    """The type in a Spark DDL string; text, if Spark has no such type."""
    if data_type.kind == "numeric":
        return f"decimal({data_type.precision},{data_type.scale})"
    return _TO_SPARK.get(data_type.kind, "string")


def from_spark(name: str) -> DataType | None:
    decimal = _DECIMAL.fullmatch(name)
    if decimal:
        return DataType("numeric", precision=int(decimal[1]), scale=int(decimal[2]))
    if _CHARACTERS.fullmatch(name):
        return DataType("text")
    if name.startswith(("array<", "struct<", "map<")):
        return DataType("json")
    return _FROM_SPARK.get(name)


def columns_of_frame(frame: DataFrame) -> tuple[SourceColumn, ...]:
    """The columns of a DataFrame with canonical types."""
    columns = []
    for name, spark_type in frame.dtypes:
        data_type = from_spark(spark_type)
        if data_type is None:
            raise SchemaMismatch(
                f"source column {name!r} is {spark_type}, which no column type holds",
                next_step="CAST it in the source SQL",
            )
        columns.append(SourceColumn(name, data_type, spark_type))
    return tuple(columns)


def schema_ddl(table: TableSpec) -> str:
    """A Spark DDL string; names are quoted with backticks, backticks doubled."""
    return ", ".join(f"`{c.name.replace('`', '``')}` {to_spark(c.type)}" for c in table.columns)
