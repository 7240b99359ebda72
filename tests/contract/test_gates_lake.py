"""The gate of a load into a lake: what is loaded, what is set aside, and what a crash between both leaves."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import LoadPlan, LoadResult, QuarantinedRows, QuarantineFilter
from ematix_flow.engine.planning.gates import plan_gate
from ematix_flow.engine.streams.sinks import BatchName, TableSink
from ematix_flow.errors import ExpectationFailed, RowRejected, SchemaMismatch, TargetFailed
from ematix_flow.plan.decisions import Decision
from ematix_flow.plan.stream_definition import StreamTargetPlan
from ematix_flow.run.pipeline import open_connections
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec, OnFail, quarantine_table
from ematix_flow.spec.streams import StreamTargetSpec
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from ematix_flow.testing.loads import PIPELINE, TARGET, new_load
from ematix_probe.tester import Tester
from tests.contract.gate_setup import MATCHING, ORDERS, GateTarget
from tests.lakes import lake_backend, lake_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = pytest.mark.long
MARKED = TableSpec(
    "shop", "marked", (ColumnSpec("at", DataType("integer")), ColumnSpec("v", DataType("integer")))
)
MODES = (pytest.param("append", marks=LONG), "truncate", "merge", pytest.param("scd2", marks=LONG))
CRASHES = (
    "gate.checked",
    "quarantine.noted",
    "quarantine.written",
    "apply.before_commit",
    "apply.after_commit",
    "quarantine.settled",
)
COMMITTED = CRASHES[-2:]


def in_every_run(*points: str) -> list[Any]:
    """The points at which a load dies; those that are not named are long."""
    return [point if point in points else pytest.param(point, marks=LONG) for point in CRASHES]


class LakeGateTarget(GateTarget):
    """A lake that tests load with a gate, on the session of the tests."""

    def __init__(self, kind: str, folder: Path, spark: SparkSession) -> None:
        self.backend, self.spark = lake_backend(kind, folder), spark
        self.target = lake_target(self.backend, spark)
        self.target.use_spark(lambda: spark, open_connections(lambda _: spark).spark_errors)

    def rows(self, table: TableSpec = ORDERS) -> list[dict[str, Any]]:
        return self._read(table.schema, table.name, table.column_names)

    def quarantined(self, table: TableSpec = ORDERS) -> list[dict[str, Any]]:
        names = [*table.column_names, "_rule", "_source_position"]
        return self._read(table.schema, f"{table.name}__quarantine", names)

    def _read(self, schema: str | None, name: str, names: Sequence[str]) -> list[dict[str, Any]]:
        table = TableSpec(schema, name, ORDERS.columns)
        if self.target._format.snapshot(self.target.spark(), table) is None:
            return []
        expression = self.target._format.table_expression(table)
        rows = self.target.spark().table(self.target.dialect.render(expression))
        found = [row.asDict() for row in rows.select(*[f"`{n}`" for n in names]).collect()]
        return sorted(found, key=lambda row: tuple((v is None, v) for v in row.values()))

    def replay(self, rules: Sequence[Expectation], mode: Any = "append", **chosen: Any) -> LoadResult:
        table = ORDERS if mode == "merge" else TableSpec(ORDERS.schema, ORDERS.name, ORDERS.columns)
        matching = {"matching": MATCHING} if mode == "merge" else {}
        planned = plan_gate(
            ExpectationsSpec(tuple(rules)), table, MATCHING, self.target, self.backend.kind, None
        )
        load = new_load(table, mode, gate=planned.gate, quarantine_plan=planned.quarantine_plan, **matching)
        rows = QuarantinedRows(quarantine_table(table, None), QuarantineFilter(PIPELINE, **chosen))
        return self.target.apply(load, rows)


@pytest.fixture
def delta(tmp_path: Path, spark: SparkSession) -> LakeGateTarget:
    return LakeGateTarget("delta", tmp_path / "lake", spark)


@pytest.fixture
def iceberg(tmp_path: Path, spark: SparkSession) -> LakeGateTarget:
    return LakeGateTarget("iceberg", tmp_path / "lake", spark)


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def target(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> LakeGateTarget:
    return LakeGateTarget(request.param, tmp_path / "lake", spark)


def rules(action: OnFail, declare: Any) -> list[Expectation]:
    tester = Tester()
    declare(tester)
    return [Expectation(each, action) for each in tester.assertions]


def positive(action: OnFail) -> list[Expectation]:
    return rules(action, lambda t: t.expression("amount > 0", name="positive"))


def order(id: int, amount: int | None, email: str | None = "a@b.c") -> dict[str, Any]:
    return {"id": id, "amount": amount, "email": email}


def aside(row: dict[str, Any], rule: str = "positive", position: str | None = None) -> dict[str, Any]:
    return {**row, "_rule": rule, "_source_position": position}


# ------------------------------------------------------------------ three actions


@pytest.mark.parametrize("mode", MODES)
def test_a_lake_loads_what_passes_and_sets_the_rest_aside_or_changes_nothing(
    delta: LakeGateTarget, mode: str
) -> None:
    result = delta.load(positive("quarantine"), [order(1, 11), order(2, -5), order(3, None)], mode)
    assert delta.rows() == [order(1, 11), order(3, None)]
    assert delta.quarantined() == [aside(order(2, -5))]
    assert (result.rows.read, result.rows.inserted, result.quarantined) == (3, 2, 1)
    with pytest.raises(ExpectationFailed) as failed:
        delta.load(positive("fail"), [order(1, 12), order(4, -5), order(3, 7)], mode)
    assert "positive: 1 of 3 rows fail (33.3%)" in failed.value.what
    assert failed.value.state == "nothing was loaded; shop.orders is unchanged"
    assert delta.rows() == [order(1, 11), order(3, None)]
    warned = delta.load(positive("warn"), [order(5, -1), order(1, 11), order(3, None)], mode)
    assert [(each.verdict, each.failing) for each in warned.expectations] == [("warn", 1)]
    assert order(5, -1) in delta.rows()
    assert delta.quarantined() == [aside(order(2, -5))]


@pytest.mark.parametrize("mode", ["merge", pytest.param("append", marks=pytest.mark.long)])
def test_iceberg_loads_what_passes_and_sets_the_rest_aside(iceberg: LakeGateTarget, mode: str) -> None:
    iceberg.load(positive("quarantine"), [order(1, 11), order(2, -5)], mode)
    iceberg.load(positive("quarantine"), [order(3, -1), order(1, 12)], "merge")
    assert iceberg.rows() == [order(1, 12)]
    assert iceberg.quarantined() == [aside(order(2, -5)), aside(order(3, -1))]


@LONG
def test_a_row_without_a_required_value_goes_to_the_quarantine_of_a_lake(target: LakeGateTarget) -> None:
    checks = rules("quarantine", lambda t: t.column("email").not_null())
    target.load(checks, [order(1, 1), order(2, 2, None)])
    assert target.rows() == [order(1, 1)]
    assert [row["id"] for row in target.quarantined()] == [2]


def test_a_batch_of_which_every_row_is_set_aside_is_recorded_and_not_set_aside_again(
    target: LakeGateTarget,
) -> None:
    target.load([], [order(1, 1)])
    for duplicate in (False, True):
        result = target.load(positive("quarantine"), [order(2, -5)], batch_key="slot:1")
        assert result.duplicate == duplicate
    assert target.quarantined() == [aside(order(2, -5))]
    assert len(target.target.ledger(PIPELINE, TARGET)) == 2


def test_a_dry_run_finds_the_verdicts_and_creates_no_table_of_a_lake(delta: LakeGateTarget) -> None:
    result = delta.load(positive("quarantine"), [order(1, -1), order(2, 5)], dry_run=True)
    assert [each.quarantined for each in result.expectations] == [1]
    assert (result.rows.read, result.rows.inserted) == (2, 1)
    assert (delta.rows(), delta.quarantined()) == ([], [])


def test_a_rule_that_spark_refuses_fails_the_load_and_is_named(delta: LakeGateTarget) -> None:
    odd = rules("warn", lambda t: t.expression("no_such_function(amount) > 0", name="odd"))
    with pytest.raises(ExpectationFailed, match="cannot evaluate 'odd'") as failed:
        delta.load([*positive("warn"), *odd], [order(1, 1)])
    assert [each.verdict for each in failed.value.results] == ["error"]
    assert delta.rows() == []


def test_names_that_look_like_sql_are_only_names_in_a_lake(delta: LakeGateTarget) -> None:
    name = "a`b'; DROP TABLE x --"
    table = TableSpec(
        "shop",
        "odd",
        (ColumnSpec("id", DataType("big_int")), ColumnSpec(name, DataType("text"), nullable=True)),
    )
    checks = rules("quarantine", lambda t: t.column(name).is_in(["it's"], name="is it's'; --"))
    found = [{"id": 1, name: "it's"}, {"id": 2, name: "`"}]
    delta.load(checks, found, table=table)
    assert delta.target.inspect(table) is not None
    kept = delta.target._format.table_expression(TableSpec("shop", "odd__quarantine", table.columns))
    rows = delta.target.spark().table(delta.target.dialect.render(kept)).select("id", "_rule").collect()
    assert [tuple(row) for row in rows] == [(2, "is it's'; --")]


@LONG
def test_a_parent_is_looked_up_in_the_lake_of_the_target(delta: LakeGateTarget) -> None:
    delta.load([], [order(1, 1)])
    lines = TableSpec("shop", "lines", (ColumnSpec("order_id", DataType("big_int"), nullable=True),))
    checks = rules(
        "quarantine", lambda t: t.foreign_key("order_id", references="shop.orders", referenced_columns=["id"])
    )
    delta.load(checks, [{"order_id": 1}, {"order_id": 2}, {"order_id": None}], table=lines)
    assert delta.rows(lines) == [{"order_id": 1}, {"order_id": None}]
    assert [row["order_id"] for row in delta.quarantined(lines)] == [2]


def test_a_column_that_the_lake_adds_to_a_quarantine_table_is_refused(delta: LakeGateTarget) -> None:
    table = TableSpec("shop", "odd", (ColumnSpec("_Since_Commit", DataType("text")),))
    with pytest.raises(SchemaMismatch, match="_Since_Commit"):
        delta.load(rules("quarantine", lambda t: t.column("_Since_Commit").not_null()), [], table=table)


@LONG
def test_a_new_column_of_the_target_is_added_to_its_quarantine_table(target: LakeGateTarget) -> None:
    target.load(positive("quarantine"), [order(1, -1)])
    note = ColumnSpec("note", DataType("text"), nullable=True)
    wider = TableSpec("shop", "orders", (*ORDERS.columns, note))
    target.load(positive("quarantine"), [{**order(2, -2), "note": "n"}], table=wider)
    assert target.quarantined(wider) == [
        {**aside(order(1, -1)), "note": None},
        {**aside(order(2, -2)), "note": "n"},
    ]


def test_a_stream_that_repeats_a_batch_still_adds_the_new_columns_to_its_lake(delta: LakeGateTarget) -> None:
    stream, wider = str(uuid.uuid4()), (*MARKED.columns, ColumnSpec("note", DataType("text"), nullable=True))

    def commit(sink: TableSink, number: int, row: dict[str, Any]) -> LoadResult:
        name = BatchName("marks", stream, number, None)
        sink.stage_batches(name, [pa.RecordBatch.from_pylist([row])])
        return sink.commit(name)

    def sink_of(columns: tuple[ColumnSpec, ...]) -> TableSink:
        table = TableSpec(MARKED.schema, MARKED.name, columns)
        changes = delta.target.plan_table(table, delta.target.inspect(table))
        load = LoadPlan(table, "append", table_plan=changes)
        target = StreamTargetSpec(delta.backend.connection, table=table)
        return TableSink(StreamTargetPlan(target, load, Decision("guarantee", "", "")), delta.target)

    commit(sink_of(MARKED.columns), 1, {"at": 1, "v": 1})
    restarted = sink_of(wider)  # before the stream has noted that batch 1 is done
    assert commit(restarted, 1, {"at": 1, "v": 1, "note": "a"}).duplicate
    assert not commit(restarted, 2, {"at": 2, "v": 2, "note": "b"}).duplicate
    found = delta.target.inspect(MARKED)
    assert found is not None and "note" in [column.name for column in found.columns]


# ------------------------------------------------------------------ incremental loads


def incremental(target: LakeGateTarget, rows: list[tuple[int, int]], low: int | None) -> LoadResult:
    start = None if low is None else Watermark("at", DataType("integer"), low)
    return target.load(
        rules("quarantine", lambda t: t.expression("v > 0", name="positive")),
        [{"at": at, "v": v} for at, v in rows if low is None or at >= low],
        table=MARKED,
        range=SourceRange("at", start),
        batch_key=None,
    )


def test_rows_at_the_watermark_that_a_lake_reads_again_are_set_aside_once(target: LakeGateTarget) -> None:
    rows = [(1, 1), (2, -2), (2, -2), (2, 5)]
    incremental(target, rows, None)
    committed = len(target.target.ledger(PIPELINE, TARGET))
    incremental(target, rows, 2)
    assert len(target.target.ledger(PIPELINE, TARGET)) == committed  # nothing is new
    rows[2] = (2, -3)
    incremental(target, rows, 2)  # the watermark stays, and as many rows as before fail
    assert [row["v"] for row in target.quarantined(MARKED)] == [-3, -2]
    rows += [(2, -2), (3, 7)]
    incremental(target, rows, 2)
    assert [(row["at"], row["v"]) for row in target.quarantined(MARKED)] == [(2, -3), (2, -2), (2, -2)]
    assert target.rows(MARKED) == [{"at": 1, "v": 1}, {"at": 2, "v": 5}, {"at": 3, "v": 7}]
    found = target.target.watermark(PIPELINE, TARGET, "at")
    assert found is not None and found.value == 3


@LONG
def test_a_failing_row_at_the_watermark_is_set_aside_even_if_nothing_else_is_new(
    delta: LakeGateTarget,
) -> None:
    incremental(delta, [(2, 5)], None)
    for _ in range(2):
        incremental(delta, [(2, 5), (2, -2)], 2)
        assert [row["v"] for row in delta.quarantined(MARKED)] == [-2]


# ------------------------------------------------------------------ replay


def test_a_later_row_of_a_key_replaces_the_quarantined_one_of_a_lake(target: LakeGateTarget) -> None:
    target.load(positive("quarantine"), [order(1, -1), order(2, -2), order(3, -3)], "merge")
    target.load(positive("quarantine"), [order(1, 10), order(2, -20)], "merge")
    assert target.rows() == [order(1, 10)]
    assert target.quarantined() == [aside(order(2, -20)), aside(order(3, -3))]


def test_replayed_rows_that_pass_leave_the_quarantine_of_a_lake_and_the_others_stay(
    target: LakeGateTarget,
) -> None:
    target.load(positive("quarantine"), [order(1, 1), order(2, -5), order(3, -50)])
    milder = rules("quarantine", lambda t: t.expression("amount > -10", name="not much"))
    result = target.replay(milder)
    assert (result.rows.read, result.rows.inserted, result.quarantined) == (2, 1, 1)
    assert target.rows() == [order(1, 1), order(2, -5)]
    assert target.quarantined() == [aside(order(3, -50), "not much")]


@LONG
def test_only_the_chosen_rows_are_replayed(delta: LakeGateTarget) -> None:
    mail = rules("quarantine", lambda t: t.column("email").regex("@", name="mail"))
    delta.load([*positive("quarantine"), *mail], [order(1, -1), order(2, 5, "none")])
    delta.replay([], "merge", rule="mail")
    assert delta.rows() == [order(2, 5, "none")]
    assert delta.quarantined() == [aside(order(1, -1))]


@LONG
def test_a_replayed_row_without_a_required_value_is_refused(delta: LakeGateTarget) -> None:
    delta.load(rules("quarantine", lambda t: t.column("email").not_null()), [order(1, 1, None)])
    with pytest.raises(RowRejected, match="1 of the replayed rows have no value in column 'email'"):
        delta.replay([])
    assert (delta.rows(), len(delta.quarantined())) == ([], 1)


def test_rows_of_a_lake_in_quarantine_are_counted_shown_in_order_and_purged(target: LakeGateTarget) -> None:
    place = quarantine_table(TableSpec("shop", "orders", ORDERS.columns), None)
    chosen = QuarantinedRows(place, QuarantineFilter(PIPELINE))
    assert target.target.count_quarantined(place, PIPELINE) == []
    target.load(positive("quarantine"), [order(1, -1), order(2, 2)])
    target.load(positive("quarantine"), [order(4, -4)])
    first, second = target.target.count_quarantined(place, PIPELINE)
    assert (first.rule, first.rows, second.rows) == ("positive", 1, 1)
    (found,) = target.target.read_quarantined(chosen, 2, 1)
    assert (found["id"], found["_batch_id"]) == (4, second.batch)
    assert list(found) == list(place.column_names)
    mine = QuarantinedRows(place, QuarantineFilter(PIPELINE, batch=first.batch))
    assert target.target.purge_quarantined(mine) == 1
    assert [row["id"] for row in target.quarantined()] == [4]


# ------------------------------------------------------------------ crashes


@pytest.mark.parametrize("point", in_every_run("quarantine.written", "quarantine.settled"))
def test_a_load_into_a_lake_that_dies_sets_every_row_aside_once(target: LakeGateTarget, point: str) -> None:
    rows, earlier = [order(3, 3), order(4, -4)], [order(3, 3), order(4, 4), order(5, -5)]
    committed = point in COMMITTED
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
        target.load(positive("quarantine"), rows if committed else earlier, batch_key="slot:1")
    assert (order(3, 3) in target.rows()) == committed
    # the source has changed meanwhile: what the dead load set aside must not stay
    result = target.load(positive("quarantine"), rows, batch_key="slot:1")
    assert result.duplicate == committed
    if committed:
        assert target_notes(target) != []
        target.load([], [order(6, 6)])  # any load settles what the dead one left
    assert target.rows() == [order(3, 3), *([order(6, 6)] if committed else [])]
    assert target.quarantined() == [aside(order(4, -4))]
    assert target_notes(target) == []


def test_rows_are_not_purged_while_a_load_into_the_lake_is_not_done(delta: LakeGateTarget) -> None:
    place = quarantine_table(TableSpec("shop", "orders", ORDERS.columns), None)
    chosen = QuarantinedRows(place, QuarantineFilter(PIPELINE))

    def purge_now() -> None:
        with pytest.raises(TargetFailed, match="has rows of a load that is not done"):
            delta.target.purge_quarantined(chosen)

    with fault_points.inject("quarantine.written", purge_now) as purge:
        delta.load(positive("quarantine"), [order(1, 1), order(2, -2)])
    assert purge.has_fired
    assert delta.quarantined() == [aside(order(2, -2))]
    assert delta.target.purge_quarantined(chosen) == 1


@pytest.mark.parametrize("point", in_every_run("quarantine.noted", "apply.after_commit"))
def test_a_replay_in_a_lake_that_dies_neither_loses_nor_doubles_a_row(
    delta: LakeGateTarget, point: str
) -> None:
    delta.load(positive("quarantine"), [order(1, 1), order(2, -2)])
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
        delta.replay([])
    assert delta.replay([]).rows.read == (0 if point in COMMITTED else 1)
    assert delta.rows() == [order(1, 1), order(2, -2)]
    assert (delta.quarantined(), target_notes(delta)) == ([], [])


def target_notes(target: LakeGateTarget) -> list[str]:
    store, folder = target.target._format.table_folder(ORDERS)
    return [name for name in store.names(f"{folder}/_ematix_flow") if name.endswith(".quarantine")]
