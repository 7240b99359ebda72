"""What a declared bound means for a column: it takes the column's type before anything is compared."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest

from ematix_probe.column_types import family_of, plain_type
from ematix_probe.compiling.bounds import Limits, limits, members
from ematix_probe.errors import AssertionRefused
from ematix_probe.sources.base import ColumnInfo

NONE = Limits(None, None, empty=True)
BERLIN = dt.timezone(dt.timedelta(hours=2))


def column(kind: str) -> ColumnInfo:
    plain = plain_type(kind)
    return ColumnInfo("x", family_of(plain), plain)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "low", "high", "wanted"),
    [
        ("bigint", 0.1, 2.9, Limits(1, 2)),
        ("bigint", -math.inf, 2**63, Limits(None, None)),
        ("bigint", 10**30, None, NONE),
        ("bigint", None, -(10**30), NONE),
        ("bigint", -(2**63), 2**63 - 1, Limits(-(2**63), 2**63 - 1)),
        ("integer", 2**31, None, NONE),
        ("smallint", -40_000, 40_000, Limits(None, None)),
        ("numeric(10,2)", 0.005, Decimal("1.999"), Limits(Decimal("0.01"), Decimal("1.99"))),
        ("numeric(10,2)", None, 1e300, Limits(None, None)),
        ("numeric(10,2)", 10**8, None, NONE),
        ("double", 0.1, 10**400, Limits(0.1, None)),
        ("real", 0.1, None, Limits(0.10000000149011612, None)),
        ("date", dt.datetime(2024, 1, 1, 12), None, Limits(dt.date(2024, 1, 2), None)),
        ("date", None, dt.datetime(2024, 1, 2, 1, tzinfo=BERLIN), Limits(None, dt.date(2024, 1, 1))),
        (
            "timestamptz",
            dt.datetime(2024, 1, 1, 1, tzinfo=BERLIN),
            None,
            Limits(dt.datetime(2023, 12, 31, 23), None),
        ),
        ("timestamp", "2024-01-01", None, Limits(dt.datetime(2024, 1, 1), None)),
        ("text", "a", "b", Limits("a", "b")),
    ],
)
def test_a_range_takes_the_type_of_the_column(kind: str, low: Any, high: Any, wanted: Limits) -> None:
    assert limits(low, high, column(kind)) == wanted


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("bigint", [1, 1.0, Decimal("1.5"), 10**30, 2**63], (1,)),
        ("numeric(10,2)", [0.1, 0.005], (Decimal("0.10"),)),
        ("date", ["2024-01-01", dt.datetime(2024, 1, 1, 12)], (dt.date(2024, 1, 1),)),
        ("boolean", [True, True], (True,)),
    ],
)
def test_values_that_a_column_cannot_hold_are_left_out(kind: str, values: list[Any], wanted: Any) -> None:
    assert members(values, column(kind)) == wanted


@pytest.mark.parametrize(
    ("kind", "bound"),
    [("bigint", "5"), ("text", 5), ("boolean", -math.inf), ("date", "soon"), ("bytes", "a"), ("json", "a")],
)
def test_a_bound_of_another_type_is_refused(kind: str, bound: Any) -> None:
    with pytest.raises(AssertionRefused, match="the column 'x' is of type"):
        limits(bound, None, column(kind))
