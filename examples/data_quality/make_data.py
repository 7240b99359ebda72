"""A shop in shop.db; with `later` its next day, on which something went wrong; with `fixed` repaired."""

import sqlite3
import sys

with sqlite3.connect("shop.db") as shop:
    if "later" in sys.argv:
        shop.execute("DELETE FROM orders WHERE order_id > 10")
        shop.execute("UPDATE orders SET customer_id = 99 WHERE order_id = 7")
    elif "fixed" in sys.argv:
        shop.execute("UPDATE orders SET customer_id = 1 WHERE order_id = 7")
        shop.executemany(
            "INSERT INTO orders VALUES (?, ?, ?)", [(n, n % 3 + 1, n * 1.5) for n in range(11, 25)]
        )
    else:
        shop.execute("CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, email TEXT, country TEXT)")
        shop.execute("CREATE TABLE orders (order_id INTEGER PRIMARY KEY, customer_id INTEGER, amount REAL)")
        shop.execute(
            "INSERT INTO customers VALUES (1, 'ada@a.org', 'DE'), (2, 'bob@b.org', 'FR'), (3, NULL, 'DE')"
        )
        shop.executemany(
            "INSERT INTO orders VALUES (?, ?, ?)", [(n, n % 3 + 1, n * 1.5) for n in range(1, 21)]
        )
