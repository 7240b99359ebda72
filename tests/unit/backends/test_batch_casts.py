"""Values made to fit a declared column: exact, or refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.errors import RowRejected
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

UTC = dt.timezone.utc


def fit(array: pa.Array, data_type: DataType, nullable: bool = True) -> list[Any]:
    table = TableSpec(None, "t", (ColumnSpec("c", data_type, nullable=nullable),))
    out = cast_batch(pa.RecordBatch.from_arrays([array], names=["c"]), table)
    assert out.schema == table.arrow_schema()
    return out.column(0).to_pylist()


def numeric(precision: int, scale: int) -> DataType:
    return DataType("numeric", precision=precision, scale=scale)


@pytest.mark.parametrize(
    ("array", "data_type", "expected"),
    [
        (pa.array([1, None], pa.int64()), DataType("small_int"), [1, None]),
        (pa.array([2**40], pa.int64()), DataType("big_int"), [2**40]),
        (pa.array([1], pa.uint64()), DataType("integer"), [1]),
        (pa.array(["12"]), DataType("integer"), [12]),
        (pa.array([12]), DataType("text"), ["12"]),
        (pa.array(["1.50"]), numeric(5, 2), [Decimal("1.50")]),
        (pa.array([Decimal("1.5")], pa.decimal128(3, 1)), numeric(10, 4), [Decimal("1.5000")]),
        (pa.array([0.1]), numeric(10, 4), [Decimal("0.1")]),
        (pa.array([7]), numeric(10, 4), [Decimal("7")]),
        (pa.array([0, 1, None]), DataType("boolean"), [False, True, None]),
        (pa.array(["2026-01-02"]), DataType("date"), [dt.date(2026, 1, 2)]),
        *(
            (
                pa.array([dt.datetime(1960, 1, 2), None], pa.timestamp(unit, zone)),
                DataType("date"),
                [dt.date(1960, 1, 2), None],
            )
            for unit in ("s", "ms", "us", "ns")
            for zone in (None, "UTC", "Europe/Berlin")
        ),
        (
            pa.array([dt.datetime(2026, 1, 2, 3)]),
            DataType("timestamp_tz"),
            [dt.datetime(2026, 1, 2, 3, tzinfo=UTC)],
        ),
        (
            pa.array([dt.datetime(2026, 1, 2, 3)], pa.timestamp("us", "Europe/Berlin")),
            DataType("timestamp_tz"),
            [dt.datetime(2026, 1, 2, 3, tzinfo=UTC)],
        ),
        (
            pa.array([dt.datetime(2026, 1, 2, 3)], pa.timestamp("us", "Europe/Berlin")),
            DataType("timestamp"),
            [dt.datetime(2026, 1, 2, 3)],
        ),
        (pa.array([[1, 2], None]), DataType("json"), ["[1, 2]", None]),
        (pa.array([{"a": "ü"}]), DataType("jsonb"), ['{"a": "ü"}']),
        (pa.array(["a", "b", "a"]).dictionary_encode(), DataType("text"), ["a", "b", "a"]),
        (pa.array([None, None], pa.null()), DataType("date"), [None, None]),
        (pa.array([0.5, float("inf"), None]), DataType("float"), [0.5, float("inf"), None]),
    ],
)
def test_a_value_that_fits_arrives_unchanged(
    array: pa.Array, data_type: DataType, expected: list[Any]
) -> None:
    assert fit(array, data_type) == expected


@pytest.mark.parametrize(
    ("array", "data_type", "words"),
    [
        (pa.array([1, 40_000]), DataType("small_int"), "row 2 .*40000 does not fit SmallInt"),
        (pa.array(["1", "one"]), DataType("integer"), "row 2 .*'one' does not fit Integer"),
        (pa.array([1.5]), DataType("integer"), "1.5 does not fit Integer"),
        (pa.array(["1.005"]), numeric(5, 2), r"does not fit Numeric\[5, 2\]"),
        (pa.array([0.001]), numeric(5, 2), r"0.001 does not fit Numeric\[5, 2\]"),
        (pa.array([Decimal("1000")]), numeric(5, 2), r"does not fit Numeric\[5, 2\]"),
        (pa.array([2]), DataType("boolean"), "neither 0 nor 1"),
        (pa.array(["ok", "äöü!"]), DataType("string", length=3), "row 2 .* longer than the 3 characters"),
        (pa.array([0.5, None, 1e300]), DataType("float"), r"row 3 .*1e\+300 does not fit Float"),
        (pa.array(["31.12.2026"]), DataType("date"), "does not fit Date"),
        (pa.array([1], pa.timestamp("ns")), DataType("timestamp"), "does not fit Timestamp"),
        *(
            (
                pa.array([None, dt.datetime(1960, 1, 2), value], pa.timestamp("us", zone)),
                DataType("date"),
                "row 3 .* has a time of day",
            )
            for value in (dt.datetime(1960, 1, 2, 0, 0, 0, 1), dt.datetime(9999, 12, 31, 23))
            for zone in (None, "UTC")
        ),
        (pa.array([1], pa.timestamp("ns")), DataType("date"), "has a time of day"),
    ],
)
def test_a_value_that_does_not_fit_is_named(array: pa.Array, data_type: DataType, words: str) -> None:
    with pytest.raises(RowRejected, match=words):
        fit(array, data_type)


def test_a_null_in_a_column_that_takes_none_is_named() -> None:
    with pytest.raises(RowRejected, match=r"column 'c', row 2 .* is null"):
        fit(pa.array(["a", None]), DataType("text"), nullable=False)


def test_rows_are_counted_from_the_start_of_the_split() -> None:
    table = TableSpec(None, "t", (ColumnSpec("c", DataType("small_int")),))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 99_999])], names=["c"])
    with pytest.raises(RowRejected, match="row 1,002 "):
        cast_batch(batch, table, offset=1_000)


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))))
def test_an_integer_is_kept_exactly_or_refused(values: list[int | None]) -> None:
    fits = all(v is None or -(2**31) <= v < 2**31 for v in values)
    if fits:
        assert fit(pa.array(values, pa.int64()), DataType("integer")) == values
    else:
        with pytest.raises(RowRejected):
            fit(pa.array(values, pa.int64()), DataType("integer"))


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=6))
def test_a_decimal_is_never_rounded(value: Decimal) -> None:
    if value == value.quantize(Decimal("0.01")):
        assert fit(pa.array([str(value)]), numeric(20, 2)) == [value]
    else:
        with pytest.raises(RowRejected):
            fit(pa.array([str(value)]), numeric(20, 2))


@given(st.sampled_from([(10, 2), (18, 4), (27, 11), (38, 18), (38, 38)]), st.data())
def test_a_decimal_becomes_the_nearest_float(shape: tuple[int, int], data: st.DataObject) -> None:
    precision, scale = shape
    digits = data.draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), min_size=1))
    values = [Decimal(number).scaleb(-scale, Context(prec=38)) for number in digits]
    array = pa.array(values, pa.decimal128(precision, scale))
    assert fit(array, DataType("double")) == [float(value) for value in values]
    assert fit(array, DataType("float")) == [float(np.float32(str(value))) for value in values]
