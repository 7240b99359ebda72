"""Every example runs as its README says, in one process with one Spark, and leaves the rows that it promises.

The commands of a README run as a reader types them, but without a new process for each ``flow``: see
`commands`.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.docs.blocks import blocks_of
from tests.docs.commands import run_commands

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
ELSEWHERE = {"orchestrators"}  # tests/e2e/test_orchestrators.py runs it in Airflow, Dagster and Prefect
NO_SPARK = (
    "append",
    "truncate",
    "merge",
    "scd2",
    "schedule",
    "workflow",
    "alerts",
    "data_quality",
    "expectations",
)
NEEDS_SPARK = (
    "csv_to_duckdb",
    "file_formats",
    "fan_out",
    "file_stream",
    "lookups",
    "python_functions",
    "windows",
    "sessions",
    "delta_lake",
    "iceberg_lake",
)
NEEDS_A_SERVER = (
    *("postgres_incremental", "mysql_to_duckdb", "s3_files"),
    *("kafka_stream", "rabbitmq_stream", "dead_letters", "change_data_capture", "joins"),
)

# What an example leaves: the file of a database, a query, and its rows
LEFT: dict[str, list[tuple[str, str, list[tuple[Any, ...]]]]] = {
    "append": [("shop.db", "SELECT count(*), count(DISTINCT _batch_id) FROM page_views", [(6, 2)])],
    "truncate": [
        (
            "shop.db",
            "SELECT product, orders, revenue FROM revenue_by_product ORDER BY 1",
            [("cup", 2, 15), ("teapot", 2, 49.8)],
        )
    ],
    "merge": [
        (
            "shop.db",
            "SELECT customer_id, email, _deleted_at IS NULL FROM customer_copy ORDER BY 1",
            [(1, "ada@new.org", 1), (2, "bob@b.org", 0), (3, "eve@e.org", 1), (4, "dan@d.org", 1)],
        )
    ],
    "scd2": [
        (
            "shop.db",
            "SELECT customer_id, email, is_current FROM customer_history ORDER BY 1, valid_from",
            [(1, "ada@a.org", 0), (1, "ada@new.org", 1), (2, "bob@b.org", 1)],
        )
    ],
    "schedule": [("shop.db", "SELECT name, amount FROM revenue WHERE name = 'cup'", [("cup", 630)])],
    "workflow": [("shop.db", "SELECT name, amount FROM published WHERE name = 'cup'", [("cup", 630)])],
    "alerts": [("shop.db", "SELECT count(*) FROM orders", [(20,)])],
    "expectations": [
        (
            "shop.db",
            "SELECT order_id, amount FROM clean_orders ORDER BY 1",
            [(1, 25), (2, 5), (3, 7), (4, 9)],
        ),
        ("shop.db", "SELECT count(*) FROM clean_orders__quarantine", [(0,)]),
    ],
    "csv_to_duckdb": [
        (
            "warehouse.duckdb",
            "SELECT product, amount::text FROM sales.sales ORDER BY sale_id",
            [("teapot", "24.90"), ("cup", "7.50"), ("kettle", "39.00")],
        ),
        (
            "warehouse.duckdb",
            "SELECT day::text, amount::text FROM sales.daily_sales ORDER BY 1",
            [("2026-01-05", "32.40"), ("2026-01-06", "39.00")],
        ),
    ],
    "file_formats": [
        ("shop.db", "SELECT orders, CAST(amount AS REAL) FROM counts", [(3, 71.4)]),
        ("shop.db", "SELECT orders, CAST(amount AS REAL) FROM orc_counts", [(3, 71.4)]),
    ],
    "fan_out": [
        ("warehouse.duckdb", "SELECT count(*) FROM sales.orders", [(2,)]),
        ("warehouse.duckdb", "SELECT count(*) FROM 'archive/orders/*.parquet'", [(2,)]),
        ("app.db", "SELECT id, product FROM latest_orders ORDER BY 1", [(1, "cup"), (2, "teapot")]),
    ],
    "file_stream": [("warehouse.db", "SELECT click_id FROM clicks ORDER BY 1", [(1,), (2,), (3,), (4,)])],
    "lookups": [
        (
            "warehouse.db",
            "SELECT order_id, tier, CAST(amount AS REAL) FROM orders ORDER BY 1",
            [(1, "gold", 10), (2, "silver", 24.9), (3, None, 5)],
        )
    ],
    "python_functions": [
        (
            "warehouse.db",
            "SELECT symbol, round(vwap, 4), quotes FROM prices ORDER BY 1",
            [("cup", 18.245, 2), ("pot", 8.5, 1)],
        )
    ],
    "windows": [
        (
            "warehouse.db",
            "SELECT substr(window_start, 12, 5), page, clicks, revision FROM clicks_per_minute ORDER BY 1, 2",
            [("10:00", "help", 2, 1), ("10:00", "home", 2, 0)] + [(f"10:0{n}", "home", 1, 0) for n in (1, 2)],
        )
    ],
    "sessions": [
        (
            "warehouse.db",
            "SELECT user, pages, entry_page, exit_page, revision, merged_into IS NULL FROM visits "
            "ORDER BY user, pages, window_start",
            [
                ("ann", None, None, None, 1, 0),
                ("ann", 4, "home", "pay", 1, 1),
                ("bob", 1, "help", "help", 0, 1),
                ("bob", 1, "home", "home", 0, 1),
            ],
        )
    ],
    "joins": [
        (
            "warehouse.db",
            "SELECT left_order_id, right_method FROM paid_orders ORDER BY 1",
            [(1, "card"), (2, None), (3, "card")],
        )
    ],
    "data_quality": [
        (
            "quality.db",
            "SELECT probe_name, group_concat(verdict, ' ') FROM (SELECT * FROM runs ORDER BY id) GROUP BY 1",
            [("countries", "pass pass pass"), ("customers", "pass pass pass"), ("orders", "pass fail pass")],
        )
    ],
    "delta_lake": [("shop.db", "SELECT orders, CAST(amount AS REAL) FROM revenue", [(4, 74.4)])],
    "iceberg_lake": [("shop.db", "SELECT orders, CAST(amount AS REAL) FROM revenue", [(3, 71.4)])],
    "mysql_to_duckdb": [
        ("warehouse.duckdb", "SELECT order_id FROM sales.orders ORDER BY 1", [(1,), (2,)]),
    ],
    "s3_files": [
        (
            "warehouse.duckdb",
            "SELECT product, amount::text FROM reports.revenue ORDER BY 1",
            [("cup", "15.00"), ("teapot", "24.90")],
        )
    ],
    "kafka_stream": [
        (
            "warehouse.db",
            "SELECT order_id, CAST(amount AS REAL) FROM orders ORDER BY 1",
            [(1, 8.5), (2, 24.9), (3, 39)],
        )
    ],
    "rabbitmq_stream": [
        (
            "warehouse.db",
            "SELECT user_id, email FROM signups ORDER BY 1",
            [(1, "ada@a.org"), (2, "bob@b.org")],
        )
    ],
    "dead_letters": [
        (
            "warehouse.db",
            "SELECT payment_id, CAST(amount AS REAL) FROM payments ORDER BY 1",
            [(1, 10.5), (2, 12.5), (3, 8)],
        )
    ],
}


def test_every_example_is_run() -> None:
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert folders == {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders == {*NO_SPARK, *NEEDS_SPARK, *NEEDS_A_SERVER, *ELSEWHERE}


@pytest.mark.parametrize("name", NO_SPARK)
def test_an_example_inside_one_database_runs(name: str, tmp_path: Path) -> None:
    run_example(name, tmp_path)


@pytest.mark.parametrize("name", NEEDS_SPARK)
def test_an_example_of_files_lakes_and_several_systems_runs(name: str, spark: object, tmp_path: Path) -> None:
    run_example(name, tmp_path)


@pytest.mark.parametrize("name", ["postgres_incremental"])
def test_an_example_with_postgres_runs(
    name: str, spark: object, pg_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    monkeypatch.setenv("SOURCE_URL", pg_database)
    monkeypatch.setenv("WAREHOUSE_URL", pg_database)
    run_example(name, tmp_path)
    with psycopg.connect(pg_database) as database:
        assert database.execute("SELECT event_id FROM analytics.events").fetchall() == [(1,)]


@pytest.mark.parametrize("name", ["mysql_to_duckdb"])
def test_an_example_with_mysql_runs(
    name: str, spark: object, mariadb_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_URL", mariadb_database)
    run_example(name, tmp_path)


@pytest.mark.parametrize("name", ["s3_files"])
def test_an_example_with_a_bucket_runs(
    name: str, spark: object, s3: Any, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_BUCKET", s3_bucket)
    monkeypatch.setenv("LAKE_ENDPOINT", s3.endpoint)
    monkeypatch.setenv("LAKE_KEY", s3.keys.access)
    monkeypatch.setenv("LAKE_SECRET", s3.keys.secret)
    run_example(name, tmp_path)


@pytest.fixture
def kafka_bootstrap(name: str, kafka: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The broker, and afterwards without the topics of the example. Others may run at the same time."""
    own = set(re.findall(r'"(example-[a-z-]+)"', (EXAMPLES / name / "make_data.py").read_text()))
    kafka.start()
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)
    yield kafka.bootstrap
    for topic in own & kafka.admin().list_topics(timeout=10).topics.keys():
        kafka.drop_topic(topic)


