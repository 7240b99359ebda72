"""Adds two orders to shop.db."""

import sqlite3

with sqlite3.connect("shop.db") as shop:
    shop.execute("CREATE TABLE IF NOT EXISTS orders (product TEXT, amount REAL)")
    shop.execute("INSERT INTO orders VALUES ('cup', 7.5), ('teapot', 24.9)")
