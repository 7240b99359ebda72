"""Pipelines whose tasks read CSV files themselves: planned without Spark, into one target and several."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import (
    DuckDBConnection,
    ObjectStoreLocalConnection,
    Pipeline,
    SQLiteConnection,
    Target,
    ematix,
    fault_points,
    register_connection,
)
from ematix_flow.backends.registry import open_backend
from ematix_flow.engine.spark import session
from ematix_flow.errors import SourceFailed
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from tests.reading import read_table

ORDERS = TableSpec(
    "main",
    "orders",
    (
        ColumnSpec("id", DataType("big_int")),
        ColumnSpec("price", DataType("numeric", precision=10, scale=2), nullable=True),
        ColumnSpec("note", DataType("text"), nullable=True),
    ),
)
CONTENT = "id,price,note\n1,2.50,007\n2,3.00,1.20\n3,,\n"
EXPECTED = [
    {"id": 1, "price": Decimal("2.50"), "note": "007"},
    {"id": 2, "price": Decimal("3.00"), "note": "1.20"},
    {"id": 3, "price": None, "note": None},
]


@pytest.fixture(autouse=True)
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "orders.csv"
    path.parent.mkdir()
    path.write_text(CONTENT)
    for connection in (
        ObjectStoreLocalConnection(name="inbox", path=str(path.parent), format="csv"),
        ObjectStoreLocalConnection(name="lake", path=str(tmp_path / "lake"), format="parquet"),
        DuckDBConnection(name="duck", path=str(tmp_path / "a.duckdb")),
        SQLiteConnection(name="lite", path=str(tmp_path / "b.sqlite")),
    ):
        register_connection(connection)
    return path


def declare(*targets: str, sql: str = "SELECT * FROM orders", **options: Any) -> Pipeline:
    chosen = [Target(connection=target, table=ORDERS) for target in targets or ("duck",)]

    @ematix.pipeline(targets=chosen, source_connection="inbox", mode="truncate", **options)
    def load() -> str:
        return sql

    return load


def rows(connection: str) -> list[dict[str, Any]]:
    found = read_table(open_backend(resolve_for_use(connection)), ORDERS)
    return sorted(({name: row[name] for name in EXPECTED[0]} for row in found), key=lambda row: row["id"])


def test_a_plain_read_is_planned_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the plan has started Spark")

    with monkeypatch.context() as patched:
        patched.setattr(session, "_start", refuse)
        plan = declare().plan()
    assert plan.targets[0].path.value == "copy"
    assert [(column.name, column.native) for column in plan.source_columns] == [
        *(("id", "bigint"), ("price", "decimal(3,2)"), ("note", "string")),
    ]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("targets", [("duck",), ("lake",), ("duck", "lite", "lake")])
def test_a_plain_read_reaches_every_target(targets: tuple[str, ...]) -> None:
    result = declare(*targets).sync()
    assert [(target.path, target.rows.inserted) for target in result.targets] == [("copy", 3)] * len(targets)
    for target in targets:
        assert rows(target) == EXPECTED


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "options",
    [
        {"sql": "SELECT * FROM orders WHERE id > 0"},
        {"csv_read_options": {"comment": "#"}},
        {"force_path": "spark"},
    ],
)
def test_spark_reads_what_is_not_plain_to_the_same_rows(options: dict[str, Any]) -> None:
    result = declare(**options).sync()
    assert result.targets[0].path == "spark"
    assert rows("duck") == EXPECTED


@pytest.mark.usefixtures("spark")
def test_a_file_that_changes_after_the_plan_is_an_error_and_loads_nothing(orders: Path) -> None:
    load = declare()
    load.sync()

    def change() -> None:
        orders.write_text(CONTENT + "x,1.00,y\n")

    with fault_points.inject("staging.created", change), pytest.raises(SourceFailed) as caught:
        load.sync()
    assert f"cannot read {orders}: a cell of line 5 has another type" in str(caught.value)
    assert rows("duck") == EXPECTED
