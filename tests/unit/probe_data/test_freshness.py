"""Freshness: how old the newest value is, also when it lies in the future."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_probe import probe, source


@pytest.mark.parametrize(
    ("hours", "verdict", "message"),
    [(-1, "pass", "1h"), (23, "pass", "in the future"), (25, "warn", "in the future"), (-99, "fail", "old")],
)
def test_a_newest_value_more_than_a_day_ahead_is_a_warning(
    tmp_path: Path, hours: int, verdict: str, message: str
) -> None:
    newest = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=hours)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE orders (at TIMESTAMP)")
        database.execute("INSERT INTO orders VALUES (?)", (newest.strftime("%Y-%m-%d %H:%M:%S"),))

    @probe.data(source=source.sqlite(tmp_path / "shop.db"), table="orders")
    def orders(t: Any) -> None:
        t.freshness("at", within="6h")

    (result,) = orders.run().assertions
    assert (result.verdict, message in result.message) == (verdict, True), result


@pytest.mark.parametrize("values", [["garbage", "2099-01-01 00:00:00"], ["19.11.2026 05:30"]])
def test_a_value_that_is_no_time_is_counted_as_one_of_another_type(tmp_path: Path, values: list[str]) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE orders (at TIMESTAMP)")
        database.executemany("INSERT INTO orders VALUES (?)", [(value,) for value in values])
        database.execute("INSERT INTO orders VALUES (NULL)")

    @probe.data(source=source.sqlite(tmp_path / "shop.db"), table="orders")
    def orders(t: Any) -> None:
        t.freshness("at", within="6h")

    (result,) = orders.run().assertions
    assert result.verdict == "fail"
    assert result.message.startswith("there is no newest value: 1 value is of another type")
