"""Parquet and ORC folders of other programs as DataFrames.

The footers of all files decide the columns: a column that some files lack is null there, a narrower type is
widened, and a column without a common type is an error that names two files. Files that Spark reads in the
same way are read together; Arrow reads in tasks what Spark cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.objectstore.formats.common_types import common_type, find_type_clash
from ematix_flow.backends.objectstore.formats.footers import FileColumn, Footer, read_footers
from ematix_flow.backends.objectstore.formats.stored_types import (
    cast_sql,
    query_type,
    reads_without_cast,
    storage_ddl,
    to_ddl,
)
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.backends.objectstore.reading.catalog import ReadableTable
from ematix_flow.backends.objectstore.spark.arrow_tasks import arrow_frame
from ematix_flow.backends.objectstore.spark.file_readers import (
    FILE_COLUMN,
    load_files,
    partition_types,
    union_frames,
)
from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.backends.spark_sql.row_refusals import FILE_PATH_SQL, raise_error_sql, text_literal
from ematix_flow.errors import SourceFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class MergedColumn:
    """A column of all files together: its first name, and the type that a query sees."""

    name: str
    type: pa.DataType


def columnar_frame(
    spark: SparkSession,
    table: ReadableTable,
    format: str,
    texts: Collection[str] = (),
    *,
    beside_file: bool = False,
) -> DataFrame:
    """``texts``: partition columns that stay text. ``beside_file``: add `FILE_COLUMN`, and keep all
    partitions as text."""
    found = read_footers(table.files, format)
    partitions = partition_types(table, texts)
    if beside_file:
        partitions = dict.fromkeys(partitions, "STRING")
    hidden = {name.lower() for name in partitions}  # the folder's value takes precedence over the file's
    columns = [c for c in table_columns(table.files, found) if c.name.lower() not in hidden]
    groups: dict[tuple[bool, tuple[FileColumn, ...]], list[SourceFile]] = defaultdict(list)
    odd_columns: dict[tuple[FileColumn, ...], tuple[FileColumn, ...]] = {}
    for file, footer in zip(table.files, found, strict=True):
        if footer.columns not in odd_columns:
            odd_columns[footer.columns] = _columns_to_cast(footer.columns, columns)
        groups[footer.needs_arrow, odd_columns[footer.columns]].append(file)
    frames = []
    for (by_arrow, odd), files in groups.items():
        read = _read_by_arrow if by_arrow else _read_by_spark
        frames.append(read(spark, table, format, files, columns, odd, partitions, beside_file))
    return union_frames(frames)


def table_columns(files: Sequence[SourceFile], found: Sequence[Footer]) -> list[MergedColumn]:
    """All columns in the order of first appearance; SourceFailed for a column without a common type."""
    merged: dict[str, MergedColumn] = {}
    first: dict[str, SourceFile] = {}
    done: set[tuple[FileColumn, ...]] = set()
    for file, footer in zip(files, found, strict=True):
        if footer.columns in done:
            continue
        done.add(footer.columns)
        for column in footer.columns:
            key, here = column.name.lower(), query_type(column.type)
            there = merged.setdefault(key, MergedColumn(column.name, here))
            both = common_type(there.type, here)
            if both is None:
                raise _type_clash_error(there, here, first[key], file)
            if key not in first or both != there.type:
                first[key] = file
            merged[key] = MergedColumn(there.name, both)
    return list(merged.values())


def _type_clash_error(
    there: MergedColumn, here: pa.DataType, one: SourceFile, other: SourceFile
) -> SourceFailed:
    path, left, right = find_type_clash(there.type, here)
    return SourceFailed(
        f"column {there.name + path!r} is {to_ddl(left)} in {one.display_name} and "
        f"{to_ddl(right)} in {other.display_name}, "
        "and no type holds both without loss",
        next_step="rewrite one of the files, or read them as separate tables and CAST: "
        f"SELECT … FROM `…/{one.name}` UNION ALL SELECT … FROM `…/{other.name}`",
    )


def _columns_to_cast(stored: Sequence[FileColumn], columns: Sequence[MergedColumn]) -> tuple[FileColumn, ...]:
    """The columns of a file that Spark's reader returns in another type than the table's."""
    wanted = {column.name.lower(): column.type for column in columns}
    return tuple(
        column
        for column in stored
        if column.name.lower() in wanted
        and (column.problem or not reads_without_cast(column.type, wanted[column.name.lower()], widens=True))
    )


def _read_by_spark(
    spark: SparkSession,
    table: ReadableTable,
    format: str,
    files: Sequence[SourceFile],
    columns: Sequence[MergedColumn],
    odd: Sequence[FileColumn],
    partitions: dict[str, str],
    beside_file: bool,
) -> DataFrame:
    special = {column.name.lower(): column for column in odd}
    fields, chosen = [], []
    for column in columns:
        name, stored = quote_name(column.name), special.get(column.name.lower())
        if stored is None:
            fields.append(f"{name} {to_ddl(column.type)}")
            chosen.append(name)
        elif stored.problem:
            chosen.append(f"CAST({_unreadable_column_sql(stored)} AS {to_ddl(column.type)}) AS {name}")
        else:
            fields.append(f"{name} {storage_ddl(stored.type)}")
            chosen.append(f"{cast_sql(stored.type, column.type, name, column.name)} AS {name}")
    frame = load_files(spark, spark.read.format(format), table, files, fields, partitions)
    if beside_file:
        return frame.selectExpr(
            *chosen, *map(quote_name, partitions), f"{FILE_PATH_SQL} AS {quote_name(FILE_COLUMN)}"
        )
    return frame.selectExpr(*chosen, *map(quote_name, partitions)) if odd else frame


def _unreadable_column_sql(column: FileColumn) -> str:
    return raise_error_sql(
        text_literal(f"column {column.name!r} of "),
        FILE_PATH_SQL,
        text_literal(f" is {column.problem}, which Spark cannot read"),
        next_step="leave the column out of the query, or write it with another type",
    )


def _read_by_arrow(
    spark: SparkSession,
    table: ReadableTable,
    format: str,
    files: Sequence[SourceFile],
    columns: Sequence[MergedColumn],
    odd: Sequence[FileColumn],
    partitions: dict[str, str],
    beside_file: bool,
) -> DataFrame:
    wanted = [(column.name, column.type) for column in columns]
    frame = arrow_frame(spark, files, format, wanted, list(partitions), FILE_COLUMN if beside_file else None)
    casts = [f"CAST({quote_name(name)} AS {kind}) AS {quote_name(name)}" for name, kind in partitions.items()]
    file = [quote_name(FILE_COLUMN)] if beside_file else []
    return frame.selectExpr(*(quote_name(name) for name, _ in wanted), *casts, *file)
