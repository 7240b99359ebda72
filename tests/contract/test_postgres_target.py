"""PostgreSQL as a target: tables, staging, locks, and rows that arrive exactly as they were."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from ematix_flow.backends.base import StagedRows
from ematix_flow.backends.postgres.backend import PostgresBackend
from ematix_flow.backends.postgres.staging_table import staging_prefix
from ematix_flow.errors import (
    LoadError,
    PipelineLocked,
    RowRejected,
    SchemaMismatch,
    ShrinkRefused,
    SourceFailed,
    TargetFailed,
)
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import KINDS, DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from tests.contract.postgres_setup import (
    PIPELINE,
    TARGET,
    backend_of,
    copy_table,
    load_rows,
    load_same_database,
    new_load,
    orders,
    prepare,
    sql,
    staged,
)
from tests.services.postgres import PostgresServer
from tests.services.shared import private_server

postgres = private_server("postgres")  # tests here stop it

UTC = dt.timezone.utc
D = decimal.Decimal
SIZES = {"string": {"length": 20}, "numeric": {"precision": 38, "scale": 9}}
VALUES: dict[str, list[Any]] = {
    "small_int": [-32768, 0, 32767],
    "integer": [-(2**31), 0, 2**31 - 1],
    "big_int": [-(2**63), 0, 2**63 - 1],
    "float": [-1.5, 0.0, float("inf")],
    "double": [0.1, -1e300, float("-inf")],
    "numeric": [D("-" + "9" * 29 + "." + "9" * 9), D("0E-9"), D("0.000000001")],
    "boolean": [True, False, True],
    "text": ["", "naïve 😀 \\N \\ % '\"\n\t", "x" * 5000],
    "string": ["", "😀" * 20, " padded "],
    "date": [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(1, 1, 1),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.datetime(9999, 12, 31),
    ],
    "timestamp_tz": [
        dt.datetime(1, 1, 2, tzinfo=UTC),
        dt.datetime(2024, 3, 31, 1, 30, 0, 1, tzinfo=UTC),
        dt.datetime(9999, 12, 30, tzinfo=UTC),
    ],
    "json": ['{"b": 1,  "a": [1, null]}', "null", '"ü"'],
    "jsonb": ['{"a": [1, null], "b": 1}', "null", '"ü"'],
    "uuid": [str(uuid.UUID(int=i)) for i in (0, 1, 2**128 - 1)],
    "bytes": [b"", b"\x00\xff\\", b"x" * 5000],
}
ALL_TYPES = TableSpec(
    "shop",
    "everything",
    (
        ColumnSpec("id", DataType("integer"), primary_key=True),
        *(ColumnSpec(kind, DataType(kind, **SIZES.get(kind, {})), nullable=True) for kind in KINDS),
    ),
)
ALL_ROWS = [
    *({"id": i, **{kind: VALUES[kind][i] for kind in KINDS}} for i in range(3)),
    {"id": 3, **dict.fromkeys(KINDS)},
]


@pytest.fixture
def backend(pg_database: str) -> PostgresBackend:
    return backend_of(pg_database)


@pytest.fixture
def other_database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create_database("other")
    yield postgres.url(name)
    postgres.drop_database(name)


def stored(url: str, columns: str = "*", table: str = "shop.orders") -> list[tuple[Any, ...]]:
    return sql(url, f"SELECT {columns} FROM {table} ORDER BY 1, 2")


def ids(url: str) -> list[int]:
    return [row[0] for row in sql(url, "SELECT id FROM shop.orders ORDER BY id")]


# ------------------------------------------------------------------ rows


def test_every_type_goes_through_staging_unchanged_with_nulls(
    pg_database: str, backend: PostgresBackend
) -> None:
    assert load_rows(backend, ALL_TYPES, ALL_ROWS).rows.inserted == 4
    columns = ", ".join(f'"{k}"::text' if k in ("json", "jsonb", "uuid") else f'"{k}"' for k in KINDS)
    got = sql(pg_database, f"SELECT id, {columns} FROM shop.everything ORDER BY id")
    assert got == [tuple(row[name] for name in ("id", *KINDS)) for row in ALL_ROWS]


def test_every_type_is_copied_from_database_to_database_unchanged(
    pg_database: str, other_database: str, backend: PostgresBackend
) -> None:
    other = backend_of(other_database)
    load_rows(backend, ALL_TYPES, ALL_ROWS)
    assert copy_table(backend, "SELECT * FROM shop.everything", other, ALL_TYPES).rows.inserted == 4
    columns = ", ".join(f'"{kind}"::text' for kind in KINDS)
    read = f"SELECT id, {columns} FROM shop.everything ORDER BY id"
    assert sql(other_database, read) == sql(pg_database, read)


def test_decimals_of_every_size_keep_every_digit(pg_database: str, backend: PostgresBackend) -> None:
    sizes = [(1, 0), (4, 4), (5, 3), (10, 0), (20, 7), (38, 0), (38, 19), (38, 38)]
    columns = tuple(ColumnSpec(f"d{p}_{s}", DataType("numeric", precision=p, scale=s)) for p, s in sizes)
    digits = [0, 1, 5, 9, 10, 99, 9999, 10000, 10001, 99999999, 100000000, 10**37, 10**38 - 1]
    with decimal.localcontext() as context:
        context.prec = 80
        rows = [
            {f"d{p}_{s}": (D(n % 10**p) * sign).scaleb(-s) for p, s in sizes}
            for n in digits
            for sign in (1, -1)
        ]
    load_rows(backend, TableSpec("shop", "numbers", columns), rows)
    got = sql(pg_database, f"SELECT {', '.join(c.name for c in columns)} FROM shop.numbers ORDER BY ctid")
    assert got == [tuple(row.values()) for row in rows]


def test_hostile_names_are_only_names(pg_database: str, backend: PostgresBackend) -> None:
    names = [
        "select",
        'quo"te',
        "sp ace",
        "MixedCase",
        "emoji😀",
        "per%cent %s",
        "dot.ted",
        "; DROP TABLE x --",
        "ü" * 31,
    ]
    columns = tuple(ColumnSpec(name, DataType("text"), nullable=True) for name in names)
    key = ColumnSpec("table", DataType("integer"), primary_key=True)
    table = TableSpec('Sch"ema %s', "t" * 63, (key, *columns), unique=(("select", 'quo"te'),))
    row = {"table": 1, **{name: f"value of {name}" for name in names}}
    assert load_rows(backend, table, [row]).rows.inserted == 1
    name = 'Sch"ema %s'.replace('"', '""')
    [got] = sql(pg_database, f'SELECT * FROM "{name}"."{"t" * 63}"')
    assert got[: len(row)] == tuple(row.values())
    live = backend.target().inspect(table)
    assert live is not None
    assert live.primary_key == ("table",)
    assert live.unique == (("select", 'quo"te'),)
    assert backend.target().plan_table(table, live).changes == ()
    assert backend.target().plan_table(table, live).differences == ()


def test_each_row_carries_when_and_by_which_run_it_came(pg_database: str, backend: PostgresBackend) -> None:
    prepare(backend, orders())
    load = new_load(orders())
    rows = staged(backend, load, [{"id": 1}])
    backend.target().apply(load, rows)
    assert sql(pg_database, "SELECT _loaded_at, _batch_id FROM shop.orders") == [
        (load.loaded_at, load.run_id)
    ]
    [entry] = backend.target().ledger(PIPELINE, TARGET)
    assert (entry.run_id, entry.rows.read, entry.rows.inserted) == (str(load.run_id), 1, 1)
    assert backend.target().ledger(PIPELINE, TARGET, run_id=str(uuid.uuid4())) == []


def test_a_same_database_load_keeps_the_sql_as_it_is(pg_database: str, backend: PostgresBackend) -> None:
    select = "SELECT 1::bigint AS id, 5.5 AS amount, now() AS seen -- 100% %s\n"
    assert load_same_database(backend, orders(), select).rows.inserted == 1
    assert stored(pg_database, "id, amount") == [(1, D("5.50"))]


def test_a_same_database_load_gives_what_a_copy_gives(
    pg_database: str, other_database: str, backend: PostgresBackend
) -> None:
    """Where PostgreSQL's own assignment would round, refuse or do something else."""
    sql(pg_database, "CREATE TYPE pair AS (a int, b text)")
    sql(
        pg_database,
        "CREATE TABLE odd AS SELECT 1 AS id, 12.50::numeric AS n, 7.00::numeric AS i, '{1,2}'::int[] AS j,"
        " '{a}'::text[] AS k, ROW(1, 'x')::pair AS p, 'ab'::char(5) AS c, '1 day'::interval AS t,"
        " 9.99::money AS m",
    )
    kinds = {"j": "json", "k": "jsonb", "p": "jsonb", "c": "text", "t": "text", "i": "big_int"}
    columns = [ColumnSpec("id", DataType("integer"), primary_key=True)]
    columns += [ColumnSpec(name, DataType(kind)) for name, kind in kinds.items()]
    columns += [ColumnSpec(name, DataType("numeric", precision=10, scale=2)) for name in ("n", "m")]
    table = TableSpec("shop", "odd", tuple(columns))
    select = f"SELECT {', '.join(table.column_names)} FROM odd"
    other = backend_of(other_database)
    copy_table(backend, select, other, table)
    load_same_database(backend, table, select)
    read = f"SELECT {', '.join(f'{name}::text' for name in table.column_names)} FROM shop.odd"
    assert sql(pg_database, read) == sql(other_database, read)


