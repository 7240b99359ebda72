"""JSON lines that others wrote, as a DataFrame: columns and types by what all lines hold.

A number with a fraction is a double, as everywhere in JSON. A column that is a number in one line and a
text or an object in another is text.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.objectstore.catalog import ReadableTable
from ematix_flow.backends.objectstore.csvheaders import not_utf8
from ematix_flow.backends.objectstore.packing import is_hadoops, require_text, unpacked
from ematix_flow.backends.objectstore.sourcefiles import SourceFile
from ematix_flow.backends.objectstore.spark.reading import (
    FILE_COLUMN,
    SAMPLED_FILES,
    load,
    load_without_partitions,
    partition_types,
    union,
)
from ematix_flow.backends.objectstore.storedtypes import ddl
from ematix_flow.backends.query_tables import quoted
from ematix_flow.backends.refusals import FILE
from ematix_flow.backends.session_settings import session_settings
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.files import JsonReading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_REMEMBERED = 256
_CASE = "spark.sql.caseSensitive"
_ONE_A_LINE = "each line is one object; an array over several lines becomes such lines by  jq -c '.[]'"

_found: OrderedDict[object, dict[str, str]] = OrderedDict()  # a query is planned and run: look once


def json_frame(spark: SparkSession, table: ReadableTable, reading: JsonReading) -> DataFrame:
    partitions, found = partition_types(table), _columns(spark, table, reading)
    if not found:
        raise SourceFailed(
            f"the files of {table.name!r} in {table.folder} are empty: no line holds a column",
            next_step="run the pipeline that fills them first",
        )
    return _read(spark, table, found, partitions)


def json_texts(
    spark: SparkSession, table: ReadableTable, reading: JsonReading, names: Collection[str]
) -> DataFrame | None:
    """Those columns of ``names`` that there are, and partitions, as the text that they are written as, and
    `FILE_COLUMN`; None when no line holds a column."""
    found = _columns(spark, table, reading)
    if not found:
        return None
    wanted = {name.lower() for name in names}
    partitions = dict.fromkeys(partition_types(table), "STRING")
    texts = {name: "STRING" for name in found if name.lower() in wanted}
    frame = _read(spark, table, texts, partitions)
    return frame.selectExpr(*map(quoted, frame.columns), f"{FILE} AS {quoted(FILE_COLUMN)}")


def _read(
    spark: SparkSession, table: ReadableTable, columns: Mapping[str, str], partitions: Mapping[str, str]
) -> DataFrame:
    fields = [f"{quoted(name)} {kind}" for name, kind in columns.items()]
    reader = spark.read.format("json").option("mode", "FAILFAST")
    return load(spark, reader, table, table.files, fields, partitions)


def _columns(spark: SparkSession, table: ReadableTable, reading: JsonReading) -> dict[str, str]:
    key = (table.fingerprint, reading.schema_infer_max_records)
    if key not in _found:
        _found[key] = _look(spark, table, reading.schema_infer_max_records)
        while len(_found) > _REMEMBERED:
            _found.popitem(last=False)
    return _found[key]


def _look(spark: SparkSession, table: ReadableTable, limit: int | None) -> dict[str, str]:
    """The columns with their Spark types; SourceFailed for lines that are no objects."""
    for file in table.files:
        require_text(file)
    columns = _of_all_lines(spark, table) if limit is None else _of_first_lines(spark, table, limit)
    names: dict[str, str] = {}
    for name in columns:
        twin = names.setdefault(name.lower(), name)
        if twin != name:
            raise SourceFailed(
                f"lines of {table.name!r} in {table.folder} have the columns {twin!r} and {name!r}, "
                "which Spark SQL takes for one",
                next_step="give one of them another name",
            )
    return columns


def _of_all_lines(spark: SparkSession, table: ReadableTable) -> dict[str, str]:
    reader = spark.read.format("json").option("mode", "FAILFAST")
    try:
        with session_settings(spark, {_CASE: "true"}):
            found = load_without_partitions(spark, reader, table.files).schema
    except Exception as error:  # in which Spark names no file
        raise _bad_line(table.files) or error from error
    hidden = {name.lower() for name in partition_types(table)}
    return {field.name: _spark_ddl(field.dataType) for field in found if field.name.lower() not in hidden}


def _spark_ddl(of: DataType) -> str:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(of, StructType):
        return "STRUCT<" + ", ".join(f"{quoted(f.name)}: {_spark_ddl(f.dataType)}" for f in of) + ">"
    if isinstance(of, ArrayType):
        return f"ARRAY<{_spark_ddl(of.elementType)}>"
    return of.simpleString()


def _bad_line(files: Sequence[SourceFile]) -> SourceFailed | None:
    """The first line that is no object: looked for only when Spark has met one."""
    for file in files:
        if is_hadoops(file):
            continue
        with unpacked(file) as lines:
            for number, line in enumerate(lines, 1):
                where = f"line {number:,} of {file.shown}"
                try:
                    value = json.loads(line.decode("utf-8-sig")) if line.strip() else {}
                except UnicodeDecodeError:
                    return not_utf8(file)
                except ValueError as error:
                    return SourceFailed(f"{where} is no JSON: {error}", next_step=_ONE_A_LINE)
                objects = value if isinstance(value, list) else [value]
                if not all(isinstance(one, dict) for one in objects):
                    return SourceFailed(f"{where} is no JSON object", next_step=_ONE_A_LINE)
    return None


# ------------------------------------------------------------------ from the first lines alone


def _of_first_lines(spark: SparkSession, table: ReadableTable, limit: int) -> dict[str, str]:
    import pyarrow as pa

    some = table.files[:SAMPLED_FILES]
    lines = union([load_without_partitions(spark, spark.read.format("text"), [file]) for file in some])
    found = pa.struct([])
    for row in lines.limit(limit).collect():
        try:
            value = json.loads(row.value.removeprefix("\ufeff")) if row.value.strip() else {}
        except ValueError as error:
            raise _bad_line(table.files) or SourceFailed(
                f"a line of {table.name!r} in {table.folder} is no JSON: {error}", next_step=_ONE_A_LINE
            ) from error
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict):
                raise _bad_line(table.files) or SourceFailed(
                    f"a line of {table.name!r} in {table.folder} is no JSON object", next_step=_ONE_A_LINE
                )
            found = _both(found, _type(one))
    hidden = {name.lower() for name in partition_types(table)}
    return {field.name: ddl(field.type) for field in found if field.name.lower() not in hidden}


def _type(value: Any) -> pa.DataType:
    import pyarrow as pa

    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        digits = len(str(abs(value)))
        return pa.int64() if -(2**63) <= value < 2**63 else pa.decimal128(min(digits, 38), 0)
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, dict):
        return pa.struct([(name, _type(one)) for name, one in value.items()])
    if isinstance(value, list):
        return pa.list_(reduce(_both, map(_type, value), pa.null()))
    return pa.string()


def _both(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a value that was seen as both."""
    import pyarrow as pa
    import pyarrow.types as t

    if one == other or t.is_null(other):
        return one
    if t.is_null(one):
        return other
    if t.is_struct(one) and t.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _both(fields.get(field.name, pa.null()), field.type)
        return pa.struct(list(fields.items()))
    if t.is_list(one) and t.is_list(other):
        return pa.list_(_both(one.value_type, other.value_type))
    if t.is_decimal(one) and t.is_decimal(other):
        return max(one, other, key=lambda kind: kind.precision)
    numbers = [t.is_integer(kind) or t.is_decimal(kind) for kind in (one, other)]
    if all(numbers):
        return one if t.is_decimal(one) else other
    if all(number or t.is_floating(kind) for number, kind in zip(numbers, (one, other), strict=True)):
        return pa.float64()
    return pa.string()
