"""A pipeline's source whose SQL calls Python functions: possible where Spark itself runs that SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.base import BatchSource, SparkSetting, SparkSource
from ematix_flow.engine.planning.sql_functions import register_functions, rewrite_calls
from ematix_flow.errors import Unsupported
from ematix_flow.spec.pipelines import FileOptions, PipelineSpec
from ematix_flow.spec.udfs import UdfHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def with_functions(
    reader: BatchSource | SparkSource, spec: PipelineSpec, kind: str
) -> BatchSource | SparkSource:
    """The source with the pipeline's functions. Raises Unsupported if a database runs the SQL."""
    if not spec.functions:
        return reader
    if isinstance(reader, SparkSource):
        return SourceWithFunctions(reader, spec.functions)
    raise Unsupported(
        f"the SQL of {spec.name!r} runs in a database of kind {kind}, which cannot call the Python function "
        f"{spec.functions[0].name!r}",
        where=spec.where,
        next_step="udfs= and aggregate_udfs= are for SQL over files, Delta and Iceberg tables: load the rows "
        "there first, or call the function in transform_sql of a stream",
    )


class SourceWithFunctions(SparkSource):
    """Another source, with functions that its SQL may call."""

    def __init__(self, source: SparkSource, functions: Sequence[UdfHandle]) -> None:
        self._source, self._functions = source, functions

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return self._source.table_query(table, columns)

    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        register_functions(spark, self._functions)
        return self._source.frame(spark, rewrite_calls(sql, self._functions))

    def with_file_options(self, files: FileOptions) -> SourceWithFunctions:
        return SourceWithFunctions(self._source.with_file_options(files), self._functions)

    def with_text_columns(self, columns: Collection[str]) -> SourceWithFunctions:
        return SourceWithFunctions(self._source.with_text_columns(columns), self._functions)

    def settings(self) -> tuple[SparkSetting, ...]:
        return self._source.settings()

    def size_in_bytes(self, sql: str) -> int | None:
        return self._source.size_in_bytes(sql)
