"""Where a reading of any source may begin."""

from __future__ import annotations

import datetime as dt

import pytest

from ematix_flow.backends.delta.stream import _options
from ematix_flow.backends.kinesis.shards import Shard
from ematix_flow.backends.kinesis.start_positions import first_positions
from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.backends.objectstore.reading.receiver import _to_nanoseconds
from ematix_flow.errors import DeclarationError

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)
SAME = NOON.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30)))


def test_a_time_without_a_zone_is_refused_for_any_source() -> None:
    with pytest.raises(DeclarationError, match="starting=2026-01-31 12:00:00 has no time zone") as told:
        ReadRequest("events", starting=dt.datetime(2026, 1, 31, 12))
    assert "2026-01-31T00:00:00Z" in str(told.value.next_step)


def test_a_moment_is_the_same_in_every_zone() -> None:
    readings = [ReadRequest("events", starting=moment) for moment in (NOON, SAME)]
    assert [_options(each) for each in readings] == [{"startingTimestamp": "2026-01-31 12:00:00.000000"}] * 2
    assert _to_nanoseconds(NOON) == _to_nanoseconds(SAME) == int(NOON.timestamp()) * 10**9
    shards = {"a": Shard("a", (), 0, 1, 0, False)}
    first, second = (first_positions(each, shards)["a"] for each in readings)
    assert str(first) == str(second) == "@2026-01-31T12:00:00+00:00"
