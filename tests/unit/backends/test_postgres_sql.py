"""The parts of the PostgreSQL backend that need no server: types, constants, names and texts."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import subprocess
import sys
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from ematix_flow.backends.postgres.address import connect_error, parse_address
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.postgres.failures import caret_lines
from ematix_flow.backends.postgres.lock import lock_key
from ematix_flow.backends.postgres.result_types import ResultColumn, column_export, numeric_type
from ematix_flow.backends.postgres.source import PostgresSource, parse_table_name
from ematix_flow.backends.postgres.source_sql import parse_plain_select
from ematix_flow.backends.postgres.staging import part_number
from ematix_flow.backends.postgres.staging_table import staging_prefix, wire_type
from ematix_flow.errors import PlanError, SourceFailed
from ematix_flow.spec.connections import PostgresConnection
from ematix_flow.spec.types import KINDS, DataType
from ematix_flow.strategies.sql import column

DIALECT = PostgresDialect()
SIZES = {"string": {"length": 7}, "numeric": {"precision": 12, "scale": 3}}
TYPES = [DataType(kind, **SIZES.get(kind, {})) for kind in KINDS]


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_a_declared_type_is_found_again_in_the_live_table(data_type: DataType) -> None:
    assert DIALECT.canonical_type(DIALECT.native_type(data_type)) == data_type


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ("character varying(20)", "String[20]"),
        ("character varying", "Text"),
        ("numeric(10,2)", "Numeric[10, 2]"),
        ("timestamp without time zone", "Timestamp"),
        ("timestamp with time zone", "TimestampTZ"),
        ("numeric", None),
        ("numeric(50,2)", None),
        ("numeric(5,-2)", None),
        ("numeric(3,5)", None),
        ("timestamp(3) without time zone", None),
        ("character(5)", None),
        ("integer[]", None),
        ("inet", None),
    ],
)
def test_a_live_type_is_only_taken_for_what_it_holds(native: str, expected: str | None) -> None:
    found = DIALECT.canonical_type(native)
    assert (str(found) if found else None) == expected


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (5, "big_int", "CAST('5' AS BIGINT)"),
        (-5, "small_int", "CAST('-5' AS SMALLINT)"),
        (decimal.Decimal("1E+3"), "numeric", "CAST('1000' AS DECIMAL)"),
        (True, "boolean", "CAST('true' AS BOOLEAN)"),
        (dt.date(2024, 2, 29), "date", "CAST('2024-02-29' AS DATE)"),
        (dt.datetime(2024, 1, 1, 2, 3, 4, 5), "timestamp", "CAST('2024-01-01T02:03:04.000005' AS TIMESTAMP)"),
        (
            dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            "timestamp_tz",
            "CAST('2023-12-31T22:00:00+00:00' AS TIMESTAMPTZ)",
        ),
        ("it's \\ %s", "text", "CAST('it''s \\ %s' AS TEXT) COLLATE \"C\""),
        ("x", "string", "CAST('x' AS TEXT) COLLATE \"C\""),
        (b"\x00'", "bytes", "CAST('\\x0027' AS BYTEA)"),
        (float("-inf"), "double", "CAST('-Infinity' AS DOUBLE PRECISION)"),
        (0.1, "float", "CAST('0.1' AS REAL)"),
        (None, "text", "CAST(NULL AS TEXT)"),
    ],
)
def test_constants_carry_their_type_and_stay_values(value: Any, kind: str, expected: str) -> None:
    data_type = DataType(kind, **SIZES.get(kind, {}))
    assert DIALECT.render(DIALECT.literal(value, data_type)) == expected


def test_json_and_uuids_are_compared_as_text_and_text_by_code_point() -> None:
    compared = {
        kind: DIALECT.render(DIALECT.comparable(column("a"), DataType(kind)))
        for kind in ("jsonb", "text", "date")
    }
    assert compared == {"jsonb": 'CAST("a" AS TEXT) COLLATE "C"', "text": '"a" COLLATE "C"', "date": '"a"'}


@pytest.mark.parametrize(
    ("typmod", "expected"),
    [
        (-1, None),
        (((10 << 16) | 2) + 4, "Numeric[10, 2]"),
        (((5 << 16) | (-2 & 0x7FF)) + 4, "Numeric[7, 0]"),
        (((3 << 16) | 5) + 4, "Numeric[5, 5]"),
        (((39 << 16) | 0) + 4, None),
    ],
)
def test_the_type_modifier_of_a_numeric_is_read(typmod: int, expected: str | None) -> None:
    found = numeric_type(typmod)
    assert (str(found) if found else None) == expected


def test_a_type_without_data_is_refused_by_name() -> None:
    with pytest.raises(SourceFailed, match=r"'nothing' .* void"):
        column_export(ResultColumn("nothing", 2278, -1, "void", "p", "P"))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a FROM t", "SELECT a FROM t\nWHERE C"),
        ("SELECT a FROM s.t AS x", "SELECT a FROM s.t AS x\nWHERE C"),
        ("SELECT a FROM t -- end", "SELECT a FROM t -- end\nWHERE C"),
        ("SELECT a FROM t WHERE a > 1 OR b", "SELECT a FROM t WHERE ( a > 1 OR b\n) AND C"),
        ("select a from t where a = 'where' -- x", "select a from t where ( a = 'where' -- x\n) AND C"),
        ("SELECT count(a) FILTER (WHERE b) FROM t", "SELECT count(a) FILTER (WHERE b) FROM t\nWHERE C"),
    ],
)
def test_a_plain_select_takes_one_more_condition(sql: str, expected: str) -> None:
    plain = parse_plain_select(sql)
    assert plain is not None
    assert plain.with_condition("C") == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t, u",
        "SELECT a FROM t JOIN u USING (a)",
        "SELECT a FROM (SELECT a FROM t) AS s",
        "SELECT a FROM t GROUP BY a",
        "SELECT a FROM t HAVING true",
        "SELECT DISTINCT a FROM t",
        "SELECT a FROM t ORDER BY a",
        "SELECT a FROM t LIMIT 1",
        "SELECT a FROM t OFFSET 1",
        "SELECT a FROM t FOR UPDATE",
        "SELECT a FROM ONLY t",
        "SELECT a FROM t TABLESAMPLE SYSTEM (1)",
        "SELECT a FROM t UNION SELECT a FROM t",
        "WITH t AS (SELECT 1 AS a) SELECT a FROM t",
        "SELECT (SELECT 1) AS a FROM t",
        "SELECT a FROM f(1)",
        "SELECT 1 AS a",
        "TABLE t",
        "VALUES (1)",
        "SELECT a FROM other.s.t",
        "not sql at all (",
    ],
)
def test_anything_else_is_left_whole(sql: str) -> None:
    assert parse_plain_select(sql) is None


@pytest.mark.parametrize(
    ("sql", "relation"),
    [
        ("SELECT a FROM Shop.Orders", '"shop"."orders"'),
        ('SELECT a FROM "Shop"."Or""ders" AS o', '"Shop"."Or""ders"'),
        ("SELECT a FROM t", '"t"'),
    ],
)
def test_the_table_of_a_plain_select_is_named_as_the_server_reads_it(sql: str, relation: str) -> None:
    plain = parse_plain_select(sql)
    assert plain is not None
    assert plain.relation == relation


def test_the_caret_stands_under_the_place_even_in_a_long_line() -> None:
    assert caret_lines("SELECT a,\n\tnope FROM t", 12) == "  line 2: \tnope FROM t\n          \t^"
    long = "SELECT " + "a, " * 100 + "nope"
    shown, under = caret_lines(long, long.index("nope") + 1).splitlines()
    assert shown[under.index("^") :].startswith("nope")
    assert len(shown) < 130
    assert caret_lines("SELECT", 7).endswith("^")


def test_names_of_tables_are_split_at_dots_outside_quotes() -> None:
    assert parse_table_name("a.b") == ["a", "b"]
    assert parse_table_name('"a.b"."c""d"') == ["a.b", 'c"d']
    assert parse_table_name("Mixed Case") == ["Mixed Case"]


def test_an_address_pickles_whole_and_shows_no_password() -> None:
    address = parse_address(
        PostgresConnection(name="wh", url="postgresql://me:s3cr3t@db.example.com:6543/shop")
    )
    assert pickle.loads(pickle.dumps(address)).conninfo() == address.conninfo()
    assert "s3cr3t" in address.conninfo()
    assert "sslmode='verify-full'" in address.conninfo()
    assert "s3cr3t" not in repr(address)
    assert address.label == "db.example.com:6543/shop"
    assert PostgresSource(address).table_query("a.b", [("x", "y")]) == 'SELECT "y" AS "x" FROM "a"."b"'


def test_a_refused_connection_is_reported_without_the_drivers_noise() -> None:
    address = parse_address(PostgresConnection(name="wh", url="postgresql://me@localhost/shop"))
    error = psycopg.OperationalError(
        'connection failed: connection to server at "127.0.0.1", port 5432 failed: FATAL:  '
        'password authentication failed for user "me"'
    )
    told = connect_error(address, error)
    assert told.what == (
        "connection 'wh' cannot reach PostgreSQL at localhost:5432/shop as user 'me': "
        'password authentication failed for user "me"'
    )
    assert told.next_step == "correct user and password, then  flow connections check wh"


def test_staging_and_locks_are_named_apart() -> None:
    assert staging_prefix("Load Orders", "wh:a.b").startswith("load_orders_")
    assert len(staging_prefix("x" * 300, "t")) + 17 <= 63
    assert staging_prefix("a", "b") != staging_prefix("a", "c")
    assert lock_key("a", "b") != lock_key("ab", "")
    assert -(2**63) <= lock_key("a", "b") < 2**63
    assert part_number("1") != part_number("2")


def test_staging_refuses_what_has_no_exact_binary_form() -> None:
    assert {wire_type(t.arrow()) for t in TYPES} >= {"numeric(12,3)", "text", "timestamptz", "bytea"}
    with pytest.raises(PlanError, match="int8"):
        wire_type(pa.int8())


def test_a_task_starts_without_what_only_the_driver_needs() -> None:
    """Each of these costs a fresh worker up to a second."""
    code = (
        "import sys, ematix_flow.backends.postgres.split, ematix_flow.backends.postgres.staging;"
        "print(*{'pandas', 'psycopg', 'sqlglot', 'pyarrow.dataset'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
