"""Creates source.db, a small source to try the pipelines on. Remove it once you have your own.

python sample_data.py
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

DATABASE = "source.db"
_ORDERS = [
    (1, "Teapot", 24.90, "2026-01-05 09:12:00"),
    (2, "Cup", 7.50, "2026-01-05 09:12:30"),
    (3, "Kettle", 39.00, "2026-01-05 17:45:10"),
    (4, "Teapot", 24.90, "2026-01-06 08:01:00"),
    (5, "Tray", 18.25, "2026-01-06 12:30:45"),
]


def create(database: str = DATABASE) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS orders")
        connection.execute(
            "CREATE TABLE orders"
            " (order_id INTEGER PRIMARY KEY, product TEXT, amount REAL, ordered_at TIMESTAMP)"
        )
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", _ORDERS)


if __name__ == "__main__":
    create()
