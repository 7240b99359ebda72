"""SQLite and DuckDB: what they read, write, refuse and say, beyond the contract of every target."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.base import Backend, SourceQuery, StagedRows
from ematix_flow.errors import (
    CannotConnect,
    FlowError,
    NameRefused,
    RowRejected,
    SchemaMismatch,
    SourceFailed,
    TargetFailed,
)
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from ematix_flow.strategies.ranges import restrict_to_range
from ematix_flow.testing.loads import PIPELINE, TARGET, load_incremental, load_rows, new_load, prepare
from ematix_flow.testing.samples import every_type, every_value
from tests.contract.embedded_setup import (
    EVENTS,
    KINDS,
    SMALL,
    UTC,
    backend_at,
    compute,
    copy,
    copy_new,
    named,
    read_sql,
    run_sql,
    source_of,
    target_of,
)
from tests.reading import read_table

EACH = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def backend(kind: str, path: Path) -> Backend:
    return backend_at(kind, path)


# ------------------------------------------------------------------ values from one to the other


@pytest.mark.parametrize("reader", KINDS)
@pytest.mark.parametrize("writer", KINDS)
def test_every_type_travels_from_one_to_the_other(reader: str, writer: str, tmp_path: Path) -> None:
    source, target = backend_at(reader, tmp_path / "a"), backend_at(writer, tmp_path / "b")
    table = every_type()
    load_rows(target_of(source), new_load(table), every_value())
    sql = source_of(source).table_query(table.label, [(n, n) for n in table.column_names])
    assert copy(source, sql, target, table).rows.inserted == len(every_value())
    assert copy(source, sql, target, table, "truncate").rows.deleted == len(every_value())
    found = {row["id"]: row for row in read_table(target, table)}
    assert found == {row["id"]: row for row in read_table(source, table)}


def test_a_hundred_thousand_rows_go_there_and_back(tmp_path: Path) -> None:
    first, middle, last = (
        backend_at(k, tmp_path / n) for k, n in (("sqlite", "a"), ("duckdb", "b"), ("sqlite", "c"))
    )
    load_rows(target_of(first), new_load(SMALL), named(0, 100_000))
    for source, target in ((first, middle), (middle, last)):
        assert (
            copy(source, source_of(source).table_query("shop.small", []), target, SMALL).rows.read == 100_000
        )
    assert run_sql("sqlite", tmp_path / "c", "SELECT count(DISTINCT id) FROM shop__small") == [(100_000,)]


@EACH
def test_one_row_and_no_row_are_copied(kind: str, backend: Backend, tmp_path: Path) -> None:
    other = backend_at(kind, tmp_path / "other")
    load_rows(target_of(other), new_load(SMALL), named(7, 8))
    sql = source_of(other).table_query("shop.small", [("id", "id"), ("name", "name")])
    assert copy(other, f"{sql} WHERE id < 0", backend, SMALL).rows.read == 0
    assert copy(other, sql, backend, SMALL).rows.read == 1
    assert read_table(backend, SMALL) == named(7, 8)


@EACH
def test_many_parts_and_none_are_applied(kind: str, backend: Backend) -> None:
    load_rows(target_of(backend), new_load(SMALL), named(0, 30), parts=13)
    load = new_load(SMALL)
    staging = target_of(backend).create_staging(load, SMALL.arrow_schema())
    assert target_of(backend).apply(load, StagedRows(staging, ())).rows.read == 0
    assert len(read_table(backend, SMALL)) == 30


# ------------------------------------------------------------------ SQLite's loose values


def test_sqlite_values_are_read_by_the_type_that_is_wanted(path: Path) -> None:
    run_sql(
        "sqlite",
        path,
        "CREATE TABLE t (a, b TEXT, c INTEGER)",
        "INSERT INTO t VALUES (1, '12', 3), (0, ' 7', 4)",
    )
    wanted = {"a": DataType("boolean"), "b": DataType("integer"), "c": DataType("double")}
    rows = read_sql(backend_at("sqlite", path), "SELECT a, b, c, a + c AS d FROM t", wanted)
    assert rows == [{"a": True, "b": 12, "c": 3.0, "d": "4"}, {"a": False, "b": 7, "c": 4.0, "d": "4"}]


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ("'many'", "integer", "'many' is not a whole number"),
        ("1.5", "big_int", "1.5 is not a whole number"),
        ("70000", "small_int", "70000 is out of range of SmallInt"),
        ("'soon'", "timestamp", "'soon' is not ISO 8601"),
        ("2", "boolean", "2 is neither 0 nor 1"),
    ],
)
def test_a_sqlite_value_that_does_not_fit_stops_the_copy(
    value: str, kind: str, says: str, tmp_path: Path
) -> None:
    source, target = backend_at("sqlite", tmp_path / "a"), backend_at("duckdb", tmp_path / "b")
    run_sql("sqlite", tmp_path / "a", "CREATE TABLE t (x)", f"INSERT INTO t VALUES (NULL), ({value})")
    table = TableSpec("shop", "t", (ColumnSpec("x", DataType(kind), nullable=True),))
    with pytest.raises(RowRejected, match=rf"column 'x', row 2 .*{says}"):
        copy(source, "SELECT x FROM t", target, table)
    assert read_table(target, table) == []
    assert not any((tmp_path / ".ematix_flow" / "staging").iterdir())


def test_sums_of_sqlite_floats_are_read_as_the_decimals_they_stand_for(path: Path) -> None:
    run_sql("sqlite", path, "CREATE TABLE t (x REAL)", "INSERT INTO t VALUES (0.1), (0.2), (1.4)")
    money = DataType("numeric", precision=18, scale=2)
    assert read_sql(backend_at("sqlite", path), "SELECT sum(x) AS s FROM t", {"s": money}) == [
        {"s": Decimal("1.70")}
    ]


def test_batches_of_wide_rows_are_short(path: Path) -> None:
    run_sql(
        "sqlite",
        path,
        "CREATE TABLE t AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) "
        "SELECT i, zeroblob(40000) AS wide FROM n",
    )
    query = SourceQuery("SELECT i, wide FROM t")
    with source_of(backend_at("sqlite", path)).split(query, {"wide": DataType("bytes")}, 1) as (split,):
        sizes = [batch.num_rows for batch in split.read()]
    assert sum(sizes) == 3000
    assert max(sizes[1:]) < 500


# ------------------------------------------------------------------ DuckDB's many types


def test_duckdb_types_without_a_counterpart_travel_as_the_nearest(path: Path) -> None:
    sql = """SELECT sum(i) AS total, ['a', NULL] AS list, {'x': 1.25, 'y': DATE '2024-01-01'} AS pair,
             'b'::ENUM ('a', 'b') AS chosen, TIME '10:30' AS clock, '0101'::BIT AS bits FROM range(5) t (i)"""
    run_sql("duckdb", path, "CREATE TABLE t (a INTEGER)")
    assert read_sql(backend_at("duckdb", path), sql) == [
        {
            **{"total": Decimal(10), "list": '["a",null]', "pair": '{"x":1.25,"y":"2024-01-01"}'},
            **{"chosen": "b", "clock": "10:30:00", "bits": "0101"},
        }
    ]


@pytest.mark.parametrize("value", ["TIMESTAMP 'infinity'", "DATE '-infinity'"])
def test_an_infinite_time_is_refused(value: str, path: Path) -> None:
    run_sql("duckdb", path, "CREATE TABLE t (a INTEGER)")
    with pytest.raises(RowRejected, match=r"column 'x', row 2 .*infinity"):
        read_sql(backend_at("duckdb", path), f"SELECT * FROM (VALUES (NULL), ({value})) t (x)")


def test_a_duckdb_query_that_fails_in_mid_stream_is_a_failed_source(path: Path) -> None:
    run_sql("duckdb", path, "CREATE TABLE t AS SELECT i FROM range(200000) r (i)")
    sql = "SELECT CASE WHEN i = 150000 THEN error('too much') ELSE i END AS x FROM t"
    with pytest.raises(SourceFailed, match="too much"):
        read_sql(backend_at("duckdb", path), sql)


# ------------------------------------------------------------------ wrong SQL


@EACH
@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT 1 AS a\nFROM nowhere", "nowhere(.|\n)*(line 2, column 6|LINE 2)"),
        ("SELECT missing\nFROM t", "missing(.|\n)*(line 1, column 8|LINE 1)"),
        ("SELECT a FRM t WHERE", "syntax error"),
        ("DELETE FROM t", "DELETE"),
        ("SELECT 1 AS a; DROP TABLE t", "one SELECT|one statement|near"),
        ("", "incomplete|nothing"),
    ],
)
def test_wrong_sql_is_a_failed_source_that_says_where(
    kind: str, backend: Backend, path: Path, sql: str, says: str
) -> None:
    run_sql(kind, path, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")
    for ask in (source_of(backend).describe, source_of(backend).explain):
        if ask.__name__ == "explain" and kind == "sqlite" and sql.startswith("DELETE"):
            continue  # SQLite explains a DELETE, and runs nothing
        with pytest.raises(SourceFailed, match=says):
            ask(sql)
    assert run_sql(kind, path, "SELECT count(*) FROM t") == [(1,)]


@EACH
def test_a_source_that_is_not_there_cannot_be_connected_to(kind: str, backend: Backend, path: Path) -> None:
    with pytest.raises(CannotConnect, match=r"there is no .* database at"):
        source_of(backend).describe("SELECT 1")
    assert not path.exists()


@EACH
def test_a_file_of_another_kind_is_not_taken_for_a_database(kind: str, backend: Backend, path: Path) -> None:
    path.write_bytes(b"not a database " * 1000)
    for ask in (
        backend.check,
        lambda: source_of(backend).describe("SELECT 1"),
        lambda: target_of(backend).inspect(SMALL),
    ):
        with pytest.raises(CannotConnect, match=r"store\.db"):
            ask()
    assert path.read_bytes().startswith(b"not a database")


# ------------------------------------------------------------------ rows that a table refuses


@EACH
def test_a_key_that_is_there_already_is_refused_and_nothing_arrives(kind: str, backend: Backend) -> None:
    load_rows(target_of(backend), new_load(SMALL), named(0, 3))
    with pytest.raises(RowRejected) as failed:
        load_rows(target_of(backend), new_load(SMALL), named(2, 9))
    assert failed.value.state == "the target is unchanged"
    assert failed.value.next_step
    assert read_table(backend, SMALL) == named(0, 3)


@EACH
def test_limits_are_kept_by_the_table_itself(kind: str, backend: Backend, path: Path) -> None:
    table = TableSpec(
        None,
        "limits",
        (ColumnSpec("s", DataType("string", length=3)), ColumnSpec("n", DataType("small_int"))),
    )
    prepare(target_of(backend), table)
    stamp = "'2024-01-01 00:00:00+00:00', '12345678-1234-5678-1234-567812345678'"
    for values in ("'abcd', 1", "'abc', 40000", "NULL, 1"):
        with pytest.raises(FlowError):
            target_of(backend).run_sql(f"INSERT INTO limits VALUES ({values}, {stamp})")
    assert target_of(backend).run_sql(f"INSERT INTO limits VALUES ('abc', 4, {stamp})") == 1


@EACH
def test_json_that_is_none_is_refused(kind: str, backend: Backend) -> None:
    table = TableSpec(None, "docs", (ColumnSpec("j", DataType("json"), nullable=True),))
    load_rows(target_of(backend), new_load(table), [{"j": '{"a": 1}'}, {"j": None}])
    with pytest.raises(RowRejected, match="JSON"):
        load_rows(target_of(backend), new_load(table), [{"j": "{"}])


@EACH
def test_a_view_of_the_name_is_no_target(kind: str, backend: Backend, path: Path) -> None:
    run_sql(kind, path, "CREATE VIEW taken AS SELECT 1 AS id")
    with pytest.raises(SchemaMismatch, match="is a view"):
        target_of(backend).inspect(replace(SMALL, schema=None, name="taken"))


@EACH
def test_names_that_differ_in_case_are_one_column(kind: str, backend: Backend, path: Path) -> None:
    text = DataType("text")
    with pytest.raises(NameRefused, match="differ only in case"):
        target_of(backend).inspect(TableSpec(None, "t", (ColumnSpec("A", text), ColumnSpec("a", text))))
    prepare(target_of(backend), TableSpec(None, "Orders", (ColumnSpec("ID", text, primary_key=True),)))
    table = TableSpec(None, "orders", (ColumnSpec("id", text, primary_key=True),))
    live = target_of(backend).inspect(table)
    assert live is not None
    assert target_of(backend).plan_table(table, live).differences == ()


# ------------------------------------------------------------------ truncate, and loads inside one database


@EACH
def test_truncate_loads_the_same_keys_again_and_keeps_what_hangs_on_the_table(
    kind: str, backend: Backend, path: Path
) -> None:
    table = replace(SMALL, unique=(("name",),))
    load_rows(target_of(backend), new_load(table), named(0, 5000))
    name = "shop__small" if kind == "sqlite" else "shop.small"
    run_sql(
        kind, path, f"CREATE INDEX by_name ON {name} (name)", f"CREATE VIEW seen AS SELECT id FROM {name}"
    )
    for _ in range(3):
        applied = load_rows(target_of(backend), new_load(table, "truncate"), named(0, 5000))
        assert (applied.rows.deleted, applied.rows.inserted) == (5000, 5000)
    assert run_sql(kind, path, "SELECT count(*) FROM seen") == [(5000,)]


def test_a_duckdb_schema_may_be_called_like_the_file(tmp_path: Path) -> None:
    backend = backend_at("duckdb", tmp_path / "shop.duckdb")
    load_rows(target_of(backend), new_load(SMALL), named(0, 3))
    load_rows(target_of(backend), new_load(SMALL, "truncate"), named(1, 3))
    sql = source_of(backend).table_query("shop.small", [("id", "id"), ("name", "name")])
    assert compute(backend, sql, replace(SMALL, name="again")).rows.inserted == 2
    assert read_sql(backend, sql) == named(1, 3)


@EACH
def test_a_load_inside_one_database_meets_the_same_rules(kind: str, backend: Backend, path: Path) -> None:
    money = DataType("numeric", precision=10, scale=2)
    table = TableSpec(
        "shop",
        "sums",
        (
            ColumnSpec("id", DataType("integer"), primary_key=True),
            ColumnSpec("amount", money, nullable=True),
            ColumnSpec("day", DataType("date"), nullable=True),
            ColumnSpec("code", DataType("string", length=3), nullable=True),
            ColumnSpec("ok", DataType("boolean"), nullable=True),
        ),
    )
    good = "SELECT 1 AS id, 0.1 + 0.2 AS amount, '2024-01-02' AS day, 'abc' AS code, 1 AS ok"
    assert compute(backend, f"{good} -- a comment", table).rows.inserted == 1
    for column, value in (
        *(("id", "2.5"), ("id", "3000000000"), ("amount", "1.239"), ("code", "'abcd'"), ("ok", "2")),
        *(("day", "'2024-02-30'"), ("id", "'x'")),
    ):
        sql = f"SELECT * FROM ({good}) AS g"
        columns = {c.name: f"g.{c.name}" for c in table.columns} | {"id": "2", column: value}
        sql = f"SELECT {', '.join(f'{v} AS {k}' for k, v in columns.items())} FROM ({good}) AS g"
        with pytest.raises(RowRejected) as failed:
            compute(backend, sql, table)
        assert failed.value.state == "the target is unchanged", column
    rows = read_table(backend, table)
    assert rows == [
        {"id": 1, "amount": Decimal("0.30"), "day": dt.date(2024, 1, 2), "code": "abc", "ok": True}
    ]


def test_loose_times_inside_sqlite_are_kept_in_one_form(path: Path) -> None:
    backend = backend_at("sqlite", path)
    run_sql(
        "sqlite",
        path,
        "CREATE TABLE raw (at, what)",
        "INSERT INTO raw VALUES ('2024-01-01 10:00:00', 'a'), ('2024-01-01T10:00:00.5', 'b')",
        "INSERT INTO raw VALUES ('2024-01-02', 'c')",
    )
    compute(backend, "SELECT at, what FROM raw", EVENTS)
    assert run_sql("sqlite", path, 'SELECT "at" FROM shop__events ORDER BY what') == [
        ("2024-01-01 10:00:00.000000",),
        ("2024-01-01 10:00:00.500000",),
        ("2024-01-02 00:00:00.000000",),
    ]


# ------------------------------------------------------------------ incremental


@pytest.mark.parametrize("writer", KINDS)
def test_loose_times_in_a_sqlite_source_are_neither_lost_nor_doubled(writer: str, tmp_path: Path) -> None:
    source, target = backend_at("sqlite", tmp_path / "a"), backend_at(writer, tmp_path / "b")
    path, sql = tmp_path / "a", "SELECT at, what FROM raw"
    run_sql(
        "sqlite",
        path,
        "CREATE TABLE raw (at DATETIME, what TEXT)",
        "INSERT INTO raw VALUES ('2024-01-01 10:00:00', 'a'), ('2024-01-01 09:00', 'old')",
    )
    assert copy_new(source, sql, target, EVENTS, "at").rows.inserted == 2
    assert copy_new(source, sql, target, EVENTS, "at").rows.inserted == 0
    more = (
        "('2024-01-01T10:00:00', 'tie'), ('2024-01-01 10:00:00', 'a'), ('2024-01-01 12:30:00+02:00', 'zoned')"
    )
    run_sql("sqlite", path, f"INSERT INTO raw VALUES {more}")
    assert copy_new(source, sql, target, EVENTS, "at").rows.inserted == 3
    assert sorted(row["what"] for row in read_table(target, EVENTS)) == ["a", "a", "old", "tie", "zoned"]
    run_sql("sqlite", path, "INSERT INTO raw VALUES (NULL, 'never')")
    with pytest.raises(RowRejected):
        copy_new(source, sql, target, EVENTS, "at")


@EACH
def test_a_range_is_read_from_its_low_bound_on(kind: str, backend: Backend, path: Path) -> None:
    run_sql(
        kind, path, "CREATE TABLE t (id INTEGER, n TEXT)", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    )

    def ids(column: str, data_type: DataType, low: Any, high: Any) -> list[int]:
        bounds = (Watermark(column, data_type, low), Watermark(column, data_type, high))
        query = SourceQuery("SELECT id, n FROM t", SourceRange(column, *bounds))
        with source_of(backend).split(query, {}, 1) as (split,):
            return [row["id"] for batch in split.read() for row in batch.to_pylist()]

    assert ids("id", DataType("big_int"), 2, 3) == [2, 3]
    assert ids("id", DataType("numeric", precision=5, scale=1), Decimal("1.5"), Decimal("2.5")) == [2]
    assert ids("n", DataType("text"), "b", "b") == [2]


def test_sqlite_uses_an_index_on_the_watermark(path: Path) -> None:
    from ematix_flow.backends.sqlite.source import restrict_to_range

    backend = backend_at("sqlite", path)
    run_sql("sqlite", path, "CREATE TABLE t (at TIMESTAMP, what TEXT)", "CREATE INDEX i ON t (at)")
    low = Watermark("at", DataType("timestamp"), dt.datetime(2024, 1, 1))
    sql = "SELECT at, what FROM t"
    asked = restrict_to_range(SourceQuery(sql, SourceRange("at", low)), source_of(backend).describe(sql))
    assert "USING INDEX i" in source_of(backend).explain(asked)


@EACH
@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (DataType("date"), [dt.date(2024, 1, d) for d in (1, 2, 10)]),
        (
            DataType("numeric", precision=12, scale=3),
            [Decimal("9.125"), Decimal("10.000"), Decimal("100.001")],
        ),
        (DataType("timestamp_tz"), [dt.datetime(2024, 1, d, tzinfo=UTC) for d in (1, 2, 10)]),
        (DataType("text"), ["B", "a", "é"]),
        (DataType("big_int"), [9, 10, 2**60]),
    ],
    ids=str,
)
def test_a_watermark_of_each_type_finds_its_way_back(
    kind: str, backend: Backend, data_type: DataType, values: list[Any]
) -> None:
    table = TableSpec("shop", "marks", (ColumnSpec("w", data_type), ColumnSpec("n", DataType("integer"))))
    for end in (2, 3, 3):
        rows = [{"w": value, "n": number} for number, value in enumerate(values[:end])]
        load_incremental(target_of(backend), table, "w", rows)
    found = target_of(backend).watermark(PIPELINE, TARGET, "w")
    assert found == Watermark("w", data_type, values[2])
    assert sorted(row["n"] for row in read_table(backend, table)) == [0, 1, 2]


@EACH
def test_an_incremental_load_inside_one_database_loses_no_tie(
    kind: str, backend: Backend, path: Path
) -> None:
    run_sql(kind, path, 'CREATE TABLE raw ("at" TIMESTAMP, what VARCHAR)')
    run_sql(kind, path, "INSERT INTO raw VALUES ('2024-01-01 10:00:00', 'a'), ('2024-01-01 09:00:00', 'old')")
    inserted = []
    for more in ("", "('2024-01-01 10:00:00', 'tie'), ('2024-01-01 11:00:00', 'new')", ""):
        if more:
            run_sql(kind, path, f"INSERT INTO raw VALUES {more}")
        low = target_of(backend).watermark(PIPELINE, TARGET, "at")
        bounds = SourceRange("at", low)
        sql = restrict_to_range('SELECT "at", what FROM raw', bounds, target_of(backend).dialect)  # type: ignore[attr-defined]
        inserted.append(compute(backend, sql, EVENTS, range=bounds, batch_key=None).rows.inserted)
    assert inserted == [2, 2, 0]


# ------------------------------------------------------------------ the rest of a backend


@EACH
def test_a_pipelines_function_can_ask_a_question(kind: str, backend: Backend, path: Path) -> None:
    run_sql(kind, path, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1), (2), (3)")
    assert backend.query("SELECT a AS x FROM t ORDER BY a", 2) == (["x"], [(1,), (2,)])
    with pytest.raises(FlowError):
        backend.query("INSERT INTO t VALUES (4)")
    with pytest.raises(TargetFailed, match="nothing_of_the_sort"):
        target_of(backend).run_sql("DELETE FROM nothing_of_the_sort")
    assert target_of(backend).run_sql("DELETE FROM t WHERE a > 1") == 2
