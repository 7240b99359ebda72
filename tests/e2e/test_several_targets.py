"""One pipeline, several targets: one read of the source, each with its own strategy and outcome."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import (
    Connection,
    DuckDBConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    Pipeline,
    PostgresConnection,
    SQLiteConnection,
    Target,
    ematix,
    fault_points,
    register_connection,
)
from ematix_flow.backends.base import Backend
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.sql.computed_table import compute_table, computed_table_name
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.errors import LoadError, RowRejected, SourceFailed
from ematix_flow.normalize import trim
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from tests.reading import read_table

pytestmark = pytest.mark.usefixtures("spark")

Opened = Callable[[str, str], Backend]
SEED = TableSpec(
    "raw",
    "seed",
    (
        ColumnSpec("id", DataType("big_int")),
        ColumnSpec("name", DataType("text"), nullable=True),
        ColumnSpec("seen", DataType("integer")),
    ),
)
ROWS = [{"id": n, "name": f" name {n} ", "seen": n // 2} for n in range(1, 8)]
# a value that no second read would give again
TOKEN = {
    "postgres": "CAST(random() AS text)",
    "sqlite": "CAST(random() AS text)",
    "duckdb": "CAST(random() AS text)",
    "mysql": "CAST(RAND() AS CHAR)",
    "mariadb": "CAST(RAND() AS CHAR)",
    "parquet": "uuid()",
}


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


def seed(backend: Backend, rows: list[dict[str, Any]]) -> None:
    sink = backend.target()
    assert sink is not None
    load_rows(sink, new_load(SEED), rows)


def landed(table: str = "landed", /, *columns: ColumnSpec, **changed: ColumnSpec) -> TableSpec:
    plain = [changed.get(c.name, c) for c in SEED.columns]
    return TableSpec("mart", table, (*plain, *columns))


def fan_out(sql: str, targets: list[Target], **options: Any) -> Pipeline:
    @ematix.pipeline(**{"source_connection": "source", "name": "spread", "targets": targets, **options})
    def spread(conn: Any) -> str:
        return sql

    return spread


def seed_name(kind: str) -> str:
    return "raw__seed" if kind == "sqlite" else "raw.seed"


def query(kind: str, columns: str = "id, name, seen") -> str:
    return f"SELECT {columns} FROM {seed_name(kind)}"


def ids(backend: Backend, table: TableSpec) -> list[int]:
    return sorted(row["id"] for row in read_table(backend, table))


# ------------------------------------------------------------------ one read


TOKENS = ColumnSpec("token", DataType("text"))
TRIMMED = ColumnSpec("name", DataType("text"), nullable=True, normalizers=(trim(),))


@pytest.mark.parametrize(
    ("source_kind", "kinds", "computed", "path"),
    [
        ("postgres", ("sqlite", "duckdb", "parquet", "mariadb"), False, "copy"),
        ("mariadb", ("mariadb", "postgres"), False, "copy"),
        ("postgres", ("postgres", "duckdb"), False, "copy"),
        ("sqlite", ("postgres", "duckdb"), False, "copy"),
        ("duckdb", ("sqlite", "parquet"), True, "spark"),
        ("postgres", ("postgres", "mariadb", "parquet"), True, "spark"),
        ("parquet", ("duckdb", "postgres"), False, "spark"),
        ("parquet", ("sqlite", "duckdb"), True, "spark"),
    ],
)
def test_the_source_is_read_once_for_all_targets(
    opened: Opened, source_kind: str, kinds: tuple[str, ...], computed: bool, path: str
) -> None:
    seed(opened("source", source_kind), ROWS)
    backends = [opened(f"target_{kind}", kind) for kind in kinds]
    tables = [
        landed("landed", TOKENS, **({"name": TRIMMED} if computed and number == 0 else {}))
        for number in range(len(kinds))
    ]
    load = fan_out(
        query(source_kind, f"id, name, seen, {TOKEN[source_kind]} AS token"),
        [Target(connection=f"target_{k}", table=t) for k, t in zip(kinds, tables, strict=True)],
    )
    result = load.sync()
    assert [t.path for t in result.targets] == [path] * len(kinds)
    assert [(t.rows_read, t.rows_inserted) for t in result.targets] == [(7, 7)] * len(kinds)
    read = "copy" if path == "copy" else "read"
    assert len({dict(t.seconds)[read] for t in result.targets}) == 1
    found = [{row["id"]: row for row in read_table(b, t)} for b, t in zip(backends, tables, strict=True)]
    assert all({n: row["token"] for n, row in rows.items()} == _tokens(found[0]) for rows in found)
    assert len(set(_tokens(found[0]).values())) == 7
    assert found[0][1]["name"] == ("name 1" if computed else " name 1 ")
    assert found[-1][1]["name"] == " name 1 "
    text = str(load.plan())
    assert f"once for {len(kinds)} targets" in text
    if source_kind in kinds and not computed:
        assert "copy: several targets: one read of the source feeds all" in text


def _tokens(rows: dict[int, dict[str, Any]]) -> dict[int, str]:
    return {n: row["token"] for n, row in rows.items()}


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgres", "mysql", "mariadb"])
def test_a_database_that_holds_source_and_targets_computes_the_rows_once(opened: Opened, kind: str) -> None:
    backend = opened("source", kind)
    seed(backend, ROWS)
    first, second = landed("first", TOKENS), landed("second", TOKENS, name=TRIMMED)
    load = fan_out(
        query(kind, f"id, name, seen, {TOKEN[kind]} AS token"),
        [Target(connection="source", table=first), Target(connection="source", table=second)],
    )
    result = load.sync()
    assert [t.path for t in result.targets] == ["same_db", "same_db"]
    here, there = ({row["id"]: row for row in read_table(backend, table)} for table in (first, second))
    assert _tokens(here) == _tokens(there)
    assert (here[1]["name"], there[1]["name"]) == (" name 1 ", "name 1")
    assert _computed_tables(backend) == []


def _computed_tables(backend: Backend) -> list[Any]:
    catalog = {
        "sqlite": "SELECT name FROM sqlite_master WHERE name LIKE '%_computed'",
        "duckdb": "SELECT table_name FROM duckdb_tables() WHERE table_name LIKE '%_computed'",
        "postgres": "SELECT relname FROM pg_class WHERE relname LIKE '%_computed'",
        "mysql": "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_NAME LIKE '%_computed'",
    }
    return backend.query(catalog[backend.kind])[1]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_where_creating_a_table_commits_a_rerun_still_loads_only_what_is_missing(
    opened: Opened, kind: str
) -> None:
    backend = opened("source", kind)
    seed(backend, ROWS)
    first, second = landed("first"), landed("second", name=STRICT)
    sink = backend.target()
    assert isinstance(sink, RelationalTarget)
    # as a run leaves it that is killed right after the statement has committed by itself
    compute_table(sink, computed_table_name("spread", "source:mart.first"), "SELECT 1 AS other")
    load = fan_out(
        query(kind),
        [Target(connection="source", table=first), Target(connection="source", table=second)],
        continue_on_target_failure=True,
    )
    assert [(t.path, t.status) for t in load.sync().targets] == [
        ("same_db", "succeeded"),
        ("same_db", "failed"),
    ]
    assert (ids(backend, first), ids(backend, second)) == ([1, 2, 3, 4, 5, 6, 7], [])
    assert _computed_tables(backend) == []
    _shorten_names(backend)
    assert [(t.status, t.rows_inserted) for t in load.sync().targets] == [("skipped", 0), ("succeeded", 7)]
    assert ids(backend, first) == ids(backend, second) == [1, 2, 3, 4, 5, 6, 7]
    assert _computed_tables(backend) == []


def test_a_table_of_a_server_is_scanned_once(opened: Opened, pg_database: str) -> None:
    seed(opened("source", "postgres"), ROWS)
    opened("a", "duckdb"), opened("b", "sqlite"), opened("c", "parquet")
    before = _rows_scanned(pg_database)
    fan_out(query("postgres"), [Target(connection=c, table=landed()) for c in "abc"]).sync()
    assert _rows_scanned(pg_database) - before == len(ROWS)


def _rows_scanned(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'raw' AND relname = 'seed'"
        ).fetchone()
    assert row is not None
    return int(row[0])


# ------------------------------------------------------------------ each its own strategy


def test_each_target_has_its_own_strategy(opened: Opened) -> None:
    source = opened("source", "postgres")
    seed(source, ROWS)
    every = {"append": "duckdb", "truncate": "sqlite", "merge": "postgres", "scd2": "mariadb"}
    targets, backends = [], {}
    for mode, kind in every.items():
        backend = opened(f"for_{mode}", kind)
        if mode in backend.capabilities.strategies:
            backends[mode] = backend
            table = landed(
                f"by_{mode}", id=ColumnSpec("id", DataType("big_int"), primary_key=mode != "append")
            )
            targets.append(Target(connection=f"for_{mode}", table=table, mode=mode))
    load = fan_out(query("postgres"), targets)
    load.sync()
    load.sync()
    count = {mode: len(read_table(b, landed(f"by_{mode}"))) for mode, b in backends.items()}
    assert count == {mode: 14 if mode == "append" else 7 for mode in backends}
    assert {"append", "truncate"} <= set(count)


# ------------------------------------------------------------------ one target fails


STRICT = ColumnSpec("name", DataType("string", length=3), nullable=True)


def targets_of_which_one_fails(opened: Opened, computed: bool) -> tuple[Backend, Backend, list[Target]]:
    """The first target's names are too short for the rows; with ``computed``, Spark has work to do."""
    seed(opened("source", "postgres"), ROWS)
    strict, open_ended = opened("strict", "duckdb"), opened("open", "sqlite")
    fine = landed("landed", **({"name": TRIMMED} if computed else {}))
    return (
        strict,
        open_ended,
        [
            Target(connection="strict", table=landed(name=STRICT)),
            Target(connection="open", table=fine),
        ],
    )


