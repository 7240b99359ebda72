"""Structures that the SQL of a stream makes, in the JSON columns of the databases."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from ematix_flow import Target
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.connections import DuckDBConnection, MySQLConnection, SQLiteConnection
from tests.services.kafka import KafkaServer
from tests.stream_runs import kafka_connection, load, produce, query, stream, warehouse

pytestmark = pytest.mark.usefixtures("spark")


def test_one_row_of_many_messages_lands_in_the_json_column_of_every_database(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, mariadb_database: str, tmp_path: Path
) -> None:
    query(pg_database, "CREATE TABLE days (day date, strikes jsonb NOT NULL)")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE days (day DATE, strikes JSON)")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as duck:
        duck.execute("CREATE TABLE days (day DATE, strikes JSON)")
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "shop.db"))
    duck_file = DuckDBConnection(name="duck", path=str(tmp_path / "shop.duckdb"))
    maria = MySQLConnection(name="maria", url=mariadb_database)
    places = [warehouse(pg_database), lite, duck_file]
    produce(kafka, kafka_topic, [{"strike": 4500 + n, "bid": None if n else 1.25} for n in range(2)])
    load(
        stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            targets=[
                *(Target(place, table="days") for place in places),
                *(Target(place, table="new_days") for place in (*places, maria)),
            ],
            transform_sql="""
                SELECT date'2026-05-01' AS day, array_sort(array_agg(named_struct(
                  'strike', strike, 'bid', CAST(bid AS DECIMAL(6, 2)), 'at', timestamp'2026-05-01 10:00:00'
                ))) AS strikes FROM source
            """,
        )
    )
    expected = [
        {"strike": 4500, "bid": 1.25, "at": "2026-05-01T10:00:00Z"},
        {"strike": 4501, "bid": None, "at": "2026-05-01T10:00:00Z"},
    ]
    for table in ("days", "new_days"):
        assert query(pg_database, f"SELECT strikes FROM {table}") == [(expected,)]
        for place in (lite, duck_file):
            _, [(text,)] = open_backend(place).query(f"SELECT strikes FROM {table}", 5)
            assert json.loads(text) == expected
    _, [(text,)] = open_backend(maria).query("SELECT strikes FROM new_days", 5)
    assert json.loads(text) == expected
