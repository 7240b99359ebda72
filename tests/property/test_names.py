"""Every strategy on every system with column names that equal internal aliases or break SQL.

The tables have as many of these names at once as a load stays quick with.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import DuckDBConnection, MySQLConnection, PostgresConnection, SQLiteConnection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.loads import load_rows, new_load
from tests.lakes import lake_backend, lake_target
from tests.property.hostile_names import fitting
from tests.property.pair_systems import mysql_system
from tests.property.pair_values import KEY, by_key, random_table
from tests.property.strategy_driving import Database
from tests.property.strategy_histories import START, Batch, Scenario
from tests.property.test_strategies import MARIADB_NEVER, SQLITE_NEVER, opened
from tests.property.test_strategies_lakes import LAKES_NEVER, DeltaTables
from tests.services.mysql_server import MySQLServer
from tests.services.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_800)

STRATEGIES: dict[str, tuple[str, str, dict[str, Any]]] = {  # mode, what the table keeps, options
    "append": ("append", "rows", {}),
    "truncate": ("truncate", "rows", {}),
    "merge": ("merge", "rows", {}),
    "merge with hard deletes": ("merge", "rows", {"deletes": "hard"}),
    "merge with soft deletes": ("merge", "soft_deletes", {"deletes": "soft"}),
    "merge of the last row": ("merge", "rows", {"order": True}),
    "scd2": ("scd2", "versions", {}),
    "scd2 with deletes": ("scd2", "versions", {"deletes": "soft"}),
    "scd2 by event time": ("scd2", "events", {"event": True}),
    "scd2 by event time with deletes and a time to live": (
        "scd2",
        "events",
        {"event": True, "deletes": "soft", "ttl_seconds": 60.0},
    ),
    "scd2 with a time to live": ("scd2", "versions", {"ttl_seconds": 60.0}),
}


def scenario(strategy: str, fit: Sequence[str], share: int = 3) -> Scenario:
    """Two keys, a time, and values; rows come, change, go and come back.

    Each strategy has another share of the names, so that together they have them all several times.
    """
    first = list(STRATEGIES).index(strategy) * len(fit) // len(STRATEGIES)
    names = [fit[(first + number) % len(fit)] for number in range(len(fit) // share)]
    mode, keeps, options = STRATEGIES[strategy]
    keys, at, values = tuple(names[:2]), names[2], names[3:]
    matched = mode in ("merge", "scd2")
    text, moment = DataType("text"), DataType("timestamp_tz")
    columns = [ColumnSpec(k, text, primary_key=matched) for k in keys]
    columns += [ColumnSpec(at, moment)] + [ColumnSpec(v, text, nullable=True) for v in values[:-1]]
    table = TableSpec("prop", "t", tuple(columns), keeps=keeps, merge_keys=keys if matched else ())  # type: ignore[arg-type]
    wide = TableSpec(
        "prop",
        "t",
        (*columns, ColumnSpec(values[-1], text, nullable=True)),
        keeps=keeps,  # type: ignore[arg-type]
        merge_keys=keys if matched else (),
    )

    def matching(compared: list[str]) -> Matching:
        if not matched:
            return Matching()
        ordered = options.get("order") or options.get("event")
        return Matching(
            keys,
            tuple(compared),
            (at, *compared),
            order=at if ordered else None,
            event=at if options.get("event") else None,
            deletes=options.get("deletes"),
            ttl_seconds=options.get("ttl_seconds"),
        )

    def row(key: str, minute: int, value: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
        filled = {v: f"{value} of {v}" for v in (*values[:-1], *more)}
        return {keys[0]: key, keys[1]: "k", at: START + dt.timedelta(minutes=minute), **filled}

    added = (values[-1],)
    batches = (
        Batch((row("a", 0, "x"), row("b", 0, "x")), START),
        Batch((row("a", 2, "y", added), row("c", 2, "x", added)), START + dt.timedelta(minutes=5), wide=True),
        Batch((row("b", 3, "z", added), row("c", 2, "x", added)), START + dt.timedelta(minutes=6), wide=True),
    )
    return Scenario(mode, table, wide, matching(values[:-1]), matching(values), batches)


# ------------------------------------------------------------------ databases: all names at once


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_name_of_a_column_trips_sqlite(strategy: str, tmp_path: Path) -> None:
    database = opened(SQLiteConnection(name="sqlite", path=str(tmp_path / "target.db")))
    database.check(scenario(strategy, fitting(SQLITE_NEVER)))


@pytest.mark.sampled(0, of=2)  # all names in each strategy; SQLite and Postgres hold every strategy
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_name_of_a_column_trips_duckdb(strategy: str, tmp_path: Path) -> None:
    database = opened(DuckDBConnection(name="duckdb", path=str(tmp_path / "target.duckdb")))
    database.check(scenario(strategy, fitting()))


@pytest.fixture(scope="module")
def pg(postgres: PostgresServer) -> Iterator[Database]:
    postgres.start()
    name = postgres.create_database("names")
    yield opened(PostgresConnection(name="postgres", url=postgres.url(name)))
    postgres.drop_database(name)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_name_of_a_column_trips_postgres(strategy: str, pg: Database) -> None:
    pg.check(scenario(strategy, fitting(folds_case=False)))


@pytest.fixture(scope="module")
def maria(mariadb: MySQLServer) -> Iterator[Database]:
    with mariadb.own_database("names") as url:
        yield opened(MySQLConnection(name="mariadb", url=url))


@pytest.mark.sampled(0, of=2)  # the share of DuckDB is another one: its tests have another name
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_name_of_a_column_trips_mariadb(strategy: str, maria: Database) -> None:
    maria.check(scenario(strategy, fitting(MARIADB_NEVER)))


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_name_of_a_column_trips_mysql(strategy: str, mysql: MySQLServer) -> None:
    with mysql.own_database("names") as url:
        database = opened(MySQLConnection(name="mysql", url=url))
        database.check(scenario(strategy, fitting(MARIADB_NEVER)))


def check_names_that_begin_with_spaces(url: str, name: str) -> None:
    """MySQL drops spaces and control characters before an alias; columns of every type keep theirs."""
    server = mysql_system(url, name)
    target = opened(server.connection).target
    made, given = random_table(random.Random(name), "t", server.as_target)
    for mode, first in (("append", " "), ("merge", "\t")):
        called = {n: n if n == KEY else f"{first}{n}"[:64] for n in made.column_names}
        columns = tuple(replace(c, name=called[c.name], primary_key=c.name == KEY) for c in made.columns)
        keys = (KEY,) if mode == "merge" else ()
        table = TableSpec(None, f"spaces_{mode}", columns, merge_keys=keys)
        rows = [{called[n]: value for n, value in row.items()} for row in given]
        values = tuple(n for n in table.column_names if n != KEY)
        matching = Matching(keys, values, values) if keys else Matching()
        load_rows(target, new_load(table, mode, matching=matching), rows, parts=2)
        assert by_key(table, server.read(table)) == by_key(table, rows)


def test_columns_of_every_type_may_begin_with_a_space_in_mariadb(mariadb: MySQLServer) -> None:
    with mariadb.own_database("spaces") as url:
        check_names_that_begin_with_spaces(url, "mariadb")


def test_columns_of_every_type_may_begin_with_a_space_in_mysql(mysql: MySQLServer) -> None:
    with mysql.own_database("spaces") as url:
        check_names_that_begin_with_spaces(url, "mysql")


# ------------------------------------------------------------------ lakes: a load costs seconds


@pytest.fixture(scope="module")
def delta(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Database:
    return DeltaTables(lake_target(lake_backend("delta", tmp_path_factory.mktemp("lake")), spark))


class FreshCatalog(Database):
    def drop(self, table: TableSpec) -> None:
        """Each test has its own warehouse, which is removed after it."""


@pytest.fixture
def iceberg(spark: SparkSession, tmp_path: Path) -> Database:
    return FreshCatalog(lake_target(lake_backend("iceberg", tmp_path), spark))


def quickly(*strategies: str) -> list[Any]:
    """The other strategies take long."""
    return [s if s in strategies else pytest.param(s, marks=pytest.mark.long) for s in STRATEGIES]


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    quickly("append", "merge with hard deletes"),
)
def test_no_name_of_a_column_trips_delta(strategy: str, delta: Database) -> None:
    delta.check(scenario(strategy, fitting(LAKES_NEVER), 2))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", quickly("merge with hard deletes"))
def test_no_name_of_a_column_trips_iceberg(strategy: str, iceberg: Database) -> None:
    iceberg.check(scenario(strategy, fitting(LAKES_NEVER), 1))