@pytest.mark.parametrize("name", ["kafka_stream", "dead_letters", "joins"])
def test_an_example_with_kafka_runs(
    name: str, spark: object, kafka: Any, kafka_bootstrap: str, tmp_path: Path
) -> None:
    run_example(name, tmp_path)
    if name == "kafka_stream":
        sent = [message.key() for message in kafka.consume_all("example-large-orders")]
        assert sorted(sent) == [b"2", b"3"]


@pytest.mark.parametrize("name", ["change_data_capture"])
def test_an_example_with_kafka_and_postgres_runs(
    name: str,
    spark: Any,
    kafka_bootstrap: str,
    pg_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import psycopg

    monkeypatch.setenv("SHOP_URL", pg_database)
    monkeypatch.setenv("WAREHOUSE_URL", pg_database)
    run_example(name, tmp_path)
    expected = [(1, "ada@new.org", "London"), (4, "eve@e.org", "Rome")]
    with psycopg.connect(pg_database) as database:
        for schema in ("shop", "mirror"):
            rows = f"SELECT id, email, city FROM {schema}.customers ORDER BY id"
            assert database.execute(rows.encode()).fetchall() == expected
        versions = "SELECT id, email, is_current FROM mirror.customer_versions ORDER BY id, valid_from"
        assert database.execute(versions).fetchall() == [
            (1, "ada@a.org", False),
            (1, "ada@new.org", True),
            (2, "bob@b.org", False),
            (3, "eve@e.org", False),
            (4, "eve@e.org", True),
        ]
    lake = spark.read.format("delta").load(str(tmp_path / name / "lake" / "customers"))
    kept = lake.where("deleted_at IS NULL").select("id", "email", "city").collect()
    assert sorted(map(tuple, kept)) == expected and lake.count() == 4


@pytest.mark.parametrize("name", ["rabbitmq_stream"])
def test_an_example_with_rabbitmq_runs(
    name: str, spark: object, rabbitmq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rabbitmq.start()
    monkeypatch.setenv("RABBITMQ_URL", rabbitmq.url())
    try:
        run_example(name, tmp_path)
        assert rabbitmq.count("example-signups") == 0
    finally:
        rabbitmq.delete_queue("example-signups")


def run_example(name: str, tmp_path: Path) -> None:
    """The commands of its README in a copy of its folder, then what it leaves."""
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks_of((folder / "README.md").read_text(encoding="utf-8")):
        if block.runs:
            assert run_commands(block.commands, folder) == block.exits, block.commands
    for file, query, rows in LEFT.get(name, []):
        assert left_in(folder / file, query) == rows


def left_in(file: Path, query: str) -> list[tuple[Any, ...]]:
    if file.suffix == ".duckdb":
        with duckdb.connect(str(file), read_only=True) as database:
            return database.execute(query.replace("'archive", f"'{file.parent}/archive")).fetchall()
    with closing(sqlite3.connect(file)) as database:
        return database.execute(query).fetchall()
