"""Creates the shop's database, with the same generated data on every machine.

python shop_data.py create     create shop.db
python shop_data.py change     a day later: new orders, changed customers, one payment that does not fit
python shop_data.py fix        correct that payment
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

DATABASE = "shop.db"
CUSTOMERS, ORDERS, RETURNS, PAYMENTS = 10_000, 100_000, 2_000, 20_000
NEW_ORDERS, NEW_CUSTOMERS, CHANGED_CUSTOMERS, NEW_PAYMENTS = 500, 25, 120, 300
BAD_CURRENCY = "EURO"

_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n < :last)"

_TABLES = """
    CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, name TEXT, email TEXT, country TEXT);
    CREATE TABLE orders (
        order_id INTEGER PRIMARY KEY, customer_id INTEGER, amount REAL, ordered_at TIMESTAMP
    );
    CREATE TABLE returns (
        return_id INTEGER PRIMARY KEY, order_id INTEGER, reason TEXT, returned_at TIMESTAMP
    );
    CREATE TABLE payments (
        payment_id INTEGER PRIMARY KEY, order_id INTEGER, amount REAL, currency TEXT, paid_at TIMESTAMP
    );
"""
_CUSTOMERS = f"""
    INSERT INTO customers {_NUMBERS}
    SELECT n, 'Customer ' || n,
           CASE WHEN n % 50 = 0 THEN '  ' ELSE ' Customer.' || n || '@Example.COM ' END,
           substr('DEFRESITNLPLATBE', 1 + 2 * (n % 8), 2)
    FROM numbers
"""
_ORDERS = f"""
    INSERT INTO orders {_NUMBERS}
    SELECT n, 1 + n * 7919 % {CUSTOMERS}, (500 + n * 37 % 49500) / 100.0,
           datetime('2025-01-01', '+' || (5 * n) || ' minutes')
    FROM numbers
"""
_RETURNS = f"""
    INSERT INTO returns {_NUMBERS}
    SELECT n, n * 50, CASE n % 4 WHEN 0 THEN NULL WHEN 1 THEN 'too small' WHEN 2 THEN 'too large'
           ELSE 'changed my mind' END, datetime('2025-01-08', '+' || (250 * n) || ' minutes')
    FROM numbers
"""
_PAYMENTS = f"""
    INSERT INTO payments {_NUMBERS}
    SELECT n, n * 5, (500 + n * 185 % 49500) / 100.0, CASE WHEN n % 10 = 0 THEN 'USD' ELSE 'EUR' END,
           datetime('2025-01-02', '+' || (25 * n) || ' minutes')
    FROM numbers
"""


def create(database: str = DATABASE) -> None:
    """Create the first state of the shop. SQLite raises an error if the tables exist."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(_TABLES)
        for statement, last in (
            (_CUSTOMERS, CUSTOMERS),
            (_ORDERS, ORDERS),
            (_RETURNS, RETURNS),
            (_PAYMENTS, PAYMENTS),
        ):
            connection.execute(statement, {"first": 1, "last": last})


def change(database: str = DATABASE) -> None:
    """Change the data as of a day later. There is no new return."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for statement, known, new in (
            (_CUSTOMERS, CUSTOMERS, NEW_CUSTOMERS),
            (_ORDERS, ORDERS, NEW_ORDERS),
            (_PAYMENTS, PAYMENTS, NEW_PAYMENTS),
        ):
            connection.execute(statement, {"first": known + 1, "last": known + new})
        connection.execute(
            "UPDATE customers SET email = 'moved.' || customer_id || '@example.org' WHERE customer_id <= ?",
            (CHANGED_CUSTOMERS,),
        )
        connection.execute(
            "UPDATE payments SET currency = ? WHERE payment_id = ?", (BAD_CURRENCY, PAYMENTS + 150)
        )


def fix(database: str = DATABASE) -> None:
    """Correct the payment that does not fit."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE payments SET currency = 'EUR' WHERE currency = ?", (BAD_CURRENCY,))


if __name__ == "__main__":
    actions = {"create": create, "change": change, "fix": fix}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(__doc__)
    actions[sys.argv[1]]()
