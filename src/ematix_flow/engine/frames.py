"""DataFrames of a load: how a database source is typed for Spark, and the range of an incremental run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.base import SourceColumn
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def source_table_of(columns: tuple[SourceColumn, ...], target: TableSpec) -> TableSpec:
    """The source's columns as a table to read by.

    Its own types where it knows them; where it does not, the target's, unless a normaliser is going to
    make that type out of raw text.
    """
    by_name = {c.name: c for c in target.columns}

    def read_as(column: SourceColumn) -> DataType:
        if column.type is not None:
            return column.type
        declared = by_name.get(column.name)
        return declared.type if declared is not None and not declared.normalizers else DataType("text")

    return TableSpec(None, "source", tuple(ColumnSpec(c.name, read_as(c), nullable=True) for c in columns))


def ranged(frame: DataFrame, source_range: SourceRange | None) -> DataFrame:
    """The rows of the range; nulls stay, so that the load refuses them loudly."""
    if source_range is None:
        return frame
    from pyspark.sql import functions as F

    from ematix_flow.plan.spark_types import to_spark

    mark = F.col(f"`{source_range.column.replace('`', '``')}`")
    keep = F.lit(True)
    for bound, compare in ((source_range.low, mark.__ge__), (source_range.high, mark.__le__)):
        if bound is not None:
            keep = keep & compare(F.lit(bound.encode()).cast(to_spark(bound.type)))
    return frame.where(keep | mark.isNull())
