"""Existing tables on MySQL or MariaDB: engines without transactions, keys that treat texts as equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ematix_flow.backends.base import TablePlan
from ematix_flow.backends.mysql.backend import MySQLBackend
from ematix_flow.backends.sql.control_tables import LEDGER, WATERMARKS
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.loads import load_rows, new_load, prepare
from tests.contract.mysql_setup import FAMILY, backend_of, sql
from tests.reading import read_table

TEXT = DataType("text")
TABLE = TableSpec(
    None, "codes", (ColumnSpec("code", TEXT, primary_key=True), ColumnSpec("note", TEXT, nullable=True))
)
MATCHING = Matching(keys=("code",), compare=("note",), update=("note",))
ROWS = [{"code": code, "note": code} for code in ("A", "a", "a ", "ä")]


@pytest.fixture(params=FAMILY)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_database")
    return found


@pytest.fixture
def backend(url: str) -> MySQLBackend:
    return backend_of(url)


def planned(backend: MySQLBackend, table: TableSpec = TABLE) -> TablePlan:
    return backend.target().plan_table(table, backend.target().inspect(table))


def merged(backend: MySQLBackend, rows: list[dict[str, Any]], table: TableSpec = TABLE) -> Any:
    return load_rows(backend.target(), new_load(table, "merge", matching=MATCHING), rows)


# --- types -----------------------------------------------------------------------------------------


def test_a_decimal_with_more_places_than_the_server_keeps_is_refused(backend: MySQLBackend) -> None:
    table = replace(TABLE, columns=(ColumnSpec("share", DataType("numeric", precision=38, scale=31)),))
    if backend.target().dialect.is_mariadb:
        prepare(backend.target(), table)
        return
    with pytest.raises(SchemaMismatch, match=r"'share' of codes is Numeric\[38, 31\], and MySQL keeps 30"):
        prepare(backend.target(), table)


# --- engines ---------------------------------------------------------------------------------------


def test_a_table_without_transactions_is_refused_until_its_engine_is_changed(
    url: str, backend: MySQLBackend
) -> None:
    sql(url, "CREATE TABLE codes (code int NOT NULL PRIMARY KEY) ENGINE = MyISAM")
    table = replace(TABLE, columns=(ColumnSpec("code", DataType("integer"), primary_key=True),))
    with pytest.raises(SchemaMismatch, match="MyISAM") as raised:
        prepare(backend.target(), table)
    assert raised.value.next_step is not None
    sql(url, raised.value.next_step)
    load_rows(backend.target(), new_load(table), [{"code": 1}])
    assert read_table(backend, table) == [{"code": 1}]


@pytest.mark.mariadb
def test_aria_has_no_transactions_either(mariadb_database: str) -> None:
    sql(mariadb_database, "CREATE TABLE codes (code int) ENGINE = Aria TRANSACTIONAL = 1")
    with pytest.raises(SchemaMismatch, match="Aria"):
        backend_of(mariadb_database).target().inspect(TABLE)


@pytest.mark.parametrize("control", [LEDGER, WATERMARKS], ids=lambda control: control.name)
def test_a_control_table_without_transactions_is_refused(
    url: str, backend: MySQLBackend, control: TableSpec
) -> None:
    prepare(backend.target(), TABLE)
    name = f"`{control.schema}`.`{control.name}`"
    sql(url, f"DROP TABLE {name}")
    sql(url, f"CREATE TABLE {name} (pipeline int) ENGINE = MyISAM")
    try:
        with pytest.raises(SchemaMismatch, match=rf"{control.name}.*MyISAM") as raised:
            backend.target().change_table(TABLE, TablePlan())
        assert raised.value.next_step == f"ALTER TABLE {name} ENGINE = InnoDB"
    finally:
        sql(url, f"DROP TABLE {name}")
    backend.target().change_table(TABLE, TablePlan())
    assert backend.target().inspect(control) is not None


# --- collations of keys ----------------------------------------------------------------------------


@pytest.mark.parametrize("collation", ["utf8mb4_bin", "utf8mb4_general_ci", "latin1_bin"])
@pytest.mark.parametrize("key", ["PRIMARY KEY (code)", "KEY (code)"])
def test_a_key_of_another_collation_is_refused_and_the_hint_fixes_it(
    url: str, backend: MySQLBackend, collation: str, key: str
) -> None:
    charset = collation.partition("_")[0]
    sql(
        url,
        f"CREATE TABLE codes (code varchar(255) NOT NULL, note longtext, {key}) "
        f"CHARACTER SET {charset} COLLATE {collation}",
    )
    table = TABLE
    if key.startswith("KEY"):
        columns = tuple(replace(c, primary_key=False) for c in TABLE.columns)
        table = replace(TABLE, columns=columns, merge_keys=("code",))
    plan = planned(backend, table)
    (told,) = plan.differences
    assert told in plan.blockers
    assert collation in told
    sql(url, told.partition("By hand: ")[2])
    sql(url, "ALTER TABLE codes MODIFY COLUMN note longtext CHARACTER SET utf8mb4")
    assert planned(backend, table).differences == ()
    assert merged(backend, ROWS[:2], table).rows.inserted == 2
    assert merged(backend, ROWS, table).rows.inserted == 2
    found = read_table(backend, table)
    assert sorted(row["code"] for row in found) == ["A", "a", "a ", "ä"]


def test_a_column_that_is_widened_keeps_its_collation_and_one_that_is_added_has_ours(
    url: str, backend: MySQLBackend
) -> None:
    exact = backend.target().dialect.collation
    sql(
        url,
        f"CREATE TABLE codes (code varchar(20) CHARACTER SET utf8mb4 COLLATE {exact} NOT NULL PRIMARY KEY, "
        "note varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL) "
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    )
    table = replace(TABLE, columns=(*TABLE.columns, ColumnSpec("more", TEXT, nullable=True)))
    actions = {change.action for change in planned(backend, table).changes}
    assert actions == {"add_column", "widen_column", "relax_null"}
    prepare(backend.target(), table)
    found = sql(
        url,
        "SELECT COLUMN_NAME, COLLATION_NAME FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'codes'",
    )
    assert {**dict(found), "code": exact, "note": "utf8mb4_bin", "more": exact} == dict(found)


def test_a_uuid_key_may_have_any_exact_collation(url: str, backend: MySQLBackend) -> None:
    sql(
        url, "CREATE TABLE codes (code char(36) COLLATE utf8mb4_bin NOT NULL PRIMARY KEY, note longtext NULL)"
    )
    table = replace(TABLE, columns=(replace(TABLE.columns[0], type=DataType("uuid")), TABLE.columns[1]))
    rows = [{"code": "12345678-1234-5678-1234-567812345678", "note": "x"}]
    assert merged(backend, rows, table).rows.inserted == 1
    assert merged(backend, [{**rows[0], "note": "y"}], table).rows.updated == 1
