"""Three orders in shop.db."""

import sqlite3

with sqlite3.connect("shop.db") as shop:
    shop.execute("CREATE TABLE raw_orders (order_id INTEGER, product TEXT, amount REAL)")
    shop.execute("INSERT INTO raw_orders VALUES (1, 'cup', 7.5), (2, 'teapot', 24.9), (3, 'cup', 7.5)")
