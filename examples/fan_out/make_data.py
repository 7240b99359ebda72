"""Two orders in shop.db."""

import sqlite3

with sqlite3.connect("shop.db") as shop:
    shop.execute("CREATE TABLE orders (order_id INTEGER, product TEXT, amount REAL, ordered_at TIMESTAMP)")
    shop.execute(
        "INSERT INTO orders VALUES (1, 'cup', 7.5, '2026-01-01 08:00:00'),"
        " (2, 'teapot', 24.9, '2026-01-01 09:00:00')"
    )
