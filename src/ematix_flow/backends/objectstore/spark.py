"""The Spark half: tables of files as DataFrames, and a query over them.

Spark's own readers read. A table that we wrote is read from its current version by the columns that
its state lists, so that a load published meanwhile changes nothing, and a column that older files lack
is null. Only the session passed in is used, and nothing is left in its catalog.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.backends.base import SparkSource
from ematix_flow.backends.objectstore.catalog import FilesCatalog, ReadableTable
from ematix_flow.backends.objectstore.csvtypes import column_types, fact_expressions
from ematix_flow.backends.objectstore.filelayout import CsvDialect, FileLayout
from ematix_flow.backends.objectstore.partitions import partition_columns
from ematix_flow.backends.objectstore.places import DataFile
from ematix_flow.backends.objectstore.readers import csv_first_record
from ematix_flow.backends.query_tables import chosen_columns, query_frame, quoted
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_TYPES = {
    "small_int": "SMALLINT",
    "integer": "INT",
    "big_int": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamp_tz": "TIMESTAMP",
    "bytes": "BINARY",
}
_FORMATS = {"parquet": "parquet", "csv": "csv", "json_lines": "json", "orc": "orc"}
_NO_NULL = "\x01\x02null"  # a mark that no file holds: an empty cell is null, an empty text in quotes is not
_SPLIT_BYTES = 128 * 1024 * 1024
_DELIMITERS = (",", ";", "\t", "|")


class LocalFilesSource(SparkSource):
    """Folders and files under one root, read by Spark."""

    def __init__(self, root: Path, format: str) -> None:
        self._catalog, self._format = FilesCatalog(root, format), format
        self._inferred: dict[object, dict[str, str]] = {}  # a query is planned and run: infer once

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return chosen_columns(table, columns)

    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        return query_frame(spark, sql, lambda name: self._read(spark, self._catalog.find(name)))

    # -------------------------------------------------------------- one table

    def _read(self, spark: SparkSession, table: ReadableTable) -> DataFrame:
        if table.state is not None:
            return self._read_ours(spark, table, table.state.layout)
        if self._format == "csv":
            return self._read_foreign_csv(spark, table)
        reader = spark.read.format(_FORMATS[self._format])
        if self._format == "json_lines":
            reader = reader.option("mode", "FAILFAST")
        else:
            reader = reader.option("mergeSchema", "true")
        return _load(reader, table, table.files)

    def _read_ours(self, spark: SparkSession, table: ReadableTable, layout: FileLayout) -> DataFrame:
        if not table.files:
            return spark.createDataFrame([], _ddl(layout.columns, "parquet"))
        if self._format == "csv":
            frame = self._read_our_csv(spark, table, layout)
        else:
            reader = spark.read.format(_FORMATS[self._format]).schema(_ddl(layout.columns, self._format))
            if self._format == "json_lines":
                reader = reader.option("mode", "FAILFAST")
            frame = _load(reader, table, table.files)
        return frame.selectExpr(*(_as_declared(column, self._format) for column in layout.columns))

    def _read_our_csv(self, spark: SparkSession, table: ReadableTable, layout: FileLayout) -> DataFrame:
        """Files written before a column was added have the first of the columns: read them apart."""
        by_width: dict[int, list[DataFile]] = defaultdict(list)
        for file in table.files:
            by_width[len(csv_first_record(file.path, layout.csv))].append(file)
        outside = [c for c in layout.columns if c.name in layout.partition_by]
        frames = []
        for width, files in sorted(by_width.items(), reverse=True):
            columns = [*layout.stored[:width], *outside]
            reader = _csv_reader(spark, layout.csv, _ddl(columns, "csv"), files)
            frames.append(_load(reader, table, files))
        return _union(frames)

    def _read_foreign_csv(self, spark: SparkSession, table: ReadableTable) -> DataFrame:
        """Files of others: columns by their headers, types by what all cells of a column are."""
        by_header: dict[tuple[str, tuple[str, ...]], list[DataFile]] = defaultdict(list)
        for file in table.files:
            delimiter, header = _header(file)
            if header:
                by_header[delimiter, header].append(file)
        frames = []
        for (delimiter, header), files in by_header.items():
            dialect = CsvDialect(delimiter=delimiter)
            names = [*header, *(n for n in partition_columns(files[0].name) if n not in header)]
            types = self._infer(spark, table, files, dialect, names)
            ddl = ", ".join(f"{quoted(name)} {types[name]}" for name in names)
            frames.append(_load(_csv_reader(spark, dialect, ddl, files), table, files))
        if not frames:
            raise SourceFailed(
                f"the files of {table.name!r} in {table.folder} are empty: they have no header",
                next_step="put a header with the columns' names into them",
            )
        return _union(frames)

    def _infer(
        self,
        spark: SparkSession,
        table: ReadableTable,
        files: Sequence[DataFile],
        dialect: CsvDialect,
        names: Sequence[str],
    ) -> dict[str, str]:
        stats = [(file.path, file.path.stat()) for file in files]
        key = tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)
        if key not in self._inferred:
            ddl = ", ".join(f"{quoted(name)} STRING" for name in names)
            cells = _load(_csv_reader(spark, dialect, ddl, files), table, files)
            (answers,) = cells.selectExpr(*fact_expressions(names)).collect()
            self._inferred[key] = column_types(names, list(answers))
        return self._inferred[key]


# ------------------------------------------------------------------ reading


def _load(reader: DataFrameReader, table: ReadableTable, files: Sequence[DataFile]) -> DataFrame:
    """The folder as one where all of it is read, else file by file with the folder as partitions' base."""
    if table.whole_folder and len(files) == len(table.files):
        return reader.load(_literal(table.folder))
    return reader.option("basePath", str(table.folder)).load([_literal(file.path) for file in files])


