"""The gate of a load of files: what is loaded, what is set aside, and what a crash between both leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ematix_flow import ObjectStoreLocalConnection, ObjectStoreS3Connection, fault_points
from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import LoadResult, QuarantinedRows, QuarantineFilter
from ematix_flow.backends.objectstore.formats.file_readers import read_rows
from ematix_flow.backends.objectstore.target import FilesTarget
from ematix_flow.engine.planning.gates import plan_gate
from ematix_flow.errors import ExpectationFailed, NameRefused, PlanError, RowRejected, TargetFailed
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec, OnFail, quarantine_table
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.loads import PIPELINE, TARGET, new_load
from ematix_flow.testing.samples import every_type, every_value
from ematix_probe.tester import Tester
from tests.contract.gate_setup import ORDERS, GateTarget
from tests.services.s3 import S3Server

MODES = ("append", "truncate")
FORMATS = ("parquet", "csv", pytest.param("json_lines", marks=pytest.mark.long), "orc")
CRASHES = ("gate.checked", "quarantine.written", "files.before_publish", "quarantine.settled")
TABLE = TableSpec(ORDERS.schema, ORDERS.name, ORDERS.columns)


class FilesGateTarget(GateTarget):
    """A folder or bucket of files that tests load with a gate."""

    target: FilesTarget

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        assert isinstance(self.target, FilesTarget)

    def rows(self, table: TableSpec = ORDERS) -> list[dict[str, Any]]:
        return self._read(table.schema, table.name, table.columns)

    def quarantined(self, table: TableSpec = ORDERS) -> list[dict[str, Any]]:
        text = DataType("text")
        added = ColumnSpec("_rule", text), ColumnSpec("_source_position", text, nullable=True)
        nullable = [ColumnSpec(c.name, c.type, nullable=True) for c in table.columns]
        return self._read(table.schema, f"{table.name}__quarantine", [*nullable, *added])

    def _read(self, schema: str | None, name: str, columns: Sequence[ColumnSpec]) -> list[dict[str, Any]]:
        table = TableSpec(schema, name, tuple(columns))
        home = self.target._root.table_storage(table)
        version = home.current_version()
        if version is None:
            return []
        found: list[dict[str, Any]] = []
        for file in home.data_files(version):
            for batch in read_rows(file, version.state.layout, columns):
                found += cast_batch(batch, table).to_pylist()
        return sorted(found, key=lambda row: tuple((v is None, v) for v in row.values()))

    def replay(self, rules: Sequence[Expectation], **chosen: Any) -> LoadResult:
        planned = plan_gate(
            ExpectationsSpec(tuple(rules)), TABLE, Matching(), self.target, self.backend.kind, None
        )
        dry_run = chosen.pop("dry_run", False)
        load = new_load(TABLE, gate=planned.gate, quarantine_plan=planned.quarantine_plan, dry_run=dry_run)
        rows = QuarantinedRows(quarantine_table(TABLE, None), QuarantineFilter(PIPELINE, **chosen))
        return self.target.apply(load, rows)


def files_target(folder: Path, format: str) -> FilesGateTarget:
    return FilesGateTarget(
        ObjectStoreLocalConnection(name="files", path=str(folder / "files"), format=format)  # type: ignore[arg-type]
    )


@pytest.fixture
def target(tmp_path: Path) -> FilesGateTarget:
    return files_target(tmp_path, "parquet")


@pytest.fixture
def bucket(s3: S3Server, s3_bucket: str) -> FilesGateTarget:
    return FilesGateTarget(
        ObjectStoreS3Connection(name="files", format="parquet", **s3.connection_fields(s3_bucket))
    )


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


def try_all_actions(target: FilesGateTarget, mode: str) -> None:
    result = target.load(positive("quarantine"), [order(1, 11), order(2, -5), order(3, None)], mode)
    assert target.rows() == [order(1, 11), order(3, None)]
    assert target.quarantined() == [aside(order(2, -5))]
    assert (result.rows.read, result.rows.inserted, result.quarantined) == (3, 2, 1)
    with pytest.raises(ExpectationFailed) as failed:
        target.load(positive("fail"), [order(4, -5), order(5, 7)], mode)
    assert "positive: 1 of 2 rows fail (50.0%)" in failed.value.what
    assert failed.value.state == "nothing was loaded; shop.orders is unchanged"
    assert target.rows() == [order(1, 11), order(3, None)]
    warned = target.load(positive("warn"), [order(6, -1), order(7, 1)], mode)
    assert [(each.verdict, each.failing) for each in warned.expectations] == [("warn", 1)]
    assert order(6, -1) in target.rows()
    assert target.quarantined() == [aside(order(2, -5))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format", FORMATS)
def test_files_are_loaded_without_the_rows_that_fail_or_not_at_all(
    tmp_path: Path, format: str, mode: str
) -> None:
    try_all_actions(files_target(tmp_path, format), mode)


def test_files_in_a_bucket_are_loaded_without_the_rows_that_fail_or_not_at_all(
    bucket: FilesGateTarget,
) -> None:
    try_all_actions(bucket, "append")


@pytest.mark.parametrize("format", ["parquet", "csv", "json_lines"])
def test_values_of_every_type_come_into_the_table_and_its_quarantine_as_they_are(
    tmp_path: Path, format: str
) -> None:
    target = files_target(tmp_path, format)
    table = every_type()
    rows = every_value()
    target.load([], rows, table=table)
    wanted = target.rows(table)
    other = files_target(tmp_path / "other", format)
    everything = rules("quarantine", lambda t: t.expression("1 = 0", name="none"))
    other.load(everything, rows, table=table)
    assert other.rows(table) == []
    found = other.quarantined(table)
    assert {row.pop("_rule") for row in found} == {"none"}
    for row in found:
        del row["_source_position"]
    assert found == wanted


def test_a_row_without_a_required_value_goes_to_the_quarantine_of_files(target: FilesGateTarget) -> None:
    checks = rules("quarantine", lambda t: t.column("email").not_null())
    target.load(checks, [order(1, 1), order(2, 2, None)])
    assert target.rows() == [order(1, 1)]
    assert [row["id"] for row in target.quarantined()] == [2]


def test_rows_of_partitions_are_set_aside_from_their_folders(target: FilesGateTarget) -> None:
    found = [order(1, 1, "x"), order(2, -2, "x"), order(3, -3, "y"), order(4, 4, None)]
    nullable = (*ORDERS.columns[:2], ColumnSpec("email", DataType("text"), nullable=True))
    table = TableSpec("shop", "orders", nullable)
    target.load(positive("quarantine"), found, table=table, partition_by=("email",))
    assert target.rows(table) == [order(1, 1, "x"), order(4, 4, None)]
    assert target.quarantined(table) == [aside(order(2, -2, "x")), aside(order(3, -3, "y"))]


def test_each_row_of_a_repeated_key_in_several_files_is_set_aside(target: FilesGateTarget) -> None:
    checks = rules("quarantine", lambda t: t.unique(["id"], name="once"))
    found = [order(1, 1), order(2, 2, "x"), order(2, 3, "y")]
    target.load(checks, found, partition_by=("email",))
    assert target.rows() == [order(1, 1)]
    assert [(row["id"], row["amount"]) for row in target.quarantined()] == [(2, 2), (2, 3)]


def test_a_table_that_is_replaced_has_only_the_last_rows_in_quarantine(target: FilesGateTarget) -> None:
    target.load(positive("quarantine"), [order(1, 1), order(2, -2)], "truncate")
    target.load(positive("quarantine"), [order(1, 1), order(3, -3)], "truncate")
    assert target.quarantined() == [aside(order(3, -3))]
    target.load(positive("quarantine"), [order(1, 1)], "truncate")
    assert (target.rows(), target.quarantined()) == ([order(1, 1)], [])


def test_a_batch_of_files_of_which_every_row_is_set_aside_is_recorded_once(target: FilesGateTarget) -> None:
    for duplicate in (False, True):
        result = target.load(positive("quarantine"), [order(2, -5)], batch_key="slot:1")
        assert result.duplicate == duplicate
    assert (target.rows(), target.quarantined()) == ([], [aside(order(2, -5))])
    assert len(target.target.ledger(PIPELINE, TARGET)) == 1


def test_a_dry_run_finds_the_verdicts_and_creates_no_folder(target: FilesGateTarget) -> None:
    result = target.load(positive("quarantine"), [order(1, -1), order(2, 5)], dry_run=True)
    assert [each.quarantined for each in result.expectations] == [1]
    assert (result.rows.read, result.rows.inserted) == (2, 1)
    assert not Path(target.backend.connection.path, "shop").exists()  # type: ignore[attr-defined]


def test_a_rule_that_duckdb_refuses_fails_the_load_and_is_named(target: FilesGateTarget) -> None:
    odd = rules("warn", lambda t: t.expression("no_such_function(amount) > 0", name="odd"))
    with pytest.raises(ExpectationFailed, match="cannot evaluate 'odd'") as failed:
        target.load([*positive("warn"), *odd], [order(1, 1)])
    assert [each.verdict for each in failed.value.results] == ["error"]
    assert target.rows() == []


def test_names_that_look_like_sql_are_only_names_in_files(target: FilesGateTarget) -> None:
    name = "a\"b'; DROP TABLE x --"
    table = TableSpec(
        "shop",
        "odd",
        (ColumnSpec("id", DataType("big_int")), ColumnSpec(name, DataType("text"), nullable=True)),
    )
    checks = rules("quarantine", lambda t: t.column(name).is_in(["it's"], name="is it's'; --"))
    target.load(checks, [{"id": 1, name: "it's"}, {"id": 2, name: '"'}], table=table)
    assert target.rows(table) == [{"id": 1, name: "it's"}]
    assert target.quarantined(table) == [aside({"id": 2, name: '"'}, "is it's'; --")]


def test_columns_that_differ_only_in_case_cannot_be_checked(target: FilesGateTarget) -> None:
    table = TableSpec("shop", "odd", (ColumnSpec("a", DataType("text")), ColumnSpec("A", DataType("text"))))
    with pytest.raises(NameRefused, match="'a' and 'A'"):
        target.load(rules("warn", lambda t: t.column("a").not_null()), [], table=table)


def test_a_parent_is_looked_up_in_the_files_next_to_the_target(target: FilesGateTarget) -> None:
    target.load([], [order(1, 1)])
    lines = TableSpec("shop", "lines", (ColumnSpec("order_id", DataType("big_int"), nullable=True),))
    checks = rules(
        "quarantine",
        lambda t: t.foreign_key("order_id", references="shop.orders", referenced_columns=["id"]),
    )
    target.load(checks, [{"order_id": 1}, {"order_id": 2}, {"order_id": None}], table=lines)
    assert target.rows(lines) == [{"order_id": 1}, {"order_id": None}]
    assert [row["order_id"] for row in target.quarantined(lines)] == [2]


def test_a_new_column_of_the_files_is_added_to_their_quarantine(target: FilesGateTarget) -> None:
    target.load(positive("quarantine"), [order(1, -1)])
    wider = TableSpec(
        "shop", "orders", (*ORDERS.columns, ColumnSpec("note", DataType("text"), nullable=True))
    )
    target.load(positive("quarantine"), [{**order(2, -2), "note": "n"}], table=wider)
    assert target.quarantined(wider) == [
        {**aside(order(1, -1)), "note": None},
        {**aside(order(2, -2)), "note": "n"},
    ]


def test_other_programs_read_the_quarantine_like_any_folder(target: FilesGateTarget) -> None:
    target.load(positive("quarantine"), [order(1, 1), order(2, -2)])
    path = Path(target.backend.connection.path, "shop", "orders__quarantine")  # type: ignore[attr-defined]
    with duckdb.connect() as engine:
        found = engine.execute(f"SELECT id, _rule, _pipeline FROM '{path}/*.parquet'").fetchall()
    assert found == [(2, "positive", PIPELINE)]


# ------------------------------------------------------------------ incremental loads

MARKED = TableSpec(
    "shop", "marked", (ColumnSpec("at", DataType("integer")), ColumnSpec("v", DataType("integer")))
)


def incremental(target: FilesGateTarget, rows: list[tuple[int, int]], low: int | None) -> LoadResult:
    start = None if low is None else Watermark("at", DataType("integer"), low)
    return target.load(
        rules("quarantine", lambda t: t.expression("v > 0", name="positive")),
        [{"at": at, "v": v} for at, v in rows if low is None or at >= low],
        table=MARKED,
        range=SourceRange("at", start),
        batch_key=None,
    )


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_rows_at_the_watermark_that_are_read_again_are_set_aside_once_from_files(
    tmp_path: Path, format: str
) -> None:
    target = files_target(tmp_path, format)
    rows = [(1, 1), (2, -2), (2, -2), (2, 5)]
    incremental(target, rows, None)
    incremental(target, rows, 2)
    assert len(target.target.ledger(PIPELINE, TARGET)) == 1  # nothing is new
    rows += [(2, -3), (3, 7)]
    incremental(target, rows, 2)
    assert [(row["at"], row["v"]) for row in target.quarantined(MARKED)] == [(2, -3), (2, -2), (2, -2)]
    assert target.rows(MARKED) == [{"at": 1, "v": 1}, {"at": 2, "v": 5}, {"at": 3, "v": 7}]
    found = target.target.watermark(PIPELINE, TARGET, "at")
    assert found is not None and found.value == 3


def test_the_watermark_of_files_passes_rows_that_were_set_aside(target: FilesGateTarget) -> None:
    incremental(target, [(1, 1)], None)
    incremental(target, [(9, -2)], 1)
    found = target.target.watermark(PIPELINE, TARGET, "at")
    assert found is not None and found.value == 9
    assert [row["_source_position"] for row in target.quarantined(MARKED)] == ["1 .. 9"]


def test_files_that_are_loaded_from_the_beginning_again_have_each_failing_row_in_quarantine_once(
    target: FilesGateTarget,
) -> None:
    incremental(target, [(1, 1), (1, -1), (2, -2)], None)
    Path(target.backend.connection.path, "shop", "marked").unlink()  # type: ignore[attr-defined]
    assert target.target.watermark(PIPELINE, TARGET, "at") is None
    incremental(target, [(1, 1), (1, -1), (2, -3)], None)
    assert target.rows(MARKED) == [{"at": 1, "v": 1}]
    assert [(row["at"], row["v"]) for row in target.quarantined(MARKED)] == [(1, -1), (2, -3)]


def test_a_failing_row_at_the_watermark_of_files_is_set_aside_even_if_nothing_else_is_new(
    target: FilesGateTarget,
) -> None:
    incremental(target, [(2, 5)], None)
    for _ in range(2):
        incremental(target, [(2, 5), (2, -2)], 2)
        assert [row["v"] for row in target.quarantined(MARKED)] == [-2]


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_another_failing_row_at_the_watermark_of_files_takes_the_place_of_the_one_in_quarantine(
    tmp_path: Path, format: str
) -> None:
    target = files_target(tmp_path, format)
    incremental(target, [(2, 5), (2, -2), (2, -2)], None)
    for rows in ([(2, 5), (2, -2), (2, -3)], [(2, 5), (2, -3), (2, -3)], [(2, 5), (2, -3), (2, -3)]):
        incremental(target, rows, 2)
        found = sorted((row["at"], row["v"]) for row in target.quarantined(MARKED))
        assert found == sorted(row for row in rows if row[1] < 0)
    assert len(target.target.ledger(PIPELINE, TARGET)) == 3  # the last load found nothing new


# ------------------------------------------------------------------ replay


def test_replayed_rows_that_pass_leave_the_quarantine_of_files_and_the_others_stay(
    target: FilesGateTarget,
) -> None:
    target.load(positive("quarantine"), [order(1, 1), order(2, -5), order(3, -50), order(4, -6)])
    milder = rules("quarantine", lambda t: t.expression("amount > -10", name="not much"))
    for dry_run in (True, False):
        result = target.replay(milder, dry_run=dry_run)
        assert (result.rows.read, result.rows.inserted, result.quarantined) == (3, 2, 1)
    assert target.rows() == [order(1, 1), order(2, -5), order(4, -6)]
    assert target.quarantined() == [aside(order(3, -50))]


def test_rows_of_a_long_file_stay_in_quarantine_where_they_fail_again(target: FilesGateTarget) -> None:
    number = 40_000  # more than are read at once
    target.load(positive("quarantine"), [order(n, -n) for n in range(1, number + 1)])
    odd = rules("quarantine", lambda t: t.expression("id % 1000 <> 1", name="odd"))
    assert target.replay(odd).rows.inserted == number - 40
    assert [row["id"] for row in target.quarantined()] == list(range(1, number, 1000))
    chosen = QuarantinedRows(quarantine_table(TABLE, None), QuarantineFilter(PIPELINE))
    assert [row["id"] for row in target.target.read_quarantined(chosen, 2, 38)] == [38_001, 39_001]


def test_only_the_chosen_rows_of_files_are_replayed(target: FilesGateTarget) -> None:
    mail = rules("quarantine", lambda t: t.column("email").regex("@", name="mail"))
    target.load([*positive("quarantine"), *mail], [order(1, -1), order(2, 5, "none")])
    target.replay([], rule="mail")
    assert target.rows() == [order(2, 5, "none")]
    assert target.quarantined() == [aside(order(1, -1))]


def test_a_replayed_row_of_files_without_a_required_value_is_refused(target: FilesGateTarget) -> None:
    target.load(rules("quarantine", lambda t: t.column("email").not_null()), [order(1, 1, None)])
    with pytest.raises(RowRejected, match="email"):
        target.replay([])
    assert (target.rows(), len(target.quarantined())) == ([], 1)


def test_a_replay_without_a_quarantine_table_says_that_there_is_none(target: FilesGateTarget) -> None:
    target.load([], [order(1, 1)])
    with pytest.raises(PlanError, match="there is no quarantine table"):
        target.replay([])


def test_rows_of_files_in_quarantine_are_counted_shown_in_order_and_purged(target: FilesGateTarget) -> None:
    place, everything = quarantine_table(TABLE, None), QuarantineFilter(PIPELINE)
    chosen = QuarantinedRows(place, everything)
    assert target.target.count_quarantined(place, PIPELINE) == []
    assert target.target.read_quarantined(chosen, 10, 0) == []
    assert target.target.purge_quarantined(chosen) == 0
    mail = rules("quarantine", lambda t: t.column("email").regex("@", name="mail"))
    target.load([*positive("quarantine"), *mail], [order(1, -1), order(2, 5, "none"), order(3, -3)])
    target.load(positive("quarantine"), [order(4, -4)])
    counts = target.target.count_quarantined(place, PIPELINE)
    assert [(each.rule, each.rows) for each in counts] == [("mail", 1), ("positive", 2), ("positive", 1)]
    assert target.target.count_quarantined(place, "another pipeline") == []
    found = target.target.read_quarantined(chosen, 2, 2)
    assert [(row["id"], row["_batch_id"]) for row in found] == [(3, counts[0].batch), (4, counts[2].batch)]
    mine = QuarantinedRows(place, QuarantineFilter(PIPELINE, "positive", counts[1].batch))
    assert target.target.purge_quarantined(mine) == 2
    assert [row["id"] for row in target.quarantined()] == [2, 4]


def test_a_damaged_file_of_a_quarantine_is_named_when_its_rows_are_counted(target: FilesGateTarget) -> None:
    target.load(positive("quarantine"), [order(1, -1)])
    place = quarantine_table(TABLE, None)
    folder = Path(target.backend.connection.path, "shop", "orders__quarantine")  # type: ignore[attr-defined]
    (file,) = folder.glob("*.parquet")
    file.write_bytes(b"no parquet")
    with pytest.raises(TargetFailed, match=file.name):
        target.target.count_quarantined(place, PIPELINE)


# ------------------------------------------------------------------ crashes


def crash_and_load_again(target: FilesGateTarget, point: str) -> None:
    target.load(positive("quarantine"), [order(1, 1), order(2, -2)])
    rows, earlier = [order(3, 3), order(4, -4)], [order(3, 3), order(4, 4), order(5, -5)]
    committed = point == CRASHES[-1]
    nth = 2 if point == "files.before_publish" else 1  # of the quarantine table first, then of the target
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash", nth):
        target.load(positive("quarantine"), rows if committed else earlier, batch_key="slot:1")
    assert (order(3, 3) in target.rows()) == committed
    # the source has changed meanwhile: what the dead load set aside must not stay
    result = target.load(positive("quarantine"), rows, batch_key="slot:1")
    assert result.duplicate == committed
    assert target.rows() == [order(1, 1), order(3, 3)]
    assert target.quarantined() == [aside(order(n, -n)) for n in (2, 4)]


@pytest.mark.parametrize("point", CRASHES)
def test_a_load_of_files_that_dies_sets_every_row_aside_once(target: FilesGateTarget, point: str) -> None:
    crash_and_load_again(target, point)


@pytest.mark.parametrize("point", ["quarantine.written", "files.before_publish", "quarantine.settled"])
def test_a_load_into_a_bucket_that_dies_sets_every_row_aside_once(
    bucket: FilesGateTarget, point: str
) -> None:
    crash_and_load_again(bucket, point)


@pytest.mark.parametrize("point", CRASHES)
def test_a_replay_of_files_that_dies_neither_loses_nor_doubles_a_row(
    target: FilesGateTarget, point: str
) -> None:
    target.load(positive("quarantine"), [order(1, 1), order(2, -2), order(3, -30)])
    milder = rules("quarantine", lambda t: t.expression("amount > -10", name="not much"))
    nth = 2 if point == "files.before_publish" else 1
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash", nth):
        target.replay(milder)
    target.replay(milder)
    assert target.rows() == [order(1, 1), order(2, -2)]
    assert target.quarantined() == [aside(order(3, -30))]


def test_a_load_of_files_that_dies_before_its_quarantine_is_published_leaves_no_file(
    target: FilesGateTarget,
) -> None:
    target.load(positive("quarantine"), [order(1, 1), order(2, -2)])
    hidden = Path(target.backend.connection.path, ".ematix_flow", "tables")  # type: ignore[attr-defined]
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("files.before_publish", "crash"):
        target.load(positive("quarantine"), [order(3, -3)])
    (left,) = (path.parent for path in hidden.glob("*quarantine*/*/data") if len(list(path.iterdir())) == 2)
    assert target.quarantined() == [aside(order(2, -2))]
    target.load(positive("quarantine"), [order(4, 4)])
    assert not left.exists()


def test_a_load_without_expectations_after_a_crash_does_not_make_dead_rows_count(
    target: FilesGateTarget,
) -> None:
    target.load(positive("quarantine"), [order(1, 1)])
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("quarantine.written", "crash"):
        target.load(positive("quarantine"), [order(2, -2)], batch_key="slot:1")
    target.load([], [order(2, -2)], batch_key="slot:1")  # the rule was removed
    target.load(positive("quarantine"), [order(3, -3)])
    assert target.rows() == [order(1, 1), order(2, -2)]
    assert target.quarantined() == [aside(order(3, -3))]
