"""Statements on lake tables: names are resolved, one change of rows at a time, all else refused."""

from __future__ import annotations

import pytest

from ematix_flow.backends.lake.statements import resolve_tables
from ematix_flow.errors import Unsupported


def placed(sql: str) -> tuple[str, str]:
    found = resolve_tables(sql, lambda name: f"<{'/'.join(name)}>")
    return found.sql, ".".join(found.changed_table)


@pytest.mark.parametrize(
    ("sql", "expected", "written"),
    [
        (
            "UPDATE sales.orders SET note = 'FROM x' WHERE sales.orders.id = 1",
            "UPDATE <sales/orders> AS `orders` SET note = 'FROM x' WHERE orders.id = 1",
            "sales.orders",
        ),
        (
            "DELETE FROM orders AS o WHERE o.id IN (SELECT id FROM gone)",
            "DELETE FROM <orders> AS o WHERE o.id IN (SELECT id FROM <gone> AS `gone`)",
            "orders",
        ),
        (
            "MERGE INTO orders t USING (SELECT * FROM new.orders VERSION AS OF 3) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            "MERGE INTO <orders> t USING (SELECT * FROM <new/orders> VERSION AS OF 3 AS `orders`) s ON "
            "t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            "orders",
        ),
        (
            "INSERT INTO sales.daily (day, n) SELECT day, 1 FROM sales.orders",
            "INSERT INTO <sales/daily> (day, n) SELECT day, 1 FROM <sales/orders> AS `orders`",
            "sales.daily",
        ),
        (
            "INSERT OVERWRITE daily WITH x AS (SELECT * FROM a) SELECT * FROM x;",
            "INSERT OVERWRITE <daily> WITH x AS (SELECT * FROM <a> AS `a`) SELECT * FROM x;",
            "daily",
        ),
        ("DELETE FROM `odd ``name`", "DELETE FROM <odd `name> AS `odd ``name`", "odd `name"),
    ],
)
def test_only_the_names_of_tables_change(sql: str, expected: str, written: str) -> None:
    assert placed(sql) == (expected, written)


@pytest.mark.parametrize(
    "sql",
    [
        "OPTIMIZE sales.orders",
        "VACUUM sales.orders",
        "DROP TABLE sales.orders",
        "ALTER TABLE sales.orders ADD COLUMN x INT",
        "SELECT * FROM sales.orders",
        "UPDATE a SET x = 1; DELETE FROM b",
        "UPDATE a SETT x = 1",
        "",
    ],
)
def test_what_is_no_one_change_of_rows_is_refused(sql: str) -> None:
    with pytest.raises(Unsupported, match="one INSERT, UPDATE, DELETE or MERGE"):
        placed(sql)
