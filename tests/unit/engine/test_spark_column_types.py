"""Canonical types as Spark's types, and back."""

from __future__ import annotations

import pytest

from ematix_flow.engine.spark.column_types import from_spark, to_spark
from ematix_flow.spec.types import DataType


@pytest.mark.parametrize(
    "kind", ["small_int", "integer", "big_int", "float", "double", "boolean", "date", "bytes"]
)
def test_plain_types_keep_their_meaning_in_spark(kind: str) -> None:
    assert from_spark(to_spark(DataType(kind))) == DataType(kind)


def test_times_with_and_without_a_zone_stay_apart_in_spark() -> None:
    assert to_spark(DataType("timestamp")) == "timestamp_ntz"
    assert to_spark(DataType("timestamp_tz")) == "timestamp"
    assert from_spark("decimal(10,2)") == DataType("numeric", precision=10, scale=2)
    assert from_spark("array<int>") == DataType("json")
    assert from_spark("interval day to second") is None