# ------------------------------------------------------------------ tables


def test_the_live_table_is_compared_by_type_nullability_and_key(
    pg_database: str, backend: PostgresBackend
) -> None:
    target, table = backend.target(), orders()
    assert target.inspect(table) is None
    assert [c.action for c in target.plan_table(table, None).changes] == ["create_schema", "create_table"]
    sql(pg_database, "CREATE SCHEMA shop")
    sql(
        pg_database,
        "CREATE TABLE shop.orders (id int, amount inet, number bigserial NOT NULL, kept date NOT NULL,"
        " _loaded_at timestamptz NOT NULL, _batch_id uuid NOT NULL)",
    )
    plan = target.plan_table(table, target.inspect(table))
    assert [c.action for c in plan.changes] == ["add_column", "widen_column"]
    told = "\n".join(plan.differences)
    assert "'id' is nullable in the table, declared as not null" in told
    assert "'amount' is inet in the table, declared as Numeric[12, 2]" in told
    assert "'kept' of the table is not null and not declared" in told
    assert "'number'" not in told  # fills itself
    assert "primary key" in told


def test_a_view_of_stored_rows_is_no_table_to_load(pg_database: str, backend: PostgresBackend) -> None:
    sql(pg_database, "CREATE SCHEMA shop")
    sql(pg_database, "CREATE MATERIALIZED VIEW shop.orders AS SELECT 1 AS id")
    with pytest.raises(SchemaMismatch, match="materialized view"):
        backend.target().inspect(orders())


