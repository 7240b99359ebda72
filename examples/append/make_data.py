"""Adds three page views to shop.db, newer than those that are there."""

import sqlite3

with sqlite3.connect("shop.db") as shop:
    shop.execute("CREATE TABLE IF NOT EXISTS raw_views (view_id INTEGER, page TEXT, seen_at TIMESTAMP)")
    (there,) = shop.execute("SELECT count(*) FROM raw_views").fetchone()
    for number in range(there + 1, there + 4):
        shop.execute("INSERT INTO raw_views VALUES (?, '/', ?)", (number, f"2026-01-01 08:{number:02}:00"))
