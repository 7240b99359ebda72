"""A pipeline within one SQLite file, which needs no Spark, for tests of metrics and traces."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ematix_flow import BigInt, ManagedTable, SQLiteConnection, ematix
from ematix_flow.api.pipeline_handle import Pipeline

ROWS = 7


class Orders(ManagedTable):
    __tablename__ = "orders"
    id: BigInt


def orders_pipeline(folder: Path, name: str = "orders", **options: object) -> Pipeline:
    """Appends seven rows each time; with ``broken=True`` it fails because its source is missing."""
    broken = options.pop("broken", False)
    path = folder / "warehouse.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS numbers (id INTEGER)")
        connection.execute("DELETE FROM numbers")
        connection.executemany("INSERT INTO numbers VALUES (?)", [(n,) for n in range(ROWS)])
    connection.close()
    warehouse = SQLiteConnection(name=f"warehouse_{name}", path=str(path))

    def source(conn: object) -> str:
        return "SELECT id FROM nowhere" if broken else "SELECT id FROM numbers"

    source.__name__ = name
    declare = ematix.pipeline(
        target=Orders, target_connection=warehouse, source_connection=warehouse, mode="append", **options
    )
    return declare(source)


def loaded(folder: Path) -> int:
    """How many rows the target has."""
    with sqlite3.connect(folder / "warehouse.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM orders").fetchone()
    connection.close()
    return int(count)
