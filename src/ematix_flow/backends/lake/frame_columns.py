"""Casts a frame to exactly the columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.lake.dialect import LakeDialect
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
