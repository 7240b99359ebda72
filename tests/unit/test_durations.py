"""Durations as a person writes them, in options and in Python."""

from __future__ import annotations

import datetime as dt

import pytest

from ematix_flow import BigInt, DeltaLocalConnection, ManagedTable, ematix
from ematix_flow.errors import UsageError
from ematix_flow.spec.durations import try_parse_duration


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90s", dt.timedelta(seconds=90)),
        ("90m", dt.timedelta(minutes=90)),
        (" 36 h ", dt.timedelta(hours=36)),
        ("7d", dt.timedelta(days=7)),
        ("2w", dt.timedelta(weeks=2)),
        ("0d", dt.timedelta(0)),
    ],
)
def test_a_number_and_a_unit_are_a_duration(text: str, meant: dt.timedelta) -> None:
    assert try_parse_duration(text) == meant


@pytest.mark.parametrize(
    "text", ["", "soon", "7", "d", "-1d", "1.5h", "7 days", "9" * 20 + "d", "9" * 5000 + "s"]
)
def test_anything_else_is_none(text: str) -> None:
    assert try_parse_duration(text) is None


def test_upkeep_refuses_what_is_no_duration_before_anything_is_opened() -> None:
    class Orders(ManagedTable):
        id: BigInt

    lake = DeltaLocalConnection(name="lake", path="lake")

    @ematix.pipeline(target=Orders, source_connection=lake, target_connection=lake)
    def orders(conn: object) -> str:
        return "SELECT 1 AS id"

    with pytest.raises(UsageError, match="retain= 'soon' is not a duration"):
        orders.maintain(retain="soon")
