"""Which rows Spark reads of a source from a watermark on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow.engine.execution.source_frames import filter_range
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("kind", "low", "read"),
    [("text", "9", [9, None]), ("text", "10", [9, 10, 11, None]), ("integer", 10, [10, 11, None])],
)
def test_a_watermark_that_is_a_text_is_compared_as_one_also_with_numbers(
    spark: SparkSession, kind: Any, low: Any, read: list[int | None]
) -> None:
    frame = spark.createDataFrame([(9,), (10,), (11,), (None,)], "id int")
    kept = filter_range(frame, SourceRange("id", Watermark("id", DataType(kind), low)))
    assert [row[0] for row in kept.collect()] == read  # a null is for the load to refuse
