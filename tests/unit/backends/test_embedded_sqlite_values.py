"""Values into and out of SQLite: exact or refused."""

from __future__ import annotations

import datetime as dt
import math
import sqlite3
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from ematix_flow.backends.sqlite.arrow_columns import from_arrow, to_arrow
from ematix_flow.backends.sqlite.canonical_sql import canonical_value
from ematix_flow.backends.sqlite.dialect import SQLiteDialect
from ematix_flow.backends.sqlite.value_function import register
from ematix_flow.backends.sqlite.values import UnfitSQLiteValue, parse_value, to_stored
from ematix_flow.errors import RowRejected, Unsupported
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import column

UTC = dt.timezone.utc
MONEY = DataType("numeric", precision=15, scale=2)
LONG = DataType("numeric", precision=38, scale=10)


def typed(kind: str, **more: int) -> DataType:
    return DataType(kind, **more)


@pytest.mark.parametrize(
    ("value", "data_type", "meaning"),
    [
        ("12", typed("integer"), 12),
        (7.0, typed("big_int"), 7),
        (1, typed("boolean"), True),
        ("false", typed("boolean"), False),
        (5, typed("double"), 5.0),
        ("1e3", typed("double"), 1000.0),
        (0.1, MONEY, Decimal("0.10")),
        (0.1 + 0.2, MONEY, Decimal("0.30")),
        (10, MONEY, Decimal("10.00")),
        ("-0.00", MONEY, Decimal("0.00")),
        ("1234567890123456789012345678.0123456789", LONG, Decimal("1234567890123456789012345678.0123456789")),
        ("2024-02-29", typed("date"), dt.date(2024, 2, 29)),
        ("2024-02-29 00:00:00", typed("date"), dt.date(2024, 2, 29)),
        ("2024-01-02", typed("timestamp"), dt.datetime(2024, 1, 2)),
        ("2024-01-02T03:04", typed("timestamp"), dt.datetime(2024, 1, 2, 3, 4)),
        ("2024-01-02 03:04:05.600000000", typed("timestamp"), dt.datetime(2024, 1, 2, 3, 4, 5, 600000)),
        ("2024-01-02 03:04:05+02:00", typed("timestamp_tz"), dt.datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC)),
        ("2024-01-02 03:04:05-0330", typed("timestamp_tz"), dt.datetime(2024, 1, 2, 6, 34, 5, tzinfo=UTC)),
        ("2024-01-02 03:04:05", typed("timestamp_tz"), dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2024-01-02 03:04:05Z", typed("timestamp"), dt.datetime(2024, 1, 2, 3, 4, 5)),
        ("{12345678123456781234567812345678}", typed("uuid"), "12345678-1234-5678-1234-567812345678"),
        (b"\x12" * 16, typed("uuid"), "12121212-1212-1212-1212-121212121212"),
        (5, typed("text"), "5"),
        ("a", typed("bytes"), b"a"),
    ],
)
def test_a_stored_value_is_read_as_what_it_means(value: Any, data_type: DataType, meaning: Any) -> None:
    assert parse_value(value, data_type) == meaning
    assert to_arrow([None, value], "c", data_type, 0).to_pylist() == [None, meaning]


