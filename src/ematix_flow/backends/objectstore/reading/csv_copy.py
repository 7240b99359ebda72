"""Plain reads of CSV files as Arrow batches: DuckDB reads them in the tasks, and no row enters the JVM."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from ematix_flow.backends.base import BatchSource, SourceColumn, SourceQuery
from ematix_flow.backends.objectstore.formats.plain_csv import (
    CsvScan,
    ScannedFile,
    cast_cell_sql,
    changed_file_error,
    find_csv_scan,
    infer_csv_types,
    open_engine,
)
from ematix_flow.backends.objectstore.layout.partition_folders import partition_columns
from ematix_flow.backends.objectstore.reading.catalog import ReadableTable
from ematix_flow.backends.spark_sql.query_tables import TableName, name_parts, select_columns_sql
from ematix_flow.backends.split import Split
from ematix_flow.spec.file_options import CsvReadOptions
from ematix_flow.spec.generated_names import first_reserved_name
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 32_768  # at most
_BATCH_BYTES = 4 * 1024 * 1024  # of the file, about
_SPLIT_BYTES = 16 * 1024 * 1024  # a task reads at least this much
_KINDS = {
    "STRING": "text",
    "BIGINT": "big_int",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "TIMESTAMP": "timestamp_tz",
    "TIMESTAMP_NTZ": "timestamp",
}
_NAME_OF_SPARK = "_metadata"


@dataclass(frozen=True)
class PlainSelect:
    """A SELECT of columns from one table, and nothing else. ``columns`` are ``(column, result name)`` pairs;
    none: all."""

    table: TableName
    columns: tuple[tuple[str, str], ...]


def parse_plain_select(sql: str) -> PlainSelect | None:
    """None for a query that computes, filters or joins."""
    try:
        trees = sqlglot.parse(sql, read="spark")
    except SqlglotError:
        return None
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or _given(select) - {"expressions", "from_"}:
        return None
    source = select.args.get("from_")
    table = source.this if source is not None else None
    if not isinstance(table, exp.Table) or _given(table) - {"this", "db", "catalog", "alias"}:
        return None
    if not isinstance(table.this, exp.Identifier) or table.alias_column_names:
        return None
    columns = _chosen_columns(select)
    return None if columns is None else PlainSelect(tuple(p.name for p in name_parts(table)), columns)


def _chosen_columns(select: exp.Select) -> tuple[tuple[str, str], ...] | None:
    if len(select.expressions) == 1 and isinstance(select.expressions[0], exp.Star):
        return None if _given(select.expressions[0]) else ()
    pairs = []
    for chosen in select.expressions:
        column = chosen.this if isinstance(chosen, exp.Alias) else chosen
        if not isinstance(column, exp.Column) or not isinstance(column.this, exp.Identifier):
            return None
        if len(column.parts) > 1:  # a column of a table, or a field of a struct
            return None
        pairs.append((column.name, chosen.alias_or_name))
    return tuple(pairs)


def _given(tree: exp.Expression) -> set[str]:
    return {key for key, value in tree.args.items() if value}


def find_csv_copy(
    table: ReadableTable,
    select: PlainSelect,
    reading: CsvReadOptions,
    texts: Collection[str],
) -> CsvCopy | None:
    """The rows of the table as Spark would read them; None if only Spark reads them to the right rows.

    ``texts``: columns, in lower case, that stay text.
    """
    if table.state is not None or any(partition_columns(file.name) for file in table.files):
        return None
    scan = find_csv_scan(table.files, reading)
    if scan is None:
        return None
    names = scan.shape.names
    if _NAME_OF_SPARK in (name.lower() for name in names) or first_reserved_name(names) is not None:
        return None
    chosen = select.columns or tuple((name, name) for name in names)
    if not {column for column, _ in chosen} <= set(names):
        return None
    types = infer_csv_types(scan, table.fingerprint)
    if types is None:
        return None
    columns = []
    for column, result in chosen:
        number = names.index(column)
        kind = "STRING" if column.lower() in texts else types[number]
        columns.append(CopiedColumn(number, result, kind))
    return CsvCopy(scan, columns)


@dataclass(frozen=True)
class CopiedColumn:
    number: int  # in the file, from 0
    name: str
    spark_type: str

    @property
    def type(self) -> DataType:
        if self.spark_type.startswith("DECIMAL"):
            precision, scale = map(int, re.findall("[0-9]+", self.spark_type))
            return DataType("numeric", precision=precision, scale=scale)
        return DataType(_KINDS[self.spark_type])


class CsvCopy(BatchSource):
    """A plain read of one table of CSV files."""

    dialect = "spark"

    def __init__(self, scan: CsvScan, columns: Sequence[CopiedColumn]) -> None:
        self._scan, self._columns = scan, tuple(columns)

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return select_columns_sql(table, columns)

    def describe(self, sql: str) -> tuple[SourceColumn, ...]:
        return tuple(SourceColumn(c.name, c.type, c.spark_type.lower()) for c in self._columns)

    def explain(self, sql: str) -> str:
        return f"DuckDB reads {len(self._scan.files)} CSV files"

    def expected_rows(self, query: SourceQuery) -> int:
        return self._scan.rows

    def split(
        self, query: SourceQuery, wanted: Mapping[str, DataType], parallelism: int
    ) -> AbstractContextManager[Sequence[Split]]:
        files = self._scan.files
        most = max(1, sum(file.size for file in files) // _SPLIT_BYTES)
        groups = _group_files(files, min(parallelism, most))
        scans = [replace(self._scan, files=tuple(group)) for group in groups]
        return nullcontext([CsvSplit(scan, self._columns) for scan in scans])


def _group_files(files: Sequence[ScannedFile], most: int) -> list[list[ScannedFile]]:
    """The files in at most ``most`` groups of about the same size."""
    groups: list[list[ScannedFile]] = [[] for _ in range(min(most, len(files)))]
    filled = [0] * len(groups)
    for file in sorted(files, key=lambda file: -file.size):
        least = filled.index(min(filled))
        groups[least].append(file)
        filled[least] += file.size
    return groups


@dataclass(frozen=True)
class CsvSplit:
    """Some of the files."""

    scan: CsvScan
    columns: tuple[CopiedColumn, ...]

    def read(self) -> Iterator[pa.RecordBatch]:
        import duckdb

        names = [column.name for column in self.columns]
        chosen = ", ".join(
            f"{cast_cell_sql(column.number, column.spark_type)} AS r{place}"
            for place, column in enumerate(self.columns)
        )
        rows = 0
        with open_engine(threads=1) as engine:  # a task has one core
            try:
                for batch in engine.sql(self.scan.select(chosen)).to_arrow_reader(self._batch_rows()):
                    rows += batch.num_rows
                    yield batch.rename_columns(names)
            except (
                duckdb.Error,
                OSError,
            ) as error:  # Arrow raises DuckDB's errors within a stream as OSError
                raise changed_file_error(self.scan, str(error)) from error
        if rows != self.scan.rows:
            raise changed_file_error(self.scan)

    def _batch_rows(self) -> int:
        size = sum(file.size for file in self.scan.files)
        return max(1, min(_BATCH_ROWS, _BATCH_BYTES * self.scan.rows // max(size, 1)))
