"""Reading MySQL and MariaDB: every type exactly, in bounded memory, and what cannot be read named."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest

from ematix_flow.backends.base import SourceQuery
from ematix_flow.errors import RowRejected, SourceFailed
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from tests.contract.mysql_setup import FAMILY, backend_of, read_all, sql

UTC = dt.timezone.utc
TYPES: list[tuple[str, str, DataType | None, Any]] = [
    ("tinyint", "-128", DataType("small_int"), -128),
    ("tinyint unsigned", "255", DataType("small_int"), 255),
    ("tinyint(1)", "5", DataType("small_int"), 5),
    ("smallint unsigned", "65535", DataType("integer"), 65535),
    ("mediumint unsigned", "16777215", DataType("integer"), 16777215),
    ("int", "-2147483648", DataType("integer"), -(2**31)),
    ("int unsigned", "4294967295", DataType("big_int"), 2**32 - 1),
    ("bigint", "-9223372036854775808", DataType("big_int"), -(2**63)),
    (
        "bigint unsigned",
        "18446744073709551615",
        DataType("numeric", precision=20, scale=0),
        Decimal(2**64 - 1),
    ),
    (
        "decimal(38,10)",
        "-1234567890123456789012345678.0123456789",
        DataType("numeric", precision=38, scale=10),
        Decimal("-1234567890123456789012345678.0123456789"),
    ),
    ("decimal(10,2) unsigned", "1.50", DataType("numeric", precision=10, scale=2), Decimal("1.50")),
    ("decimal(60,2)", "1.50", None, "1.50"),
    ("float", "0.1", DataType("float"), 0.10000000149011612),
    ("double", "0.1", DataType("double"), 0.1),
    ("double", "5e-324", DataType("double"), 5e-324),
    ("date", "'0001-01-01'", DataType("date"), dt.date(1, 1, 1)),
    (
        "datetime(6)",
        "'9999-12-31 23:59:59.999999'",
        DataType("timestamp"),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    ),
    (
        "timestamp(6)",
        "'2026-03-29 02:30:00.000001'",
        DataType("timestamp_tz"),
        dt.datetime(2026, 3, 29, 2, 30, 0, 1, UTC),
    ),
    ("time(6)", "'-837:59:59.000001'", DataType("text"), "-837:59:59.000001"),
    ("year", "2155", DataType("small_int"), 2155),
    ("varchar(20)", "'naïve 漢字 😀'", DataType("string", length=20), "naïve 漢字 😀"),
    ("char(3)", "'x'", DataType("string", length=3), "x"),
    ("varchar(20) character set latin1", "'Ä'", DataType("string", length=20), "Ä"),
    ("longtext", "REPEAT('é', 70000)", DataType("text"), "é" * 70000),
    ("binary(4)", "X'00FF'", DataType("bytes"), b"\x00\xff\x00\x00"),
    ("varbinary(9)", "X'5C0A00'", DataType("bytes"), b"\\\n\x00"),
    ("longblob", "REPEAT(X'FB', 300)", DataType("bytes"), b"\xfb" * 300),
    ("bit(1)", "b'1'", DataType("boolean"), True),
    ("bit(9)", "b'100000001'", DataType("small_int"), 257),
    (
        "bit(64)",
        "18446744073709551615",
        DataType("numeric", precision=20, scale=0),
        Decimal(2**64 - 1),
    ),
    ("enum('a','b')", "'b'", DataType("text"), "b"),
    ("set('a','b')", "'a,b'", DataType("text"), "a,b"),
]


@pytest.fixture(params=FAMILY)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_database")
    return found


def test_every_type_is_described_and_read_exactly(url: str) -> None:
    columns = ", ".join(f"c{i} {native}" for i, (native, *_) in enumerate(TYPES))
    sql(url, f"CREATE TABLE t ({columns}) CHARACTER SET utf8mb4")
    values = ", ".join(value for _, value, *_ in TYPES)
    sql(url, f"INSERT INTO t VALUES ({values}), ({', '.join(['NULL'] * len(TYPES))})")
    backend = backend_of(url)
    for found, (native, _, kind, _) in zip(backend.source().describe("SELECT * FROM t"), TYPES, strict=True):
        assert found.type == kind, native
    first, nulls = read_all(backend, "SELECT * FROM t")
    assert set(nulls.values()) == {None}
    for value, (native, *_, expected) in zip(first.values(), TYPES, strict=True):
        assert value == expected, native
        assert type(value) is type(expected), native


@pytest.mark.mysql
def test_json_is_read_as_text(mysql_database: str) -> None:
    backend = backend_of(mysql_database)
    select = """SELECT CAST('{"b":1,"a":[null,"ü"]}' AS JSON) AS j"""
    assert backend.source().describe(select)[0].type == DataType("json")
    assert read_all(backend, select) == [{"j": '{"a": [null, "ü"], "b": 1}'}]


@pytest.mark.parametrize("native", ["date", "datetime", "timestamp"])
def test_a_zero_date_is_refused_by_column_and_row(url: str, native: str) -> None:
    sql(url, f"CREATE TABLE t (id int, seen {native} NULL)")
    sql(url, "INSERT INTO t VALUES (1, '2024-01-02'), (2, 0)")
    with pytest.raises(RowRejected, match=r"column 'seen', row 2 .*0000-00-00") as raised:
        read_all(backend_of(url), "SELECT * FROM t")
    assert "NULLIF" in str(raised.value)


def test_a_type_that_no_column_holds_is_refused_by_name(url: str) -> None:
    sql(url, "CREATE TABLE t (place geometry)")
    with pytest.raises(SourceFailed, match="'place'"):
        backend_of(url).source().describe("SELECT * FROM t")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELECT nothing FROM nowhere", "nowhere"),
        ("SELECT 1 AS a, 2 AS A", "twice"),
        ("SELECT ? AS a", "parameter"),
        ("SELECT 1 AS a; SELECT 2 AS b", "more than one statement"),
        ("INSERT INTO t VALUES (1)", "no columns|refused"),
        ("SELEC 1", "syntax"),
    ],
)
def test_wrong_sql_is_reported_without_running_it(url: str, statement: str, reason: str) -> None:
    sql(url, "CREATE TABLE t (a int)")
    with pytest.raises(Exception, match=reason):
        backend_of(url).source().describe(statement)
    assert sql(url, "SELECT COUNT(*) FROM t") == [(0,)]


def test_describing_does_not_run_the_sql(url: str) -> None:
    found = backend_of(url).source().describe("SELECT SLEEP(600) AS slept")
    assert [column.name for column in found] == ["slept"]


def test_explain_gives_the_servers_plan(url: str) -> None:
    sql(url, "CREATE TABLE orders (id int PRIMARY KEY)")
    assert "orders" in backend_of(url).source().explain("SELECT * FROM orders WHERE id > 3 -- all;\n;")


def test_a_table_query_quotes_every_name(url: str) -> None:
    sql(url, 'CREATE TABLE `we``ird. "name` (`select` int, `a``b` int)')
    sql(url, 'INSERT INTO `we``ird. "name` VALUES (1, 2)')
    backend = backend_of(url)
    select = backend.source().table_query('`we``ird. "name`', [("x", "select"), ("a`b", "a`b")])
    assert read_all(backend, select) == [{"x": 1, "a`b": 2}]


def test_a_range_keeps_its_bounds_and_nulls_and_orders_text_by_code_point(url: str) -> None:
    sql(url, "CREATE TABLE t (id int, mark varchar(9) COLLATE utf8mb4_general_ci) CHARACTER SET utf8mb4")
    sql(url, "INSERT INTO t VALUES (1, 'A'), (2, 'a'), (3, 'B'), (4, 'b'), (5, NULL)")
    text = DataType("text")
    kept = SourceRange("mark", Watermark("mark", text, "B"), Watermark("mark", text, "a"))
    found = read_all(backend_of(url), "SELECT * FROM t", source_range=kept)
    assert sorted(row["id"] for row in found) == [2, 3, 5]


def test_rows_of_many_sizes_keep_their_places(url: str) -> None:
    sql(url, "CREATE TABLE t (id int, v longtext) CHARACTER SET utf8mb4")
    sizes = [0, 1, 250, 251, 252, 65535, 65536, 70000]
    for size in sizes:
        sql(url, f"INSERT INTO t VALUES ({size}, REPEAT('x', {size}))")
    found = {row["id"]: row["v"] for row in read_all(backend_of(url), "SELECT * FROM t")}
    assert found == {size: "x" * size for size in sizes}


def test_a_row_larger_than_a_packet_is_read_whole(mysql_database: str) -> None:
    size = 20_000_000
    (row,) = read_all(backend_of(mysql_database), f"SELECT 7 AS a, REPEAT('x', {size}) AS v, 8 AS b")
    assert (row["a"], len(row["v"]), row["b"]) == (7, size, 8)


def test_one_share_reads_a_query_as_of_one_moment(url: str) -> None:
    with backend_of(url).source().split(SourceQuery("SELECT 1 AS a"), {}, 8) as splits:
        assert len(splits) == 1


def test_reading_cannot_write(url: str) -> None:
    sql(url, "CREATE TABLE t (a int)")
    with pytest.raises(SourceFailed):
        backend_of(url).query("INSERT INTO t VALUES (1)")
    assert sql(url, "SELECT COUNT(*) FROM t") == [(0,)]


def test_query_gives_names_and_at_most_the_rows_asked_for(url: str) -> None:
    sql(url, "CREATE TABLE t (n int)")
    sql(url, "INSERT INTO t VALUES (1), (2), (3)")
    assert backend_of(url).query("SELECT n, '100%' AS share FROM t ORDER BY n", 2) == (
        ["n", "share"],
        [(1, "100%"), (2, "100%")],
    )


_READ_UNDER_A_LIMIT = """
import resource, sys
from ematix_flow.backends.base import SourceQuery
from tests.contract.mysql_setup import backend_of

backend = backend_of(sys.argv[1])
with backend.source().split(SourceQuery("SELECT * FROM wide"), {}, 1) as splits:
    rows, before = 0, None
    for batch in splits[0].read():
        rows += batch.num_rows
        if before is None:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_a_large_result_is_read_in_bounded_memory(mariadb_database: str) -> None:
    sql(mariadb_database, "CREATE TABLE wide (id bigint AUTO_INCREMENT PRIMARY KEY, v varchar(300))")
    sql(mariadb_database, "INSERT INTO wide (v) VALUES (REPEAT('x', 300))")
    for _ in range(20):
        sql(mariadb_database, "INSERT INTO wide (v) SELECT v FROM wide")
    command = [sys.executable, "-c", _READ_UNDER_A_LIMIT, mariadb_database]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=_repository())
    assert done.returncode == 0, done.stderr
    rows, grown = map(int, done.stdout.split())
    assert rows == 2**20
    assert grown < 64, f"memory grew by {grown} MB over a result of 300 MB"


def _repository() -> str:
    from pathlib import Path

    return str(Path(__file__).parents[2])
