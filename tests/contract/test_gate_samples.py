"""Samples of rows that fail a gate. They change no verdict and no load, for any content of the rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlglot import exp

from ematix_flow.backends.base import LoadResult, SameDatabaseRows
from ematix_flow.backends.gated_target import MessagesFail
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.engine.planning.gates import plan_gate
from ematix_flow.errors import ExpectationFailed
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec, OnFail
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.loads import new_load, prepare
from ematix_probe.compiling.samples import SampleQuery, sample_query
from ematix_probe.sampling import FailingAssertion, Sampler
from tests.contract.gate_setup import DATABASES, GateTarget, connection_of
from tests.contract.test_gates_dead_letters import staged, to_dead_letters
from tests.contract.test_gates_sql import order, positive, rules

YEAR_2030 = dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)


@pytest.fixture(params=DATABASES)
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    yield from connection_of(request)


@pytest.fixture
def target(connection: Connection) -> GateTarget:
    return GateTarget(connection)


def one_of(*names: str) -> pytest.MarkDecorator:
    """Only these databases."""
    chosen = [
        pytest.param(name, marks=[] if name in ("sqlite", "duckdb") else [getattr(pytest.mark, name)])
        for name in names
    ]
    return pytest.mark.parametrize("connection", chosen, indirect=True)


def load_sql(target: GateTarget, checks: list[Expectation], sql: str, kind: str) -> LoadResult:
    """Load rows that the database computes: ``id`` and ``x`` of this type."""
    columns = (ColumnSpec("id", DataType("big_int")), ColumnSpec("x", DataType(kind), nullable=True))  # type: ignore[arg-type]
    table = TableSpec("shop", "strange", columns)
    planned = plan_gate(
        ExpectationsSpec(tuple(checks)), table, Matching(), target.target, target.backend.kind, None
    )
    prepare(target.target, table)
    load = new_load(
        table,
        gate=planned.gate,
        quarantine_plan=planned.quarantine_plan,
        table_plan=target.target.plan_table(table, target.target.inspect(table), None),
    )
    return target.target.apply(load, SameDatabaseRows(sql))


@one_of("postgres")
@pytest.mark.parametrize("action", ["warn", "quarantine", "fail"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
        ("0044-03-15 12:00 BC", "BC"),
        ("12026-01-01", "12026"),
    ],
)
def test_times_that_python_does_not_hold_are_shown_as_texts(
    target: GateTarget, action: OnFail, value: str, shown: str
) -> None:
    first = dt.datetime(2000, 1, 1, tzinfo=dt.timezone.utc)
    checks = rules(action, lambda t: t.column("x").between(first, YEAR_2030))
    sql = f"SELECT 1::bigint, '{value}'::timestamptz UNION ALL SELECT 2, '2020-01-01'"
    if action == "fail":
        with pytest.raises(ExpectationFailed) as failed:
            load_sql(target, checks, sql, "timestamp_tz")
        (found,) = failed.value.results
    else:
        result = load_sql(target, checks, sql, "timestamp_tz")
        (found,) = result.expectations
        assert result.rows.inserted == (1 if action == "quarantine" else 2)
    assert (found.failing, found.checked) == (1, 2)
    assert [shown in str(row["x"]) for row in found.samples] == [True]


@one_of("sqlite")
@pytest.mark.parametrize("action", ["warn", "quarantine"])
@pytest.mark.parametrize("unique", [False, True])
def test_texts_that_are_not_utf8_stop_no_load(target: GateTarget, action: OnFail, unique: bool) -> None:
    checks = rules(action, lambda t: t.column("x").unique() if unique else t.column("x").is_in(["ok"]))
    bad = "CAST(X'ff41' AS TEXT)"
    sql = f"SELECT 1 AS id, 'ok' AS x UNION ALL SELECT 2, {bad} UNION ALL SELECT 3, {bad}"
    result = load_sql(target, checks, sql, "text")
    assert result.rows.inserted == (1 if action == "quarantine" else 3)
    (found,) = result.expectations
    assert (found.failing, found.checked) == (2, 3)
    assert [row["x"] for row in found.samples] == ["\ufffdA", "\ufffdA"]


@one_of("postgres")
def test_doubles_are_shown_exactly_and_written_as_the_server_says(
    target: GateTarget, pg_database: str, connection: Connection
) -> None:
    import psycopg

    with psycopg.connect(pg_database, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f'ALTER DATABASE "{name}" SET extra_float_digits = 0'.encode())
    checks = rules("warn", lambda t: t.column("x").between(None, 0).unique())
    sql = "SELECT i::bigint, 0.1::float8 + 0.2 FROM generate_series(1, 2) i UNION ALL SELECT 3, 0.3"
    result = load_sql(target, checks, sql, "double")
    between, unique = result.expectations
    assert [row["x"] for row in between.samples] == [0.3, 0.1 + 0.2, 0.1 + 0.2]
    assert [row["x"] for row in unique.samples] == [0.1 + 0.2, 0.1 + 0.2]


@one_of("sqlite", "postgres", "duckdb", "mariadb")
def test_a_refused_statement_of_samples_changes_no_load(
    target: GateTarget, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = target.target
    assert isinstance(database, RelationalTarget)
    target.load([], [order(1, 1)])
    with database.session() as session:
        kind = type(session)
    refused: list[str] = []
    original = kind.fetch_samples

    def refuse(self: Any, sql: str) -> Any:
        refused.append(sql)
        return original(self, f"{sql} no_sql")

    monkeypatch.setattr(kind, "fetch_samples", refuse)
    result = target.load(positive("quarantine"), [order(2, -5), order(3, 7)])
    assert [row["id"] for row in target.rows()] == [1, 3]
    # DuckDB has no savepoints: the load is repeated without samples
    assert len(refused) == (1 if connection.kind == "duckdb" else 2)
    (found,) = result.expectations
    assert (found.verdict, found.failing, found.samples) == ("warn", 1, ())


@one_of("duckdb")
@pytest.mark.parametrize("replayed", [False, True])
def test_a_load_that_is_repeated_without_samples_loads_each_row_once(
    target: GateTarget, monkeypatch: pytest.MonkeyPatch, replayed: bool
) -> None:
    checks = positive("quarantine")
    if replayed:
        target.load(checks, [order(2, -5), order(3, -7)])
    with monkeypatch.context() as patched:
        patched.setattr("ematix_probe.sampling.sample_query", refused_query)
        if replayed:
            target.replay(rules("quarantine", lambda t: t.column("amount").between(-6, None)))
        else:
            target.load(checks, [order(2, -5), order(3, 7)], "merge")
            target.load(checks, [order(2, -5), order(3, 8)], "merge", dry_run=True)
    assert [row["id"] for row in target.rows()] == ([2] if replayed else [3])
    assert [row["id"] for row in target.quarantined()] == ([3] if replayed else [2])


def refused_query(*arguments: Any, **options: Any) -> SampleQuery:
    """A query of samples that reads a table which does not exist."""
    query = sample_query(*arguments, **options)
    return replace(query, query=exp.select("*").from_("no_such_table"))


@one_of("postgres", "duckdb")
@pytest.mark.parametrize("action", ["warn", "quarantine"])
def test_rows_without_an_order_are_shown_and_stop_no_load(target: GateTarget, action: OnFail) -> None:
    checks = rules(action, lambda t: t.expression("x IS NULL AND 1 = (SELECT 1)"))
    result = load_sql(
        target, checks, "SELECT 1 AS id, CAST('[1]' AS json) AS x UNION ALL SELECT 2, NULL", "json"
    )
    assert result.rows.inserted == (1 if action == "quarantine" else 2)
    (found,) = result.expectations
    assert (found.failing, len(found.samples)) == (1, 1)


@one_of("sqlite", "postgres")
def test_a_gate_with_many_rules_is_divided_among_statements(
    target: GateTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_probe.compiling.measures._MOST_FIGURES", 6)

    def declare(t: Any) -> None:
        for number in range(7):
            t.unique(["amount", "email"], where=f"id <> {number}", name=f"unique {number}")

    result = target.load(rules("warn", declare), [order(1, 7), order(2, 7), order(3, 8)])
    assert [each.failing for each in result.expectations] == [2, 0, 0, 2, 2, 2, 2]
    assert [len(each.samples) for each in result.expectations] == [2, 0, 0, 2, 2, 2, 2]


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many assertions samples were read for, each time."""
    counts: list[int] = []
    original = Sampler.samples

    def count(self: Sampler, failing: list[FailingAssertion]) -> Any:
        counts.append(len(failing))
        return original(self, failing)

    monkeypatch.setattr(Sampler, "samples", count)
    return counts


@one_of("sqlite")
def test_a_batch_that_is_checked_again_reads_samples_once(target: GateTarget, sampled: list[int]) -> None:
    with pytest.raises(MessagesFail) as raised:
        target.load(to_dead_letters(), staged(1, -2, 3), batch_key="one")
    assert sampled == []
    result = target.load(
        to_dead_letters(), staged(1, -2, 3), batch_key="one", dead_letters=raised.value.rules
    )
    assert sampled == [1]
    assert len(result.expectations[0].samples) == 1
    with pytest.raises(ExpectationFailed):
        target.load(to_dead_letters(action="fail"), staged(1, -2, 3))
    assert sampled == [1, 1]
