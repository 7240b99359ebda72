"""Random tables through whole pipelines, from every system to every other one.

A source is filled and a target is read by independent clients; what arrives must equal what
was written, or the load is refused in words of ours. By default one table a pair; ``make test-long`` takes
many, and all pairs of file formats.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import ematix, register_connection
from ematix_flow.errors import RowRejected, SchemaMismatch
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from tests.property import pair_systems as made
from tests.property.pair_systems import System
from tests.property.pair_values import KEY, UTC, by_key, random_table
from tests.services.mysql_server import MySQLServer
from tests.services.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

SYSTEMS = ("postgres", "mariadb", "sqlite", "duckdb", "delta", "parquet")
FORMATS = ("csv", "json_lines", "orc")
QUICK = {"csv": "postgres", "json_lines": "mariadb", "orc": "duckdb"}  # each is a source and a target of one
NUMBERS = itertools.count()

Systems = dict[str, tuple[System, System]]


@pytest.fixture(scope="module")
def systems(
    spark: SparkSession,
    postgres: PostgresServer,
    mariadb: MySQLServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Systems]:
    """Each system as a source and as a target; both are one where that is a server."""
    folder = tmp_path_factory.mktemp("pairs")
    postgres.start()
    name = postgres.create_database("pairs")

    def both(make: Any, kind: str, *more: Any) -> tuple[System, System]:
        return tuple(make(folder / f"{kind}_{end}", *more, f"{kind}_{end}") for end in ("source", "target"))  # type: ignore[return-value]

    with mariadb.own_database("pairs") as mysql_url:
        server, other = made.postgres_system(postgres.url(name)), made.mysql_system(mysql_url, "mariadb")
        yield {
            "postgres": (server, server),
            "mariadb": (other, other),
            "sqlite": both(made.sqlite_system, "sqlite"),
            "duckdb": both(made.duckdb_system, "duckdb"),
            "delta": both(made.delta_system, "delta", spark),
            "parquet": both(made.parquet_system, "parquet"),
            "csv": both(made.csv_system, "csv"),
            "json_lines": both(made.json_system, "json_lines"),
            "orc": both(made.orc_system, "orc"),
        }
    postgres.drop_database(name)


def load(source: System, target: System, table: TableSpec, from_table: str) -> None:
    with use_registry(Registry()):
        for connection in {s.name: s.connection for s in (source, target)}.values():
            register_connection(connection)

        @ematix.pipeline(
            target=table,
            source_connection=source.name,
            target_connection=target.name,
            name=f"load_{table.name}",
            mode="append",
        )
        def pipeline() -> str:
            return f"SELECT * FROM {from_table}"

        assert pipeline.sync().status == "succeeded"


def check_pair(systems: Systems, pair: tuple[str, str], seed: str) -> None:
    source, target = systems[pair[0]][0], systems[pair[1]][1]
    number = next(NUMBERS)
    table, rows = random_table(random.Random(seed), f"t{number}", source.as_source | target.as_target)
    source.write(replace(table, name=f"s{number}"), rows)
    load(source, target, table, f"s{number}")
    found, wanted = by_key(table, target.read(table)), by_key(table, rows)
    assert found.keys() == wanted.keys(), seed
    differ = [
        (column.name, str(column.type), rows[key][column.name], found[key][column.name])
        for key, row in wanted.items()
        for column in table.columns
        if found[key][column.name] != row[column.name]
    ]
    assert not differ, seed


def pairs() -> list[Any]:
    """Every pair; those of formats of files that no default run takes are marked."""
    everything = itertools.product((*SYSTEMS, *FORMATS), repeat=2)
    return [
        pytest.param(pair, id=" to ".join(pair), marks=() if _is_quick(pair) else pytest.mark.long)
        for pair in everything
    ]


def _is_quick(pair: tuple[str, str]) -> bool:
    first, last = pair
    if set(pair) <= set(SYSTEMS):  # each is a source and a target of three
        return (SYSTEMS.index(last) - SYSTEMS.index(first)) % len(SYSTEMS) in (0, 1, 3)
    return QUICK.get(first) == last or QUICK.get(last) == first


def every_kind() -> list[Any]:
    return [*SYSTEMS, *(pytest.param(kind, marks=pytest.mark.long) for kind in FORMATS)]


@pytest.mark.parametrize("pair", pairs())
def test_what_was_written_arrives(systems: Systems, pair: tuple[str, str]) -> None:
    check_pair(systems, pair, " to ".join(pair))


# ------------------------------------------------------------------ what a target cannot hold


def numeric(precision: int, scale: int) -> DataType:
    return DataType("numeric", precision=precision, scale=scale)


TEXT = DataType("text")
REFUSED_NAMES = {
    "postgres": ("x" * 64,),
    "mariadb": ("x" * 65, "emoji \U0001f600", "ends with a space "),
    "delta": ("İ",),
    "orc": ("a`b",),
}
TELL_CASE_APART = ("postgres", "parquet", "csv", "json_lines", "orc")  # files are for others to read, too
NAN, INFINITE = float("nan"), float("inf")
REFUSED_VALUES: dict[str, tuple[tuple[DataType, Any], ...]] = {
    "postgres": ((TEXT, "a\x00b"), (DataType("jsonb"), '"\\u0000"'), (DataType("jsonb"), "{")),
    "mariadb": ((DataType("double"), NAN), (DataType("float"), -INFINITE), (DataType("json"), "{")),
    "sqlite": ((DataType("double"), NAN), (DataType("uuid"), "x")),
    "duckdb": ((DataType("uuid"), "x"), (DataType("json"), "{")),
    "orc": (
        (DataType("date"), dt.date(1582, 10, 14)),
        (DataType("timestamp_tz"), dt.datetime(1969, 12, 31, 23, 59, 59, 1, UTC)),
    ),
}
# a value of one type that a declared column of another cannot hold in any system, and one that it can
TOO_LARGE: tuple[tuple[DataType, Any, DataType, Any], ...] = (
    (DataType("big_int"), 32_768, DataType("small_int"), 32_767),
    (numeric(38, 3), Decimal("0.125"), numeric(5, 2), Decimal("0.120")),
    (TEXT, "\U0001f600\U0001f600", DataType("string", length=1), "\U0001f600"),
    (TEXT, None, TEXT, ""),
    (DataType("double"), 1e300, DataType("float"), 0.5),
    (TEXT, "2026-02-30", DataType("date"), "2026-02-28"),
)


def refused(source: System, target: System, table: TableSpec, from_table: str, name: str) -> None:
    """A FlowError, which names what, where, and what to do."""
    with pytest.raises((SchemaMismatch, RowRejected)) as caught:
        load(source, target, table, from_table)
    error = caught.value
    assert name in error.what and error.where and error.next_step, error
    assert "Spark" not in f"{error.next_step}" and "Exception" not in error.what, error


@pytest.mark.parametrize("kind", every_kind())
def test_a_name_that_a_target_cannot_keep_is_refused(systems: Systems, kind: str) -> None:
    source, target = systems["duckdb"][0], systems[kind][1]
    for name in (*REFUSED_NAMES.get(kind, ()), "_ematix_part", "_EMATIX_s"):
        table = TableSpec(None, f"t{next(NUMBERS)}", (ColumnSpec("id", TEXT), ColumnSpec(name, TEXT)))
        source.write(replace(table, name=f"s_{table.name}"), [{"id": "1", name: "x"}])
        refused(source, target, table, f"s_{table.name}", name)
    if kind not in TELL_CASE_APART:
        twins = TableSpec(None, f"t{next(NUMBERS)}", (ColumnSpec("a", TEXT), ColumnSpec("A", TEXT)))
        systems["postgres"][0].write(replace(twins, name=f"s_{twins.name}"), [{"a": "1", "A": "2"}])
        refused(systems["postgres"][0], target, twins, f"s_{twins.name}", "'A'")


@pytest.mark.parametrize("kind", every_kind())
def test_a_value_that_a_target_cannot_hold_is_refused_and_leaves_nothing(systems: Systems, kind: str) -> None:
    source, target = systems["parquet"][0], systems[kind][1]
    key = ColumnSpec(KEY, DataType("integer"))
    bad = [(given, value, given, None) for given, value in REFUSED_VALUES.get(kind, ())]
    for given, value, declared, good in (*bad, *TOO_LARGE[(*SYSTEMS, *FORMATS).index(kind) % 3 :: 3]):
        number = next(NUMBERS)
        written = TableSpec(None, f"s{number}", (key, ColumnSpec("a.b", given, nullable=True)))
        source.write(written, [{KEY: 0, "a.b": value}])
        table = TableSpec(None, f"t{number}", (key, ColumnSpec("a.b", declared)))
        refused(source, target, table, written.name, "'a.b'" if good is not None else "")
    source.write(replace(written, name=f"good{number}"), [{KEY: 1, "a.b": good}])
    load(source, target, table, f"good{number}")
    assert [row[KEY] for row in target.read(table)] == [1]


@pytest.mark.long
@pytest.mark.parametrize("pair", pairs())
def test_what_was_written_arrives_in_many_tables(systems: Systems, pair: tuple[str, str]) -> None:
    for number in range(30):
        check_pair(systems, pair, f"{' to '.join(pair)} {number}")
