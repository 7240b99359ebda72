"""Reads files for a stream in given columns and types, so that every batch has the types of the first.

A value that does not fit its column's type is refused, and the error names the file: nothing is cut or
rounded. Text is accepted in the same forms as in type inference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.backends.objectstore.formats.footers import FileColumn, read_footers
from ematix_flow.backends.objectstore.formats.text_types import cast_cell_sql
from ematix_flow.backends.objectstore.layout.partition_folders import partition_columns
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.backends.objectstore.reading.catalog import ReadableTable
from ematix_flow.backends.objectstore.spark.columnar_frames import columnar_frame
from ematix_flow.backends.objectstore.spark.csv_frames import csv_cells
from ematix_flow.backends.objectstore.spark.file_readers import FILE_COLUMN, require_columns, union_frames
from ematix_flow.backends.objectstore.spark.json_frames import json_texts
from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.backends.spark_sql.row_refusals import raise_error_sql, text_literal
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.file_options import CsvReadOptions, JsonReadOptions
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType, from_arrow
from ematix_flow.strategies.functions.spark import SparkFunctions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SPARK = SparkFunctions()
_TEXTS = ("text", "string", "json", "jsonb", "uuid")
_NESTED = ("array<", "struct<", "map<")
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_INEXACT = ("float", "double", "decimal")
_FAMILIES = {
    **dict.fromkeys(("small_int", "integer", "big_int", "numeric", "boolean"), (*_NUMBERS, "boolean")),
    **dict.fromkeys(("float", "double"), _NUMBERS),
    **dict.fromkeys(("date", "timestamp", "timestamp_tz"), _TIMES),
    "bytes": ("binary",),
}
_STEP = (
    "fix the file; or move it out of the folder and run the stream with fail_on_data_loss=False, "
    "which goes on without it"
)


def column_specs_of_frame(frame: DataFrame) -> tuple[ColumnSpec, ...]:
    """The columns of a frame as column specifications."""
    from pyspark.sql.pandas.types import to_arrow_type

    return tuple(
        ColumnSpec(field.name, from_arrow(to_arrow_type(field.dataType)), nullable=True)
        for field in frame.schema
    )


def typed_frame(
    spark: SparkSession,
    table: ReadableTable,
    format: str,
    columns: Sequence[ColumnSpec],
    csv: CsvReadOptions,
    json: JsonReadOptions,
) -> DataFrame:
    """The rows of files of other programs, in the given columns."""
    names = [column.name for column in columns]
    frames: list[DataFrame] = []
    for part in _split_by_partitions(table):
        if format == "csv":
            found = csv_cells(spark, part, csv, names)
        elif format == "json_lines":
            found = json_texts(spark, part, json, names)
        else:
            frames += [
                _columnar_frame(spark, one, format, columns) for one in _split_by_columns(part, format, names)
            ]
            continue
        frames += [] if found is None else [cast_to_columns(found, columns, quote_name(FILE_COLUMN))]
    if frames:
        return union_frames(frames)
    return spark.createDataFrame(
        [], ", ".join(f"{quote_name(c.name)} {_SPARK.type_name(c.type)}" for c in columns)
    )


def _split_by_partitions(table: ReadableTable) -> list[ReadableTable]:
    """Split the files by their partition columns: a stream may receive files with and without partitions."""
    groups: dict[tuple[str, ...], list[SourceFile]] = defaultdict(list)
    for file in table.files:
        groups[tuple(partition_columns(file.name))].append(file)
    return [replace(table, files=tuple(files)) for files in groups.values()]


def _split_by_columns(table: ReadableTable, format: str, names: Sequence[str]) -> list[ReadableTable]:
    """Split the files by their columns, so that each keeps its own types until the cast."""
    groups: dict[tuple[FileColumn, ...], list[SourceFile]] = defaultdict(list)
    for file, footer in zip(table.files, read_footers(table.files, format), strict=True):
        groups[footer.columns].append(file)
    for there, files in groups.items():
        require_columns(files[0], [column.name for column in there], names)
    return [replace(table, files=tuple(files)) for files in groups.values()]


def _columnar_frame(
    spark: SparkSession, table: ReadableTable, format: str, columns: Sequence[ColumnSpec]
) -> DataFrame:
    frame = columnar_frame(spark, table, format, beside_file=True)
    return cast_to_columns(frame, columns, quote_name(FILE_COLUMN), table.files[0].display_name)


def cast_to_columns(
    frame: DataFrame, columns: Sequence[ColumnSpec], file: str, example: str | None = None
) -> DataFrame:
    """Cast a frame to the given columns. ``file`` is SQL for the name of a row's file in errors; ``example``
    is one of the files, for an error that all have in common."""
    found = {name.lower(): (name, kind) for name, kind in frame.dtypes}
    chosen = []
    for column in columns:
        there = found.get(column.name.lower())
        kind = _SPARK.type_name(column.type)
        value = f"CAST(NULL AS {kind})"
        if there is not None:
            value = _value_sql(quote_name(there[0]), there[1], column, file, example)
        chosen.append(f"CAST({value} AS {kind}) AS {quote_name(column.name)}")
    return frame.selectExpr(*chosen)


def _value_sql(name: str, there: str, column: ColumnSpec, file: str, example: str | None) -> str:
    """SQL of a column that the files have as ``there``, in the wanted type."""
    wanted = column.type
    if there.startswith(_NESTED):
        if wanted.kind not in _TEXTS:
            raise _wrong_type_error(column, there, example)
        return f"to_json({name})"
    if there == "string":
        typed = cast_cell_sql(name, wanted, _SPARK.type_name(wanted))
        return name if typed == name else _value_or_error_sql(name, typed, column, file)
    if wanted.kind in _TEXTS:
        shown = f"CAST({name} AS STRING)"
        if there != "binary":
            return shown
        return _value_or_error_sql(name, f"CASE WHEN is_valid_utf8({shown}) THEN {shown} END", column, file)
    if there.partition("(")[0] not in _FAMILIES[wanted.kind]:
        raise _wrong_type_error(column, there, example)
    return _value_or_error_sql(name, _exact_cast_sql(name, there, wanted), column, file)


def _exact_cast_sql(name: str, there: str, wanted: DataType) -> str:
    """SQL: the value in a type of the same kind; null if the value would change."""
    kind = _SPARK.type_name(wanted)
    typed = f"try_cast({name} AS {kind})"
    same = f"CAST({typed} AS {there}) <=> {name}"
    if wanted.kind in ("float", "double") and there.partition("(")[0] in _INEXACT:
        # digits may be lost, as in any database; a number must not become infinity
        same = f"(abs({typed}) < double('Infinity')) = (abs({name}) < double('Infinity')) OR isnan({typed})"
    return f"CASE WHEN {same} THEN {typed} END"


def _value_or_error_sql(name: str, typed: str, column: ColumnSpec, file: str) -> str:
    refused = raise_error_sql(
        text_literal(f"column {column.name!r} of "),
        file,
        text_literal(": '"),
        f"left(CAST({name} AS STRING), 80)",
        text_literal(f"' is not of type {column.type}, the column's type in this stream"),
        next_step=_STEP,
    )
    return f"CASE WHEN {name} IS NOT NULL THEN coalesce({typed}, {refused}) END"


def _wrong_type_error(column: ColumnSpec, there: str, example: str | None) -> SourceFailed:
    where = f"in {example}" if example else "in the files"
    return SourceFailed(
        f"column {column.name!r} is {there.upper()} {where}, and {column.type} in this stream",
        next_step=_STEP,
    )
