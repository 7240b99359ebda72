"""The statistics of a file: never narrower than its values."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow.backends.lake.file_statistics import INDEXED_COLUMNS, file_statistics, nan_columns

UTC = dt.timezone.utc


def statistics(path: Path, values: list[Any], data_type: pa.DataType, group: int = 2) -> dict[str, Any]:
    rows = pa.table({"x": pa.array(values, data_type)})
    pq.write_table(rows, path / "file", row_group_size=group)
    count, text = file_statistics(path / "file", nan_columns(rows))
    assert count == len(values)
    found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return found


@pytest.mark.parametrize(
    ("values", "data_type", "low", "high"),
    [
        ([3, None, -1], pa.int16(), -1, 3),
        ([1.5, None, 0.25], pa.float64(), Decimal("0.25"), Decimal("1.5")),
        ([Decimal("-1.10"), Decimal("12345678901234.56")], pa.decimal128(38, 2), Decimal("-1.10"), None),
        (["b", "a" * 40, None], pa.string(), "a" * 32, "b"),
        (["b" * 33], pa.string(), "b" * 32, "b" * 32 + "\U0010ffff"),
        ([dt.date(1, 1, 1), dt.date(2026, 1, 1)], pa.date32(), "0001-01-01", "2026-01-01"),
        (
            [dt.datetime(2026, 1, 1, microsecond=1), None],
            pa.timestamp("us"),
            "2026-01-01T00:00:00.000",
            "2026-01-01T00:00:00.001",
        ),
        (
            [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)],
            pa.timestamp("us", "UTC"),
            "1969-12-31T23:59:59.999Z",
            "1970-01-01T00:00:00.000Z",
        ),
    ],
)
def test_bounds_contain_every_value(
    tmp_path: Path, values: list[Any], data_type: pa.DataType, low: Any, high: Any
) -> None:
    found = statistics(tmp_path, values, data_type)
    assert found["minValues"] == {"x": low}
    assert found["maxValues"] == {"x": max(values) if high is None else high}
    assert found["nullCount"] == {"x": values.count(None)}


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        ([1.0, math.nan], pa.float64()),
        ([1.0, math.inf], pa.float32()),
        ([None, None], pa.int64()),
        ([True], pa.bool_()),
        ([b"x"], pa.binary()),
        (["\U0010ffff" * 40], pa.string()),
        ([dt.datetime(9999, 12, 31, 23, 59, 59, 999999)], pa.timestamp("us")),
        ([2**62], pa.timestamp("us")),
    ],
)
def test_values_without_a_safe_bound_have_none(
    tmp_path: Path, values: list[Any], data_type: pa.DataType
) -> None:
    found = statistics(tmp_path, values, data_type)
    assert found["minValues"] == found["maxValues"] == {}
    assert found["nullCount"] == {"x": values.count(None)}


def test_only_the_first_columns_have_statistics(tmp_path: Path) -> None:
    rows = pa.table({f"c{number}": pa.array([number]) for number in range(INDEXED_COLUMNS + 3)})
    pq.write_table(rows, tmp_path / "file")
    found = json.loads(file_statistics(tmp_path / "file")[1])
    assert len(found["minValues"]) == len(found["nullCount"]) == INDEXED_COLUMNS
