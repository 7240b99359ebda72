"""What hangs on a table that changes: indexes, triggers, views, foreign keys, and other processes."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import PostgresConnection
from ematix_flow.backends.base import Backend, BatchTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import LoadError
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.evolution import load_with_changes
from ematix_flow.testing.loads import load_rows, new_load, prepare
from tests.contract.embedded_setup import backend_at, run_sql
from tests.contract.postgres_setup import sql

BIG, INT = DataType("big_int"), DataType("integer")


def numbers(data_type: DataType, *more: ColumnSpec, **options: Any) -> TableSpec:
    columns = (ColumnSpec("id", BIG, primary_key=True), ColumnSpec("n", data_type, nullable=True), *more)
    return TableSpec("main", "numbers", columns, **options)


def target_of(backend: Backend) -> BatchTarget:
    target = backend.target()
    assert target is not None
    return target


def test_sqlite_keeps_indexes_triggers_views_and_foreign_keys(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    target = target_of(backend_at("sqlite", path))
    load_rows(target, new_load(numbers(INT)), [{"id": 1, "n": 5}])
    hanging = (
        "CREATE INDEX by_n ON numbers (n)",
        "CREATE TABLE seen (id INTEGER REFERENCES numbers (id))",
        "CREATE TRIGGER noted AFTER INSERT ON numbers BEGIN INSERT INTO seen VALUES (new.id); END",
        "CREATE VIEW great AS SELECT id FROM numbers WHERE n > 4",
        "ALTER TABLE numbers ADD COLUMN mine TEXT DEFAULT 'x' COLLATE NOCASE",
    )
    run_sql("sqlite", path, *hanging)
    load_with_changes(target, new_load(numbers(BIG)), [{"id": 2, "n": 2**40}])
    assert run_sql("sqlite", path, "SELECT id FROM seen") == [(2,)]
    assert run_sql("sqlite", path, "SELECT id FROM great ORDER BY id") == [(1,), (2,)]
    assert run_sql("sqlite", path, "SELECT mine FROM numbers") == [("x",), ("x",)]
    made = run_sql("sqlite", path, "SELECT sql FROM sqlite_master WHERE name IN ('by_n', 'noted', 'great')")
    assert {text for (text,) in made} == {hanging[0], hanging[2], hanging[3]}
    assert run_sql("sqlite", path, "PRAGMA foreign_key_check", "PRAGMA integrity_check") == [("ok",)]


def test_sqlite_refuses_what_it_could_not_keep(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    target = target_of(backend_at("sqlite", path))
    run_sql(
        "sqlite",
        path,
        "CREATE TABLE numbers (id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, n VARCHAR(5),"
        " _loaded_at TIMESTAMPTZ NOT NULL, _batch_id UUID_TEXT NOT NULL)",
    )
    table = numbers(DataType("string", length=9))
    (told,) = target.plan_table(table, target.inspect(table)).differences
    assert "AUTOINCREMENT" in told


def test_duckdb_keeps_indexes_views_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    target = target_of(backend_at("duckdb", path))
    load_rows(target, new_load(numbers(INT)), [{"id": 1, "n": 5}])
    run_sql(
        "duckdb",
        path,
        "CREATE INDEX by_n ON numbers (n)",
        "CREATE VIEW great AS SELECT id FROM numbers WHERE n > 4",
        "COMMENT ON TABLE numbers IS 'it''s mine'",
        "COMMENT ON COLUMN numbers.n IS 'a number'",
    )
    load_with_changes(target, new_load(numbers(BIG)), [{"id": 2, "n": 2**40}])
    assert run_sql("duckdb", path, "SELECT id FROM great ORDER BY id") == [(1,), (2,)]
    assert run_sql("duckdb", path, "SELECT index_name FROM duckdb_indexes()") == [("by_n",)]
    comment = "SELECT comment FROM duckdb_tables() WHERE table_name = 'numbers'"
    assert run_sql("duckdb", path, comment) == [("it's mine",)]
    told = "SELECT comment FROM duckdb_columns() WHERE column_name = 'n' AND table_name = 'numbers'"
    assert run_sql("duckdb", path, told) == [("a number",)]


def test_duckdb_refuses_to_change_a_table_that_others_refer_to(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    target = target_of(backend_at("duckdb", path))
    prepare(target, numbers(INT))
    run_sql("duckdb", path, "CREATE TABLE seen (id BIGINT REFERENCES numbers (id))")
    plan = target.plan_table(numbers(BIG), target.inspect(numbers(BIG)))
    assert plan.changes == ()
    assert any("seen refers to it" in text for text in plan.differences)


def _postgres(url: str) -> BatchTarget:
    return target_of(open_backend(PostgresConnection(name="target", url=url)))


def _public(table: TableSpec) -> TableSpec:
    return replace(table, schema="public")


def test_postgres_refuses_what_a_view_or_a_foreign_key_stands_against(pg_database: str) -> None:
    target = _postgres(pg_database)
    table = _public(numbers(INT))
    load_rows(target, new_load(table), [{"id": 1, "n": 5}])
    sql(pg_database, "CREATE VIEW great AS SELECT n FROM numbers")
    (told,) = target.plan_table(_public(numbers(BIG)), target.inspect(table)).differences
    assert "the view great uses it" in told
    sql(pg_database, "CREATE TABLE seen (id bigint REFERENCES numbers (id))")
    history = replace(table, keeps="versions", merge_keys=("id",))
    matching = Matching(keys=("id",), compare=("n",))
    (told,) = target.plan_table(history, target.inspect(history), matching).differences
    assert "seen refers to public.numbers" in told


@pytest.mark.parametrize("rewrites", [False, True], ids=["adding", "rewriting"])
def test_processes_that_evolve_one_table_at_once_do_not_fail_each_other(
    pg_database: str, rewrites: bool
) -> None:
    before = _public(numbers(INT))
    load_rows(_postgres(pg_database), new_load(before), [{"id": 0, "n": 0}])
    added = ColumnSpec("added", BIG, nullable=True)
    after = _public(numbers(BIG if rewrites else INT, added))
    failures: list[BaseException] = []
    start = threading.Barrier(5)

    def run(number: int) -> None:
        target = _postgres(pg_database)
        plan = target.plan_table(after, target.inspect(after))
        load = new_load(after, pipeline=f"p{number}")
        start.wait()
        try:
            load_with_changes(target, load, [{"id": number, "n": number, "added": number}], plan)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sql(pg_database, "SELECT count(*), count(added) FROM numbers") == [(6, 5)]


def test_an_evolved_postgres_table_keeps_its_grants_and_refuses_old_misfits(pg_database: str) -> None:
    target = _postgres(pg_database)
    load_rows(target, new_load(_public(numbers(INT))), [{"id": 1, "n": 5}])
    sql(pg_database, "GRANT SELECT ON numbers TO PUBLIC")
    load_with_changes(target, new_load(_public(numbers(BIG))), [{"id": 2, "n": 2**40}])
    assert sql(pg_database, "SELECT has_table_privilege('public', 'numbers', 'SELECT')") == [(True,)]
    with pytest.raises(LoadError):
        load_rows(target, new_load(_public(numbers(BIG))), [{"id": 2, "n": 1}])
