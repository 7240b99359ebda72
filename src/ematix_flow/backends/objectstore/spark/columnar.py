"""Parquet and ORC folders that others wrote, as DataFrames.

The footers of all files decide what a column is: one that some files lack is null there, one that is
narrower in some is widened, and one that has no common type is an error which names two files. Files
that Spark's reader takes alike are read together; what it cannot read, Arrow reads in tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.objectstore.catalog import ReadableTable
from ematix_flow.backends.objectstore.footers import FileColumn, Footer, footers
from ematix_flow.backends.objectstore.sourcefiles import SourceFile
from ematix_flow.backends.objectstore.spark.arrowtasks import arrow_frame
from ematix_flow.backends.objectstore.spark.reading import FILE_COLUMN, load, partition_types, union
from ematix_flow.backends.objectstore.storedtypes import ddl, expression, read_as, reads_itself, seen
from ematix_flow.backends.objectstore.widertypes import where_they_clash, wider
from ematix_flow.backends.query_tables import quoted
from ematix_flow.backends.refusals import FILE, refusal, text
from ematix_flow.errors import SourceFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class TableColumn:
    """A column of all files together: the name it first has, and the type that a query sees."""

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
    """``texts``: partitions that stay the text that folders hold, whatever it looks like.

    ``beside_file``: with `FILE_COLUMN`, and with all partitions as text.
    """
    found = footers(table.files, format)
    partitions = partition_types(table, texts)
    if beside_file:
        partitions = dict.fromkeys(partitions, "STRING")
    hidden = {name.lower() for name in partitions}  # a folder's name goes before what files say
    columns = [c for c in table_columns(table.files, found) if c.name.lower() not in hidden]
    groups: dict[tuple[bool, tuple[FileColumn, ...]], list[SourceFile]] = defaultdict(list)
    odd_columns: dict[tuple[FileColumn, ...], tuple[FileColumn, ...]] = {}
    for file, footer in zip(table.files, found, strict=True):
        if footer.columns not in odd_columns:
            odd_columns[footer.columns] = _odd(footer.columns, columns)
        groups[footer.by_arrow, odd_columns[footer.columns]].append(file)
    frames = []
    for (by_arrow, odd), files in groups.items():
        read = _arrow_group if by_arrow else _spark_group
        frames.append(read(spark, table, format, files, columns, odd, partitions, beside_file))
    return union(frames)


def table_columns(files: Sequence[SourceFile], found: Sequence[Footer]) -> list[TableColumn]:
    """Every column in the order in which it first comes up; SourceFailed for one without a common type."""
    merged: dict[str, TableColumn] = {}
    first: dict[str, SourceFile] = {}
    done: set[tuple[FileColumn, ...]] = set()
    for file, footer in zip(files, found, strict=True):
        if footer.columns in done:
            continue
        done.add(footer.columns)
        for column in footer.columns:
            key, here = column.name.lower(), seen(column.type)
            there = merged.setdefault(key, TableColumn(column.name, here))
            both = wider(there.type, here)
            if both is None:
                raise _clash(there, here, first[key], file)
            if key not in first or both != there.type:
                first[key] = file
            merged[key] = TableColumn(there.name, both)
    return list(merged.values())


def _clash(there: TableColumn, here: pa.DataType, one: SourceFile, other: SourceFile) -> SourceFailed:
    path, left, right = where_they_clash(there.type, here)
    return SourceFailed(
        f"column {there.name + path!r} is {ddl(left)} in {one.shown} and {ddl(right)} in {other.shown}, "
        "and no type holds both without loss",
        next_step="write one of the files anew, or read them as tables of their own and CAST: "
        f"SELECT … FROM `…/{one.name}` UNION ALL SELECT … FROM `…/{other.name}`",
    )


def _odd(stored: Sequence[FileColumn], columns: Sequence[TableColumn]) -> tuple[FileColumn, ...]:
    """The columns of a file that Spark's reader does not give as the table has them."""
    wanted = {column.name.lower(): column.type for column in columns}
    return tuple(
        column
        for column in stored
        if column.name.lower() in wanted
        and (column.problem or not reads_itself(column.type, wanted[column.name.lower()], widens=True))
    )


def _spark_group(
    spark: SparkSession,
    table: ReadableTable,
    format: str,
    files: Sequence[SourceFile],
    columns: Sequence[TableColumn],
    odd: Sequence[FileColumn],
    partitions: dict[str, str],
    beside_file: bool,
) -> DataFrame:
    special = {column.name.lower(): column for column in odd}
    fields, chosen = [], []
    for column in columns:
        name, stored = quoted(column.name), special.get(column.name.lower())
        if stored is None:
            fields.append(f"{name} {ddl(column.type)}")
            chosen.append(name)
        elif stored.problem:
            chosen.append(f"CAST({_unreadable(stored)} AS {ddl(column.type)}) AS {name}")
        else:
            fields.append(f"{name} {read_as(stored.type)}")
            chosen.append(f"{expression(stored.type, column.type, name, column.name)} AS {name}")
    frame = load(spark, spark.read.format(format), table, files, fields, partitions)
    if beside_file:
        return frame.selectExpr(*chosen, *map(quoted, partitions), f"{FILE} AS {quoted(FILE_COLUMN)}")
    return frame.selectExpr(*chosen, *map(quoted, partitions)) if odd else frame


def _unreadable(column: FileColumn) -> str:
    return refusal(
        text(f"column {column.name!r} of "),
        FILE,
        text(f" is {column.problem}, which Spark cannot read"),
        next_step="leave the column out of the query, or let its writer store another type",
    )


def _arrow_group(
    spark: SparkSession,
    table: ReadableTable,
    format: str,
    files: Sequence[SourceFile],
    columns: Sequence[TableColumn],
    odd: Sequence[FileColumn],
    partitions: dict[str, str],
    beside_file: bool,
) -> DataFrame:
    wanted = [(column.name, column.type) for column in columns]
    frame = arrow_frame(spark, files, format, wanted, list(partitions), FILE_COLUMN if beside_file else None)
    casts = [f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in partitions.items()]
    file = [quoted(FILE_COLUMN)] if beside_file else []
    return frame.selectExpr(*(quoted(name) for name, _ in wanted), *casts, *file)