def test_many_processes_may_create_the_same_table_at_once(pg_database: str, backend: PostgresBackend) -> None:
    failures: list[BaseException] = []
    start = threading.Barrier(6)

    def create() -> None:
        own = backend_of(pg_database)
        plan = own.target().plan_table(orders(), own.target().inspect(orders()))
        start.wait()
        try:
            own.target().change_table(orders(), plan)
            own.target().create_staging(new_load(orders()), orders().arrow_schema())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert backend.target().inspect(orders()) is not None


def test_a_column_that_another_process_just_added_is_no_failure(
    pg_database: str, backend: PostgresBackend
) -> None:
    prepare(backend, orders())
    wider = TableSpec(
        "shop", "orders", (*orders().columns, ColumnSpec("note", DataType("text"), nullable=True))
    )
    target = backend.target()
    plan = target.plan_table(wider, target.inspect(wider))
    sql(pg_database, "ALTER TABLE shop.orders ADD COLUMN note text")
    target.change_table(wider, plan)


# ------------------------------------------------------------------ staging


def test_a_part_whose_message_was_lost_is_not_loaded(pg_database: str, backend: PostgresBackend) -> None:
    prepare(backend, orders())
    load = new_load(orders())
    schema = orders().arrow_schema()
    staging = backend.target().create_staging(load, schema)
    batch = pa.RecordBatch.from_pylist([{"id": 1, "amount": D("1.00"), "seen": None}], schema=schema)
    staging.write("first attempt", [batch])
    second = staging.write("second attempt", [batch])
    empty = staging.write("nothing to do", [])
    assert (second.rows, empty.rows) == (1, 0)
    assert backend.target().apply(load, StagedRows(staging, (second, empty))).rows.inserted == 1
    assert ids(pg_database) == [1]


