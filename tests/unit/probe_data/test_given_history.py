"""What ``run(history=…)`` takes: a history, or the path or URL of one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_probe import RunHistory, probe, source
from ematix_probe.declaration import DataProbe
from ematix_probe.errors import DeclarationError


@pytest.fixture
def orders(tmp_path: Path) -> DataProbe:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.executescript("CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (1)")

    @probe.data(source=source.sqlite(tmp_path / "shop.db"), table="orders")
    def orders(t: Any) -> None:
        t.row_count_change(max_drop=0.1)

    return orders


def test_a_history_is_given_as_itself_as_a_path_or_as_a_url(orders: DataProbe, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    for given in (path, str(path), f"sqlite://{path}", RunHistory(path)):
        assert orders.run(history=given).verdict == "pass"
    assert len(RunHistory(path).runs("orders")) == 4


def test_anything_else_is_refused_at_the_line_of_the_caller(orders: DataProbe) -> None:
    with pytest.raises(DeclarationError, match="RunHistory, or the path or URL of one, not int") as refused:
        orders.run(history=7)  # type: ignore[arg-type]
    assert refused.value.where is not None and refused.value.where.startswith(__file__)
