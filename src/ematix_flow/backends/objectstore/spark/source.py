"""Folders and files as a source of SQL queries.

A table that this product wrote is read from its current version with the columns of its state, so that a load
published meanwhile changes nothing, and a column that older files lack is null. Files of other programs are
inspected first.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ematix_flow.backends.base import BatchSource, SparkSetting, SparkSource
from ematix_flow.backends.objectstore.formats.csv_headers import find_csv_shape
from ematix_flow.backends.objectstore.layout.file_layout import CsvDialect, FileLayout
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.backends.objectstore.reading.catalog import FilesCatalog, ReadableTable
from ematix_flow.backends.objectstore.reading.csv_copy import find_csv_copy, parse_plain_select
from ematix_flow.backends.objectstore.reading.file_tree import LocalFileTree
from ematix_flow.backends.objectstore.spark.columnar_frames import columnar_frame
from ematix_flow.backends.objectstore.spark.csv_frames import NEVER_A_NULL, csv_frame
from ematix_flow.backends.objectstore.spark.file_readers import load_files, union_frames
from ematix_flow.backends.objectstore.spark.json_frames import json_frame
from ematix_flow.backends.objectstore.spark.stream_rows import cast_to_columns, typed_frame
from ematix_flow.backends.spark_sql.query_columns import unchanged_columns
from ematix_flow.backends.spark_sql.query_tables import (
    parse_query_template,
    query_frame,
    quote_name,
    select_columns_sql,
)
from ematix_flow.backends.spark_sql.row_refusals import text_literal
from ematix_flow.backends.spark_sql.session_settings import session_settings
from ematix_flow.spec.file_options import CsvReadOptions, JsonReadOptions
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.strategies.functions.spark import SparkFunctions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_SPARK = SparkFunctions()
_FORMATS = {"parquet": "parquet", "csv": "csv", "json_lines": "json", "orc": "orc"}
_AS_FOUND = FileOptions()
_OURS = re.compile(r"(^|/)part-[0-9a-f]{14}-[^/]*$")  # how we name a file
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PACKED = SparkSetting(
    "spark.sql.files.openCostInBytes",
    str(256 * 1024),
    "a file on a disk is opened quickly: one task reads hundreds of small ones",
)


def _is_own_file(file: SourceFile) -> bool:
    return _OURS.search(file.name) is not None


class TableFinder(Protocol):
    """Finds tables by name."""

    def find(self, name: tuple[str, ...]) -> ReadableTable: ...


class FilesSource(SparkSource):
    """Tables of files of one format, in the places that a catalog finds."""

    def __init__(self, catalog: TableFinder, format: str, files: FileOptions = _AS_FOUND) -> None:
        self._catalog, self._format = catalog, format
        self._csv, self._json = (
            CsvReadOptions.from_file_options(files),
            JsonReadOptions.from_file_options(files),
        )
        self._texts: frozenset[str] = frozenset()

    def with_file_options(self, files: FileOptions) -> FilesSource:
        found = copy.copy(self)
        found._csv, found._json = (
            CsvReadOptions.from_file_options(files),
            JsonReadOptions.from_file_options(files),
        )
        return found

    def with_text_columns(self, columns: Collection[str]) -> FilesSource:
        found = copy.copy(self)
        found._texts = frozenset(columns)
        return found

    def settings(self) -> tuple[SparkSetting, ...]:
        batch = self._json.batch_size if self._format == "json_lines" else None
        return () if batch is None else (SparkSetting(_BATCH_ROWS, str(batch), "json_read_options="),)

    def as_batches(self, sql: str) -> BatchSource | None:
        select = parse_plain_select(sql) if self._format == "csv" else None
        if select is None:
            return None
        texts = unchanged_columns(sql, self._texts)
        return find_csv_copy(self._catalog.find(select.table), select, self._csv, texts)

    def size_in_bytes(self, sql: str) -> int | None:
        placed = parse_query_template(sql)
        return (
            None if placed is None else sum(self._catalog.find(name).size for name in placed.tables.values())
        )

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return select_columns_sql(table, columns)

    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        with session_settings(spark, {each.key: each.value for each in self.settings()}):
            texts = unchanged_columns(sql, self._texts)
            return query_frame(
                spark, sql, lambda name: self.read(spark, self._catalog.find(name), texts=texts)
            )

    # -------------------------------------------------------------- one table

    def read(
        self,
        spark: SparkSession,
        table: ReadableTable,
        columns: Sequence[ColumnSpec] | None = None,
        texts: Collection[str] = (),
    ) -> DataFrame:
        """The rows of a table. With ``columns``: exactly these columns, in their types.

        Values that are stored as text (CSV cells, names of folders) stay text in the columns ``texts``.
        """
        if table.state is not None:
            ours = self._read_own_table(spark, table, table.state.layout)
            return ours if columns is None else cast_to_columns(ours, columns, text_literal(table.folder))
        if columns is not None:
            return typed_frame(spark, table, self._format, columns, self._csv, self._json)
        if self._format == "csv":
            return csv_frame(spark, table, self._csv, texts)
        if self._format == "json_lines":
            return json_frame(spark, table, self._json, texts)
        return columnar_frame(spark, table, self._format, texts)

    def _read_own_table(self, spark: SparkSession, table: ReadableTable, layout: FileLayout) -> DataFrame:
        if not table.files:
            return spark.createDataFrame([], ", ".join(_schema_fields(layout.columns, "parquet")))
        adopted = [file for file in table.files if not _is_own_file(file)]
        if adopted and self._format in ("parquet", "orc"):
            return self._read_with_adopted(spark, table, layout, adopted)
        if self._format == "csv":
            frame = self._read_own_csv(spark, table, layout)
        else:
            reader = spark.read.format(_FORMATS[self._format])
            if self._format == "json_lines":
                reader = reader.option("mode", "FAILFAST")
            fields = _schema_fields(layout.stored_columns, self._format)
            frame = load_files(
                spark, reader, table, table.files, fields, _partition_types(layout, self._format)
            )
        return frame.selectExpr(*(_declared_column_sql(column, self._format) for column in layout.columns))

    def _read_with_adopted(
        self, spark: SparkSession, table: ReadableTable, layout: FileLayout, adopted: Sequence[SourceFile]
    ) -> DataFrame:
        """Read adopted files separately: they hold the same values in other types or dialects."""
        theirs = replace(table, files=tuple(adopted), whole_folder=False, state=None)
        found = columnar_frame(spark, theirs, self._format)
        frames = [
            found.selectExpr(*(_adopted_column_sql(column, dict(found.dtypes)) for column in layout.columns))
        ]
        ours = tuple(file for file in table.files if file not in set(adopted))
        if ours:
            frames.append(self._read_own_table(spark, replace(table, files=ours, whole_folder=False), layout))
        return union_frames(frames)

    def _read_own_csv(self, spark: SparkSession, table: ReadableTable, layout: FileLayout) -> DataFrame:
        """Read CSV files by their shape: files from before a column was added have fewer columns, and adopted
        files may have other line ends."""
        groups: dict[tuple[int, bool, bool], list[SourceFile]] = defaultdict(list)
        for file in table.files:
            shape = find_csv_shape(spark, file, _csv_reading(layout.csv))
            groups[len(shape.names), shape.spans_lines, _is_own_file(file)].append(file)
        frames = []
        for (width, spans_lines, ours), files in sorted(groups.items(), reverse=True):
            fields = _schema_fields(layout.stored_columns[:width], "csv")
            reader = _csv_reader(spark, layout.csv, spans_lines)
            if ours:  # or Spark would take a line end in the first cells for that of records
                reader = reader.option("lineSep", "\n")
            frames.append(load_files(spark, reader, table, files, fields, _partition_types(layout, "csv")))
        return union_frames(frames)


class LocalFilesSource(FilesSource):
    """Folders and files under one root of this machine's disk."""

    def __init__(self, root: Path, format: str, files: FileOptions = _AS_FOUND) -> None:
        super().__init__(FilesCatalog(LocalFileTree(root), format), format, files)

    def settings(self) -> tuple[SparkSetting, ...]:
        return (*super().settings(), _PACKED)


