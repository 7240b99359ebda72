"""Writes one file of orders, and what the stream looks up: customers in SQLite, products in a CSV file."""

import json
import sqlite3
from pathlib import Path

ORDERS = [
    {"order_id": 1, "customer_id": 1, "product": "cup", "quantity": 4},
    {"order_id": 2, "customer_id": 2, "product": "pot", "quantity": 1},
    {"order_id": 3, "customer_id": 9, "product": "cup", "quantity": 2},
]

incoming, catalog = Path("incoming/orders"), Path("catalog/products")
for folder in (incoming, catalog):
    folder.mkdir(parents=True, exist_ok=True)
(incoming / "orders.json").write_text("".join(json.dumps(order) + "\n" for order in ORDERS))
(catalog / "products.csv").write_text("product,price\ncup,2.50\npot,24.90\n")

with sqlite3.connect("crm.db") as crm:
    crm.execute("CREATE TABLE IF NOT EXISTS customers (customer_id INTEGER PRIMARY KEY, tier TEXT)")
    crm.execute("INSERT OR REPLACE INTO customers VALUES (1, 'gold'), (2, 'silver')")
