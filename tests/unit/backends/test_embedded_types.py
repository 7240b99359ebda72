"""Type names of SQLite and DuckDB, both ways."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from ematix_flow.backends.duckdb.column_types import export_cast, source_type
from ematix_flow.backends.duckdb.dialect import DuckDBDialect
from ematix_flow.backends.duckdb.shared_connections import catalog_name
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.backends.sqlite import column_types as sqlite_types
from ematix_flow.backends.sqlite.dialect import SQLiteDialect, table_name
from ematix_flow.spec.types import KINDS, DataType

SPECIAL = {
    "string": DataType("string", length=7),
    "numeric": DataType("numeric", precision=12, scale=3),
}
EVERY = [SPECIAL.get(kind) or DataType(kind) for kind in KINDS] + [DataType("numeric", precision=38, scale=9)]


@pytest.mark.parametrize("data_type", EVERY, ids=str)
@pytest.mark.parametrize("dialect", [SQLiteDialect(), DuckDBDialect("w")], ids=["sqlite", "duckdb"])
def test_a_table_we_made_holds_the_type_it_was_made_for(dialect: SqlDialect, data_type: DataType) -> None:
    native = dialect.native_type(data_type)
    live = dialect.canonical_type(native)
    assert live is not None
    assert dialect.can_hold(data_type, live, native)


@pytest.mark.parametrize(
    ("native", "declared", "held"),
    [
        ("INTEGER", DataType("big_int"), True),  # 64 bits wide in SQLite
        ("INT", DataType("small_int"), True),
        ("SMALLINT", DataType("big_int"), False),
        ("INTEGER", DataType("text"), False),
        ("INTEGER", DataType("boolean"), False),
        ("TEXT", DataType("timestamp"), True),
        ("DATETIME", DataType("timestamp"), True),
        ("DATETIME", DataType("date"), False),
        ("TEXT", DataType("string", length=9), True),
        ("VARCHAR(5)", DataType("string", length=9), False),
        ("VARCHAR(9)", DataType("text"), False),
        ("NUMERIC", DataType("numeric", precision=15, scale=2), True),
        ("NUMERIC", DataType("numeric", precision=18, scale=2), False),  # would lose digits
        ("NUMERIC(10,2)", DataType("numeric", precision=10, scale=3), False),
        ("TEXT", DataType("numeric", precision=10, scale=2), False),  # would be ordered as text
        ("JSON", DataType("json"), True),
        ("", DataType("double"), True),
        ("REAL", DataType("float"), True),
        ("REAL", DataType("big_int"), False),
    ],
)
def test_a_table_someone_else_made_in_sqlite_is_judged_by_what_it_keeps(
    native: str, declared: DataType, held: bool
) -> None:
    assert sqlite_types.holds(declared, native) is held


@pytest.mark.parametrize(
    ("native", "kind"),
    [
        ("INTEGER", "big_int"),
        ("VARCHAR(10)", "text"),
        ("float", "double"),
        ("double  precision", "double"),
        ("BLOB", None),
        ("", None),
        ("NUM", None),
        ("BOOLEAN", "boolean"),
    ],
)
def test_a_source_column_of_sqlite_is_read_as_widely_as_sqlite_keeps_it(
    native: str, kind: str | None
) -> None:
    found = sqlite_types.source_type(native)
    assert (found.kind if found else None) == kind


def test_schemas_become_part_of_a_table_name_in_sqlite() -> None:
    assert table_name("analytics", "orders") == "analytics__orders"
    assert table_name("main", "orders") == table_name(None, "orders") == "orders"


@pytest.mark.parametrize(
    "name", ["sales.duckdb", "main.db", "Temp", ".hidden", "a.b.c", "we ird'\"x.db", "ünï.duckdb", "..x.y"]
)
def test_the_catalog_is_named_as_duckdb_names_it(tmp_path: Path, name: str) -> None:
    with duckdb.connect(str(tmp_path / name)) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == (catalog_name(tmp_path / name),)


def test_every_type_of_a_duckdb_query_has_a_meaning() -> None:
    sql = """SELECT 1::TINYINT a, 1::UBIGINT b, 1::HUGEINT c, TIME '10:00' d, INTERVAL 1 DAY e, [1] f,
             {'x': 1} g, MAP {'k': 1} h, 'a'::ENUM('a') i, NULL j, '1'::BIT k, TIMESTAMP_NS '2024-01-01' l,
             1.5::DECIMAL(4,1) m, [[1]] n, TIMETZ '10:00:00+01' o"""
    with duckdb.connect() as connection:
        natives = {name: native for name, native, *_ in connection.execute(f"DESCRIBE {sql}").fetchall()}
    kinds = {name: str(source_type(native)) for name, native in natives.items()}
    assert kinds == {
        **{"a": "SmallInt", "b": "Numeric[20, 0]", "c": "Numeric[38, 0]", "d": "Text", "e": "Text"},
        **{"f": "JSON", "g": "JSON", "h": "JSON", "i": "Text", "j": "Text", "k": "Text"},
        **{"l": "Timestamp", "m": "Numeric[4, 1]", "n": "JSON", "o": "Text"},
    }
    assert {name for name, native in natives.items() if export_cast(native)} == set("cdefghijkno")
