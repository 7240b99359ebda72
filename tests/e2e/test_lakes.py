"""Delta tables as a user loads them: from a database and back, together with delta-rs, as of a version."""

from __future__ import annotations

import datetime as dt
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ematix_flow import (
    BigInt,
    Date,
    DeltaLocalConnection,
    DuckDBConnection,
    ObjectStoreLocalConnection,
    Pipeline,
    PostgresConnection,
    Target,
    Text,
    TimestampTZ,
    connect,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.backends.base import Backend
from ematix_flow.backends.registry import open_backend
from ematix_flow.cli.main import main
from ematix_flow.errors import PostTransformFailed, SchemaMismatch, SourceFailed
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.samples import every_type, every_value
from tests.reading import read_table

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

COLUMNS = "order_id, customer, day, changed_at"


class Orders:
    order_id: Annotated[BigInt, pk()]
    customer: Text
    day: Date
    changed_at: TimestampTZ


def orders_table(name: str) -> Any:
    return ematix.table(schema="sales", name=name)(
        type("Orders", (), {"__annotations__": Orders.__annotations__})
    )


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    register_connection(DeltaLocalConnection(name="lake", path=str(tmp_path / "lake")))
    return tmp_path / "lake" / "sales"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A DuckDB file with ten orders of three days."""
    path = tmp_path / "shop.duckdb"
    change(
        path,
        "CREATE TABLE orders AS SELECT range AS order_id, 'c' || range % 4 AS customer,"
        " DATE '2026-01-01' + (range % 3)::INT AS day,"
        " TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (range) MINUTE AS changed_at FROM range(10)",
    )
    register_connection(DuckDBConnection(name="shop", path=str(path)))
    return path


def change(path: Path, sql: str) -> None:
    with duckdb.connect(str(path)) as database:
        database.execute(sql)


def load(into: str, name: str = "orders", **options: Any) -> Pipeline:
    given = {"target": orders_table(into), "source_connection": "shop", "target_connection": "lake"}

    @ematix.pipeline(**{**given, "name": name, **options})
    def orders(conn: Any) -> str:
        return f"SELECT {COLUMNS} FROM orders"

    return orders


def stored(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    """By delta-rs, independently of the product."""
    found = DeltaTable(str(folder)).to_pyarrow_table(columns=list(columns))
    return sorted(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


def opened(backend_of: Any) -> Backend:
    return open_backend(register_connection(backend_of))


# ------------------------------------------------------------------ there and back


def test_every_type_goes_from_postgres_into_delta_and_back_into_two_databases(
    tmp_path: Path, pg_database: str, lake: Path
) -> None:
    postgres = opened(PostgresConnection(name="warehouse", url=pg_database))
    embedded = opened(DuckDBConnection(name="mart", path=str(tmp_path / "mart.duckdb")))
    seed, there, back = every_type("seed"), every_type("there", "sales"), every_type("back")
    sink = postgres.target()
    assert sink is not None
    load_rows(sink, new_load(seed), every_value())

    @ematix.pipeline(target=there, source_connection="warehouse", target_connection="lake", mode="merge")
    def into_the_lake(conn: Any) -> str:
        return f"SELECT {', '.join(seed.column_names)} FROM contract.seed"

    assert into_the_lake.sync().rows_inserted == 4
    assert into_the_lake.sync().rows_unchanged == 4

    @ematix.pipeline(
        targets=[Target(connection="warehouse", table=back), Target(connection="mart", table=back)],
        source_connection="lake",
    )
    def out_of_the_lake(conn: Any) -> str:
        return f"SELECT {', '.join(back.column_names)} FROM sales.there"

    out_of_the_lake.sync()
    for backend in (postgres, embedded):
        found = {row["id"]: row for row in read_table(backend, back)}
        for expected in every_value():
            for column, value in expected.items():
                assert found[expected["id"]][column] == value, (backend.kind, column)


def test_postgres_into_delta_by_append_by_incremental_merge_and_as_a_history(
    pg_database: str, lake: Path
) -> None:
    register_connection(PostgresConnection(name="shop", url=pg_database))
    with psycopg.connect(pg_database) as connection:
        connection.execute(
            "CREATE TABLE orders AS SELECT i::bigint AS order_id, 'c' || i AS customer,"
            " DATE '2026-01-01' AS day, TIMESTAMPTZ '2026-01-01' + i * INTERVAL '1 minute' AS changed_at"
            " FROM generate_series(1, 3) i"
        )
    incremental = {"incremental": True, "watermark_column": "changed_at"}
    every = [
        load("appended", "appended", mode="append", **incremental),
        load("merged", "merged", mode="merge", **incremental),
        load("history", "history", mode="scd2"),
    ]
    assert [pipeline.sync().rows_inserted for pipeline in every] == [3, 3, 3]
    with psycopg.connect(pg_database) as connection:
        connection.execute(
            "UPDATE orders SET customer = 'moved', changed_at = changed_at + INTERVAL '1 hour'"
            " WHERE order_id = 2"
        )
    results = [pipeline.sync() for pipeline in every]
    assert [(r.rows_inserted, r.rows_updated) for r in results] == [(1, 0), (0, 1), (1, 1)]
    assert [row[0] for row in stored(lake / "appended", "order_id")] == [1, 2, 2, 3]
    assert stored(lake / "merged", "order_id", "customer") == [(1, "c1"), (2, "moved"), (3, "c3")]
    assert stored(lake / "history", "order_id", "customer", "is_current") == [
        (1, "c1", True),
        (2, "c2", False),
        (2, "moved", True),
        (3, "c3", True),
    ]


# ------------------------------------------------------------------ what the commands say


def flow(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


MODULE = """
from ematix_flow import Annotated, BigInt, Date, ManagedTable, Target, Text, TimestampTZ, ematix, pk

class Orders(ManagedTable):
    __schema__ = "sales"
    order_id: Annotated[BigInt, pk()]
    customer: Text
    day: Date
    changed_at: TimestampTZ

@ematix.pipeline(
    targets=[Target(connection="lake", table=Orders, partition_by=["day"])],
    source_connection="shop",
    mode="merge",
    transforms_post=["UPDATE sales.orders SET customer = upper(customer) WHERE customer <> upper(customer)"],
)
def orders(conn):
    return "SELECT order_id, customer, day, changed_at FROM orders"

class Customers(ManagedTable):
    __schema__ = "sales"
    customer: Annotated[Text, pk()]
    first_day: Date

@ematix.pipeline(
    target=Customers, source_connection="lake", target_connection="shop", mode="truncate", depends_on=[orders]
)
def customers(conn):
    return "SELECT customer, min(day) AS first_day FROM sales.orders GROUP BY customer"
"""
SETTINGS = """
[project]
module = "lake_commands"
[connections.lake]
kind = "delta_local"
path = "lake"
[connections.shop]
kind = "duckdb"
path = "shop.duckdb"
"""


def test_plan_run_preview_and_maintain_show_a_lake_table(
    tmp_path: Path, lake: Path, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lake_commands.py").write_text(MODULE)
    (tmp_path / ".ematix-flow.toml").write_text(SETTINGS)
    sys.modules.pop("lake_commands", None)
    code, out, _ = flow(capsys, "plan", "orders")
    assert code == 0
    assert "+ partitioned by (day)" in out
    assert "USING delta PARTITIONED BY (`day`)" in out
    assert "primary key" not in out  # a lake keeps none
    code, out, err = flow(capsys, "run", "--all")
    assert code == 0, err
    assert [line.split()[:5] for line in out.splitlines()[1:]] == [
        ["orders", "succeeded", "merge", "copy", "10"],
        ["customers", "succeeded", "truncate", "spark", "4"],
    ]
    assert sorted(p.name for p in (lake / "orders").glob("day=*")) == [f"day=2026-01-0{n}" for n in (1, 2, 3)]
    assert {row[0] for row in stored(lake / "orders", "customer")} == {"C0", "C1", "C2", "C3"}
    code, out, err = flow(capsys, "preview", "customers", "--rows", "1")
    assert (code, err.strip()) == (0, "the first 1 rows of the source, as they come")
    assert "lake (delta_local)" in out
    code, out, err = flow(capsys, "maintain", "orders", "--retain", "0s", "--force")
    assert code == 0, err
    head, row = out.splitlines()
    assert head.split() == ["table", "files", "now", "size", "now", "removed", "freed"]
    assert row.split()[:3] == ["lake:sales.orders", "3", "3"]
    assert int(row.split()[7]) >= 3  # those that the UPDATE had replaced
    assert "a version older than 0s will fail" in err
    with pytest.raises(SourceFailed, match="can no longer be read at VERSION AS OF 0: 3 of its 3 files"):
        connect("lake").query("SELECT * FROM sales.orders VERSION AS OF 0")


# ------------------------------------------------------------------ with other writers and readers


def test_the_plan_says_whether_spark_commits_and_why(lake: Path, shop: Path) -> None:
    direct = load("direct")
    assert "commit = direct: tasks write the table's files, and delta-rs commits them" in str(direct.plan())
    for rows in (10, 20):
        assert direct.sync().targets[0].rows_inserted == 10
        assert len(stored(lake / "direct", "order_id")) == rows
        assert "delta-rs" in str(DeltaTable(str(lake / "direct")).history(1)[0]["engineInfo"])
    merged = load("merged", name="merged", mode="merge")
    assert "commit = spark: mode merge compares the rows with those of the table" in str(merged.plan())
    (choice,) = [c for c in direct.plan().to_json()["targets"][0]["choices"] if c["name"] == "commit"]
    assert choice["value"] == "direct"


def test_a_table_that_delta_rs_wrote_is_appended_to_and_merged_into(lake: Path, shop: Path) -> None:
    schema = pa.schema(
        [
            ("order_id", pa.int64()),
            ("customer", pa.string()),
            ("day", pa.date32()),
            ("changed_at", pa.timestamp("us", tz="UTC")),
        ]
    )
    moment = dt.datetime(2025, 1, 1, tzinfo=dt.timezone.utc)
    theirs = [[9, "old", dt.date(2025, 1, 1), moment], [77, "theirs", dt.date(2025, 1, 1), moment]]
    rows = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in theirs], schema=schema)
    write_deltalake(str(lake / "orders"), rows)
    with pytest.raises(SchemaMismatch, match="_loaded_at"):
        load("orders", "first").sync()
    result = load("orders", "second", mode="merge", on_drift="evolve").sync()
    assert (result.rows_inserted, result.rows_updated) == (9, 1)
    found = dict(stored(lake / "orders", "order_id", "customer"))
    assert (len(found), found[9], found[77]) == (11, "c1", "theirs")
    assert load("orders", "third", mode="append").sync().rows_inserted == 10
    assert len(stored(lake / "orders", "order_id")) == 21


# ------------------------------------------------------------------ earlier versions


def reader(sql: str, name: str) -> Pipeline:
    @ematix.pipeline(
        target=orders_table(name),
        source_connection="lake",
        target_connection="shop",
        name=name,
        mode="truncate",
    )
    def read(conn: Any) -> str:
        return sql

    return read


def test_a_source_is_read_as_of_a_version_or_a_time_and_a_wrong_one_is_reported(
    lake: Path, shop: Path
) -> None:
    written = load("orders", mode="append", incremental=True, watermark_column="order_id")
    written.sync()
    first = DeltaTable(str(lake / "orders")).version()
    then = dt.datetime.now(dt.timezone.utc)
    change(shop, "INSERT INTO orders SELECT order_id + 10, customer, day, changed_at FROM orders")
    assert written.sync().rows_inserted == 10
    for as_of in (f"VERSION AS OF {first}", f"TIMESTAMP AS OF '{then:%Y-%m-%d %H:%M:%S.%f}'"):
        assert (
            reader(f"SELECT {COLUMNS} FROM sales.orders {as_of}", f"r{len(as_of)}").sync().rows_inserted == 10
        )
    for number, log in enumerate(sorted((lake / "orders" / "_delta_log").glob("*.json"))):
        old = (then - dt.timedelta(days=3)).timestamp() + number
        os.utime(log, (old, old))
    yesterday = "TIMESTAMP AS OF current_timestamp() - INTERVAL 1 DAY"
    assert reader(f"SELECT {COLUMNS} FROM sales.orders {yesterday}", "yesterday").sync().rows_inserted == 20
    with pytest.raises(SourceFailed, match=r"is after the table's latest version"):
        reader(f"SELECT {COLUMNS} FROM sales.orders {yesterday.replace('-', '+')}", "tomorrow").plan()
    new = f"SELECT {COLUMNS} FROM sales.orders EXCEPT SELECT {COLUMNS} FROM sales.orders VERSION AS OF "
    assert reader(f"{new}{first}", "added").sync().rows_inserted == 10
    with pytest.raises(SourceFailed, match=r"version 99.*Available versions: \[0, \d\]"):
        reader(f"{new}99", "no_version").plan()
    with pytest.raises(SourceFailed, match=r"no Delta table 'sales.ordrs' .* Did you mean 'sales.orders'"):
        reader("SELECT * FROM sales.ordrs", "no_table").plan()


def test_the_files_of_a_lake_table_are_not_taken_for_its_rows(lake: Path, shop: Path) -> None:
    load("orders").sync()
    files = ObjectStoreLocalConnection(name="files", path=str(lake.parent), format="parquet")
    register_connection(files)

    @ematix.pipeline(target=orders_table("copy"), source_connection="files", target_connection="lake")
    def copied(conn: Any) -> str:
        return f"SELECT {COLUMNS} FROM sales.orders"

    with pytest.raises(SourceFailed, match=r"sales/orders is a Delta table") as refused:
        copied.plan()
    assert refused.value.next_step == "read it through a delta_local or delta_s3 connection"
    with pytest.raises(SchemaMismatch, match="not partitions: _delta_log"):
        load("orders", "files", target_connection="files").plan()


def test_a_statement_after_a_load_is_refused_when_it_is_no_change_of_rows(lake: Path, shop: Path) -> None:
    pipeline = load("orders", transforms_post=[counted, "DROP TABLE sales.orders"])
    with pytest.raises(PostTransformFailed, match="one INSERT, UPDATE, DELETE or MERGE") as failed:
        pipeline.sync()
    assert "the load before it is committed" in str(failed.value)
    assert len(stored(lake / "orders", "order_id")) == 9


def counted(conn: Any) -> None:
    """A function among the transforms: it queries and changes tables by the names of queries."""
    assert conn.scalar("SELECT count(*) FROM sales.orders") == 10
    assert conn.execute("DELETE FROM sales.orders WHERE order_id = 0") == 1
