"""The examples run as they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psycopg
import pytest
from pyspark.sql import SparkSession

from ematix_flow.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A copy of one example, as the working directory."""
    import sys

    folder = tmp_path / request.param
    shutil.copytree(EXAMPLES / request.param, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("pipelines", None)


@pytest.mark.parametrize("example", ["csv_to_duckdb"], indirect=True)
def test_csv_files_are_loaded_into_duckdb_and_summed(example: Path, spark: SparkSession) -> None:
    assert main(["run", "--all", "--module", "pipelines"]) == 0
    with duckdb.connect(str(example / "warehouse.duckdb"), read_only=True) as warehouse:
        sold = warehouse.execute("SELECT product, amount::text FROM sales.sales ORDER BY sale_id").fetchall()
        found = warehouse.execute("SELECT day::text, amount::text FROM sales.daily_sales ORDER BY 1")
        days = found.fetchall()
    assert sold == [("teapot", "24.90"), ("cup", "7.50"), ("kettle", "39.00")]
    assert days == [("2026-01-05", "32.40"), ("2026-01-06", "39.00")]


@pytest.mark.parametrize("example", ["postgres_incremental"], indirect=True)
def test_new_events_are_loaded_into_postgres_once(
    example: Path, pg_database: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_URL", pg_database)
    monkeypatch.setenv("WAREHOUSE_URL", pg_database)
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE events (event_id bigint, kind text, payload jsonb, received_at timestamptz)"
        )
        connection.execute(
            "INSERT INTO events VALUES (1, 'click', '{}', now() - interval '1 hour'),"
            " (2, 'heartbeat', NULL, now() - interval '1 hour'), (3, 'click', NULL, now())"
        )
        assert main(["run", "events", "--module", "pipelines"]) == 0
        assert main(["run", "events", "--module", "pipelines"]) == 0
        assert connection.execute("SELECT event_id FROM analytics.events").fetchall() == [(1,)]
