"""Pipelines into, out of and within a bucket, through ``.sync()`` and the command line."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from ematix_flow import DuckDBConnection, Pipeline, SQLiteConnection, ematix, register_connection
from ematix_flow.cli.main import main
from ematix_flow.errors import FlowError
from ematix_flow.spec.connections import ObjectStoreS3Connection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.state.local_stores import open_local_run_log
from tests.contract.s3_files import S3Lake
from tests.services.s3 import S3Server

ORDERS = TableSpec(
    "shop",
    "orders",
    (
        ColumnSpec("id", DataType("big_int"), primary_key=True),
        ColumnSpec("total", DataType("numeric", precision=10, scale=2)),
    ),
)
DAYS = TableSpec(
    "shop", "days", (ColumnSpec("n", DataType("big_int")), ColumnSpec("total", DataType("double")))
)


@pytest.fixture
def lake(s3: S3Server, s3_bucket: str, tmp_path: Path) -> Iterator[S3Lake]:
    """Connections ``source`` (SQLite), ``lake`` (the bucket) and ``warehouse`` (DuckDB)."""
    lake = S3Lake(s3, s3_bucket)
    fields: dict[str, Any] = {**s3.connection_fields(s3_bucket), "prefix": lake.prefix, "format": "parquet"}
    register_connection(ObjectStoreS3Connection(name="lake", **fields))
    register_connection(SQLiteConnection(name="source", path=str(tmp_path / "source.db")))
    register_connection(DuckDBConnection(name="warehouse", path=str(tmp_path / "warehouse.duckdb")))
    yield lake


def fill(folder: Path, first: int, last: int) -> None:
    with closing(sqlite3.connect(folder / "source.db")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total NUMERIC)")
        database.executemany("INSERT INTO orders VALUES (?, ?)", [(n, n + 0.25) for n in range(first, last)])


def pipeline(table: TableSpec, sql: str, source: str, target: str, **options: Any) -> Pipeline:
    @ematix.pipeline(target=table, source_connection=source, target_connection=target, **options)
    def load(conn: Any) -> str:
        return sql

    return load


@pytest.mark.slow
def test_rows_go_into_a_bucket_through_it_and_out_of_it_once(
    lake: S3Lake, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = pipeline(
        *(ORDERS, "SELECT id, total FROM orders", "source", "lake"),
        name="into",
        incremental=True,
        watermark_column="id",
    )
    fill(tmp_path, 0, 10)
    assert into.sync().rows_inserted == 10
    fill(tmp_path, 10, 15)
    again = into.sync()
    assert (again.rows_inserted, again.path) == (5, "copy")
    assert any("appear and disappear one by one" in note for note in again.notes)
    assert into.sync().rows_inserted == 0
    sums = "SELECT count(*) AS n, CAST(sum(total) AS DOUBLE) AS total FROM shop.orders"
    within = pipeline(DAYS, sums, "lake", "lake", name="within", mode="truncate")
    assert within.sync().rows_inserted == 1
    assert lake.rows(DAYS) == [{"n": 15, "total": sum(n + 0.25 for n in range(15))}]
    out = pipeline(ORDERS, "SELECT id, total FROM shop.orders", "lake", "warehouse", name="out")
    assert out.sync().rows_inserted == 15
    with duckdb.connect(str(tmp_path / "warehouse.duckdb"), read_only=True) as warehouse:
        counted = warehouse.execute("SELECT count(*), sum(total) FROM shop.orders").fetchall()
    assert counted[0][0] == 15
    wrong = pipeline(ORDERS, "SELECT nothing FROM shop.orders", "lake", "warehouse", name="wrong")
    with pytest.raises(FlowError) as raised:
        wrong.sync()
    shown = [repr(into.sync()), str(raised.value), json.dumps(raised.value.to_json())]
    with open_local_run_log(env=os.environ, reading=True) as log:
        shown += [json.dumps(record.to_json()) for record in log.list(limit=100)]
    assert main(["connections", "check", "lake"]) == 0
    assert main(["connections", "list", "--output", "json"]) == 0
    printed = capsys.readouterr()
    assert f"parquet files in s3://{lake.bucket}/{lake.prefix}" in printed.out + printed.err
    for text in (*shown, printed.out, printed.err):
        assert lake.server.keys.secret not in text
