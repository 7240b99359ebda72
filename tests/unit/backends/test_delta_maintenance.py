"""What the properties of a Delta table say to its upkeep."""

from __future__ import annotations

import datetime as dt

import pytest

from ematix_flow.backends.delta.maintenance import parse_interval


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("interval 30 days", dt.timedelta(days=30)),
        ("INTERVAL 1 WEEK", dt.timedelta(days=7)),
        ("interval 1 week 12 hours", dt.timedelta(days=7, hours=12)),
        ("0 hours", dt.timedelta(0)),
        ("interval 1 minute 1.5 seconds", dt.timedelta(seconds=61.5)),
    ],
)
def test_an_interval_is_a_duration(told: str, meant: dt.timedelta) -> None:
    assert parse_interval(told) == meant
