"""The suite that every target backend passes.

Subclass `TargetContract`, give it a ``backend`` fixture and a way to read rows back; pytest runs
the rest. A gap is marked where the subclass is declared, with its reason: ``notimpl`` (we could),
``never`` (the system cannot).
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import replace
from typing import Any

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend, BatchTarget, StagedRows
from ematix_flow.errors import PipelineLocked, RowRejected, ShrinkRefused, TargetFailed
from ematix_flow.spec.pipelines import Mode
from ematix_flow.spec.tables import BATCH_ID, LOADED_AT, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.testing.loads import PIPELINE, TARGET, load_incremental, load_rows, new_load, prepare
from ematix_flow.testing.samples import HOSTILE_NAMES, every_type, every_value

APPLY_POINTS = (
    "apply.began",
    "apply.rows_written",
    "apply.ledger_written",
    "apply.before_commit",
    "apply.after_commit",
)
_SMALL = TableSpec(
    "contract",
    "small",
    (
        ColumnSpec("id", DataType("big_int"), primary_key=True),
        ColumnSpec("name", DataType("text"), nullable=True),
    ),
)
_EVENTS = TableSpec(
    "contract",
    "events",
    (ColumnSpec("at", DataType("timestamp_tz")), ColumnSpec("what", DataType("text"), nullable=True)),
)


def _named_rows(first: int, last: int, prefix: str = "n") -> list[dict[str, Any]]:
    return [{"id": i, "name": f"{prefix}{i}"} for i in range(first, last)]


def _event_row(minute: int, what: str | None) -> dict[str, Any]:
    return {"at": dt.datetime(2026, 1, 1, 12, minute, tzinfo=dt.timezone.utc), "what": what}


class TargetContract:
    """Override ``backend`` and `read_rows`. ``points`` are the commit points of its apply."""

    points: tuple[str, ...] = APPLY_POINTS
    never_named: tuple[str, ...] = ()  # hostile names that the system cannot store

    @property
    def hostile_names(self) -> tuple[str, ...]:
        return tuple(name for name in HOSTILE_NAMES if name not in self.never_named)

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError("a subclass gives the backend under test")

    @pytest.fixture
    def target(self, backend: Backend) -> BatchTarget:
        target = backend.target()
        assert target is not None
        return target

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        """All rows of the table with canonical Python values, load columns included when asked for."""
        raise NotImplementedError("a subclass says how rows are read back")

    def rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        found = self.read_rows(backend, table)
        return sorted(found, key=lambda row: tuple(str(row[c]) for c in table.column_names))

    # ---------------------------------------------------------------- values

    def test_every_type_and_null_arrives_unchanged(self, backend: Backend, target: BatchTarget) -> None:
        table = every_type()
        applied = load_rows(target, new_load(table), every_value())
        assert applied.rows.inserted == 4
        found = {row["id"]: row for row in self.read_rows(backend, table)}
        for expected in every_value():
            for column, value in expected.items():
                assert found[expected["id"]][column] == value, column

    def test_rows_carry_their_run_and_the_moment_of_the_load(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        load = new_load(_SMALL)
        load_rows(target, load, _named_rows(0, 2))
        for row in self.read_rows(backend, _SMALL.with_load_columns()):
            assert row[BATCH_ID] == str(load.run_id)
            assert row[LOADED_AT] == load.loaded_at

    def test_hostile_column_names_round_trip(self, backend: Backend, target: BatchTarget) -> None:
        columns = tuple(ColumnSpec(name, DataType("text"), nullable=True) for name in self.hostile_names)
        table = TableSpec("contract", "hostile", (ColumnSpec("id", DataType("big_int")), *columns))
        row: dict[str, Any] = {"id": 1, **{name: f"value of {name}" for name in self.hostile_names}}
        load_rows(target, new_load(table), [row])
        assert self.read_rows(backend, table) == [row]

    @pytest.mark.parametrize("name", ["order", "Mixed Case", 'quo"te', "sno☃man", "semi;colon"])
    def test_hostile_table_names_round_trip(self, backend: Backend, target: BatchTarget, name: str) -> None:
        table = replace(_SMALL, name=name)
        load_rows(target, new_load(table), _named_rows(0, 3))
        load_rows(target, new_load(table, "truncate"), _named_rows(5, 7))
        assert self.rows(backend, table) == _named_rows(5, 7)

    def test_a_hundred_thousand_rows_in_several_parts_arrive_once_each(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        parts = 4 if backend.capabilities.parallel_write else 1
        applied = load_rows(target, new_load(_SMALL), _named_rows(0, 100_000), parts=parts)
        assert applied.rows.inserted == 100_000
        found = self.read_rows(backend, _SMALL)
        assert len(found) == 100_000
        assert len({row["id"] for row in found}) == 100_000

    # ---------------------------------------------------------------- append

    def test_append_adds_to_what_is_there(self, backend: Backend, target: BatchTarget) -> None:
        load_rows(target, new_load(_SMALL), _named_rows(0, 3))
        load_rows(target, new_load(_SMALL), _named_rows(3, 5))
        assert self.rows(backend, _SMALL) == _named_rows(0, 5)

    def test_an_empty_append_creates_the_table_and_changes_nothing(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        applied = load_rows(target, new_load(_SMALL), [])
        assert applied.rows.inserted == 0
        assert target.inspect(_SMALL) is not None
        load_rows(target, new_load(_SMALL), _named_rows(0, 1))
        load_rows(target, new_load(_SMALL), [])
        assert self.rows(backend, _SMALL) == _named_rows(0, 1)

    def test_a_batch_whose_key_is_in_the_ledger_is_not_applied_again(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        load_rows(target, new_load(_SMALL, batch_key="slot:1"), _named_rows(0, 3))
        again = load_rows(target, new_load(_SMALL, batch_key="slot:1"), _named_rows(3, 6))
        assert again.duplicate
        assert self.rows(backend, _SMALL) == _named_rows(0, 3)

    def test_a_part_whose_answer_never_came_is_not_applied(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        import pyarrow as pa

        load = new_load(_SMALL)
        prepare(target, _SMALL)
        staging = target.create_staging(load, _SMALL.arrow_schema())
        schema = _SMALL.arrow_schema()
        lost = staging.write("lost", [pa.RecordBatch.from_pylist(_named_rows(0, 2), schema=schema)])
        kept = staging.write("kept", [pa.RecordBatch.from_pylist(_named_rows(0, 2), schema=schema)])
        assert (lost.rows, kept.rows) == (2, 2)
        applied = target.apply(load, StagedRows(staging, (kept,)))
        target.drop_staging(staging)
        assert applied.rows.inserted == 2
        assert self.rows(backend, _SMALL) == _named_rows(0, 2)

    def test_the_ledger_tells_what_each_batch_did(self, target: BatchTarget) -> None:
        load = new_load(_SMALL, batch_key="slot:7")
        load_rows(target, load, _named_rows(0, 3))
        (entry,) = target.ledger(PIPELINE, TARGET)
        assert (entry.batch_key, entry.run_id) == ("slot:7", str(load.run_id))
        assert (entry.rows.read, entry.rows.inserted, entry.rows.deleted) == (3, 3, 0)
        assert abs(entry.committed_at - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(minutes=5)
        assert target.ledger(PIPELINE, TARGET, run_id=str(uuid.uuid4())) == []

    # ---------------------------------------------------------------- truncate

    def test_truncate_replaces_every_row(self, backend: Backend, target: BatchTarget) -> None:
        load_rows(target, new_load(_SMALL), _named_rows(0, 10))
        applied = load_rows(target, new_load(_SMALL, "truncate"), _named_rows(2, 9, "new"))
        assert (applied.rows.inserted, applied.rows.deleted) == (7, 10)
        assert self.rows(backend, _SMALL) == _named_rows(2, 9, "new")

    def test_an_empty_source_does_not_empty_a_table_unasked(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        load_rows(target, new_load(_SMALL), _named_rows(0, 3))
        with pytest.raises(ShrinkRefused):
            load_rows(target, new_load(_SMALL, "truncate"), [])
        assert self.rows(backend, _SMALL) == _named_rows(0, 3)
        load_rows(target, new_load(_SMALL, "truncate", allow_empty=True), [])
        assert self.rows(backend, _SMALL) == []

    def test_a_great_fall_of_rows_is_refused_unless_allowed(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        load_rows(target, new_load(_SMALL), _named_rows(0, 2_000))
        with pytest.raises(ShrinkRefused):
            load_rows(target, new_load(_SMALL, "truncate"), _named_rows(0, 999))
        assert len(self.read_rows(backend, _SMALL)) == 2_000
        load_rows(target, new_load(_SMALL, "truncate", max_shrink=1.0), _named_rows(0, 999))
        assert len(self.read_rows(backend, _SMALL)) == 999

    # ---------------------------------------------------------------- incremental

    def test_the_watermark_is_typed_and_moves_with_the_rows(self, target: BatchTarget) -> None:
        assert target.watermark(PIPELINE, TARGET, "at") is None
        load_incremental(target, _EVENTS, "at", [_event_row(1, "a"), _event_row(5, "b")])
        mark = target.watermark(PIPELINE, TARGET, "at")
        assert mark is not None
        assert mark.value == _event_row(5, "b")["at"]
        assert mark.type == DataType("timestamp_tz")

    def test_ties_at_the_boundary_are_neither_lost_nor_doubled_without_a_key(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        source = [_event_row(1, "a"), _event_row(5, "b"), _event_row(5, "b"), _event_row(5, None)]
        load_incremental(target, _EVENTS, "at", source)
        source += [_event_row(5, "b"), _event_row(5, None), _event_row(5, "late tie"), _event_row(9, "c")]
        load_incremental(target, _EVENTS, "at", source)
        nothing = load_incremental(target, _EVENTS, "at", source)
        assert nothing.rows.inserted == 0
        found = sorted((row["at"], row["what"] or "") for row in self.read_rows(backend, _EVENTS))
        assert found == sorted((row["at"], row["what"] or "") for row in source)

    def test_ties_at_the_boundary_are_matched_by_the_primary_key(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        table = TableSpec(
            "contract",
            "numbered",
            (ColumnSpec("id", DataType("big_int"), primary_key=True), ColumnSpec("seq", DataType("integer"))),
        )
        source = [{"id": 1, "seq": 1}, {"id": 2, "seq": 2}]
        load_incremental(target, table, "seq", source)
        source += [{"id": 3, "seq": 2}, {"id": 4, "seq": 3}]
        applied = load_incremental(target, table, "seq", source)
        assert applied.rows.inserted == 2
        assert self.rows(backend, table) == source

    def test_late_ties_that_come_one_by_one_all_arrive(self, backend: Backend, target: BatchTarget) -> None:
        source = [_event_row(5, "first")]
        for what in ("second", "third", "fourth"):
            load_incremental(target, _EVENTS, "at", source)
            source.append(_event_row(5, what))
        load_incremental(target, _EVENTS, "at", source)
        assert len(self.read_rows(backend, _EVENTS)) == 4

    def test_a_load_from_a_position_that_another_run_has_moved_is_refused(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        load_incremental(target, _EVENTS, "at", [_event_row(1, "a")])
        low = target.watermark(PIPELINE, TARGET, "at")
        stale = new_load(_EVENTS, range=SourceRange("at", low), batch_key=None)
        load_incremental(target, _EVENTS, "at", [_event_row(1, "a"), _event_row(2, "b")])
        with pytest.raises(TargetFailed, match="another run moved it"):
            load_rows(target, stale, [_event_row(1, "a"), _event_row(2, "b"), _event_row(3, "c")])
        assert len(self.read_rows(backend, _EVENTS)) == 2

    def test_nothing_new_writes_no_ledger_entry(self, target: BatchTarget) -> None:
        load_incremental(target, _EVENTS, "at", [_event_row(1, "a")])
        applied = load_incremental(target, _EVENTS, "at", [_event_row(1, "a")])
        assert applied.rows.inserted == 0
        assert len(target.ledger(PIPELINE, TARGET)) == 1

    def test_a_null_watermark_stops_the_load(self, backend: Backend, target: BatchTarget) -> None:
        table = replace(_EVENTS, columns=(replace(_EVENTS.columns[0], nullable=True), _EVENTS.columns[1]))
        load = new_load(table, range=SourceRange("at", None), batch_key=None)
        with pytest.raises(RowRejected):
            load_rows(target, load, [_event_row(1, "a"), {"at": None, "what": "when?"}])
        assert self.read_rows(backend, table) == []

    # ---------------------------------------------------------------- crashes, locks, leftovers

    @pytest.mark.parametrize("mode", ["append", "truncate"])
    def test_a_crash_at_any_commit_point_leaves_before_or_after_and_the_ledger_agrees(
        self, backend: Backend, target: BatchTarget, mode: Mode
    ) -> None:
        load_rows(target, new_load(_SMALL), _named_rows(0, 4))
        before = self.rows(backend, _SMALL)
        batch = _named_rows(4, 8)
        after = [*before, *batch] if mode == "append" else batch
        for point in self.points:
            load = new_load(_SMALL, mode)
            with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
                load_rows(target, load, batch, drop=False)
            found = self.rows(backend, _SMALL)
            committed = bool(target.ledger(PIPELINE, TARGET, run_id=str(load.run_id)))
            assert found == (after if committed else before), point
            target.sweep_staging(PIPELINE, TARGET)
            assert target.sweep_staging(PIPELINE, TARGET) == []
            if committed:
                load_rows(target, new_load(_SMALL, "truncate", max_shrink=1.0), before)

    def test_a_second_run_of_the_same_pipeline_is_locked_out(self, target: BatchTarget) -> None:
        with target.lock(PIPELINE, TARGET, uuid.uuid4()):
            with pytest.raises(PipelineLocked), target.lock(PIPELINE, TARGET, uuid.uuid4()):
                pass
            with target.lock("another", TARGET, uuid.uuid4()):
                pass
        with target.lock(PIPELINE, TARGET, uuid.uuid4()):
            pass

    def test_staging_that_a_crash_left_is_swept_and_other_pipelines_keep_theirs(
        self, target: BatchTarget
    ) -> None:
        prepare(target, _SMALL)
        mine = target.create_staging(new_load(_SMALL), _SMALL.arrow_schema())
        other = target.create_staging(new_load(_SMALL, pipeline="another"), _SMALL.arrow_schema())
        assert mine is not None
        assert len(target.sweep_staging(PIPELINE, TARGET)) == 1
        assert target.sweep_staging(PIPELINE, TARGET) == []
        assert len(target.sweep_staging("another", TARGET)) == 1
        target.drop_staging(other)

    def test_a_dry_run_counts_and_changes_nothing(self, backend: Backend, target: BatchTarget) -> None:
        load_rows(target, new_load(_SMALL), _named_rows(0, 4))
        applied = load_rows(target, new_load(_SMALL, "truncate", dry_run=True), _named_rows(0, 3))
        assert (applied.rows.inserted, applied.rows.deleted) == (3, 4)
        assert self.rows(backend, _SMALL) == _named_rows(0, 4)
        assert len(target.ledger(PIPELINE, TARGET)) == 1

    def test_a_dry_run_of_a_batch_that_was_committed_refuses_no_row_of_it(self, target: BatchTarget) -> None:
        load = new_load(_SMALL, batch_key="slot:1")
        load_rows(target, load, _named_rows(0, 3))
        again = load_rows(target, replace(load, dry_run=True), _named_rows(0, 3))
        assert again.duplicate

    # ---------------------------------------------------------------- tables

    def test_a_table_that_fits_needs_no_change(self, target: BatchTarget) -> None:
        table = every_type()
        prepare(target, table)
        plan = target.plan_table(table, target.inspect(table))
        assert (plan.changes, plan.differences) == ((), ())

    def test_a_column_of_another_type_is_a_difference(self, target: BatchTarget) -> None:
        prepare(target, _SMALL)
        changed = replace(
            _SMALL, columns=(_SMALL.columns[0], ColumnSpec("name", DataType("integer"), nullable=True))
        )
        plan = target.plan_table(changed, target.inspect(changed))
        assert any("'name'" in difference for difference in plan.differences)

    def test_a_new_nullable_column_can_be_added(self, backend: Backend, target: BatchTarget) -> None:
        load_rows(target, new_load(_SMALL), _named_rows(0, 1))
        wider = replace(
            _SMALL, columns=(*_SMALL.columns, ColumnSpec("extra", DataType("integer"), nullable=True))
        )
        assert [c.action for c in target.plan_table(wider, target.inspect(wider)).changes] == ["add_column"]
        load_rows(target, new_load(wider), [{"id": 1, "name": "n1", "extra": 7}])
        assert self.rows(backend, wider) == [
            {"id": 0, "name": "n0", "extra": None},
            {"id": 1, "name": "n1", "extra": 7},
        ]
