"""Orders and items in shop.db."""

import sqlite3

with sqlite3.connect("shop.db") as shop:
    shop.execute("CREATE TABLE raw_orders (order_id INTEGER, item_id INTEGER, amount INTEGER)")
    shop.execute("CREATE TABLE raw_items (item_id INTEGER, name TEXT)")
    shop.executemany("INSERT INTO raw_orders VALUES (?, ?, ?)", [(n, n % 3, 10 * n) for n in range(1, 21)])
    shop.executemany("INSERT INTO raw_items VALUES (?, ?)", [(0, "cup"), (1, "teapot"), (2, "kettle")])
