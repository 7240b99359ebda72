"""The gate of a load into a database: what is loaded, what is set aside, and what a failing gate changes."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ematix_flow import ematix
from ematix_flow.backends.base import LoadResult, QuarantinedRows, QuarantineFilter
from ematix_flow.backends.gated_target import QuarantineCount
from ematix_flow.backends.sql.quarantine_reads import count_quarantined, purge_quarantined, read_quarantined
from ematix_flow.backends.sql.session import transaction
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.engine.planning.gates import plan_gate
from ematix_flow.errors import ExpectationFailed, PlanError, TargetFailed
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec, OnFail, quarantine_table
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from ematix_flow.strategies.matching import Matching
from ematix_probe.tester import Tester
from tests.contract.gate_setup import DATABASES, MATCHING, ORDERS, GateTarget, connection_of

MODES = ("append", "truncate", "merge", "scd2")


@pytest.fixture(params=DATABASES)
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    yield from connection_of(request)


@pytest.fixture
def target(connection: Connection) -> GateTarget:
    return GateTarget(connection)


def rules(action: OnFail, declare: Any) -> list[Expectation]:
    tester = Tester()
    declare(tester)
    return [Expectation(each, action) for each in tester.assertions]


def order(id: int, amount: int | None, email: str | None = "a@b.c") -> dict[str, Any]:
    return {"id": id, "amount": amount, "email": email}


def positive(action: OnFail) -> list[Expectation]:
    return rules(action, lambda t: t.expression("amount > 0", name="positive"))


@pytest.mark.parametrize("mode", MODES)
def test_a_failing_gate_changes_nothing(target: GateTarget, mode: str) -> None:
    target.load([], [order(1, 10)], mode)
    before = target.rows()
    with pytest.raises(ExpectationFailed) as failed:
        target.load(positive("fail"), [order(1, 11), order(2, -5), order(3, 7)], mode)
    assert target.rows() == before
    assert "positive: 1 of 3 rows fail (33.3%)" in failed.value.what
    assert failed.value.state == "nothing was loaded; shop.orders is unchanged"
    assert [each.verdict for each in failed.value.results] == ["fail"]


@pytest.mark.parametrize("mode", MODES)
def test_a_gate_that_only_warns_loads_every_row_and_reports_the_failing_ones(
    target: GateTarget, mode: str
) -> None:
    result = target.load(positive("warn"), [order(1, 11), order(2, -5)], mode)
    assert target.rows() == [order(1, 11), order(2, -5)]
    (found,) = result.expectations
    assert (found.verdict, found.failing, found.checked, found.quarantined) == ("warn", 1, 2, 0)
    assert found.samples == ({"id": 2, "amount": -5},)


@pytest.mark.parametrize("mode", MODES)
def test_failing_rows_go_to_quarantine_and_the_rest_is_loaded(target: GateTarget, mode: str) -> None:
    result = target.load(positive("quarantine"), [order(1, 11), order(2, -5), order(3, None)], mode)
    assert target.rows() == [order(1, 11), order(3, None)]
    assert target.quarantined() == [{**order(2, -5), "_rule": "positive", "_source_position": None}]
    assert (result.rows.read, result.rows.inserted, result.quarantined) == (3, 2, 1)


def test_a_row_without_a_required_value_goes_to_quarantine(target: GateTarget) -> None:
    checks = rules("quarantine", lambda t: t.column("email").not_null())
    target.load(checks, [order(1, 1), order(2, 2, None)])
    assert target.rows() == [order(1, 1)]
    assert [row["id"] for row in target.quarantined()] == [2]


def test_every_row_of_a_repeated_key_goes_to_quarantine(target: GateTarget) -> None:
    checks = rules("quarantine", lambda t: t.unique(["id"]))
    target.load(checks, [order(1, 1), order(2, 2), order(2, 3)], "merge")
    assert target.rows() == [order(1, 1)]
    assert [(row["id"], row["amount"]) for row in target.quarantined()] == [(2, 2), (2, 3)]


@pytest.mark.parametrize("ordered", [False, True])
def test_rows_of_a_key_that_follow_each_other_are_no_repeated_key(target: GateTarget, ordered: bool) -> None:
    matching = replace(MATCHING, order="amount" if ordered else None)
    rows = [order(1, 1), order(2, 2), order(2, 3)]
    target.load(ExpectationsSpec(of_table="quarantine"), rows, "merge", matching=matching)
    assert target.rows() == ([order(1, 1), order(2, 3)] if ordered else [order(1, 1)])
    assert [row["amount"] for row in target.quarantined()] == ([] if ordered else [2, 3])


def test_versions_of_a_key_in_one_load_are_no_repeated_key(target: GateTarget) -> None:
    at = ColumnSpec("at", DataType("timestamp_tz"))
    table = replace(ORDERS, name="history", columns=(*ORDERS.columns, at), keeps="events")
    day = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    rows = [{**order(1, day_number), "at": day.replace(day=day_number)} for day_number in (1, 2)]
    matching = replace(MATCHING, order="at", event="at")
    spec = ExpectationsSpec(of_table="quarantine")
    result = target.load(spec, rows, "scd2", table=table, matching=matching)
    assert (result.rows.inserted, result.quarantined) == (2, 0)


def test_a_row_that_fails_several_rules_is_set_aside_once_under_the_first(target: GateTarget) -> None:
    checks = [
        *positive("quarantine"),
        *rules("quarantine", lambda t: t.column("email").regex("@", name="mail")),
    ]
    result = target.load(checks, [order(1, -1, "none"), order(2, 5, "none"), order(3, 5)])
    assert [(row["id"], row["_rule"]) for row in target.quarantined()] == [(1, "positive"), (2, "mail")]
    assert [(each.failing, each.quarantined) for each in result.expectations] == [(1, 1), (2, 1)]
    assert target.rows() == [order(3, 5)]


def test_a_rule_of_each_action_stops_warns_or_sets_aside_by_itself(target: GateTarget) -> None:
    checks = [
        *rules("warn", lambda t: t.column("email").regex("@", name="mail")),
        *positive("quarantine"),
        *rules("fail", lambda t: t.row_count(at_least=1)),
    ]
    result = target.load(checks, [order(1, -1), order(2, 5, "none")])
    assert [each.verdict for each in result.expectations] == ["warn", "warn", "pass"]
    with pytest.raises(ExpectationFailed, match="row_count"):
        target.load(checks, [])
    assert target.rows() == [order(2, 5, "none")]
    assert len(target.quarantined()) == 1


def test_more_failing_rows_than_are_tolerated_fail_the_load(target: GateTarget) -> None:
    checks = rules("quarantine", lambda t: t.expression("amount > 0", name="positive", tolerate=0.5))
    target.load(checks, [order(1, -1), order(2, 5)])
    assert len(target.quarantined()) == 1
    with pytest.raises(ExpectationFailed, match="tolerate"):
        target.load(checks, [order(3, -1), order(4, -1), order(5, 5)])
    assert len(target.quarantined()) == 1
    assert target.rows() == [order(2, 5)]


def test_a_batch_that_the_ledger_holds_is_not_set_aside_again(target: GateTarget) -> None:
    rows = [order(1, -1), order(2, 5)]
    target.load(positive("quarantine"), rows, batch_key="slot:1")
    again = target.load(positive("quarantine"), rows, batch_key="slot:1")
    assert again.duplicate
    assert len(target.quarantined()) == 1
    assert target.rows() == [order(2, 5)]


def test_a_dry_run_finds_the_verdicts_and_creates_nothing(target: GateTarget) -> None:
    result = target.load(positive("quarantine"), [order(1, -1), order(2, 5)], dry_run=True)
    assert [each.quarantined for each in result.expectations] == [1]
    assert (target.rows(), target.quarantined()) == ([], [])


def test_a_dry_run_checks_a_rule_about_the_table_that_the_run_creates(target: GateTarget) -> None:
    assert isinstance(target.target, RelationalTarget)
    checks = rules(
        "warn",
        lambda t: t.foreign_key("amount", references="shop.orders", referenced_columns="id", name="fk"),
    )
    rows = [order(1, None), order(2, 7)]
    if not target.target.transactional_ddl:
        with pytest.raises(ExpectationFailed, match="cannot evaluate 'fk'"):
            target.load(checks, rows, dry_run=True)
    else:
        dry = target.load(checks, rows, dry_run=True)
        assert [(each.failing, each.checked) for each in dry.expectations] == [(1, 1)]
        assert target.target.inspect(ORDERS) is None
    run = target.load(checks, rows)
    assert [(each.failing, each.checked) for each in run.expectations] == [(1, 1)]


def test_a_rule_that_the_database_refuses_fails_the_load_and_is_named(target: GateTarget) -> None:
    checks = [
        *positive("warn"),
        *rules("warn", lambda t: t.expression("no_such_function(amount) > 0", name="odd")),
    ]
    with pytest.raises(ExpectationFailed, match="cannot evaluate 'odd'") as failed:
        target.load(checks, [order(1, 1)])
    assert [each.verdict for each in failed.value.results] == ["error"]
    assert target.rows() == []


MARKED = TableSpec(
    "shop", "marked", (ColumnSpec("at", DataType("integer")), ColumnSpec("v", DataType("integer")))
)


def incremental(target: GateTarget, rows: list[tuple[int, int]], low: int | None, key: str) -> LoadResult:
    start = None if low is None else Watermark("at", DataType("integer"), low)
    return target.load(
        rules("quarantine", lambda t: t.expression("v > 0", name="positive")),
        [{"at": at, "v": v} for at, v in rows if low is None or at >= low],
        table=MARKED,
        range=SourceRange("at", start),
        batch_key=None,
    )


def test_rows_at_the_watermark_that_are_read_again_are_set_aside_once(target: GateTarget) -> None:
    rows = [(1, 1), (2, -2), (2, -2), (2, 5)]
    incremental(target, rows, None, "a")
    incremental(target, rows, 2, "b")
    rows += [(2, -3), (3, 7)]
    incremental(target, rows, 2, "c")
    assert [(row["at"], row["v"]) for row in target.quarantined(MARKED)] == [(2, -3), (2, -2), (2, -2)]
    assert target.rows(MARKED) == [{"at": 1, "v": 1}, {"at": 2, "v": 5}, {"at": 3, "v": 7}]


def test_an_incremental_load_with_nothing_new_keeps_and_counts_no_quarantined_row(target: GateTarget) -> None:
    incremental(target, [(1, 1), (2, -2), (2, -2), (2, 5)], None, "a")
    (first,) = counted(target)
    again = incremental(target, [(2, -2), (2, 5), (2, -2)], 2, "b")
    assert counted(target) == [first]
    assert [(each.failing, each.quarantined) for each in again.expectations] == [(2, 0)]
    other = incremental(target, [(2, -2), (2, 5), (2, -3)], 2, "c")
    assert [each.quarantined for each in other.expectations] == [2]
    assert [row["v"] for row in target.quarantined(MARKED)] == [-3, -2]


def counted(target: GateTarget) -> list[QuarantineCount]:
    assert isinstance(target.target, RelationalTarget)
    return count_quarantined(target.target, quarantine_table(MARKED, None), "contract")


def test_an_incremental_load_from_the_beginning_replaces_the_quarantined_rows(target: GateTarget) -> None:
    rows = [(1, -1), (2, -2), (2, 5)]
    incremental(target, rows, None, "a")
    drop_table(target, MARKED)
    incremental(target, rows, None, "b")
    assert [(row["at"], row["v"]) for row in target.quarantined(MARKED)] == [(1, -1), (2, -2)]
    assert target.rows(MARKED) == [{"at": 2, "v": 5}]


def drop_table(target: GateTarget, table: TableSpec) -> None:
    database = target.target
    assert isinstance(database, RelationalTarget)
    named = database.dialect.table(table.schema, table.name)
    with database.session() as session, transaction(session):
        session.execute(f"DROP TABLE {database.dialect.render(named)}")


def test_the_watermark_passes_rows_that_were_set_aside(target: GateTarget) -> None:
    incremental(target, [(1, 1), (9, -2)], None, "a")
    found = target.target.watermark("contract", "contract:target", "at")
    assert found is not None and found.value == 9
    assert [row["_source_position"] for row in target.quarantined(MARKED)] == ["the beginning .. 9"]


def test_a_load_that_replaces_the_table_replaces_its_quarantined_rows_too(target: GateTarget) -> None:
    rows = [order(1, -1), order(2, 5)]
    target.load(positive("quarantine"), rows, "truncate")
    target.load(positive("quarantine"), rows, "truncate")
    assert [row["id"] for row in target.quarantined()] == [1]
    target.load(positive("quarantine"), [order(2, 5), order(3, 7)], "truncate")
    assert target.quarantined() == []


@pytest.mark.parametrize("mode", ["merge", "scd2"])
def test_a_later_row_of_a_key_replaces_the_quarantined_one(target: GateTarget, mode: str) -> None:
    target.load(positive("quarantine"), [order(1, -1), order(2, -2), order(3, -3)], mode)
    target.load(positive("quarantine"), [order(1, 10), order(2, -20)], mode)
    assert target.rows() == [order(1, 10)]
    assert [(row["id"], row["amount"]) for row in target.quarantined()] == [(2, -20), (3, -3)]


CODES = TableSpec(
    "shop",
    "codes",
    (
        ColumnSpec("code", DataType("text"), primary_key=True),
        ColumnSpec("part", DataType("integer"), primary_key=True),
        ColumnSpec("amount", DataType("integer"), nullable=True),
    ),
    merge_keys=("code", "part"),
)


def test_a_later_row_of_a_text_key_replaces_the_quarantined_one(target: GateTarget) -> None:
    matching = Matching(keys=("code", "part"), compare=("amount",), update=("amount",))
    load = functools.partial(
        target.load, positive("quarantine"), mode="merge", table=CODES, matching=matching
    )
    load(
        [
            {"code": code, "part": part, "amount": -1}
            for code, part in (("ä", 1), ("A", 1), ("a", 2), ("x ", 1))
        ]
    )
    load([{"code": code, "part": 1, "amount": 7} for code in ("ä", "a", "x")])
    assert sorted((row["code"], row["part"]) for row in target.quarantined(CODES)) == [
        ("A", 1),
        ("a", 2),
        ("x ", 1),
    ]


def test_a_quarantine_table_that_is_the_target_itself_is_refused(target: GateTarget) -> None:
    spec = ExpectationsSpec(tuple(positive("quarantine")), quarantine="shop.Orders")
    with pytest.raises(PlanError, match="is the table that the pipeline loads"):
        plan_gate(spec, ORDERS, Matching(), target.target, target.backend.kind, None)


# ------------------------------------------------------------------ replays


def not_minus_one(action: OnFail) -> list[Expectation]:
    return rules(action, lambda t: t.expression("amount <> -1", name="known"))


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_replayed_rows_leave_quarantine_and_those_that_fail_again_stay(target: GateTarget, mode: str) -> None:
    target.load(positive("quarantine"), [order(1, -1), order(2, -2), order(3, 3)], mode)
    result = target.replay(not_minus_one("quarantine"), mode)
    assert (result.rows.read, result.rows.inserted, result.quarantined) == (2, 1, 1)
    assert target.rows() == [order(2, -2), order(3, 3)]
    assert [(row["id"], row["_rule"]) for row in target.quarantined()] == [(1, "known")]


def test_a_replay_without_rules_loads_every_quarantined_row(target: GateTarget) -> None:
    target.load(positive("quarantine"), [order(1, -1), order(3, 3)])
    assert target.replay([]).rows.inserted == 1
    assert (target.rows(), target.quarantined()) == ([order(1, -1), order(3, 3)], [])


def test_a_replay_that_fails_leaves_every_row_in_quarantine(target: GateTarget) -> None:
    target.load(positive("quarantine"), [order(1, -1), order(2, -2)])
    with pytest.raises(ExpectationFailed):
        target.replay(not_minus_one("fail"))
    assert [row["id"] for row in target.quarantined()] == [1, 2]
    assert target.rows() == []


def test_rows_of_one_rule_are_replayed_alone(target: GateTarget) -> None:
    checks = [
        *positive("quarantine"),
        *rules("quarantine", lambda t: t.column("email").is_in(["a"], name="mail")),
    ]
    target.load(checks, [order(1, -1), order(2, 2)])
    target.replay([], rule="mail")
    assert (target.rows(), [row["id"] for row in target.quarantined()]) == ([order(2, 2)], [1])


def test_a_row_that_fails_again_keeps_its_source_position(target: GateTarget) -> None:
    target.load(positive("quarantine"), [order(1, -1)], positions=("3", "7"))
    target.replay(positive("quarantine"))
    assert [row["_source_position"] for row in target.quarantined()] == ["3 .. 7"]


def test_a_replay_that_the_ledger_holds_changes_nothing(target: GateTarget) -> None:
    target.load(positive("quarantine"), [order(1, -1)])
    target.replay([], batch_key="replay:1")
    target.load(positive("quarantine"), [order(2, -1)])
    assert target.replay([], batch_key="replay:1").duplicate
    assert [row["id"] for row in target.quarantined()] == [2]
    assert target.rows() == [order(1, -1)]


def test_rows_are_counted_read_and_purged_by_rule_if_as_many_as_counted(target: GateTarget) -> None:
    target.load(positive("quarantine"), [order(1, -1), order(2, -2), order(3, 3)])
    assert isinstance(target.target, RelationalTarget)
    table = quarantine_table(ORDERS, None)
    (count,) = count_quarantined(target.target, table, "contract")
    assert (count.rule, count.rows, count.oldest.tzinfo) == ("positive", 2, dt.timezone.utc)
    chosen = QuarantinedRows(table, QuarantineFilter("contract", "positive", count.batch))
    (first,) = read_quarantined(target.target, chosen, 1, 0)
    assert first["_rule"] == "positive" and first["id"] in (1, 2)
    assert str(first["_batch_id"]) == count.batch
    with pytest.raises(TargetFailed, match="has 2 of these quarantined rows now, not 1 as were counted"):
        purge_quarantined(target.target, replace(chosen, counted=1))
    assert len(target.quarantined()) == 2
    assert purge_quarantined(target.target, replace(chosen, counted=2)) == 2
    assert count_quarantined(target.target, table, "contract") == []


# ------------------------------------------------------------------ inside the database


def test_a_query_is_read_once_and_its_rows_are_checked_inside_the_database(connection: Connection) -> None:
    backend = GateTarget(connection)
    backend.load([], [order(1, 1), order(2, -2), order(3, None)], table=SOURCE)
    dialect = backend.target.dialect  # type: ignore[attr-defined]
    source = dialect.render(dialect.table("shop", "source"))

    @ematix.pipeline(
        target=ORDERS,
        target_connection=connection,
        source_connection=connection,
        expectations=[
            ematix.expect_or_drop("positive", "amount > 0"),
            ematix.expect("known", lambda t: t.column("amount").not_null()),
        ],
    )
    def load(conn: Any) -> str:
        return f"SELECT id, amount, email FROM {source}"

    plan = load.plan()
    assert plan.targets[0].path.value == "same_db"
    assert "positive: else quarantine into shop.orders__quarantine" in str(plan)
    result = load.sync()
    assert (result.rows_read, result.rows_inserted, result.rows_quarantined) == (3, 2, 1)
    assert backend.rows() == [order(1, 1), order(3, None)]
    assert [row["id"] for row in backend.quarantined()] == [2]
    assert [each.verdict for each in result.expectations] == ["warn", "warn"]


SOURCE = TableSpec("shop", "source", ORDERS.columns)
TYPED = TableSpec(
    "shop",
    "typed",
    (
        ColumnSpec("id", DataType("big_int")),
        ColumnSpec("d", DataType("date"), nullable=True),
        ColumnSpec("at", DataType("timestamp_tz"), nullable=True),
        ColumnSpec("n", DataType("numeric", precision=10, scale=2), nullable=True),
        ColumnSpec("f", DataType("double"), nullable=True),
        ColumnSpec("flag", DataType("boolean"), nullable=True),
    ),
)


def test_rules_about_dates_times_decimals_and_patterns_hold_for_staged_rows(target: GateTarget) -> None:
    import decimal

    day, moment = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)
    good = {"id": 1, "d": day, "at": moment, "n": decimal.Decimal("1.10"), "f": 0.5, "flag": True}
    bad = [
        {**good, "id": 2, "d": dt.date(2030, 1, 1)},
        {**good, "id": 3, "at": moment.replace(year=1999)},
        {**good, "id": 4, "n": decimal.Decimal("1.11")},
        {**good, "id": 5, "f": 0.6},
        {**good, "id": 6, "flag": False},
    ]

    def declare(t: Tester) -> None:
        t.column("d").between(dt.date(2026, 1, 1), dt.date(2026, 12, 31), name="2")
        t.column("at").between(dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), None, name="3")
        t.column("n").between(None, decimal.Decimal("1.10"), name="4")
        t.column("f").between(None, 0.5, name="5")
        t.column("flag").is_in([True], name="6")

    target.load(rules("quarantine", declare), [good, *bad], table=TYPED)
    assert [row["id"] for row in target.rows(TYPED)] == [1]
    assert [(row["id"], row["_rule"]) for row in target.quarantined(TYPED)] == [
        (n, str(n)) for n in range(2, 7)
    ]