@pytest.mark.parametrize(
    ("value", "data_type", "why"),
    [
        ("12x", typed("integer"), "is not a whole number"),
        (1.5, typed("big_int"), "is not a whole number"),
        (2**31, typed("integer"), "out of range"),
        (-32769, typed("small_int"), "out of range"),
        ("nan", typed("double"), "is not a number"),
        (2**53 + 1, typed("double"), "more digits"),
        (1e300, typed("float"), "out of range"),
        (2, typed("boolean"), "neither 0 nor 1"),
        (0.125, MONEY, "does not fit"),
        ("1.239", MONEY, "does not fit"),
        (10**14, MONEY, "out of range"),
        (math.inf, MONEY, "not a finite number"),
        ("1e999999", MONEY, "does not fit"),
        ("2024-02-30", typed("date"), "day is out of range"),
        ("2024-02-28 10:00:00", typed("date"), "has a time of day"),
        (1700000000, typed("timestamp"), "unixepoch"),
        ("yesterday", typed("timestamp_tz"), "is not ISO 8601"),
        ("2024-01-02 03:04:05.1234567", typed("timestamp"), "more than microseconds"),
        ("9999-12-31 23:59:59.0-01", typed("timestamp_tz"), "is not of type TimestampTZ"),
        ("12345678", typed("uuid"), "is not a UUID"),
        (b"\xff", typed("text"), "is binary"),
        ("abcdef", typed("string", length=5), "longer than the 5"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_column_row_and_reason(
    value: Any, data_type: DataType, why: str
) -> None:
    with pytest.raises(UnfitSQLiteValue, match=why):
        parse_value(value, data_type)
    with pytest.raises(RowRejected, match=r"column 'c', row 1,002 .*" + why):
        to_arrow([None, value], "c", data_type, 1000)


def test_one_bad_value_among_good_ones_is_the_one_that_is_named() -> None:
    with pytest.raises(RowRejected, match=r"row 3 .*'x'"):
        to_arrow([1, 2, "x", "y"], "c", typed("big_int"), 0)


@pytest.mark.parametrize("data_type", [MONEY, DataType("numeric", precision=18, scale=4), LONG], ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_decimals_come_back_digit_by_digit(data_type: DataType, data: st.DataObject) -> None:
    digits = st.integers(-(10**data_type.precision) + 1, 10**data_type.precision - 1)
    numbers = [Decimal(f"{n}e-{data_type.scale}") for n in data.draw(st.lists(digits, max_size=20))]
    column_in = pa.array([None, *numbers], type=data_type.arrow())
    kept = from_arrow(column_in, "c", data_type, 0)
    assert kept == [to_stored(n, data_type) for n in [None, *numbers]]
    with sqlite3.connect(":memory:") as connection:
        connection.execute(f"CREATE TABLE t (c {SQLiteDialect().native_type(data_type)})")
        connection.executemany("INSERT INTO t VALUES (?)", [(v,) for v in kept])
        back = [row[0] for row in connection.execute("SELECT c FROM t ORDER BY rowid")]
    connection.close()
    assert to_arrow(back, "c", data_type, 0).to_pylist() == [None, *numbers]


@settings(max_examples=50)
@given(number=st.integers(-(10**15) + 1, 10**15 - 1), scale=st.integers(0, 15))
def test_a_decimal_constant_equals_the_kept_number(number: int, scale: int) -> None:
    data_type = DataType("numeric", precision=15, scale=scale)
    value = Decimal(f"{number}e-{scale}")
    literal = SQLiteDialect().literal(value, data_type).sql(dialect="sqlite")
    with sqlite3.connect(":memory:") as connection:
        equal = connection.execute(f"SELECT {literal} = ?", (to_stored(value, data_type),)).fetchone()
    connection.close()
    assert equal == (1,)


def test_a_long_numeric_cannot_be_a_watermark() -> None:
    with pytest.raises(Unsupported, match="cannot order as numbers"):
        SQLiteDialect().literal(Decimal(1), LONG)


@pytest.mark.parametrize(
    ("array", "data_type", "why"),
    [
        (pa.array([1.0, math.nan]), typed("double"), "SQLite turns it into NULL"),
        (pa.array([0, 4_000_000], pa.int32()).cast(pa.date32()), typed("date"), "years 1 to 9999"),
        (pa.array([0, -(2**62)], pa.int64()).cast(pa.timestamp("us")), typed("timestamp"), "years 1 to 9999"),
        (pa.array([None, "x"]), typed("uuid"), "is not a UUID"),
    ],
    ids=["nan", "date", "timestamp", "uuid"],
)
def test_what_sqlite_cannot_keep_is_refused(array: pa.Array, data_type: DataType, why: str) -> None:
    with pytest.raises(RowRejected, match=rf"column 'c', row 2 .*{why}"):
        from_arrow(array, "c", data_type, 0)


def test_a_sliced_column_is_written_from_its_own_rows() -> None:
    numbers = pa.array([Decimal("1.00"), None, Decimal("3.25"), Decimal("-4.50")], type=MONEY.arrow())
    assert from_arrow(numbers.slice(1, 3), "c", MONEY, 0) == [None, 3.25, -4.5]
    assert from_arrow(numbers.slice(0, 0), "c", MONEY, 0) == []


def test_uuids_are_kept_in_their_canonical_form() -> None:
    given_forms = pa.array(["12345678-1234-5678-1234-567812345678", "ABCDEF00123456781234567812345678", None])
    assert from_arrow(given_forms, "c", typed("uuid"), 0) == [
        "12345678-1234-5678-1234-567812345678",
        "abcdef00-1234-5678-1234-567812345678",
        None,
    ]


LOOSE: list[tuple[Any, DataType]] = [
    (None, typed("timestamp")),
    ("2024-01-02 03:04:05", typed("timestamp")),
    ("2024-01-02 03:04:05", typed("timestamp_tz")),
    ("2024-01-02 03:04:05.678901", typed("timestamp")),
    ("2024-01-02 23:59:59.999999+00:00", typed("timestamp_tz")),
    ("2024-01-02T03:04:05+02:00", typed("timestamp_tz")),
    ("2024-01-02", typed("date")),
    ("2024-01-02 00:00:00", typed("date")),
    (12, typed("integer")),
    ("12", typed("integer")),
    (12.0, typed("small_int")),
    (3, typed("double")),
    (2.5, typed("float")),
    (1, typed("boolean")),
    ("true", typed("boolean")),
    (10.5, MONEY),
    (10, MONEY),
    ("10.50", MONEY),
    ("10.5", LONG),
    (7, typed("text")),
    ("abc", typed("string", length=3)),
    ("ABCDEF00123456781234567812345678", typed("uuid")),
    (b"x", typed("bytes")),
]


@pytest.mark.parametrize(("value", "data_type"), LOOSE, ids=lambda v: str(v))
def test_inside_the_database_a_loose_value_becomes_what_we_would_have_written(
    value: Any, data_type: DataType
) -> None:
    name = 'v"; DROP'  # hostile, and it begins like the placeholder
    failures: list[RowRejected] = []
    connection = sqlite3.connect(":memory:")
    register(connection, failures)
    tree = exp.select(canonical_value(column(name), data_type, name)).from_("t")
    connection.execute(f"CREATE TABLE t ({SQLiteDialect().quote(name)})")
    connection.execute("INSERT INTO t VALUES (?)", (value,))
    found = connection.execute(tree.sql(dialect="sqlite", identify=True)).fetchone()[0]
    connection.close()
    wanted = to_stored(parse_value(value, data_type), data_type)
    assert (found, type(found)) == (wanted, type(wanted))


def test_inside_the_database_a_misfit_is_refused_with_its_column() -> None:
    failures: list[RowRejected] = []
    connection = sqlite3.connect(":memory:")
    register(connection, failures)
    tree = exp.select(canonical_value(column("v"), typed("date"), "born")).from_("t")
    connection.execute("CREATE TABLE t (v)")
    connection.execute("INSERT INTO t VALUES ('2024-02-31')")
    with pytest.raises(sqlite3.OperationalError):
        connection.execute(tree.sql(dialect="sqlite", identify=True)).fetchone()
    connection.close()
    assert "column 'born': '2024-02-31' is not of type Date" in str(failures[0])
