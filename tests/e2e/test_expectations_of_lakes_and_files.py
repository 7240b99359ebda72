"""Pipelines with expectations into Delta and files: staged by Spark's tasks, checked, set aside, replayed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import (
    DeltaLocalConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
    ematix,
)
from ematix_flow.errors import ExpectationFailed, ShrinkRefused
from ematix_flow.graph.registry import current_registry
from ematix_flow.run.quarantine import Quarantine, QuarantineChoice
from ematix_flow.transforms import filter_where
from tests.contract.gate_setup import ORDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [(1, 10, "a@b.c"), (2, -5, "a@b.c"), (3, 7, None), (4, 8, "d@e.f")]


def target_connection(kind: str, folder: Path) -> Any:
    path = str(folder / "lake")
    if kind == "delta":
        return DeltaLocalConnection(name="target", path=path)
    return ObjectStoreLocalConnection(name="target", path=path, format="parquet")


def ids(connection: Any, table: str, spark: SparkSession) -> list[int]:
    format = "delta" if isinstance(connection, DeltaLocalConnection) else "parquet"
    rows = spark.read.format(format).load(f"{connection.path}/shop/{table}")
    return sorted(row[0] for row in rows.select("id").collect())


@pytest.mark.parametrize(
    ("kind", "transformed"),
    [
        ("delta", False),
        ("parquet", True),
        pytest.param("delta", True, marks=pytest.mark.long),
        pytest.param("parquet", False, marks=pytest.mark.long),
    ],
)
def test_rows_that_fail_go_to_quarantine_and_are_replayed(
    tmp_path: Path, spark: SparkSession, kind: str, transformed: bool
) -> None:
    """Also rows without a required value, whether they are copied or transformed on the way."""
    target = target_connection(kind, tmp_path)
    source = SQLiteConnection(name="source", path=str(tmp_path / "source.db"))
    with closing(sqlite3.connect(tmp_path / "source.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE orders (id INTEGER, amount INTEGER, email TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", ROWS)

    def declare(rule: str) -> Any:
        @ematix.pipeline(
            target=ORDERS,
            source_connection=source,
            target_connection=target,
            transforms_pre=[filter_where("id > 0")] if transformed else [],
            name="orders",
            expectations=[
                ematix.expect_or_drop("positive", rule),
                ematix.expect_or_drop("mail", lambda t: t.column("email").not_null()),
                ematix.expect_or_fail("some rows", lambda t: t.row_count(at_least=1)),
            ],
        )
        def orders(conn: Any) -> str:
            return "SELECT id, amount, email FROM orders"

        return orders

    load = declare("amount > 0")
    plan = str(load.plan())
    assert "positive: else quarantine into shop.orders__quarantine" in plan
    result = load.sync()
    assert (result.rows_read, result.rows_inserted, result.rows_quarantined) == (4, 2, 2)
    assert ids(target, "orders", spark) == [1, 4]
    assert ids(target, "orders__quarantine", spark) == [2, 3]
    current_registry().pipelines.clear()
    declare("amount >= -5")
    spec = current_registry().pipelines["orders"].spec
    quarantine = Quarantine(spec, lambda _: spark, QuarantineChoice(rule="positive"))
    replayed = quarantine.replay()
    assert (replayed.rows_read, replayed.rows_inserted) == (1, 1)
    assert ids(target, "orders", spark) == [1, 2, 4]
    assert [count.rule for _, count in quarantine.counts()] == ["mail"]
    with closing(sqlite3.connect(tmp_path / "source.db", isolation_level=None)) as database:
        database.execute("DELETE FROM orders")
    with pytest.raises(ExpectationFailed, match="some rows"):
        load.sync()
    assert ids(target, "orders", spark) == [1, 2, 4]


@pytest.mark.usefixtures("spark")
def test_a_refresh_of_which_all_rows_fail_names_the_expectation(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "source.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE orders (id INTEGER, amount INTEGER, email TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", ROWS)

        @ematix.pipeline(
            target=ORDERS,
            source_connection=SQLiteConnection(name="source", path=str(tmp_path / "source.db")),
            target_connection=target_connection("parquet", tmp_path),
            mode="truncate",
            name="orders",
            expectations=[ematix.expect_or_drop("positive", "amount > 0")],
        )
        def load(conn: Any) -> str:
            return "SELECT id, amount, coalesce(email, 'none') AS email FROM orders WHERE amount <> -5"

        load.sync()
        database.execute("UPDATE orders SET amount = -10 WHERE amount > 0")
        with pytest.raises(
            ShrinkRefused, match=r"all 3 rows fail 'positive', and shop\.orders holds"
        ) as found:
            load.sync()
    assert found.value.next_step == "correct the expectation, or the rows at the source"