def _literal(path: Path) -> str:
    """A path in which nothing is a pattern."""
    return re.sub(r"([\\\[\]{}*?^])", r"\\\1", str(path))


def _csv_reader(
    spark: SparkSession, dialect: CsvDialect, ddl: str, files: Sequence[DataFile]
) -> DataFrameReader:
    return (
        spark.read.format("csv")
        .schema(ddl)
        .options(
            sep=dialect.delimiter,
            header=dialect.header,
            quote=dialect.quote,
            escape=dialect.escape,
            nullValue=dialect.null or _NO_NULL,
            emptyValue="",
            multiLine=_may_span_lines(files, dialect),
            mode="FAILFAST",
        )
    )


def _may_span_lines(files: Sequence[DataFile], dialect: CsvDialect) -> bool:
    """Whether a cell may hold a line end. A large file without any quote can be read in pieces."""
    large = [file.path for file in files if file.path.stat().st_size > _SPLIT_BYTES]
    return not large or any(_holds(path, dialect.quote.encode()) for path in large)


def _holds(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return any(mark in piece for piece in iter(lambda: file.read(1 << 22), b""))


def _header(file: DataFile) -> tuple[str, tuple[str, ...]]:
    """The delimiter that gives the most columns, and their names; a column without a name gets one."""
    try:
        headers = {d: csv_first_record(file.path, CsvDialect(delimiter=d)) for d in _DELIMITERS}
    except (OSError, ValueError, csv.Error) as error:
        raise SourceFailed(f"cannot read the header of {file.path}: {error}") from error
    delimiter = max(_DELIMITERS, key=lambda d: len(headers[d]))
    names = tuple(name or f"_c{number}" for number, name in enumerate(headers[delimiter]))
    twice = next((name for name in names if [n.lower() for n in names].count(name.lower()) > 1), None)
    if twice is not None:
        raise SourceFailed(
            f"the header of {file.path} names the column {twice!r} more than once",
            next_step="give each column a name of its own",
        )
    return delimiter, names


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """All rows; a column that some files lack is null there."""
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    return whole


# ------------------------------------------------------------------ types


def _ddl(columns: Sequence[ColumnSpec], format: str) -> str:
    return ", ".join(f"{quoted(column.name)} {_stored_type(column, format)}" for column in columns)


def _stored_type(column: ColumnSpec, format: str) -> str:
    """The type by which Spark must read a column from a file of this format."""
    kind = column.type.kind
    if format == "csv" and kind == "bytes":
        return "STRING"
    if format == "orc" and kind == "timestamp":
        return "TIMESTAMP"
    if kind == "numeric":
        return f"DECIMAL({column.type.precision},{column.type.scale})"
    return _TYPES.get(kind, "STRING")


def _as_declared(column: ColumnSpec, format: str) -> str:
    """The column as it was loaded, from what the reader gives."""
    name, kind = quoted(column.name), column.type.kind
    if format == "csv" and kind == "bytes":
        return f"unbase64({name}) AS {name}"
    if format == "orc" and kind == "timestamp":
        return f"CAST({name} AS TIMESTAMP_NTZ) AS {name}"
    return name
