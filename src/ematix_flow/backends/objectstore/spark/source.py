"""Folders and files as a source of SQL.

A table that we wrote is read from its current version by the columns that its state lists, so that a
load published meanwhile changes nothing, and a column that older files lack is null. What others wrote
is looked at first.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ematix_flow.backends.base import SparkSetting, SparkSource
from ematix_flow.backends.objectstore.catalog import FilesCatalog, ReadableTable
from ematix_flow.backends.objectstore.csvheaders import csv_shape
from ematix_flow.backends.objectstore.filelayout import CsvDialect, FileLayout
from ematix_flow.backends.objectstore.sourcefiles import SourceFile
from ematix_flow.backends.objectstore.spark.columnar import columnar_frame
from ematix_flow.backends.objectstore.spark.csvframes import NO_NULL, csv_frame
from ematix_flow.backends.objectstore.spark.jsonframes import json_frame
from ematix_flow.backends.objectstore.spark.reading import load, union
from ematix_flow.backends.objectstore.spark.streamrows import pinned, pinned_frame
from ematix_flow.backends.objectstore.trees import LocalTree
from ematix_flow.backends.query_columns import columns_handed_on
from ematix_flow.backends.query_tables import chosen_columns, place_tables, query_frame, quoted
from ematix_flow.backends.refusals import text
from ematix_flow.backends.session_settings import session_settings
from ematix_flow.spec.files import CsvReading, JsonReading
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


def _is_ours(file: SourceFile) -> bool:
    return _OURS.search(file.name) is not None


class Catalog(Protocol):
    """What tables there are."""

    def find(self, name: tuple[str, ...]) -> ReadableTable: ...


class FilesSource(SparkSource):
    """Tables of files of one format, wherever a catalog finds them."""

    def __init__(self, catalog: Catalog, format: str, files: FileOptions = _AS_FOUND) -> None:
        self._catalog, self._format = catalog, format
        self._csv, self._json = CsvReading.of(files), JsonReading.of(files)
        self._texts: frozenset[str] = frozenset()

    def reading(self, files: FileOptions) -> FilesSource:
        found = copy.copy(self)
        found._csv, found._json = CsvReading.of(files), JsonReading.of(files)
        return found

    def keeping_texts(self, columns: Collection[str]) -> FilesSource:
        found = copy.copy(self)
        found._texts = frozenset(columns)
        return found

    def settings(self) -> tuple[SparkSetting, ...]:
        batch = self._json.batch_size if self._format == "json_lines" else None
        return () if batch is None else (SparkSetting(_BATCH_ROWS, str(batch), "json_read_options="),)

    def size(self, sql: str) -> int | None:
        placed = place_tables(sql)
        return (
            None if placed is None else sum(self._catalog.find(name).size for name in placed.tables.values())
        )

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return chosen_columns(table, columns)

    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        with session_settings(spark, {each.key: each.value for each in self.settings()}):
            texts = columns_handed_on(sql, self._texts)
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
        """The rows of a table; with ``columns`` these, of their types, whatever its files hold.

        What is written as text, cells of CSV and names of folders, stays so in the columns ``texts``.
        """
        if table.state is not None:
            ours = self._read_ours(spark, table, table.state.layout)
            return ours if columns is None else pinned(ours, columns, text(table.folder))
        if columns is not None:
            return pinned_frame(spark, table, self._format, columns, self._csv, self._json)
        if self._format == "csv":
            return csv_frame(spark, table, self._csv, texts)
        if self._format == "json_lines":
            return json_frame(spark, table, self._json, texts)
        return columnar_frame(spark, table, self._format, texts)

    def _read_ours(self, spark: SparkSession, table: ReadableTable, layout: FileLayout) -> DataFrame:
        if not table.files:
            return spark.createDataFrame([], ", ".join(_fields(layout.columns, "parquet")))
        adopted = [file for file in table.files if not _is_ours(file)]
        if adopted and self._format in ("parquet", "orc"):
            return self._read_with_adopted(spark, table, layout, adopted)
        if self._format == "csv":
            frame = self._read_our_csv(spark, table, layout)
        else:
            reader = spark.read.format(_FORMATS[self._format])
            if self._format == "json_lines":
                reader = reader.option("mode", "FAILFAST")
            fields = _fields(layout.stored, self._format)
            frame = load(spark, reader, table, table.files, fields, _partition_types(layout, self._format))
        return frame.selectExpr(*(_as_declared(column, self._format) for column in layout.columns))

    def _read_with_adopted(
        self, spark: SparkSession, table: ReadableTable, layout: FileLayout, adopted: Sequence[SourceFile]
    ) -> DataFrame:
        """Files that others wrote before the table was ours hold the same values, in their own ways."""
        theirs = replace(table, files=tuple(adopted), whole_folder=False, state=None)
        found = columnar_frame(spark, theirs, self._format)
        frames = [found.selectExpr(*(_of_adopted(column, dict(found.dtypes)) for column in layout.columns))]
        ours = tuple(file for file in table.files if file not in set(adopted))
        if ours:
            frames.append(self._read_ours(spark, replace(table, files=ours, whole_folder=False), layout))
        return union(frames)

    def _read_our_csv(self, spark: SparkSession, table: ReadableTable, layout: FileLayout) -> DataFrame:
        """Files written before a column was added have the first of the columns, and those that were
        adopted may have other line ends: read them apart."""
        groups: dict[tuple[int, bool, bool], list[SourceFile]] = defaultdict(list)
        for file in table.files:
            shape = csv_shape(spark, file, _reading_of(layout.csv))
            groups[len(shape.names), shape.spans_lines, _is_ours(file)].append(file)
        frames = []
        for (width, spans_lines, ours), files in sorted(groups.items(), reverse=True):
            fields = _fields(layout.stored[:width], "csv")
            reader = _csv_reader(spark, layout.csv, spans_lines)
            if ours:  # or Spark would take a line end in the first cells for that of records
                reader = reader.option("lineSep", "\n")
            frames.append(load(spark, reader, table, files, fields, _partition_types(layout, "csv")))
        return union(frames)


class LocalFilesSource(FilesSource):
    """Folders and files under one root of this machine's disk."""

    def __init__(self, root: Path, format: str, files: FileOptions = _AS_FOUND) -> None:
        super().__init__(FilesCatalog(LocalTree(root), format), format, files)

    def settings(self) -> tuple[SparkSetting, ...]:
        return (*super().settings(), _PACKED)


