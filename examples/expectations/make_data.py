"""Write the orders of the shop, or with the word "corrected" correct the order that is in quarantine."""

import sqlite3
import sys

with sqlite3.connect("shop.db") as shop:
    if sys.argv[1:] == ["corrected"]:
        shop.execute("UPDATE clean_orders__quarantine SET amount = 5 WHERE order_id = 2")
    else:
        shop.execute("CREATE TABLE orders (order_id INTEGER, amount INTEGER, email TEXT)")
        shop.executemany(
            "INSERT INTO orders VALUES (?, ?, ?)",
            [(1, 25, "ada@a.org"), (2, -5, "bob@b.org"), (3, 7, "eve"), (4, 9, "dan@d.org")],
        )
shop.close()
