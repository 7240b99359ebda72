"""Nested values as JSON text."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ematix_flow.backends.arrow.json_text import to_json_text


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ([1, None], pa.list_(pa.int64()), "[1, null]"),
        ({"a": "é\n"}, pa.struct([("a", pa.string()), ("b", pa.int8())]), '{"a": "é\\n", "b": null}'),
        ([("k", 1)], pa.map_(pa.string(), pa.int64()), '{"k": 1}'),
        ([(1, "x")], pa.map_(pa.int64(), pa.string()), '{"1": "x"}'),
        ([dt.date(2026, 1, 1)], pa.list_(pa.date32()), '["2026-01-01"]'),
        ([dt.datetime(2026, 1, 1, 10)], pa.list_(pa.timestamp("us")), '["2026-01-01T10:00:00"]'),
        ([dt.datetime(2026, 1, 1, 10)], pa.list_(pa.timestamp("us", "UTC")), '["2026-01-01T10:00:00Z"]'),
        ([b"\x00\xff"], pa.list_(pa.binary()), '["AP8="]'),
        ([Decimal("12345678901234567.890")], pa.list_(pa.decimal128(38, 3)), "[12345678901234567.890]"),
        ([Decimal("1E-9")], pa.list_(pa.decimal128(38, 9)), "[0.000000001]"),
        ([0.1, float("nan"), float("-inf")], pa.list_(pa.float64()), '[0.1, "NaN", "-Infinity"]'),
        ([True], pa.list_(pa.bool_()), "[true]"),
        ([{"x": [[]]}], pa.list_(pa.struct([("x", pa.list_(pa.list_(pa.int64())))])), '[{"x": [[]]}]'),
    ],
)  # fmt: skip
def test_a_nested_value_is_exact_json(value: Any, kind: pa.DataType, text: str) -> None:
    (found, null) = to_json_text(pa.array([value, None], kind)).to_pylist()
    assert found == text
    assert null is None
    json.loads(found)
