"""The suite about conversion to scd2: merged or appended rows become the first versions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend, BatchTarget
from ematix_flow.spec.pipelines import Mode
from ematix_flow.spec.tables import (
    IS_CURRENT,
    LOADED_AT,
    ROW_HASH,
    VALID_FROM,
    VALID_TO,
    ColumnSpec,
    TableContents,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.row_hash import row_hash
from ematix_flow.testing.evolution import (
    BIG,
    TEXT,
    EvolutionContract,
    load_with_changes,
    numeric,
    table_of,
    value_column,
)
from ematix_flow.testing.loads import load_rows, new_load

_UTC = dt.timezone.utc


def _day(number: int) -> dt.datetime:
    return dt.datetime(2026, 1, number, tzinfo=_UTC)


_ENDED_BY_THE_MARK = [
    (1, "a", _day(1), _day(3), False),
    (1, "b", _day(20), None, True),
    (2, "a", _day(1), None, True),
]


class HistoryContract(EvolutionContract):
    """Override ``backend`` and `read_rows`; the tests of `EvolutionContract` come along."""

    def versions(self, backend: Backend, table: TableSpec) -> list[tuple[Any, ...]]:
        found = self.read_rows(backend, table.with_load_columns())
        shown = [(r["id"], r["value"], r[VALID_FROM], r[VALID_TO], r[IS_CURRENT]) for r in found]
        return sorted(shown, key=str)

    @pytest.mark.parametrize("mode", ["merge", "append"])
    def test_rows_become_versions_that_begin_when_they_were_loaded(
        self, backend: Backend, target: BatchTarget, mode: Mode
    ) -> None:
        table = table_of(value_column(TEXT))
        matching = Matching(keys=("id",), compare=("value",), update=("value",))
        first = new_load(table, mode, matching=matching)
        load_rows(target, first, [{"id": i, "value": f"v{i}"} for i in (1, 2)])
        history = replace(table, keeps="versions", merge_keys=("id",))
        second = new_load(history, "scd2", matching=matching)
        plan = target.plan_table(history, target.inspect(history), matching)
        assert plan.converts_to_scd2 and plan.differences == ()
        rows = [{"id": 1, "value": "v1"}, {"id": 2, "value": "changed"}, {"id": 3, "value": "new"}]
        load_with_changes(target, second, rows)
        began, now = first.loaded_at, second.loaded_at
        assert self.versions(backend, history) == [
            (1, "v1", began, None, True),
            (2, "changed", now, None, True),
            (2, "v2", began, now, False),
            (3, "new", now, None, True),
        ]
        for row in self.read_rows(backend, history.with_load_columns()):
            assert row[ROW_HASH] == row_hash({"value": row["value"]}, {"value": TEXT})
        assert self.fits(target, history, matching)

    def test_rows_become_versions_that_begin_at_their_events(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        def at(hour: int) -> dt.datetime:
            return dt.datetime(2026, 1, 1, hour, tzinfo=_UTC)

        table = table_of(value_column(TEXT), value_column(DataType("timestamp_tz"), name="at"))
        merged = Matching(keys=("id",), compare=("value", "at"), update=("value", "at"))
        load_rows(
            target, new_load(table, "merge", matching=merged), [{"id": 1, "value": "noon", "at": at(12)}]
        )
        keeps: TableContents = "events"
        history = replace(table, keeps=keeps, merge_keys=("id",))
        matching = Matching(keys=("id",), compare=("value",), update=("value", "at"), order="at", event="at")
        events = [
            {"id": 1, "value": "noon", "at": at(12)},  # known
            {"id": 1, "value": "evening", "at": at(18)},
            {"id": 1, "value": "morning", "at": at(6)},  # late
        ]
        load_with_changes(target, new_load(history, "scd2", matching=matching), events)
        assert self.versions(backend, history) == [
            (1, "evening", at(18), None, True),
            (1, "morning", at(6), at(12), False),
            (1, "noon", at(12), at(18), False),
        ]
        assert self.fits(target, history, matching)

    def test_rows_marked_as_deleted_become_closed_versions(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        keeps: TableContents = "soft_deletes"
        table = replace(table_of(value_column(TEXT)), keeps=keeps, merge_keys=("id",))
        matching = Matching(keys=("id",), compare=("value",), update=("value",), deletes="soft")
        first = new_load(table, "merge", matching=matching)
        load_rows(target, first, [{"id": 1, "value": "a"}, {"id": 2, "value": "b"}])
        second = new_load(table, "merge", matching=matching, max_shrink=1.0)
        load_rows(target, second, [{"id": 1, "value": "a"}])
        history = replace(table, keeps="versions")
        load_with_changes(target, new_load(history, "scd2", matching=matching), [{"id": 1, "value": "a"}])
        assert self.versions(backend, history) == [
            (1, "a", first.loaded_at, None, True),
            (2, "b", first.loaded_at, second.loaded_at, False),
        ]

    def test_a_mark_of_deletion_ends_the_version_also_under_a_time_to_live(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        history, matching = self._marked_rows(target)
        later = new_load(history, "scd2", matching=matching, loaded_at=_day(21))
        load_with_changes(target, later, [{"id": 1, "value": "b", "at": _day(20)}])
        assert self.versions(backend, history) == _ENDED_BY_THE_MARK

    def test_a_switch_to_versions_that_dies_before_its_last_changes_keeps_the_marks_of_deletion(
        self, backend: Backend, target: BatchTarget, left: Sequence[int] = (2, 1, 0)
    ) -> None:
        """It crashes with ``left`` table changes still to make, again and again."""
        history, matching = self._marked_rows(target)
        rows = [{"id": 1, "value": "b", "at": _day(20)}]
        for number in left:
            plan = target.plan_table(history, target.inspect(history), matching)
            dying = new_load(history, "scd2", matching=matching, loaded_at=_day(21))
            nth = max(1, len(plan.changes) - number)
            with (
                fault_points.inject("apply.table_changed", "crash", nth),
                pytest.raises(fault_points.InjectedCrash),
            ):
                load_with_changes(target, dying, rows, plan)
        load_with_changes(target, new_load(history, "scd2", matching=matching, loaded_at=_day(21)), rows)
        assert self.versions(backend, history) == _ENDED_BY_THE_MARK
        assert self.fits(target, history, matching)

    def _marked_rows(self, target: BatchTarget) -> tuple[TableSpec, Matching]:
        """Two merged rows, one of them marked as deleted on day 3; and the history they are to become."""
        keeps: TableContents = "soft_deletes"
        moment = ColumnSpec("at", DataType("timestamp_tz"), nullable=True)
        plain = table_of(value_column(TEXT))
        table = replace(plain, columns=(*plain.columns, moment), keeps=keeps, merge_keys=("id",))
        values = ("value", "at")
        merged = Matching(keys=("id",), compare=values, update=values, deletes="soft")
        rows = [{"id": i, "value": "a", "at": _day(1)} for i in (1, 2)]
        for day, source in ((2, rows), (3, rows[1:])):
            load_rows(target, new_load(table, "merge", matching=merged, loaded_at=_day(day)), source)
        matching = Matching(
            keys=("id",), compare=("value",), event="at", order="at", ttl_seconds=86_400 * 365
        )
        return replace(table, keeps="events"), matching

    def test_a_soft_delete_column_is_added_to_merged_rows(self, target: BatchTarget) -> None:
        table = table_of(value_column(TEXT))
        load_rows(target, new_load(table), [{"id": 1, "value": "a"}])
        keeps: TableContents = "soft_deletes"
        plan = target.plan_table(replace(table, keeps=keeps), target.inspect(table))
        assert [c.action for c in plan.changes] == ["add_column"] and plan.differences == ()

    def test_keys_by_which_rows_were_merged_keep_their_versions_apart(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        columns = (ColumnSpec("id", BIG), value_column(TEXT))
        table = TableSpec("contract", "evolving", columns, merge_keys=("id",))
        matching = Matching(keys=("id",), compare=("value",), update=("value",))
        load_rows(target, new_load(table, "merge", matching=matching), [{"id": 1, "value": "a"}])
        history = replace(table, keeps="versions")
        load_with_changes(target, new_load(history, "scd2", matching=matching), [{"id": 1, "value": "b"}])
        assert [row[:2] for row in self.versions(backend, history)] == [(1, "a"), (1, "b")]
        assert self.fits(target, history, matching)

    def test_several_rows_of_one_key_cannot_become_versions(self, target: BatchTarget) -> None:
        table = TableSpec("contract", "evolving", (ColumnSpec("id", BIG), value_column(TEXT)))
        load_rows(target, new_load(table), [{"id": 5, "value": "a"}, {"id": 5, "value": "b"}])
        history = replace(table, keeps="versions", merge_keys=("id",))
        plan = target.plan_table(history, target.inspect(history), Matching(keys=("id",), compare=("value",)))
        assert any("several rows" in text for text in plan.differences)

    def test_versions_do_not_become_plain_rows(self, target: BatchTarget) -> None:
        table = table_of(value_column(TEXT))
        history = replace(table, keeps="versions", merge_keys=("id",))
        matching = Matching(keys=("id",), compare=("value",), update=("value",))
        load_rows(target, new_load(history, "scd2", matching=matching), [{"id": 1, "value": "a"}])
        plan = target.plan_table(table, target.inspect(table), matching)
        (difference,) = plan.differences
        assert "keeps versions" in difference and "mode='scd2'" in difference and plan.blockers

    def test_a_whole_number_that_becomes_a_numeric_keeps_its_history(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        self.check_a_wider_type_keeps_its_history(backend, target, numeric(20, 2), Decimal("100.00"))

    def check_a_wider_type_keeps_its_history(
        self, backend: Backend, target: BatchTarget, wider: DataType, value: Decimal | int
    ) -> None:
        """An integer column with the value 100 gets this type, and the same value in it."""
        matching = Matching(keys=("id",), compare=("value",), update=("value",))

        def history(data_type: DataType) -> TableSpec:
            return replace(table_of(value_column(data_type)), keeps="versions", merge_keys=("id",))

        narrow, wide = history(DataType("integer")), history(wider)
        load_rows(target, new_load(narrow, "scd2", matching=matching), [{"id": 1, "value": 100}])
        again = new_load(wide, "scd2", matching=matching)
        applied = load_with_changes(target, again, [{"id": 1, "value": value}])
        assert applied.rows.inserted == 0
        (row,) = self.read_rows(backend, wide.with_load_columns())
        assert row[ROW_HASH] == row_hash({"value": value}, {"value": wider})
        assert row[LOADED_AT] < again.loaded_at
