"""Samples of failing rows: how many statements and readings they take, and which rows they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from sqlglot import exp

from ematix_probe.report import RunReport
from ematix_probe.sources.base import ColumnInfo
from ematix_probe.tester import Tester
from tests.contract.probe_setup import DATABASES, ROWS, Database, Watched, database_of, probe, verdicts
from tests.contract.test_probe_sources_files import CountedSource, numbers

MANY = 2_000  # rows that are added, all of which fail


@pytest.fixture(params=DATABASES)
def shop(request: pytest.FixtureRequest) -> Iterator[Database]:
    yield database_of(request)


def few(t: Tester) -> None:
    t.column("amount").between(0, None).is_in([1, 2, 3])
    t.column("state").regex("^new$")
    t.column("customer_id").not_null()
    t.expression("amount < 30")
    t.column("customer_id").between(0, 20)


def add_many(shop: Database) -> None:
    """Rows at the end of the table."""
    values = ", ".join(f"({ROWS + i}, {-1 - i}, 'odd', NULL)" for i in range(MANY))
    shop.execute(f"INSERT INTO orders VALUES {values}")


def ids(report: RunReport) -> list[list[Any]]:
    return [[row["id"] for row in each.samples] for each in report.assertions]


def test_assertions_that_few_rows_fail_share_one_statement_of_samples(shop: Database) -> None:
    watched = Watched(shop.source)
    report = probe(watched, few, table="orders")
    assert set(verdicts(report)) == {"fail"}
    assert len(watched.statements) == 2
    assert watched.rows[1] <= 60
    assert ids(report) == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5, 9, 10, 11, 12],
        [1, 3, 5, 7, 9, 11, 13, 15, 17, 19],
        [0, 10, 20, 30],
        [35, 36, 37, 38, 39],
        [21, 22, 23, 24, 25, 26, 27, 28, 29, 31],
    ]
    assert report.assertions[0].samples[0] == {"id": 0, "amount": -5}


def test_assertions_that_many_rows_fail_share_one_statement_and_take_few_rows_of_it(shop: Database) -> None:
    add_many(shop)
    watched = Watched(shop.source)
    report = probe(watched, few, table="orders")
    assert len(watched.statements) <= 4  # the measures, those that many rows fail, and those that few fail
    assert max(watched.rows) <= 60
    for result in report.assertions:
        shown = [row["id"] for row in result.samples]
        assert len(shown) == min(10, result.failing or 0)
        assert shown == sorted(set(shown))


def test_a_refused_statement_of_samples_changes_no_verdict(shop: Database) -> None:
    wanted = probe(Watched(shop.source), few, table="orders")
    once = Watched(shop.source, refused=2)
    report = probe(once, few, table="orders")
    assert (verdicts(report), ids(report)) == (verdicts(wanted), ids(wanted))
    assert len(once.statements) == 2 + len(report.assertions)  # each alone


@pytest.mark.parametrize("columns", [["amount"], ["state", "amount"]])
def test_repeated_keys_are_found_without_grouping_the_rows_again(shop: Database, columns: list[str]) -> None:
    shop.execute("INSERT INTO orders VALUES (97, 7, 'new', 1), (98, 7, 'new', 1), (99, 3, 'new', 1)")
    watched = Watched(shop.source)
    report = probe(watched, lambda t: t.unique(columns).column("amount").between(0, None), table="orders")
    assert [row["id"] for row in report.assertions[0].samples] == [8, 99, 12, 97, 98]
    groups = [statement.sql().count("GROUP BY") for statement in watched.statements]
    assert sum(groups) == 1 or shop.kind == "mariadb"  # which would evaluate a table of keys for each use


def test_postgres_reads_the_rows_once_for_all_samples(pg_database: str, request: Any, tmp_path: Path) -> None:
    shop = database_of(_Postgres(request, tmp_path))
    shop.execute("INSERT INTO orders VALUES (97, 7, 'new', 1)")
    watched = Watched(shop.source)

    def declare(t: Tester) -> None:
        few(t)
        t.column("amount").unique()

    probe(watched, declare, table="orders")
    with psycopg.connect(pg_database) as connection:
        scans = [
            sum("Scan on orders" in step for (step,) in connection.execute(f"EXPLAIN {sql}".encode()))
            for sql in (statement.sql("postgres") for statement in watched.statements)
        ]
    assert scans == [2, 1]


class _Postgres:
    """What `database_of` asks of a request."""

    param = "postgres"

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request, self._folder = request, folder

    def getfixturevalue(self, name: str) -> Any:
        return self._folder if name == "tmp_path" else self._request.getfixturevalue(name)


@pytest.mark.parametrize(
    "values",
    ["('NaN'::double), ('NaN'), (1)", "(0.0::double), ('-0.0'), (1)", "('x\\ny'), ('x\\ny'), ('x')"],
    ids=["nan", "zero", "text"],
)
def test_repeated_keys_of_any_type_have_samples(tmp_path: Path, values: str) -> None:
    from ematix_probe import source

    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT * FROM (VALUES {values}) AS v(x)")
    report = probe(source.duckdb(tmp_path / "a.duckdb"), lambda t: t.column("x").unique(), table="t")
    (result,) = report.assertions
    assert result.failing == len(result.samples) == 2


@pytest.mark.parametrize(
    ("costly", "unique", "readings"), [(True, False, 2), (True, True, 1), (False, False, 2)]
)
def test_batches_are_read_at_most_once_more_for_all_samples(
    costly: bool, unique: bool, readings: int
) -> None:
    def declare(t: Tester) -> None:
        t.column("a").between(50, None)
        t.column("b").is_in([1])
        if unique:  # what is costly has been copied for it
            t.column("b").unique()

    counted = numbers(costly)
    report = probe(CountedSource(counted), declare)
    assert len(report.assertions[0].samples) == 10
    assert len(counted.readings) == readings


@pytest.mark.parametrize("width", [1, 3])
def test_repeated_keys_are_one_column_of_a_statement(shop: Database, width: int) -> None:
    def declare(t: Tester) -> None:
        for number in range(4):
            t.unique(["amount", "state", "customer_id"][:width], where=f"id <> {number}")

    watched = Watched(shop.source)
    probe(watched, declare, table="orders")
    assert len(watched.statements[0].selects) <= 1 + 4 * 4


def test_statements_have_no_more_columns_than_an_engine_returns(tmp_path: Path) -> None:
    from ematix_probe.compiling import compile_in_statements

    tester = Tester()
    for number in range(180):
        tester.column("amount").sum_between(0, 1, where=f"id <> {number}")
    columns = {name: ColumnInfo(name, "integer", "integer") for name in ("id", "amount")}
    statements = compile_in_statements(
        tester.assertions, columns, "sqlite", exp.to_table("orders"), lambda name: exp.to_table(name)
    )
    assert sum(len(each.readers) for each in statements) == 180
    assert max(len(each.query.selects) for each in statements) <= 1_000


def test_statements_have_no_more_keys_than_an_engine_plans_quickly() -> None:
    from ematix_probe.compiling import compile_in_statements

    tester = Tester()
    for number in range(300):
        tester.unique(["amount"], where=f"id <> {number}")
    columns = {name: ColumnInfo(name, "integer", "integer") for name in ("id", "amount")}
    statements = compile_in_statements(
        tester.assertions, columns, "duckdb", exp.to_table("orders"), exp.to_table, with_keys=True
    )
    assert sum(len(each.readers) for each in statements) == 300
    assert max(len(each.query.ctes) for each in statements) <= 50


def test_an_assertion_of_many_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from ematix_probe.compiling import compile_in_statements
    from ematix_probe.compiling.conditions import ConditionCompiler

    compiled: list[str] = []
    outside = ConditionCompiler.outside

    def count(compiler: ConditionCompiler, name: str, low: Any, high: Any) -> Any:
        compiled.append(name)
        return outside(compiler, name, low, high)

    monkeypatch.setattr(ConditionCompiler, "outside", count)
    tester = Tester()
    for number in range(3_000):
        tester.column("amount").between(-number, number, name=str(number))
    columns = {"amount": ColumnInfo("amount", "integer", "integer")}
    statements = compile_in_statements(
        tester.assertions, columns, "sqlite", exp.to_table("orders"), exp.to_table
    )
    assert (len(compiled), len(statements)) == (3_000, 4)


def test_a_key_with_a_missing_column_fails_no_statement(shop: Database) -> None:
    def declare(t: Tester) -> None:
        t.unique(["amount", "stat"])
        t.column("amount").not_null()

    watched = Watched(shop.source)
    report = probe(watched, declare, table="orders")
    assert report.assertions[0].message.startswith("there is no column 'stat'; did you mean 'state'?")
    assert len(watched.statements) == 1


def test_measures_that_differ_in_the_case_of_a_text_are_told_apart() -> None:
    from ematix_probe.compiling import compile_assertions

    tester = Tester()
    for text in ("de", "DE", "de"):
        tester.expression(f"state = '{text}'", name=f"{len(tester.assertions)}")
    compiled = compile_assertions(tester.assertions, {}, "duckdb", exp.to_table("orders"), exp.to_table)
    assert len(compiled.query.selects) == 3  # the number of rows, and two conditions


def test_keys_that_no_driver_reads_fail_nothing(tmp_path: Path) -> None:
    from ematix_probe import source

    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE t (k text)")
        values = "(CAST(X'ff41' AS text)), (CAST(X'ff41' AS text)), ('b'), ('b'), ('c,;:'), ('c,;:'), ('d')"
        connection.execute(f"INSERT INTO t VALUES {values}, (5), (5), ('{'long' * 300}'), ('{'long' * 300}')")
        connection.commit()
    watched = Watched(source.sqlite(tmp_path / "a.db"))
    (result,) = probe(watched, lambda t: t.column("k").unique(), table="t").assertions
    assert result.failing == 10
    assert len(result.samples) == 10  # found by grouping again: not all keys can be literals
    assert {row["k"] for row in result.samples} >= {"5", "b", "c,;:", "\ufffdA"}


def test_no_key_leaves_the_database_without_samples(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_PROBE_SAMPLES", "off")
    shop.execute("INSERT INTO orders VALUES (97, 7, 'new', 1)")
    watched = Watched(shop.source)
    (result,) = probe(watched, lambda t: t.column("amount").unique(), table="orders").assertions
    assert (result.failing, len(result.samples)) == (2, 0)
    (statement,) = watched.statements
    assert len(statement.selects) == 3  # the rows, those with a value, and those with a repeated one


def test_postgres_sorts_no_more_keys_than_it_returns(pg_database: str) -> None:
    from ematix_probe import source

    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT i / 2 AS k FROM generate_series(0, 19999) i")
        connection.execute("ANALYZE t")
        watched = Watched(source.postgres(pg_database))
        probe(watched, lambda t: t.column("k").unique(), table="t")
        statement = f"EXPLAIN (ANALYZE, TIMING OFF) {watched.statements[0].sql('postgres')}"
        plan = [step for (step,) in connection.execute(statement.encode())]
    assert [step for step in plan if "Sort Method" in step and "top-N" not in step] == []
    assert not any("WindowAgg" in step for step in plan)


def test_postgres_shows_times_that_python_does_not_hold(pg_database: str) -> None:
    from ematix_probe import source

    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT 'infinity'::date AS day, '0044-03-15 BC'::timestamp AS at"
        )
    report = probe(
        source.postgres(pg_database),
        lambda t: t.expression("day < '2030-01-01' AND at IS NOT NULL"),
        table="t",
    )
    assert report.assertions[0].samples == [{"day": "infinity", "at": "0044-03-15 00:00:00 BC"}]


@pytest.mark.parametrize(
    "value",
    ["[1, 2]", "{'a': 1}", "MAP {'a': 1}", "INTERVAL 1 DAY", "'101'::BIT", "'{}'::JSON"],
    ids=["list", "struct", "map", "interval", "bit", "json"],
)
def test_rows_without_an_order_have_samples(tmp_path: Path, value: str) -> None:
    from ematix_probe import source

    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT {value} AS x UNION ALL SELECT NULL")
    report = probe(
        source.duckdb(tmp_path / "a.duckdb"),
        lambda t: t.expression("x IS NULL AND 1 = (SELECT 1)"),
        table="t",
    )
    (result,) = report.assertions
    assert result.failing == len(result.samples) == 1