@pytest.mark.parametrize("computed", [False, True])
def test_a_target_that_fails_while_staging_leaves_the_others_untouched(
    opened: Opened, computed: bool
) -> None:
    strict, fine, targets = targets_of_which_one_fails(opened, computed)
    with pytest.raises(
        LoadError, match=r"1 of 2 targets failed: strict:mart\.landed.*3 characters"
    ) as raised:
        fan_out(query("postgres"), targets).sync()
    assert raised.value.state == "committed: none; every other target is as before"
    assert ids(strict, landed()) == ids(fine, landed()) == []


@pytest.mark.parametrize("computed", [False, True])
def test_the_others_are_loaded_when_they_are_to_go_on_and_a_rerun_loads_only_the_failed_one(
    opened: Opened, computed: bool
) -> None:
    strict, fine, targets = targets_of_which_one_fails(opened, computed)
    load = fan_out(query("postgres"), targets, continue_on_target_failure=True)
    result = load.sync()
    assert result.status == "failed"
    assert [(t.target, t.status) for t in result.targets] == [
        ("strict:mart.landed", "failed"),
        ("open:mart.landed", "succeeded"),
    ]
    assert (ids(strict, landed()), ids(fine, landed())) == ([], [1, 2, 3, 4, 5, 6, 7])
    _shorten_names(opened("source", "postgres"))
    again = load.sync()
    assert [(t.status, t.reason, t.rows_inserted) for t in again.targets] == [
        ("succeeded", None, 7),
        ("skipped", "an earlier run had committed it", 0),
    ]
    assert any("this run finishes only what is missing" in note for note in again.notes)
    assert ids(strict, landed()) == ids(fine, landed()) == [1, 2, 3, 4, 5, 6, 7]
    assert [t.rows_inserted for t in load.sync().targets] == [7, 7]


