"""Three orders in shop.db; with `later` one changes and one comes."""

import sqlite3
import sys

with sqlite3.connect("shop.db") as shop:
    if "later" in sys.argv:
        shop.execute(
            "UPDATE raw_orders SET amount = 8.5, changed_at = '2026-01-02 08:00:00' WHERE order_id = 1"
        )
        shop.execute("INSERT INTO raw_orders VALUES (4, 'spoon', 2, '2026-01-02 09:00:00')")
    else:
        shop.execute(
            "CREATE TABLE raw_orders (order_id INTEGER, product TEXT, amount REAL, changed_at TIMESTAMP)"
        )
        shop.execute(
            "INSERT INTO raw_orders VALUES (1, 'cup', 7.5, '2026-01-01 08:00:00'),"
            " (2, 'teapot', 24.9, '2026-01-01 09:00:00'), (3, 'kettle', 39, '2026-01-01 10:00:00')"
        )