# ------------------------------------------------------------------ CSV of ours


def _reading_of(dialect: CsvDialect) -> CsvReading:
    """What is needed to count the cells of a file's first record."""
    return CsvReading(
        has_header=False, delimiter=dialect.delimiter, quote=dialect.quote, escape=dialect.escape
    )


def _csv_reader(spark: SparkSession, dialect: CsvDialect, spans_lines: bool) -> DataFrameReader:
    return spark.read.format("csv").options(
        sep=dialect.delimiter,
        header=dialect.header,
        quote=dialect.quote,
        escape=dialect.escape,
        nullValue=dialect.null or NO_NULL,
        emptyValue="",
        multiLine=spans_lines,
        mode="FAILFAST",
    )


# ------------------------------------------------------------------ types


def _fields(columns: Sequence[ColumnSpec], format: str) -> list[str]:
    return [f"{quoted(column.name)} {_stored_type(column, format)}" for column in columns]


def _partition_types(layout: FileLayout, format: str) -> dict[str, str]:
    outside = [column for column in layout.columns if column.name in layout.partition_by]
    return {column.name: _stored_type(column, format) for column in outside}


def _stored_type(column: ColumnSpec, format: str) -> str:
    """The type by which Spark must read a column from a file of this format."""
    kind = column.type.kind
    if format == "csv" and kind == "bytes":
        return "STRING"
    if format == "orc" and kind == "timestamp":
        return "TIMESTAMP"
    return _SPARK.type_name(column.type)


def _of_adopted(column: ColumnSpec, there: Mapping[str, str]) -> str:
    """The column as it is declared, from what was found in files of others."""
    kinds = {name.lower(): kind for name, kind in there.items()}
    name, kind, wanted = quoted(column.name), kinds.get(column.name.lower()), _stored_type(column, "parquet")
    if kind is None:
        return f"CAST(NULL AS {wanted}) AS {name}"
    if wanted == "STRING" and kind.startswith(("array<", "struct<", "map<")):
        return f"to_json({name}) AS {name}"
    return f"CAST({name} AS {wanted}) AS {name}"


def _as_declared(column: ColumnSpec, format: str) -> str:
    """The column as it was loaded, from what the reader gives."""
    name, kind = quoted(column.name), column.type.kind
    if format == "csv" and kind == "bytes":
        return f"unbase64({name}) AS {name}"
    if format == "orc" and kind == "timestamp":
        return f"CAST({name} AS TIMESTAMP_NTZ) AS {name}"
    return name
