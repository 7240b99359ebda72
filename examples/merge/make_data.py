"""Three customers in shop.db; with `later` one moves, one leaves, one comes."""

import sqlite3
import sys

with sqlite3.connect("shop.db") as shop:
    if "later" in sys.argv:
        shop.execute("UPDATE customers SET email = 'ada@new.org' WHERE customer_id = 1")
        shop.execute("DELETE FROM customers WHERE customer_id = 2")
        shop.execute("INSERT INTO customers VALUES (4, 'dan@d.org', 'Dan')")
    else:
        shop.execute("CREATE TABLE customers (customer_id INTEGER, email TEXT, name TEXT)")
        shop.execute(
            "INSERT INTO customers VALUES (1, 'ada@a.org', 'Ada'),"
            " (2, 'bob@b.org', 'Bob'), (3, 'eve@e.org', NULL)"
        )
