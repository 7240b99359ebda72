"""Frames with exactly the columns of a table: of any rows, and of staged rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.base import StagedRows
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.staging import LakeStaging
from ematix_flow.backends.stores.table_folders import literal_path
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def conform_frame(spark: SparkSession, frame: DataFrame | None, wanted: TableSpec) -> DataFrame:
    """The frame with exactly the wanted columns in their declared types; missing columns are null."""
    from pyspark.sql import functions as f

    dialect = LakeDialect()
    ddl = ", ".join(f"{dialect.quote(c.name)} {dialect.native_type(c.type)}" for c in wanted.columns)
    if frame is None:
        return spark.createDataFrame([], ddl)
    there = set(frame.columns)
    return frame.select(
        *[
            (f.col(dialect.quote(c.name)) if c.name in there else f.lit(None))
            .cast(dialect.native_type(c.type))
            .alias(c.name)
            for c in wanted.columns
        ]
    )


def staged_frame(spark: SparkSession, staging: LakeStaging, rows: StagedRows) -> DataFrame:
    """The rows of the parts that tasks have reported."""
    from pyspark.sql.pandas.types import from_arrow_schema

    paths = staging.paths(rows.parts)
    if not paths:
        return conform_frame(spark, None, staging.table)
    # with the schema, or Spark runs a job to read it from a file
    read = spark.read.schema(from_arrow_schema(staging.table.arrow_schema(), prefer_timestamp_ntz=True))
    return conform_frame(spark, read.parquet(*map(literal_path, paths)), staging.table)