def test_a_part_that_fails_half_way_leaves_no_row_and_raises_the_real_error(
    pg_database: str, backend: PostgresBackend
) -> None:
    load = new_load(orders())
    schema = orders().arrow_schema()
    staging = backend.target().create_staging(load, schema)
    batch = pa.RecordBatch.from_pylist([{"id": 1, "amount": None, "seen": None}], schema=schema)

    def breaking() -> Iterator[pa.RecordBatch]:
        yield batch
        raise RowRejected("column 'id', row 2: no good")

    with pytest.raises(RowRejected, match="row 2: no good"):
        staging.write("p", breaking())
    assert sql(pg_database, f"SELECT count(*) FROM ematix_flow_staging.{staging.table}") == [(0,)]  # type: ignore[attr-defined]


def test_text_that_postgres_cannot_hold_names_the_declared_column(backend: PostgresBackend) -> None:
    table = TableSpec("shop", "notes", (ColumnSpec("the note", DataType("text")),))
    with pytest.raises(RowRejected, match=r"'the note'.*0x00"):
        load_rows(backend, table, [{"the note": "a\x00b"}])


def test_staging_that_a_server_crash_emptied_is_not_taken_for_an_empty_source(
    pg_database: str, backend: PostgresBackend, postgres: PostgresServer
) -> None:
    load_rows(backend, orders(), [{"id": 1}])
    load = new_load(orders(), "truncate", allow_empty=True)
    rows = staged(backend, load, [{"id": 2}, {"id": 3}])
    postgres.restart(crash=True)
    with pytest.raises(TargetFailed, match="holds 0 rows, and 2 were written"):
        backend.target().apply(load, rows)
    assert ids(pg_database) == [1]


def test_sweeping_drops_what_dead_runs_of_this_pipeline_left_and_nothing_else(
    pg_database: str, backend: PostgresBackend
) -> None:
    target = backend.target()
    mine = [target.create_staging(new_load(orders()), orders().arrow_schema()) for _ in range(2)]
    sql(pg_database, "CREATE TABLE ematix_flow_staging.someone_elses (a int)")
    swept = target.sweep_staging(PIPELINE, TARGET)
    assert sorted(swept) == sorted(f"ematix_flow_staging.{s.table}" for s in mine)  # type: ignore[attr-defined]
    assert target.sweep_staging(PIPELINE, TARGET) == []
    assert sql(pg_database, "SELECT count(*) FROM ematix_flow_staging.someone_elses") == [(0,)]


def test_staging_names_fit_for_any_name_of_a_pipeline(backend: PostgresBackend) -> None:
    assert len(staging_prefix("ü" * 200 + "x" * 200, "t")) < 63
    assert staging_prefix("a", "b:c") != staging_prefix("a", "b:d")
    prefix = staging_prefix("Load Orders!", TARGET)
    assert prefix.startswith("load_orders_")


def test_dropping_staging_of_a_server_that_is_gone_does_not_fail_the_load(
    backend: PostgresBackend, postgres: PostgresServer
) -> None:
    staging = backend.target().create_staging(new_load(orders()), orders().arrow_schema())
    postgres.stop()
    backend.target().drop_staging(staging)


# ------------------------------------------------------------------ the lock


def test_one_pipeline_loads_one_target_at_a_time(pg_database: str, backend: PostgresBackend) -> None:
    other = backend_of(pg_database).target()
    run_id = uuid.uuid4()
    with backend.target().lock(PIPELINE, TARGET, run_id):
        with pytest.raises(PipelineLocked) as raised, other.lock(PIPELINE, TARGET, uuid.uuid4()):
            pass
        assert f"ematix-flow run {str(run_id)[:8]}" in str(raised.value)
        assert "since 20" in str(raised.value)
        assert raised.value.exit_code == 4
        with other.lock(PIPELINE, "another target", uuid.uuid4()):
            pass
    with other.lock(PIPELINE, TARGET, uuid.uuid4()):
        pass


