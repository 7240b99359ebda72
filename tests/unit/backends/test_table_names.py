"""Names of declared tables against those that loads make: they can never be equal."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp

from ematix_flow import DuckDBConnection, SQLiteConnection, ematix, register_connection
from ematix_flow.backends.duckdb.dialect import DuckDBDialect
from ematix_flow.backends.lake.companion_table import refuse_lifetime_names
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.mysql.names import require_names
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.sql.load_steps import STRATEGIES, WORK_TABLES
from ematix_flow.backends.sql.table_names import require_distinct_names, require_table_names
from ematix_flow.backends.sqlite.dialect import SQLiteDialect
from ematix_flow.errors import FlowError, SchemaMismatch
from ematix_flow.spec.generated_names import RESERVED_PREFIX, internal_name
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.projection import build_projection
from ematix_flow.strategies.ranges import restrict_to_range
from ematix_flow.strategies.shrink_limit import ShrinkLimit
from ematix_flow.strategies.sql import IncomingRows, StrategyStep
from ematix_flow.transforms import deduplicate_by, filter_where, limit


class MariaDB:
    collation, is_mariadb = "utf8mb4_bin", True


DIALECTS = (PostgresDialect(), MySQLDialect(MariaDB()), SQLiteDialect(), DuckDBDialect("db"), LakeDialect())
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
AT = DataType("timestamp_tz")
COLUMNS = (
    ColumnSpec("k", DataType("big_int"), primary_key=True),
    ColumnSpec("at", AT),
    ColumnSpec("v", DataType("text"), nullable=True),
)
LOADS: dict[str, tuple[str, str, Matching]] = {
    "append": ("append", "rows", Matching()),
    "truncate": ("truncate", "rows", Matching()),
    "merge": ("merge", "rows", Matching(("k",), ("v",), ("v",), deletes="hard")),
    "merge, soft": ("merge", "soft_deletes", Matching(("k",), ("v",), ("v",), order="at", deletes="soft")),
    "scd2": ("scd2", "versions", Matching(("k",), ("v",), ("v",), deletes="soft", ttl_seconds=9.0)),
    "scd2, events": (
        "scd2",
        "events",
        Matching(("k",), ("v",), ("v",), order="at", event="at", deletes="soft", ttl_seconds=9.0),
    ),
}


def table_of(*names: str, **options: Any) -> TableSpec:
    columns = tuple(ColumnSpec(name, DataType("text"), nullable=True) for name in names)
    return TableSpec(None, options.pop("name", "t"), columns, **options)


def made_names(tree: exp.Expr) -> set[str]:
    """What the SQL calls rows and columns."""
    rows = {alias.name for alias in tree.find_all(exp.TableAlias)}
    return rows | {alias.alias for alias in tree.find_all(exp.Alias)}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@pytest.mark.parametrize("load", LOADS)
def test_every_name_that_a_strategy_makes_has_the_reserved_beginning(load: str, dialect: Any) -> None:
    mode, keeps, matching = LOADS[load]
    table = TableSpec("s", "t", COLUMNS, keeps=keeps, merge_keys=matching.keys)  # type: ignore[arg-type]
    known = {*table.with_load_columns().column_names}
    companion = table.companion()
    known |= set(companion.column_names) if companion else set()
    incoming = IncomingRows(exp.select("*").from_("staged"), "0" * 32, NOW, matching=matching)
    incoming = replace(incoming, shrinking=ShrinkLimit("t", 0.5, False))
    for low in (None, Watermark("at", AT, NOW)):
        for keyed in (table, replace(table, columns=tuple(replace(c, primary_key=False) for c in COLUMNS))):
            given = replace(incoming, low=low)
            work = WORK_TABLES[mode](keyed, given) if mode in WORK_TABLES else {}
            for spec in work.values():
                assert all(name in known or name.startswith(RESERVED_PREFIX) for name in spec.column_names)
            given = replace(given, work={name: exp.Table(this=exp.to_identifier(name)) for name in work})
            for step in STRATEGIES[mode](dialect, keyed, given):
                tree = step.statement if isinstance(step, StrategyStep) else step.query
                assert not {n for n in made_names(tree) - known if not n.startswith(RESERVED_PREFIX)}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_every_alias_around_the_users_sql_has_the_reserved_beginning(dialect: Any) -> None:
    import sqlglot

    sql = build_projection(
        source_sql="SELECT 1 AS k, 2 AS at, 3 AS v",
        table=TableSpec(None, "t", COLUMNS),
        source_columns=["k", "at", "v"],
        pre=[filter_where("k > 0"), deduplicate_by("k"), limit(3)],
        dialect=dialect.name,
    )
    ranged = restrict_to_range(sql, SourceRange("at", Watermark("at", AT, NOW)), dialect)
    names = made_names(sqlglot.parse_one(ranged, dialect=dialect.name)) - {"k", "at", "v"}
    assert names
    assert all(name.startswith(RESERVED_PREFIX) for name in names)


@pytest.mark.parametrize("name", [internal_name("part"), "_EMATIX_S", "_ematix_"])
def test_a_declared_name_that_could_be_ours_is_refused(name: str) -> None:
    for table in (table_of("id", name), table_of("id", name=name)):
        with pytest.raises(SchemaMismatch, match="begins with '_ematix_'") as refused:
            require_table_names(table, None)
        assert refused.value.next_step
    require_table_names(table_of("ematix_s", "_ematix", "x_ematix_s"), None)


def test_a_plan_refuses_such_a_name_in_the_table_and_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "db").touch()
    register_connection(SQLiteConnection(name="db", path=str(tmp_path / "db")))
    for table, sql in (
        (table_of("id", "_ematix_s"), "SELECT 1 AS id, 2 AS _ematix_s"),
        (table_of("id", "other"), "SELECT 1 AS id, 2 AS _ematix_s"),
    ):

        @ematix.pipeline(
            target=table, source_connection="db", target_connection="db", name=f"load {table.columns[1].name}"
        )
        def load(sql: str = sql) -> str:
            return sql

        with pytest.raises(FlowError, match="the name '_ematix_s' in"):
            load.sync()


@pytest.mark.parametrize("keeps", ["rows", "versions", "events", "soft_deletes"])
def test_columns_that_differ_in_case_alone_are_refused_those_of_a_load_among_them(keeps: Any) -> None:
    table = TableSpec("s", "t", COLUMNS, keeps=keeps, merge_keys=("k",))
    require_distinct_names(table, "Spark")
    added = [c.name for c in table.with_load_columns().columns if c.name not in table.column_names]
    companion = table.companion()
    added += [c.name for c in companion.columns if c.name not in table.column_names] if companion else []
    for name in ("V", *[name.upper() for name in added]):
        wider = replace(table, columns=(*COLUMNS, ColumnSpec(name, DataType("text"), nullable=True)))
        with pytest.raises(SchemaMismatch, match="differ only in case, and Spark"):
            require_distinct_names(wider, "Spark")


@pytest.mark.parametrize("connection", [SQLiteConnection, DuckDBConnection])
def test_sqlite_and_duckdb_keep_letters_beyond_ascii_apart(connection: Any, tmp_path: Path) -> None:
    target = open_backend(connection(name="db", path=str(tmp_path / "db"))).target()
    assert target is not None
    for names in (("é", "É"), ("ä", "Ä")):
        table = table_of(*names)
        planned = target.plan_table(table, target.inspect(table))
        assert planned.changes
    with pytest.raises(SchemaMismatch):
        target.plan_table(table_of("a", "A"), target.inspect(table_of("a", "A")))
    with pytest.raises(SchemaMismatch):
        require_distinct_names(table_of("é", "É"), "Spark")


def test_mysql_takes_a_capital_i_with_a_dot_for_an_i() -> None:
    with pytest.raises(SchemaMismatch, match="MySQL treats them as the same name"):
        require_names(table_of("i", "İ"))


@pytest.mark.parametrize("name", ["true", "FALSE"])
def test_sqlite_refuses_names_that_its_subqueries_lose(tmp_path: Path, name: str) -> None:
    target = open_backend(SQLiteConnection(name="db", path=str(tmp_path / "db"))).target()
    assert target is not None
    with pytest.raises(SchemaMismatch, match="lose that name"):
        target.inspect(table_of("id", name))


@pytest.mark.parametrize("name", ["_since_load", "_UNTIL_LOAD"])
def test_a_lake_refuses_the_names_that_it_keeps_next_to_events(name: str) -> None:
    table = TableSpec("s", "t", (*COLUMNS, ColumnSpec(name, DataType("text"))), merge_keys=("k",))
    refuse_lifetime_names(table)
    with pytest.raises(SchemaMismatch, match="adds to its companion table"):
        refuse_lifetime_names(replace(table, keeps="events"))
