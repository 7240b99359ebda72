"""Probes from declared tables: what becomes an assertion, and what a class must have."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ematix_flow import Annotated, BigInt, ManagedTable, Text, TimestampTZ, ematix, natural_key, pk
from ematix_probe import probe_from_table, source
from ematix_probe.errors import DeclarationError

SHOP = source.sqlite("shop.db")


def column(name: str, **facts: Any) -> SimpleNamespace:
    return SimpleNamespace(name=name, **facts)


def table_of(*columns: object, **named: Any) -> type:
    return type("Customers", (), {"__tablename__": "customers", "columns": columns, **named})


def names(table: object, **options: Any) -> list[str]:
    return probe_from_table(table, source=SHOP, **options).assertion_names()


class Customers(ManagedTable):
    """Who buys."""

    __schema__ = "main"
    __unique_constraints__ = (("email", "country"),)

    id: Annotated[BigInt, pk()]
    email: Text
    country: Text | None
    tax_number: Annotated[Text | None, natural_key()]


@ematix.table(schema="main", name="order_lines")
class OrderLines:
    order_id: Annotated[BigInt, pk()]
    line: Annotated[BigInt, pk()]
    note: Text | None


def test_a_managed_table_gives_not_null_key_unique_constraints_and_natural_keys() -> None:
    made = probe_from_table(Customers, source=SHOP)
    assert made.assertion_names() == [
        "id.not_null",
        "email.not_null",
        "id.unique",
        "unique_group(email, country)",
        "tax_number.unique",
    ]
    assert (made.name, made.schema, made.table, made.plan().description) == (
        *("customers", "main", "customers"),
        "Who buys.",
    )
    assert (made.plan().where or "").startswith(__file__)


def test_a_decorated_table_gives_one_unique_over_a_key_of_two_columns() -> None:
    assert names(OrderLines) == ["order_id.not_null", "line.not_null", "unique_group(order_id, line)"]


def test_the_probe_of_a_table_runs_on_its_rows(shop: Path) -> None:
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.executescript(
            "CREATE TABLE order_lines (order_id, line, note);"
            "INSERT INTO order_lines VALUES (1, 1, NULL), (1, 1, 'x'), (1, NULL, 'y');"
        )
    report = probe_from_table(OrderLines, source=SHOP, extend=lambda t: t.row_count(at_least=3)).run()
    assert [(each.name, each.verdict, each.failing) for each in report.assertions] == [
        ("order_id.not_null", "pass", 0),
        ("line.not_null", "fail", 1),
        ("unique_group(order_id, line)", "fail", 2),
        ("row_count", "pass", None),
    ]


def test_extend_adds_to_what_is_declared_and_names_can_be_given() -> None:
    def more(t: Any) -> None:
        t.column("email").regex("@")

    made = probe_from_table(
        OrderLines, source=SHOP, extend=more, name="lines", schema="other", table="lines_2"
    )
    assert made.assertion_names()[-1] == "email.regex"
    assert (made.name, made.schema, made.table) == ("lines", "other", "lines_2")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([column("id", primary_key=True)], ["id.not_null", "id.unique"]),
        ([column("id", is_primary_key=True, nullable=True)], ["id.not_null", "id.unique"]),
        ([column("a", nullable=False), column("b", nullable=True), column("c")], ["a.not_null"]),
        ([column("a", not_null=True)], ["a.not_null"]),
    ],
)
def test_columns_of_other_frameworks_say_what_they_are(columns: list[object], expected: list[str]) -> None:
    assert names(table_of(*columns)) == expected


def test_columns_may_be_a_mapping_and_constraints_name_one_column() -> None:
    keyed = table_of(__unique_constraints__=["b", ("b",), ("a", "b"), ("b", "a")])
    keyed.columns = {"a": column("a"), "b": column("b")}  # type: ignore[attr-defined]
    assert names(keyed) == ["b.unique", "unique_group(a, b)"]


def test_a_table_of_sqlalchemy_takes_part() -> None:
    import sqlalchemy as sa

    table = sa.Table(
        "orders",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("note", sa.Text),
    )
    declared = type("Orders", (), {"__tablename__": "orders", "columns": table.columns})
    assert names(declared) == ["id.not_null", "id.unique"]


VERSIONS = (
    column("id", primary_key=True),
    column("valid_from", primary_key=True),
    column("is_current", nullable=False),
)


def test_a_table_of_versions_has_one_current_row_for_a_key() -> None:
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.executescript(
            "CREATE TABLE customers (id, valid_from, is_current BOOLEAN);"
            "INSERT INTO customers VALUES (1, 1, 0), (1, 2, 1), (2, 1, 1), (2, 3, 1);"
        )
    made = probe_from_table(table_of(*VERSIONS), source=SHOP)
    assert made.assertion_names()[-1] == "id.unique where is_current"
    unique = made.run().assertions[-1]
    assert (unique.verdict, unique.failing, unique.checked) == ("fail", 2, 3)
    every = probe_from_table(table_of(*VERSIONS), source=SHOP, current_only=False)
    assert every.assertion_names()[-1] == "unique_group(id, valid_from)"
    assert every.run().assertions[-1].verdict == "pass"


def test_the_target_of_an_scd2_pipeline_is_limited_to_current_rows_on_demand() -> None:
    class History(ManagedTable):
        id: Annotated[BigInt, pk()]
        seen_at: TimestampTZ

    (unique,) = (
        each
        for each in probe_from_table(History, source=SHOP, current_only=True).plan().assertions
        if each.kind == "unique"
    )
    assert unique.options.where == "is_current"


@pytest.mark.parametrize(
    ("declared", "what"),
    [
        (type("Plain", (), {}), "Plain has no __tablename__"),
        (ManagedTable, "ManagedTable has no __tablename__"),
        (type("T", (), {"__tablename__": "t"}), "T has no columns that can be listed"),
        (type("T", (), {"__tablename__": "t", "columns": "id"}), "T has no columns that can be listed"),
        (type("T", (), {"__tablename__": "t", "columns": ()}), "T has no columns"),
        (table_of("id"), "a column without a name: 'id'"),
        (table_of(column("a")), "Customers declares nothing to check"),
        (table_of(column("a"), __unique_constraints__=[("b",)]), "names 'b', which is not a column"),
        (table_of(column("a"), __unique_constraints__="a"), "lists groups of columns, not 'a'"),
    ],
)
def test_what_is_no_table_is_refused_with_the_users_line(declared: Any, what: str) -> None:
    with pytest.raises(DeclarationError, match=what) as raised:
        probe_from_table(declared, source=SHOP)
    assert (raised.value.where or "").startswith(__file__)


def test_a_source_of_one_file_is_the_table_under_any_name(shop: Path) -> None:
    Path("export-2026.csv").write_text("order_id,line,note\n1,1,\n1,2,x\n")
    report = probe_from_table(OrderLines, source=source.csv("export-2026.csv")).run()
    assert (report.verdict, report.table) == ("pass", "export-2026.csv")
