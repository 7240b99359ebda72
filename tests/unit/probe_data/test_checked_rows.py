"""Which rows an assertion checks: those that it ignores take no part in the share that fails."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ematix_probe import probe, source
from ematix_probe.report import AssertionResult
from ematix_probe.sources.base import Source
from ematix_probe.tester import Tester


@pytest.fixture
def shop(tmp_path: Path) -> Source:
    """98 rows without a value, a good one and a bad one."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE orders (n INTEGER, state TEXT)")
        database.executemany(
            "INSERT INTO orders VALUES (?, ?)", [(None, None)] * 98 + [(1, "new"), (7, "odd")]
        )
        database.execute("CREATE TABLE customers (id INTEGER)")
        database.execute("INSERT INTO customers VALUES (1)")
    return source.sqlite(path)


def results(shop: Source, declare: object) -> list[AssertionResult]:
    return list(probe.data(source=shop, table="orders")(declare).run().assertions)  # type: ignore[arg-type]


def test_rows_that_are_ignored_for_null_are_no_part_of_the_tolerated_share(shop: Source) -> None:
    def orders(t: Tester) -> None:
        t.column("n").between(0, 5, tolerate=0.4)
        t.column("n").is_in([1], tolerate=0.5)
        t.column("state").regex("^new$", tolerate=0.4)
        t.foreign_key("n", references="customers", referenced_columns=["id"], tolerate=0.4)
        t.unique(["n", "state"])

    found = results(shop, orders)
    assert [(each.failing, each.checked) for each in found] == [(1, 2)] * 4 + [(0, 2)]
    assert [each.verdict for each in found] == ["fail", "pass", "fail", "fail", "pass"]
    assert found[0].message == "1 of 2 rows (50 %) is outside of 0 … 5; 40 % are tolerated"


def test_not_null_and_a_condition_check_every_row_that_where_keeps(shop: Source) -> None:
    def orders(t: Tester) -> None:
        t.column("n").not_null(tolerate=0.98)
        t.expression("n < 5", tolerate=0.01)
        t.column("n").between(0, 5, where="state = 'odd'")

    found = results(shop, orders)
    assert [(each.verdict, each.failing, each.checked) for each in found] == [
        ("pass", 98, 100),
        ("pass", 1, 100),
        ("fail", 1, 1),
    ]