def test_the_next_run_need_not_wait_until_the_server_has_seen_the_last_one_go(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclosed: list[psycopg.Connection[Any]] = []
    with monkeypatch.context() as slow:
        slow.setattr(psycopg.Connection, "close", lambda self: unclosed.append(self))
        for _ in range(2):
            with backend.target().lock(PIPELINE, TARGET, uuid.uuid4()):
                pass
    for connection in unclosed:
        connection.close()
    assert len(unclosed) == 2


def test_a_lock_that_died_with_its_connection_takes_the_load_along(
    pg_database: str, backend: PostgresBackend
) -> None:
    prepare(backend, orders())
    load = new_load(orders())
    rows = staged(backend, load, [{"id": 1}])
    with backend.target().lock(PIPELINE, TARGET, load.run_id):
        sql(
            pg_database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'ematix-flow run%'",
        )
        with backend_of(pg_database).target().lock(PIPELINE, TARGET, uuid.uuid4()):
            pass  # the next run may begin
        with pytest.raises(TargetFailed, match="broke"):
            backend.target().apply(load, rows)
    assert ids(pg_database) == []


# ------------------------------------------------------------------ truncate


def test_truncate_replaces_rows_and_keeps_the_table_itself(
    pg_database: str, backend: PostgresBackend
) -> None:
    load_rows(backend, orders(), [{"id": 1}, {"id": 2}])
    sql(pg_database, "DROP ROLE IF EXISTS grantee")
    sql(pg_database, "CREATE ROLE grantee")
    sql(pg_database, "GRANT SELECT ON shop.orders TO grantee")
    sql(pg_database, "CREATE VIEW shop.seen AS SELECT id FROM shop.orders")
    sql(pg_database, "CREATE INDEX by_amount ON shop.orders (amount)")
    identity = "SELECT 'shop.orders'::regclass::oid"
    before = sql(pg_database, identity)
    applied = load_rows(backend, orders(), [{"id": 2}, {"id": 3}, {"id": 4}], "truncate")
    assert (applied.rows.deleted, applied.rows.inserted) == (2, 3)
    assert sql(pg_database, "SELECT id FROM shop.seen ORDER BY id") == [(2,), (3,), (4,)]
    assert sql(pg_database, identity) == before
    assert sql(pg_database, "SELECT has_table_privilege('grantee', 'shop.orders', 'SELECT')") == [(True,)]
    assert sql(pg_database, "SELECT to_regclass('shop.by_amount') IS NOT NULL") == [(True,)]
    sql(pg_database, "DROP OWNED BY grantee")
    sql(pg_database, "DROP ROLE grantee")


def test_a_reader_never_sees_a_truncate_half_done(pg_database: str, backend: PostgresBackend) -> None:
    rows = [{"id": i} for i in range(2000)]
    load_rows(backend, orders(), rows)
    seen: set[int] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.add(sql(pg_database, "SELECT count(*) FROM shop.orders")[0][0])

    reader = threading.Thread(target=look)
    reader.start()
    for size in (1500, 2000, 1200, 2000):
        load_rows(backend, orders(), rows[:size], "truncate")
    stop.set()
    reader.join()
    assert seen <= {2000, 1500, 1200}


def test_an_empty_source_and_a_great_fall_are_refused(pg_database: str, backend: PostgresBackend) -> None:
    rows = [{"id": i} for i in range(1001)]
    load_rows(backend, orders(), rows)
    with pytest.raises(ShrinkRefused, match="no rows"):
        load_rows(backend, orders(), [], "truncate")
    with pytest.raises(ShrinkRefused, match="1,001 to 500"):
        load_rows(backend, orders(), rows[:500], "truncate")
    assert len(ids(pg_database)) == 1001
    assert load_rows(backend, orders(), rows[:500], "truncate", max_shrink=1.0).rows.inserted == 500
    assert load_rows(backend, orders(), [], "truncate", allow_empty=True).rows.deleted == 500
    assert ids(pg_database) == []


# ------------------------------------------------------------------ increments


def moment(second: int) -> dt.datetime:
    return dt.datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC)


def increment(backend: PostgresBackend, table: TableSpec, rows: list[dict[str, Any]]) -> Any:
    low = backend.target().watermark(PIPELINE, TARGET, "seen")
    return load_rows(backend, table, rows, batch_key=None, range=SourceRange("seen", low))


