"""Incremental loads into a table that was dropped: they load all rows again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Annotated, Any

import duckdb
import psycopg
import pytest

from ematix_flow import (
    BigInt,
    DuckDBConnection,
    ManagedTable,
    MySQLConnection,
    PostgresConnection,
    SQLiteConnection,
    Text,
    ematix,
    fault_points,
    pk,
)

STORES = ["sqlite", "duckdb", "postgres", "mariadb"]


class Numbered(ManagedTable):
    __tablename__ = "numbered"
    id: Annotated[BigInt, pk()]
    name: Text


def connection(store: str, request: pytest.FixtureRequest) -> Any:
    if store == "postgres":
        return PostgresConnection(name="db", url=request.getfixturevalue("pg_database"))
    if store == "mariadb":
        return MySQLConnection(name="db", url=request.getfixturevalue("mariadb_database"))
    kind = {"sqlite": SQLiteConnection, "duckdb": DuckDBConnection}[store]
    return kind(name="db", path=str(request.getfixturevalue("tmp_path") / "db"))


def execute(db: Any, sql: str, request: pytest.FixtureRequest) -> None:
    """By the driver, as another program does."""
    if db.kind == "mysql":
        request.getfixturevalue("mariadb").execute(sql, db.url.rpartition("/")[2].partition("?")[0])
        return
    connects: dict[str, Any] = {
        "postgres": psycopg.connect,
        "sqlite": sqlite3.connect,
        "duckdb": duckdb.connect,
    }
    with closing(connects[db.kind](db.url if db.kind == "postgres" else db.path)) as connection:
        connection.execute(sql)
        connection.commit()


@pytest.mark.parametrize("mode", ["append", "merge", "scd2"])
@pytest.mark.parametrize("store", STORES)
def test_a_table_that_is_gone_is_loaded_from_the_beginning_also_after_a_crash(
    store: str, mode: str, request: pytest.FixtureRequest
) -> None:
    db = connection(store, request)
    execute(db, "CREATE TABLE other (id integer)", request)  # the database is there
    last = 10

    @ematix.pipeline(
        target=Numbered, target_connection=db, mode=mode, incremental=True, watermark_column="id"
    )
    def load(conn: Any) -> str:
        rows = " UNION ALL ".join(f"SELECT {n} AS id, 'n{n}' AS name" for n in range(1, last + 1))
        return f"SELECT id, name FROM ({rows}) AS r"

    assert load.sync().rows_inserted == 10
    execute(db, "DROP TABLE numbered", request)
    last = 11
    [planned] = load.plan().targets
    assert planned.range is not None and planned.range.low is None
    assert any("numbered does not exist, and was loaded up to 10 before" in text for text in planned.warnings)
    with (
        fault_points.inject("apply.table_changed", "crash") as fault,
        pytest.raises(fault_points.InjectedCrash),
    ):
        load.sync()
    assert fault.has_fired
    assert load.sync().rows_inserted == 11
    assert load.sync().rows_inserted == 0
    last = 12
    assert load.sync().rows_inserted == 1
