"""A declared table against a live one: what is changed, what is refused, and the SQL of both. No database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ematix_flow.backends.base import LiveTable
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.sql.alterations import CannotAlter, alter_table_changes
from ematix_flow.backends.sql.create_table import create_table_sql, unique_groups
from ematix_flow.backends.sql.rebuild import CreateTableStatement, rebuild_changes
from ematix_flow.backends.sql.table_diff import TableDiff, compare_tables
from ematix_flow.backends.sql.table_plans import matching_by_key
from ematix_flow.backends.sql.type_widening import takes_exactly_or_rejects, widens
from ematix_flow.backends.sqlite.dialect import SQLiteDialect
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

SMALL, INT, BIG = DataType("small_int"), DataType("integer"), DataType("big_int")
FLOAT, DOUBLE, TEXT = DataType("float"), DataType("double"), DataType("text")
DATE, MOMENT, ZONED = DataType("date"), DataType("timestamp"), DataType("timestamp_tz")
POSTGRES = PostgresDialect()


def string(length: int) -> DataType:
    return DataType("string", length=length)


def numeric(precision: int, scale: int) -> DataType:
    return DataType("numeric", precision=precision, scale=scale)


@pytest.mark.parametrize(
    ("live", "declared", "expected"),
    [
        (SMALL, INT, True),
        (SMALL, BIG, True),
        (INT, BIG, True),
        (BIG, INT, False),
        (FLOAT, DOUBLE, True),
        (DOUBLE, FLOAT, False),
        (INT, DOUBLE, False),
        (string(5), string(6), True),
        (string(6), string(5), False),
        (string(5), TEXT, True),
        (TEXT, string(5), False),
        (numeric(6, 2), numeric(7, 2), True),
        (numeric(6, 2), numeric(7, 3), True),
        (numeric(6, 2), numeric(6, 3), False),  # one digit less before the point
        (numeric(6, 2), numeric(6, 1), False),
        (SMALL, numeric(5, 0), True),
        (SMALL, numeric(5, 1), False),
        (INT, numeric(10, 0), True),
        (INT, numeric(9, 0), False),
        (BIG, numeric(21, 2), True),
        (BIG, numeric(20, 2), False),
        (numeric(5, 0), BIG, False),
        (DATE, MOMENT, False),
        (MOMENT, ZONED, False),
        (DataType("json"), DataType("jsonb"), False),
        (TEXT, DataType("uuid"), False),
        (DataType("boolean"), INT, False),
    ],
    ids=str,
)
def test_a_type_widens_only_what_it_holds_whole(live: DataType, declared: DataType, expected: bool) -> None:
    assert widens(live, declared) is expected
    assert widens(live, live)


@pytest.mark.parametrize(
    ("live", "declared", "expected"),
    [
        (INT, BIG, True),  # out of range is an error
        (string(5), TEXT, True),
        (numeric(6, 2), numeric(8, 2), True),
        (numeric(6, 2), numeric(8, 3), False),  # rounded in silence
        (FLOAT, DOUBLE, False),
        (DOUBLE, FLOAT, True),
        (TEXT, BIG, False),
    ],
    ids=str,
)
def test_a_narrow_column_refuses_or_changes_what_does_not_fit(
    live: DataType, declared: DataType, expected: bool
) -> None:
    assert takes_exactly_or_rejects(live, declared) is expected


def declared(*columns: ColumnSpec, **options: Any) -> TableSpec:
    return TableSpec("shop", "orders", (ColumnSpec("id", BIG, primary_key=True), *columns), **options)


def live(*columns: ColumnSpec, **options: Any) -> LiveTable:
    every = (ColumnSpec("id", BIG, primary_key=True), *columns)
    native = {c.name: POSTGRES.native_type(c.type).lower() for c in every}
    spelled = {"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone"}
    native = {name: spelled.get(text, text) for name, text in native.items()}
    return LiveTable(
        every,
        ("id",),
        **{"native": native, "drop_clauses": {("id",): 'DROP CONSTRAINT "orders_pkey"'}, **options},
    )


def compared(wanted: TableSpec, there: LiveTable, *answers: list[tuple[Any, ...]]) -> TableDiff:
    given = iter(answers)
    return compare_tables(POSTGRES, wanted, there, matching_by_key(wanted), lambda _: next(given, []))


@pytest.mark.parametrize(
    ("there", "item", "sql"),
    [
        (None, ColumnSpec("c", TEXT, nullable=True), ['ADD COLUMN "c" TEXT']),
        (ColumnSpec("c", INT), ColumnSpec("c", BIG), ['ALTER COLUMN "c" TYPE BIGINT']),
        (ColumnSpec("c", TEXT), ColumnSpec("c", TEXT, nullable=True), ['ALTER COLUMN "c" DROP NOT NULL']),
        (
            ColumnSpec("c", string(5)),
            ColumnSpec("c", TEXT, nullable=True),
            ['ALTER COLUMN "c" TYPE TEXT', 'ALTER COLUMN "c" DROP NOT NULL'],
        ),
        (ColumnSpec("c", TEXT), ColumnSpec("c", TEXT), []),
    ],
)
def test_a_change_that_loses_nothing_is_an_alter(
    there: ColumnSpec | None, item: ColumnSpec, sql: list[str]
) -> None:
    diff = compared(declared(item), live(*[there] if there else []))
    assert diff.differences == []
    assert [c.sql for c in alter_table_changes(POSTGRES, diff)] == [
        f'ALTER TABLE "shop"."orders" {text}' for text in sql
    ]


@pytest.mark.parametrize(
    ("there", "item", "told"),
    [
        (ColumnSpec("c", BIG), ColumnSpec("c", INT), "'c' is bigint in the table, declared as Integer"),
        (ColumnSpec("c", BIG), ColumnSpec("c", INT), 'TYPE INTEGER USING CAST("c" AS INTEGER)'),
        (ColumnSpec("c", DATE), ColumnSpec("c", MOMENT), "declared as Timestamp (another kind of value)"),
        (ColumnSpec("c", DataType("json")), ColumnSpec("c", DataType("jsonb")), "declared as JSONB"),
        (ColumnSpec("c", TEXT, nullable=True), ColumnSpec("c", TEXT), 'ALTER COLUMN "c" SET NOT NULL'),
        (ColumnSpec("other", TEXT), None, "'other' of the table is not null and not declared"),
    ],
)
def test_a_change_that_could_lose_is_refused_in_words(
    there: ColumnSpec, item: ColumnSpec | None, told: str
) -> None:
    diff = compared(declared(*[item] if item else []), live(there))
    assert not diff.has_changes
    (text,) = diff.differences
    assert told in text


def test_a_column_that_a_view_uses_is_not_widened() -> None:
    there = replace(live(ColumnSpec("c", INT)), pinned={"c": "the view shop.v uses it"})
    (told,) = compared(declared(ColumnSpec("c", BIG)), there).differences
    assert "the view shop.v uses it" in told


def test_a_key_in_another_order_is_the_same_key() -> None:
    wanted = TableSpec(
        "s", "t", (ColumnSpec("a", BIG, primary_key=True), ColumnSpec("b", BIG, primary_key=True))
    )
    there = LiveTable(wanted.columns, ("b", "a"), native={"a": "bigint", "b": "bigint"})
    assert compared(wanted, there).differences == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"merge_keys": ("a",)}, (("a",),)),
        ({"merge_keys": ("id",)}, ()),
        ({"merge_keys": ("id", "a")}, ()),  # the primary key makes it unique already
        ({"merge_keys": ("a", "b"), "unique": (("b", "a"),)}, (("b", "a"),)),
        ({"unique": (("id",), ("a",))}, (("a",),)),
        ({"natural_keys": (("a",),), "unique": (("a",),)}, (("a",),)),
    ],
)
def test_keys_that_rows_are_merged_by_are_unique_once(options: Any, expected: Any) -> None:
    table = declared(ColumnSpec("a", BIG), ColumnSpec("b", BIG), **options)
    assert unique_groups(table) == expected
    assert create_table_sql(POSTGRES, table).count("UNIQUE") == len(expected)


def test_rows_become_versions_in_an_order_that_survives_a_crash() -> None:
    table = declared(ColumnSpec("c", TEXT, nullable=True), keeps="versions", merge_keys=("id",))
    loaded = (ColumnSpec("_loaded_at", ZONED), ColumnSpec("_batch_id", DataType("uuid")))
    there = live(ColumnSpec("c", TEXT, nullable=True), *loaded)
    diff = compared(table.with_load_columns(), there)
    changes = alter_table_changes(POSTGRES, diff)
    assert [c.action for c in changes] == ["add_column"] * 4 + ["fill", "change_key"]
    assert not any("NOT NULL" in c.sql for c in changes[:4])
    assert 'ADD PRIMARY KEY ("id", "valid_from")' in changes[-1].sql
    half_way = replace(
        there,
        columns=(*there.columns, *[replace(c, nullable=True) for c in diff.added]),
        native={**there.native, **{c.name: _live_name(c.type) for c in diff.added}},
    )
    rest = alter_table_changes(POSTGRES, compared(table.with_load_columns(), half_way))
    assert [c.action for c in rest] == ["fill", "change_key"]
    assert rest[-1].sql == changes[-1].sql


def _live_name(data_type: DataType) -> str:
    return {"timestamp_tz": "timestamp with time zone", "boolean": "boolean"}.get(data_type.kind, "bytea")


def test_a_unique_index_that_no_constraint_owns_is_left_to_a_person() -> None:
    columns = (
        ColumnSpec("k", BIG),
        ColumnSpec("_loaded_at", ZONED),
        ColumnSpec("_batch_id", DataType("uuid")),
    )
    table = TableSpec("shop", "orders", columns, merge_keys=("k",), keeps="versions").with_load_columns()
    natives = {"k": "bigint", "_loaded_at": "timestamp with time zone", "_batch_id": "uuid"}
    there = LiveTable(columns, (), (("k",),), natives)
    diff = compare_tables(
        POSTGRES, table, there, replace(matching_by_key(table), keys=("k",), compare=()), lambda _: []
    )
    with pytest.raises(CannotAlter, match="without a constraint"):
        alter_table_changes(POSTGRES, diff)


# ------------------------------------------------------------------ tables that are rebuilt


def test_definitions_are_cut_where_the_statement_says_so() -> None:
    created = CreateTableStatement.parse(
        'CREATE TABLE "t, (x" ("a,b" TEXT DEFAULT (\'(,\') , -- a comment, here\n'
        " check_in DATE, [c d] INT CHECK ([c d] IN (1, 2)), CHECK (check_in > '2000'),"
        ' PRIMARY KEY ("a,b")) WITHOUT ROWID'
    )
    assert [d.words[0] for d in created.elements] == ["a,b", "check_in", "c d", "check", "primary"]
    assert [d.is_column for d in created.elements] == [True, True, True, False, False]
    assert created.tail == "WITHOUT ROWID"


def _sqlite_diff(created: str, wanted: ColumnSpec, there: ColumnSpec, native: str) -> list[str]:
    dialect = SQLiteDialect()
    table = TableSpec(None, "t", (wanted,))
    diff = compare_tables(
        dialect,
        table,
        LiveTable((there,), native={there.name: native}, limits={there.name: there.type}),
        matching_by_key(table),
        lambda _: [],
    )
    return [
        c.sql
        for c in rebuild_changes(dialect, diff, CreateTableStatement.parse(created), ["AGAIN"], "BEFORE")
    ]


def test_a_rebuilt_table_keeps_every_word_that_does_not_change() -> None:
    there, wanted = ColumnSpec("n", string(5)), ColumnSpec("n", string(9))
    check = SQLiteDialect().column_constraint(there)
    others = "x INT DEFAULT 7 COLLATE NOCASE, CHECK (x > 0)"
    created = f'CREATE TABLE t ("n" VARCHAR(5) NOT NULL {check}, {others}) STRICT'
    sql = _sqlite_diff(created, wanted, there, "VARCHAR(5)")
    assert "x INT DEFAULT 7 COLLATE NOCASE" in sql[0]
    assert "CHECK (x > 0)" in sql[0] and sql[0].endswith(") STRICT")
    assert "VARCHAR(9) NOT NULL" in sql[0] and "at most 9 characters" in sql[0]
    assert sql[2:] == [
        'DROP TABLE "main"."t"',
        "BEFORE",
        'ALTER TABLE "main"."_ematix_new_t" RENAME TO "t"',
        "AGAIN",
    ]


def test_a_definition_by_hand_that_would_have_to_change_is_refused() -> None:
    there, wanted = ColumnSpec("n", string(5)), ColumnSpec("n", string(9))
    with pytest.raises(CannotAlter, match="COLLATE NOCASE"):
        _sqlite_diff("CREATE TABLE t (n VARCHAR(5) COLLATE NOCASE)", wanted, there, "VARCHAR(5)")