@pytest.mark.parametrize("keyed", [True, False])
def test_ties_at_the_boundary_are_neither_lost_nor_doubled(
    pg_database: str, backend: PostgresBackend, keyed: bool
) -> None:
    table = orders(keyed=keyed)
    first = [{"id": 1, "amount": None, "seen": moment(1)}, {"id": 2, "amount": D("2.00"), "seen": moment(2)}]
    if not keyed:
        first.append(dict(first[1]))  # an equal row, which counts as another row
    assert increment(backend, table, first).watermark.value == moment(2)
    tie = {"id": 3, "amount": None, "seen": moment(2)}
    later = {"id": 4, "amount": None, "seen": moment(4)}
    applied = increment(backend, table, [*first[1:], tie, later])
    assert applied.rows.inserted == 2
    assert ids(pg_database) == ([1, 2, 3, 4] if keyed else [1, 2, 2, 3, 4])
    assert backend.target().watermark(PIPELINE, TARGET, "seen") == Watermark(
        "seen", DataType("timestamp_tz"), moment(4)
    )
    unchanged = increment(backend, table, [later])
    assert (unchanged.rows.read, unchanged.rows.inserted) == (1, 0)
    assert len(backend.target().ledger(PIPELINE, TARGET)) == 2


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("integer", [1, 5]),
        ("numeric", [D("1.000000001"), D("2.5")]),
        ("date", [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
        ("timestamp", [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1)]),
        ("text", ["B", "a'%\\"]),
        ("string", ["B", "é"]),
        ("uuid", [str(uuid.UUID(int=1)), str(uuid.UUID(int=2**127))]),
    ],
)
def test_a_watermark_of_any_type_comes_back_as_it_was(
    backend: PostgresBackend, kind: str, values: list[Any]
) -> None:
    mark = ColumnSpec("seen", DataType(kind, **SIZES.get(kind, {})))
    table = TableSpec("shop", "orders", (mark,))
    first = increment(backend, table, [{"seen": v} for v in values])
    assert first.watermark.value == values[-1]
    again = backend.target().watermark(PIPELINE, TARGET, "seen")
    assert again == first.watermark
    assert increment(backend, table, [{"seen": values[-1]}]).rows.inserted == 0


def test_a_watermark_beyond_the_calendar_is_refused_and_not_taken_for_a_broken_connection(
    pg_database: str, backend: PostgresBackend
) -> None:
    select = "SELECT 1::bigint AS id, 1.0 AS amount, '20000-01-01'::timestamptz AS seen"
    with pytest.raises(RowRejected, match="too large"):
        load_same_database(backend, orders(), select, batch_key=None, range=SourceRange("seen", None))
    assert ids(pg_database) == []


def test_a_batch_that_the_ledger_holds_is_not_loaded_again(
    pg_database: str, backend: PostgresBackend
) -> None:
    load_rows(backend, orders(), [{"id": 1}], batch_key="slot:1")
    replayed = load_rows(backend, orders(), [{"id": 1}], batch_key="slot:1")
    assert replayed.duplicate
    assert ids(pg_database) == [1]


# ------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize(
    ("select", "kind", "words"),
    [
        ("SELECT NULL::bigint, 1.0, now()", RowRejected, ["'id'|\"id\"", "nullable"]),
        ("SELECT 1::bigint, 1e20::numeric, now()", RowRejected, ["overflow", "wider"]),
        ("SELECT g % 2, 1.0, now() FROM generate_series(1, 3) g", RowRejected, ["orders_pkey", "duplicates"]),
        ("SELECT 1::bigint, 1.005, now()", RowRejected, ["'amount': '1.005' has more digits"]),
        ("SELECT 1.5::numeric, 1, now()", RowRejected, ["'id': '1.5' has more digits"]),
        ("SELECT 1::bigint, 1/0, now()", SourceFailed, ["division by zero"]),
        ("SELECT 1::bigint, 1.0, now() FROM nowhere", SourceFailed, ["nowhere"]),
        ("SELECT 1::bigint, 1.0, 'x'::text", SourceFailed, ["seen", "type timestamp"]),
    ],
)
def test_what_the_database_refuses_is_reported_and_changes_nothing(
    pg_database: str, backend: PostgresBackend, select: str, kind: type[LoadError], words: list[str]
) -> None:
    load_rows(backend, orders(), [{"id": 77}])
    with pytest.raises(kind) as raised:
        load_same_database(backend, orders(), f"SELECT * FROM ({select}) AS s(id, amount, seen)")
    for word in words:
        raised.match(f"(?s){word}")
    assert "unchanged" in str(raised.value)
    assert ids(pg_database) == [77]
    assert len(backend.target().ledger(PIPELINE, TARGET)) == 1


