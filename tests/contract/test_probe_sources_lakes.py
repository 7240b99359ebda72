"""What a data probe does with Delta and Iceberg: one version for all statements, other tables, deletes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog

from ematix_probe import source
from ematix_probe.sources.base import Source
from ematix_probe.sources.files import parquet_scan
from ematix_probe.tester import Tester
from tests.contract.probe_setup import Watched, probe, verdicts

ORDERS = pa.table(
    {"id": list(range(20)), "amount": [i - 5 for i in range(20)], "customer": [i % 4 for i in range(20)]}
)
CUSTOMERS = pa.table({"id": [0, 1, 2]})
MORE = pa.table({"id": [0, 99], "amount": [-9, -9], "customer": [7, 7]})


@dataclass
class Lake:
    source: Source
    subject: dict[str, str]
    customers: str
    append: Callable[[], None]
    delete: Callable[[], None]


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    if request.param == "delta":
        orders = str(tmp_path / "orders")
        write_deltalake(orders, ORDERS)
        write_deltalake(str(tmp_path / "customers"), CUSTOMERS)
        yield Lake(
            source.delta(tmp_path),
            {"table": "orders"},
            "customers",
            lambda: write_deltalake(orders, MORE, mode="append"),
            lambda: DeltaTable(orders).delete("amount < 0") and None,
        )
        return
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}",
    }
    catalog: Any = load_catalog("lake", **properties)
    catalog.create_namespace("shop")
    for name, data in (("orders", ORDERS), ("customers", CUSTOMERS)):
        catalog.create_table(f"shop.{name}", data.schema).append(data)
    yield Lake(
        source.iceberg(catalog="lake", properties=properties),
        {"table": "orders", "schema": "shop"},
        "shop.customers",
        lambda: _orders(catalog).append(MORE),
        lambda: _orders(catalog).delete("amount < 0"),
    )
    catalog.engine.dispose()


def _orders(catalog: Catalog) -> Any:
    return catalog.load_table("shop.orders")


def test_every_statement_reads_the_version_of_the_start(lake: Lake) -> None:
    def declare(t: Tester) -> None:
        t.row_count(at_most=20)
        t.expression("no_such_function(id) > 1")  # so that each assertion has a separate statement
        t.column("id").unique()
        t.column("amount").between(0, None)

    report = probe(Watched(lake.source, after_first=lake.append), declare, **lake.subject)
    assert verdicts(report) == ["pass", "error", "pass", "fail"]
    assert report.assertions[3].failing == 5
    assert [each["amount"] for each in report.assertions[3].samples] == [-5, -4, -3, -2, -1]
    assert verdicts(probe(lake.source, declare, **lake.subject)) == ["fail", "error", "fail", "fail"]


def test_a_table_is_one_statement_and_refers_to_others(lake: Lake) -> None:
    watched = Watched(lake.source)

    def declare(t: Tester) -> None:
        t.column("id").not_null().unique()
        t.foreign_key("customer", references=lake.customers, referenced_columns=["id"])
        t.schema_match({"id": "bigint", "amount": "bigint", "customer": "bigint"})

    report = probe(watched, declare, **lake.subject)
    assert verdicts(report) == ["pass", "pass", "fail", "pass"]
    assert report.assertions[2].failing == 5
    assert watched.rows == [1, 5]


def test_deleted_rows_are_not_read(lake: Lake) -> None:
    lake.delete()
    report = probe(lake.source, lambda t: t.row_count(at_least=15, at_most=15), **lake.subject)
    assert verdicts(report) == ["pass"]


def test_a_missing_table_is_an_error(lake: Lake) -> None:
    report = probe(lake.source, lambda t: t.row_count(at_least=0), **{**lake.subject, "table": "ordres"})
    assert verdicts(report) == ["error"]
    assert "ordres" in report.assertions[0].message


def test_an_older_version_of_a_delta_table_is_read(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "orders"), ORDERS)
    write_deltalake(str(tmp_path / "orders"), MORE, mode="append")
    counts = [
        probe(source.delta(tmp_path / "orders", version=version), lambda t: t.row_count(at_most=20))
        for version in (0, 1, None, 7)
    ]
    assert [each.verdict for each in counts] == ["pass", "fail", "fail", "error"]


def test_an_iceberg_table_is_read_by_its_folder_and_its_snapshots(tmp_path: Path) -> None:
    catalog: Any = load_catalog("lake", type="sql", uri="sqlite:///:memory:", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", ORDERS.schema)
    folder = table.location()
    empty = probe(source.iceberg(folder), lambda t: t.row_count(at_most=0))
    table.append(ORDERS)
    first = table.current_snapshot().snapshot_id
    table.append(MORE)
    older = probe(source.iceberg(folder, snapshot=first), lambda t: t.row_count(at_least=20, at_most=20))
    newest = probe(source.iceberg(folder), lambda t: t.row_count(at_least=22, at_most=22))
    unknown = probe(source.iceberg(folder, snapshot=7), lambda t: t.row_count(at_least=0))
    assert [each.verdict for each in (empty, older, newest, unknown)] == ["pass", "pass", "pass", "error"]
    assert "has no snapshot 7" in unknown.assertions[0].message
    catalog.engine.dispose()


def written(folder: Path, kind: str) -> Path:
    """A Delta table of four rows: one has no value ``added``, and one NaN as ``x``."""
    table = folder / "a b" / "orders"
    first = pa.table({"id": [1, 2], "x": [0.5, float("nan")]})
    second = pa.table({"id": [3, 4], "x": [1.5, 2.5], "added": [None, "y"]})
    if kind != "evolved":
        first = first.append_column("added", pa.array(["y", "y"]))
    partitions = ["id"] if kind == "partitioned" else None
    write_deltalake(str(table), first, partition_by=partitions)
    if kind == "evolved":
        write_deltalake(str(table), second.slice(1), mode="append", schema_mode="merge")
        write_deltalake(str(table), second.slice(0, 1), mode="append")
        DeltaTable(str(table)).update(predicate="id < 3", new_values={"added": "y"})
    else:
        write_deltalake(str(table), second, mode="append")
    if kind == "with a feature":
        features = ["deletionVectors"]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7} | {
            "readerFeatures": features,
            "writerFeatures": features,
        }
        entry = json.dumps({"protocol": protocol})
        (table / "_delta_log" / f"{DeltaTable(str(table)).version() + 1:020}.json").write_text(entry)
    return table


@pytest.mark.parametrize(
    ("kind", "by_duckdb"),
    [("plain", True), ("evolved", True), ("partitioned", False), ("with a feature", False)],
)
def test_files_of_a_delta_table_are_read_directly_only_where_they_are_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by_duckdb: bool
) -> None:
    scans: list[object] = []

    def noting(*given: Any) -> Any:
        scans.append(parquet_scan(*given))
        return scans[-1]

    monkeypatch.setattr("ematix_probe.sources.delta.parquet_scan", noting)

    def declare(t: Tester) -> None:
        t.column("id").between(1, 4).unique()
        t.column("x").between(0, 9)
        t.column("added").not_null()
        t.schema_match({"id": "bigint", "x": "double", "added": "text"})

    report = probe(source.delta(written(tmp_path, kind)), declare)
    assert verdicts(report) == ["pass", "pass", "fail", "fail", "pass"], report
    assert [each.failing for each in report.assertions] == [0, 0, 1, 1, None]
    assert bool(scans) is by_duckdb