def _shorten_names(source: Backend) -> None:
    sink = source.target()
    assert sink is not None
    sink.run_sql("UPDATE raw.seed SET name = 'n'")


def test_a_source_that_fails_in_mid_read_leaves_every_target_as_before(opened: Opened) -> None:
    source = opened("source", "postgres")
    seed(source, ROWS)
    backends = [opened("a", "duckdb"), opened("b", "parquet")]
    sql = "SELECT id, name, (1 / (7 - id))::integer AS seen FROM raw.seed"
    load = fan_out(sql, [Target(connection=c, table=landed()) for c in "ab"])
    with pytest.raises(SourceFailed, match="division by zero"):
        load.sync()
    assert [ids(b, landed()) for b in backends] == [[], []]
    go_on = fan_out(
        sql, [Target(connection=c, table=landed()) for c in "ab"], name="on", continue_on_target_failure=True
    ).sync()
    assert [(t.status, "division by zero" in str(t.reason)) for t in go_on.targets] == [("failed", True)] * 2
    assert [list(Path().rglob("staging/*")), [ids(b, landed()) for b in backends]] == [[], [[], []]]


# ------------------------------------------------------------------ killed between two targets


@pytest.mark.parametrize("kinds", [("duckdb", "mariadb"), ("mariadb", "parquet")])
def test_a_run_that_dies_between_two_targets_is_finished_by_the_next(
    opened: Opened, kinds: tuple[str, str]
) -> None:
    seed(opened("source", "sqlite"), ROWS)
    backends = [opened(f"target_{kind}", kind) for kind in kinds]
    load = fan_out(query("sqlite"), [Target(connection=f"target_{k}", table=landed()) for k in kinds])
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.after_commit", "crash"):
        load.sync()
    assert [ids(b, landed()) for b in backends] == [[1, 2, 3, 4, 5, 6, 7], []]
    result = load.sync()
    assert [(t.status, t.rows_inserted) for t in result.targets] == [("skipped", 0), ("succeeded", 7)]
    assert any("this run finishes only what is missing" in note for note in result.notes)
    assert [ids(b, landed()) for b in backends] == [[1, 2, 3, 4, 5, 6, 7]] * 2
    assert list(Path().rglob("staging/*")) == []


