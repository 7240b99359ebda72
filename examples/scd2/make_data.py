"""Two customers in shop.db; with `later` Ada has a new address, and Bob's row is touched but not changed."""

import sqlite3
import sys

with sqlite3.connect("shop.db") as shop:
    if "later" in sys.argv:
        shop.execute(
            "UPDATE customers SET email = 'ada@new.org', changed_at = '2026-02-01 08:00:00'"
            " WHERE customer_id = 1"
        )
        shop.execute("UPDATE customers SET changed_at = '2026-02-02 08:00:00' WHERE customer_id = 2")
    else:
        shop.execute("CREATE TABLE customers (customer_id INTEGER, email TEXT, changed_at TIMESTAMP)")
        shop.execute(
            "INSERT INTO customers VALUES (1, 'ada@a.org', '2026-01-01 08:00:00'),"
            " (2, 'bob@b.org', '2026-01-01 09:00:00')"
        )