# ------------------------------------------------------------------ CSV of ours


def _csv_reading(dialect: CsvDialect) -> CsvReadOptions:
    """The read options that are needed to count the cells of a file's first record."""
    return CsvReadOptions(
        has_header=False, delimiter=dialect.delimiter, quote=dialect.quote, escape=dialect.escape
    )


def _csv_reader(spark: SparkSession, dialect: CsvDialect, spans_lines: bool) -> DataFrameReader:
    return spark.read.format("csv").options(
        sep=dialect.delimiter,
        header=dialect.header,
        quote=dialect.quote,
        escape=dialect.escape,
        nullValue=dialect.null or NEVER_A_NULL,
        emptyValue="",
        multiLine=spans_lines,
        mode="FAILFAST",
    )


# ------------------------------------------------------------------ types


def _schema_fields(columns: Sequence[ColumnSpec], format: str) -> list[str]:
    return [f"{quote_name(column.name)} {_stored_type(column, format)}" for column in columns]


def _partition_types(layout: FileLayout, format: str) -> dict[str, str]:
    outside = [column for column in layout.columns if column.name in layout.partition_by]
    return {column.name: _stored_type(column, format) for column in outside}


def _stored_type(column: ColumnSpec, format: str) -> str:
    """The type with which Spark must read a column from a file of this format."""
    kind = column.type.kind
    if format == "csv" and kind == "bytes":
        return "STRING"
    if format == "orc" and kind == "timestamp":
        return "TIMESTAMP"
    return _SPARK.type_name(column.type)


def _adopted_column_sql(column: ColumnSpec, there: Mapping[str, str]) -> str:
    """SQL: the declared column, from an adopted file of another program."""
    kinds = {name.lower(): kind for name, kind in there.items()}
    name, kind, wanted = (
        quote_name(column.name),
        kinds.get(column.name.lower()),
        _stored_type(column, "parquet"),
    )
    if kind is None:
        return f"CAST(NULL AS {wanted}) AS {name}"
    if wanted == "STRING" and kind.startswith(("array<", "struct<", "map<")):
        return f"to_json({name}) AS {name}"
    return f"CAST({name} AS {wanted}) AS {name}"


def _declared_column_sql(column: ColumnSpec, format: str) -> str:
    """SQL: the column as it was loaded, from what the reader returns."""
    name, kind = quote_name(column.name), column.type.kind
    if format == "csv" and kind == "bytes":
        return f"unbase64({name}) AS {name}"
    if format == "orc" and kind == "timestamp":
        return f"CAST({name} AS TIMESTAMP_NTZ) AS {name}"
    return name
