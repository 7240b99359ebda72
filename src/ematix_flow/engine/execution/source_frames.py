"""DataFrames of a load: reads a source as a typed frame, and filters the range of an incremental run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ematix_flow.backends.base import BatchSource, SourceColumn, SourceQuery, SparkSource
from ematix_flow.backends.spark_sql.session_settings import session_settings
from ematix_flow.engine.execution import spark_tasks
from ematix_flow.engine.spark.column_types import schema_ddl
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INTEGERS = ("small_int", "integer", "big_int")


@contextmanager
def source_frame(
    spark: SparkSession,
    source: BatchSource | SparkSource,
    query: SourceQuery,
    columns: tuple[SourceColumn, ...],
    tables: Sequence[TableSpec],
    parallelism: int,
) -> Iterator[DataFrame]:
    """The rows of the query as a frame, readable while the context is open."""
    if isinstance(source, SparkSource):
        with session_settings(spark, {each.key: each.value for each in source.settings()}):
            yield filter_range(source.frame(spark, query.sql), query.range)
        return
    read_as = source_table(columns, tables)
    wanted = {c.name: c.type for c in read_as.columns}
    with source.split(query, wanted, parallelism) as splits:
        yield spark_tasks.read_splits(spark, splits, schema_ddl(read_as), read_as)


def source_table(columns: tuple[SourceColumn, ...], targets: Sequence[TableSpec]) -> TableSpec:
    """The columns of the source as a table spec.

    A column without a type gets the type that the targets declare, unless they differ or a normaliser makes
    that type from raw text.
    """
    agreed = common_types([[c for c in table.columns if not c.normalizers] for table in targets])
    normalized = {c.name for table in targets for c in table.columns if c.normalizers}

    def read_as(column: SourceColumn) -> DataType:
        if column.type is not None:
            return column.type
        declared = None if column.name in normalized else agreed.get(column.name)
        return declared or DataType("text")

    return TableSpec(None, "source", tuple(ColumnSpec(c.name, read_as(c), nullable=True) for c in columns))


def common_types(targets: Sequence[Sequence[ColumnSpec]]) -> dict[str, DataType]:
    """For each column, the type that holds the declared values of every target, if there is one."""
    declared: dict[str, list[DataType]] = {}
    for columns in targets:
        for column in columns:
            declared.setdefault(column.name, []).append(column.type)
    agreed = {name: _common_type(types) for name, types in declared.items()}
    return {name: found for name, found in agreed.items() if found is not None}


def _common_type(types: Sequence[DataType]) -> DataType | None:
    kinds = {data_type.kind for data_type in types}
    if len(set(types)) == 1:
        return types[0]
    if kinds <= {"text", "string"}:
        return DataType("text")
    if kinds <= set(_INTEGERS):
        return max(types, key=lambda data_type: _INTEGERS.index(data_type.kind))
    return None


def filter_range(frame: DataFrame, source_range: SourceRange | None) -> DataFrame:
    """The rows of the range. Nulls stay, so that the load refuses them with an error."""
    if source_range is None:
        return frame
    from pyspark.sql import functions as F

    from ematix_flow.engine.spark.column_types import to_spark

    mark = F.col(f"`{source_range.column.replace('`', '``')}`")
    bounds = [bound for bound in (source_range.low, source_range.high) if bound is not None]
    if any(bound.type.kind in ("text", "string") for bound in bounds):
        mark = mark.cast("string")  # otherwise Spark would compare a number with a text as numbers
    keep = F.lit(True)
    for bound, compare in ((source_range.low, mark.__ge__), (source_range.high, mark.__le__)):
        if bound is not None:
            keep = keep & compare(F.lit(bound.encode()).cast(to_spark(bound.type)))
    return frame.where(keep | mark.isNull())
