"""Any source into any target, on every path, through ``.sync()``: the rows are the same at the end."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ematix_flow import (
    Connection,
    DuckDBConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    Pipeline,
    PostgresConnection,
    SQLiteConnection,
    ematix,
    register_connection,
)
from ematix_flow.backends.base import Backend
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import RowRejected, SchemaMismatch, SourceFailed, Unsupported
from ematix_flow.normalize import lower, parse_int, trim
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.samples import every_type, every_value
from ematix_flow.transforms import deduplicate_by, filter_where
from tests.reading import read_table

pytestmark = pytest.mark.usefixtures("spark")

DATABASES = ("sqlite", "duckdb", "postgres", "mysql", "mariadb")
KINDS = (*DATABASES, "parquet")
PATHS = ("same_db", "copy", "spark")
MODES = ("append", "merge", "scd2")
Opened = Callable[[str, str], Backend]


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Opened:
    """Register a connection of a kind under a name, and open its backend."""

    def open_one(name: str, kind: str) -> Backend:
        connection: Connection
        if kind == "sqlite":
            connection = SQLiteConnection(name=name, path=str(tmp_path / f"{name}.db"))
        elif kind == "duckdb":
            connection = DuckDBConnection(name=name, path=str(tmp_path / f"{name}.duckdb"))
        elif kind == "postgres":
            connection = PostgresConnection(name=name, url=request.getfixturevalue("pg_database"))
        elif kind in ("mysql", "mariadb"):
            connection = MySQLConnection(name=name, url=request.getfixturevalue(f"{kind}_database"))
        else:
            connection = ObjectStoreLocalConnection(name=name, path=str(tmp_path / name), format="parquet")
        return open_backend(register_connection(connection))

    return open_one


def pipeline(table: TableSpec, sql: str, **options: Any) -> Pipeline:
    options = {"source_connection": "source", "target_connection": "target", "name": "load", **options}

    @ematix.pipeline(target=table, **options)
    def load(conn: Any) -> str:
        return sql

    return load


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def turn(first: int, second: int) -> str:
    """A mode for each pair, so that every row and every column of the pairs meets all of them."""
    return MODES[(first + second) % len(MODES)]


def between() -> Iterator[Any]:
    """Half of the pairs in every run: each source and each target meets three others and all modes.

    What a pair adds to its two ends is held for all of them in tests/property/test_pairs.py.
    """
    for (i, source), (j, target) in itertools.product(enumerate(KINDS), repeat=2):
        mode = "append" if target == "parquet" else turn(i, j)
        marks = [pytest.mark.long] if (i + j) % 2 else []
        yield pytest.param(source, target, mode, marks=marks)


WITHIN = [(kind, path, turn(i, j)) for i, kind in enumerate(DATABASES) for j, path in enumerate(PATHS)]


def assert_every_type_arrives(
    source: Backend, target: Backend, source_kind: str, path: str, mode: str, **options: Any
) -> None:
    """Load a table that has every type; where the mode compares rows, a second load changes none."""
    seed, landed = every_type("seed"), every_type("landed")
    sink = source.target()
    assert sink is not None
    load_rows(sink, new_load(seed), every_value())
    name = "contract__seed" if source_kind == "sqlite" else "contract.seed"
    load = pipeline(landed, f"SELECT {', '.join(seed.column_names)} FROM {name}", mode=mode, **options)
    result = load.sync()
    assert (result.status, result.path, result.rows_inserted) == ("succeeded", path, 4)
    expected = sorted_rows(read_table(source, seed))
    assert sorted_rows(read_table(target, landed)) == expected
    assert [row["a_numeric"] for row in expected] == [row["a_numeric"] for row in every_value()]
    if mode != "append":
        again = load.sync()
        assert (again.rows_inserted, again.rows_updated, again.rows_unchanged) == (0, 0, 4)
        assert sorted_rows(read_table(target, landed)) == expected


@pytest.mark.parametrize(("source_kind", "target_kind", "mode"), list(between()))
def test_every_type_moves_between_any_two_systems_unchanged(
    opened: Opened, source_kind: str, target_kind: str, mode: str
) -> None:
    source, target = opened("source", source_kind), opened("target", target_kind)
    same = source_kind == target_kind and target_kind in ("postgres", "mysql", "mariadb")
    path = "same_db" if same else "spark" if source_kind == "parquet" else "copy"
    assert_every_type_arrives(source, target, source_kind, path, mode)


@pytest.mark.parametrize(("kind", "path", "mode"), WITHIN)
def test_a_database_loads_itself_on_every_path(opened: Opened, kind: str, path: str, mode: str) -> None:
    opened("source", kind)
    backend = opened("target", kind)
    if kind in ("sqlite", "duckdb"):  # two files are two databases: make both names one
        backend = open_backend(register_connection(_renamed(backend.connection, "source")))
    assert_every_type_arrives(backend, backend, kind, path, mode, force_path=path)


def _renamed(connection: Connection, name: str) -> Connection:
    import dataclasses

    return dataclasses.replace(connection, name=name)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "kind", ["duckdb", *(pytest.param(k, marks=pytest.mark.long) for k in ("sqlite", "postgres"))]
)
def test_a_time_of_day_is_refused_by_a_date_column_on_every_path(
    opened: Opened, kind: str, path: str
) -> None:
    opened("source", kind)
    backend = opened("target", kind)
    if kind in ("sqlite", "duckdb"):
        backend = open_backend(register_connection(_renamed(backend.connection, "source")))
    seed = TableSpec("contract", "seed", (ColumnSpec("day", DataType("timestamp")),))
    days = TableSpec("contract", "days", (ColumnSpec("day", DataType("date")),))
    sink = backend.target()
    assert sink is not None
    load_rows(sink, new_load(seed), [{"day": dt.datetime(2026, 1, 2)}])
    name = "contract__seed" if kind == "sqlite" else "contract.seed"
    load = pipeline(days, f"SELECT day FROM {name}", force_path=path)
    assert load.sync().path == path
    assert [row["day"] for row in read_table(backend, days)] == [dt.date(2026, 1, 2)]
    load_rows(sink, new_load(seed), [{"day": dt.datetime(2026, 1, 2, 3)}])
    with pytest.raises(RowRejected, match="has a time of day"):
        load.sync()
    assert len(read_table(backend, days)) == 1


PEOPLE = TableSpec(
    "contract",
    "people",
    (
        ColumnSpec("id", DataType("big_int"), primary_key=True),
        ColumnSpec("email", DataType("string", length=20), nullable=True, normalizers=(trim(), lower())),
    ),
)
RAW = TableSpec(
    "contract",
    "raw",
    (
        ColumnSpec("id", DataType("big_int")),
        ColumnSpec("email", DataType("text"), nullable=True),
        ColumnSpec("seen", DataType("integer")),
    ),
)


def seeded(backend: Backend, rows: list[dict[str, Any]]) -> None:
    sink = backend.target()
    assert sink is not None
    load_rows(sink, new_load(RAW), rows)


def test_normalisers_and_pre_transforms_are_computed_by_spark_between_two_systems(opened: Opened) -> None:
    seeded(
        opened("source", "sqlite"),
        [
            {"id": 1, "email": " A@X ", "seen": 1},
            {"id": 1, "email": " B@X ", "seen": 2},
            {"id": 2, "email": None, "seen": 1},
            {"id": 3, "email": "C@X", "seen": 9},
        ],
    )
    target = opened("target", "duckdb")
    result = pipeline(
        PEOPLE,
        "SELECT id, email FROM contract__raw ORDER BY seen",
        transforms_pre=[filter_where("id < 3"), deduplicate_by("id", order_by="email desc")],
    ).sync()
    assert result.path == "spark"
    assert sorted_rows(read_table(target, PEOPLE)) == [{"id": 1, "email": "b@x"}, {"id": 2, "email": None}]


def test_a_value_that_a_marker_cannot_read_is_named_when_spark_computes(opened: Opened) -> None:
    seeded(opened("source", "sqlite"), [{"id": 1, "email": "twelve", "seen": 1}])
    target = opened("target", "duckdb")
    number = ColumnSpec(
        "email", DataType("integer"), nullable=True, normalizers=(parse_int(on_failure="error"),)
    )
    table = TableSpec("contract", "numbers", (ColumnSpec("id", DataType("big_int")), number))
    with pytest.raises(RowRejected, match=r"'email'.*twelve"):
        pipeline(table, "SELECT id, email FROM contract__raw").sync()
    assert read_table(target, table) == []


def test_an_incremental_append_skips_when_nothing_is_new_and_keeps_late_ties(opened: Opened) -> None:
    source, target = opened("source", "sqlite"), opened("target", "duckdb")
    table = TableSpec("contract", "copied", RAW.columns)
    load = pipeline(
        table, "SELECT id, email, seen FROM contract__raw", incremental=True, watermark_column="seen"
    )
    seeded(source, [{"id": 1, "email": "a", "seen": 1}, {"id": 2, "email": "b", "seen": 2}])
    assert load.sync().rows_inserted == 2
    skipped = load.sync()
    assert (skipped.status, skipped.reason) == ("skipped", "nothing new since the last run")
    seeded(source, [{"id": 3, "email": "tie", "seen": 2}, {"id": 4, "email": "new", "seen": 3}])
    again = load.sync()
    assert (again.rows_inserted, again.targets[0].source_from, again.targets[0].source_to) == (2, "2", "3")
    assert [row["id"] for row in sorted_rows(read_table(target, table))] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"id": 1, "email": "x" * 21, "seen": 1},
            "column 'email', row 2 .* is longer than the 20 characters",
        ),
        ({"id": 1, "email": None, "seen": 2**31 - 1}, "column 'seen', row 2 .* is out of range of SmallInt"),
    ],
)
def test_a_value_that_does_not_fit_stops_the_load_and_leaves_the_target(
    opened: Opened, row: dict[str, Any], words: str
) -> None:
    source, target = opened("source", "sqlite"), opened("target", "duckdb")
    table = TableSpec(
        "contract",
        "strict",
        (
            ColumnSpec("id", DataType("big_int")),
            ColumnSpec("email", DataType("string", length=20), nullable=True),
            ColumnSpec("seen", DataType("small_int")),
        ),
    )
    load = pipeline(table, "SELECT id, email, seen FROM contract__raw")
    seeded(source, [{"id": 0, "email": "fits", "seen": 1}])
    load.sync()
    seeded(source, [row])
    with pytest.raises(RowRejected, match=words) as raised:
        load.sync()
    assert raised.value.where is not None
    assert [r["id"] for r in read_table(target, table)] == [0]


def test_a_null_where_none_may_be_names_the_column(opened: Opened) -> None:
    source, target = opened("source", "sqlite"), opened("target", "duckdb")
    seeded(source, [{"id": 1, "email": None, "seen": 1}])
    table = TableSpec(
        "contract", "strict", (ColumnSpec("id", DataType("big_int")), ColumnSpec("email", DataType("text")))
    )
    with pytest.raises(RowRejected, match=r"'email', row 1 .* is null"):
        pipeline(table, "SELECT id, email FROM contract__raw").sync()
    assert read_table(target, table) == []


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT id, email, seen, 1 AS extra FROM contract__raw", "extra"),
        ("SELECT id, email FROM contract__raw", "seen"),
        ("SELECT id, email, seen, seen FROM contract__raw", "seen:1"),
    ],
)
def test_columns_that_do_not_match_are_named(opened: Opened, sql: str, words: str) -> None:
    seeded(opened("source", "sqlite"), [])
    opened("target", "duckdb")
    with pytest.raises(SchemaMismatch, match=words):
        pipeline(TableSpec("contract", "copied", RAW.columns), sql).sync()


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_sql_is_the_sources_error_in_one_line(opened: Opened, kind: str) -> None:
    seeded(opened("source", kind), [])
    opened("target", "sqlite")
    with pytest.raises(SourceFailed) as raised:
        pipeline(TableSpec("contract", "copied", RAW.columns), "SELEC id FROM nowhere").sync()
    assert "SELEC" in str(raised.value)
    assert "\tat " not in str(raised.value)


def test_a_mode_that_the_target_cannot_do_yet_is_refused_with_those_it_can(opened: Opened) -> None:
    seeded(opened("source", "sqlite"), [])
    opened("target", "parquet")
    with pytest.raises(Unsupported, match="append, truncate"):
        pipeline(PEOPLE, "SELECT id, email FROM contract__raw", mode="merge").sync()


def test_one_pipeline_fills_several_targets(opened: Opened, spark: SparkSession) -> None:
    from ematix_flow import Target

    source, first, second = opened("source", "sqlite"), opened("first", "duckdb"), opened("second", "parquet")
    seeded(source, [{"id": 1, "email": "a", "seen": 1}])
    table = TableSpec("contract", "copied", RAW.columns)

    @ematix.pipeline(
        source_connection="source",
        targets=[Target(connection="first", table=table), Target(connection="second", table=table)],
    )
    def fan_out(conn: Any) -> str:
        return "SELECT id, email, seen FROM contract__raw"

    assert fan_out.sync().rows_inserted == 2
    assert read_table(first, table) == read_table(second, table) == [{"id": 1, "email": "a", "seen": 1}]