def test_a_text_too_long_is_refused_and_not_cut(pg_database: str, backend: PostgresBackend) -> None:
    table = TableSpec("shop", "orders", (ColumnSpec("id", DataType("string", length=3)),))
    with pytest.raises(RowRejected, match="character varying\\(3\\)"):
        load_same_database(backend, table, "SELECT 'abcd'::text AS id")
    assert sql(pg_database, "SELECT * FROM shop.orders") == []


@pytest.mark.parametrize(
    ("kind", "text"), [("uuid", "not-a-uuid"), ("json", "{broken"), ("jsonb", "{broken")]
)
def test_text_that_is_no_uuid_or_json_names_its_column(
    pg_database: str, backend: PostgresBackend, kind: str, text: str
) -> None:
    table = TableSpec("shop", "orders", (ColumnSpec("the code", DataType(kind)),))
    with pytest.raises(RowRejected, match="column 'the code': invalid input syntax") as raised:
        load_rows(backend, table, [{"the code": text}])
    assert "unchanged" in str(raised.value)
    assert sql(pg_database, "SELECT * FROM shop.orders") == []


def test_the_error_of_a_user_who_may_not_write_names_the_missing_right(
    pg_database: str, backend: PostgresBackend, postgres: PostgresServer
) -> None:
    prepare(backend, orders())
    sql(pg_database, "DROP ROLE IF EXISTS looker")
    sql(pg_database, "CREATE ROLE looker LOGIN PASSWORD 'looker-secret'")
    looker = backend_of(pg_database, user="looker", password="looker-secret")
    for attempt in (
        lambda: prepare(looker, orders(name="more")),
        lambda: looker.target().create_staging(new_load(orders()), orders().arrow_schema()),
        lambda: looker.target().run_sql("DELETE FROM shop.orders"),
    ):
        with pytest.raises(TargetFailed, match="permission denied") as raised:
            attempt()
        assert "GRANT" in str(raised.value)
    sql(pg_database, "DROP ROLE looker")


def test_a_load_waits_out_a_writer_that_changes_the_same_rows(
    pg_database: str, backend: PostgresBackend
) -> None:
    """The first try runs into the other's update; the second sees it."""
    import psycopg

    load_rows(backend, orders(), [{"id": 1}])
    load = new_load(orders(), "truncate")
    rows = staged(backend, load, [{"id": 2}])
    with psycopg.connect(pg_database) as writer:
        writer.execute("UPDATE shop.orders SET amount = 5")
        done: list[Any] = []
        thread = threading.Thread(target=lambda: done.append(backend.target().apply(load, rows)))
        thread.start()
        thread.join(0.7)
        assert thread.is_alive()
        writer.commit()
    thread.join()
    assert done[0].rows.inserted == 1
    assert ids(pg_database) == [2]


def test_run_sql_is_one_transaction_and_gives_the_rows_it_touched(
    pg_database: str, backend: PostgresBackend
) -> None:
    load_rows(backend, orders(), [{"id": 1}, {"id": 2}])
    assert backend.target().run_sql("UPDATE shop.orders SET amount = 100 WHERE id::text LIKE '%1%'") == 1
    with pytest.raises(LoadError):
        backend.target().run_sql("DELETE FROM shop.orders; SELECT 1/0")
    assert ids(pg_database) == [1, 2]


def test_a_rehearsal_counts_and_leaves_nothing(pg_database: str, backend: PostgresBackend) -> None:
    load_rows(backend, orders(), [{"id": 1}, {"id": 2}])
    load = new_load(orders(), "truncate", dry_run=True)
    applied = backend.target().apply(load, staged(backend, load, [{"id": 5}, {"id": 6}, {"id": 7}]))
    assert (applied.rows.deleted, applied.rows.inserted) == (2, 3)
    assert ids(pg_database) == [1, 2]