# ------------------------------------------------------------------ positions that differ


@pytest.mark.parametrize("way", ["copy", "spark", "same_db"])
def test_each_target_goes_on_from_its_own_watermark(opened: Opened, way: str) -> None:
    source = opened("source", "postgres")
    seed(source, ROWS[:3])
    ahead = source if way == "same_db" else opened("ahead", "duckdb")
    behind = source if way == "same_db" else opened("behind", "sqlite")
    names = ["source" if way == "same_db" else name for name in ("ahead", "behind")]
    first = landed("first", **({"name": TRIMMED} if way == "spark" else {}))
    targets = [Target(connection=names[0], table=first), Target(connection=names[1], table=landed("second"))]
    options = {"incremental": True, "watermark_column": "seen", "continue_on_target_failure": True}
    load = fan_out(query("postgres"), targets, **options)
    with fault_points.inject("apply.before_commit", "raise", nth=2):
        assert [t.status for t in load.sync().targets] == ["succeeded", "failed"]
    seed(source, ROWS[3:])
    plan = load.plan()
    assert plan.shared is not None and plan.shared.query.range is not None
    assert plan.shared.query.range.low is None
    result = load.sync()
    assert [t.path for t in result.targets] == [way, way]
    assert [(t.source_from, t.source_to, t.rows_inserted) for t in result.targets] == [
        ("1", "3", 4),
        (None, "3", 7),
    ]
    # rows at the watermark are read again and matched; those below it are not
    assert [t.rows_read for t in result.targets] == [6, 7]
    assert ids(ahead, landed("first")) == ids(behind, landed("second")) == [1, 2, 3, 4, 5, 6, 7]
    assert load.sync().status == "skipped"


def test_a_row_without_a_watermark_is_refused_by_every_target(opened: Opened) -> None:
    source = opened("source", "sqlite")
    sink = source.target()
    assert sink is not None
    sink.run_sql("CREATE TABLE raw__seed (id INTEGER, name TEXT, seen INTEGER)")
    sink.run_sql("INSERT INTO raw__seed VALUES (1, 'a', 1), (2, 'b', NULL)")
    opened("a", "duckdb"), opened("b", "postgres")
    seen = ColumnSpec("seen", DataType("integer"), nullable=True)
    result = fan_out(
        query("sqlite"),
        [Target(connection=c, table=landed(seen=seen)) for c in "ab"],
        incremental=True,
        watermark_column="seen",
        continue_on_target_failure=True,
    ).sync()
    errors = [json.dumps(t.error) for t in result.targets]
    assert all("have no watermark" in error and RowRejected.__name__ in error for error in errors)
