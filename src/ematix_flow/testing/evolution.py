"""The suite that every SQL target passes about tables that change: evolving, refusing, becoming history.

Subclass `EvolutionContract` beside `TargetContract`'s own subclass; it needs the same ``backend`` fixture
and `read_rows`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from ematix_flow import faults
from ematix_flow.backends.base import Applied, Backend, Load, TablePlan, Target
from ematix_flow.errors import LoadError, RowRejected
from ematix_flow.spec.tables import (
    IS_CURRENT,
    LOADED_AT,
    ROW_HASH,
    VALID_FROM,
    VALID_TO,
    ColumnSpec,
    Keeps,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.row_hash import row_hash
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.samples import HOSTILE_NAMES

_UTC = dt.timezone.utc
_TEXT, _BIG = DataType("text"), DataType("big_int")


def _string(length: int) -> DataType:
    return DataType("string", length=length)


def _numeric(precision: int, scale: int) -> DataType:
    return DataType("numeric", precision=precision, scale=scale)


# the live type, the declared one, values of both
WIDENINGS: tuple[tuple[DataType, DataType, Any, Any], ...] = (
    (DataType("small_int"), DataType("integer"), -32768, 2**31 - 1),
    (DataType("small_int"), _BIG, 7, -(2**63)),
    (DataType("integer"), _BIG, -(2**31), 2**63 - 1),
    (DataType("float"), DataType("double"), 1.5, 1e300),
    (_string(5), _string(20), "ÄÖÜ☃a", "twenty characters!!!"),
    (_string(5), _TEXT, "five5", "x" * 3000),
    (_numeric(6, 2), _numeric(12, 2), Decimal("-1234.50"), Decimal("1234567890.25")),
    (_numeric(6, 2), _numeric(12, 4), Decimal("1234.50"), Decimal("12345678.1234")),
    (_numeric(12, 2), _numeric(30, 4), Decimal("1234567890.25"), Decimal("12345678901234567890123456.1234")),
    (DataType("integer"), _numeric(12, 2), 1_000_000, Decimal("1234567890.25")),
    (_BIG, _numeric(38, 10), 2**63 - 1, Decimal("1234567890123456789012345678.0123456789")),
)
# the live type and a declared one that cannot hold it, or that means something else
REFUSALS: tuple[tuple[DataType, DataType], ...] = (
    (_BIG, DataType("small_int")),
    (_string(20), _string(5)),
    (_numeric(12, 4), _numeric(12, 2)),
    (_numeric(12, 2), _BIG),
    (_TEXT, DataType("bytes")),
    (DataType("double"), _numeric(12, 2)),
    (_TEXT, _BIG),
)


def evolving(
    target: Target, load: Load, rows: Sequence[dict[str, Any]], plan: TablePlan | None = None
) -> Applied:
    """A load whose table changes in its own transaction, as a run's does."""
    matching = load.matching if load.matching.keys else None
    plan = plan or target.plan_table(load.table, target.inspect(load.table), matching)
    assert plan.differences == ()
    return load_rows(target, replace(load, changes=plan), rows, change=False)


def table_of(*columns: ColumnSpec, name: str = "evolving", **options: Any) -> TableSpec:
    return TableSpec("contract", name, (ColumnSpec("id", _BIG, primary_key=True), *columns), **options)


def _value(data_type: DataType, *, nullable: bool = True, name: str = "value") -> ColumnSpec:
    return ColumnSpec(name, data_type, nullable=nullable)


class EvolutionContract:
    """Override ``backend`` and `read_rows`."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError("a subclass gives the backend under test")

    @pytest.fixture
    def target(self, backend: Backend) -> Target:
        target = backend.target()
        assert target is not None
        return target

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        raise NotImplementedError("a subclass says how rows are read back")

    def rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        found = self.read_rows(backend, table)
        return sorted(found, key=lambda row: tuple(str(row[c]) for c in table.column_names))

    def fits(self, target: Target, table: TableSpec, matching: Matching | None = None) -> bool:
        plan = target.plan_table(table, target.inspect(table), matching)
        return (plan.changes, plan.differences) == ((), ())

    # ---------------------------------------------------------------- what loses nothing

    @pytest.mark.parametrize(("live", "declared", "old", "new"), WIDENINGS, ids=str)
    def test_a_type_is_widened_and_keeps_its_values(
        self, backend: Backend, target: Target, live: DataType, declared: DataType, old: Any, new: Any
    ) -> None:
        load_rows(
            target, new_load(table_of(_value(live))), [{"id": 1, "value": old}, {"id": 2, "value": None}]
        )
        wider = table_of(_value(declared))
        evolving(target, new_load(wider), [{"id": 3, "value": new}])
        assert self.fits(target, wider)
        found = [row["value"] for row in self.rows(backend, wider)]
        assert found == [old, None, new]

    def test_a_key_is_widened_and_stays_a_key(self, backend: Backend, target: Target) -> None:
        def keyed(data_type: DataType) -> TableSpec:
            columns = (
                ColumnSpec("k", data_type, primary_key=True),
                ColumnSpec("u", data_type),
                ColumnSpec("v", _TEXT, nullable=True),
            )
            return TableSpec("contract", "keyed", columns, unique=(("u",),))

        load_rows(target, new_load(keyed(DataType("integer"))), [{"k": 1, "u": 1, "v": "a"}])
        wider = keyed(_BIG)
        evolving(target, new_load(wider), [{"k": 2**40, "u": 2**41, "v": "b"}])
        assert self.fits(target, wider)
        for row in ({"k": 2**40, "u": 5, "v": "x"}, {"k": 6, "u": 2**41, "v": "x"}):
            with pytest.raises(LoadError):
                load_rows(target, new_load(wider), [row])
        assert len(self.rows(backend, wider)) == 2

    def test_a_column_may_become_nullable(self, backend: Backend, target: Target) -> None:
        load_rows(target, new_load(table_of(_value(_TEXT, nullable=False))), [{"id": 1, "value": "a"}])
        relaxed = table_of(_value(_TEXT))
        evolving(target, new_load(relaxed), [{"id": 2, "value": None}])
        assert self.fits(target, relaxed)
        assert [row["value"] for row in self.rows(backend, relaxed)] == ["a", None]

    def test_several_changes_come_together(self, backend: Backend, target: Target) -> None:
        before = table_of(_value(_string(5), nullable=False), _value(DataType("integer"), name="n"))
        load_rows(target, new_load(before), [{"id": 1, "value": "a", "n": 1}])
        after = table_of(
            _value(_string(9)),
            _value(_BIG, name="n"),
            _value(_string(3), name="added"),
            _value(DataType("timestamp_tz"), name="at"),
        )
        at = dt.datetime(2026, 1, 2, 3, 4, 5, 6, _UTC)
        evolving(target, new_load(after), [{"id": 2, "value": None, "n": 2**40, "added": "abc", "at": at}])
        assert self.fits(target, after)
        assert self.rows(backend, after) == [
            {"id": 1, "value": "a", "n": 1, "added": None, "at": None},
            {"id": 2, "value": None, "n": 2**40, "added": "abc", "at": at},
        ]
        for wrong in ({"value": "x" * 10}, {"added": "abcd"}):
            row = {"id": 3, "value": "x", "n": 1, "added": "x", "at": at}
            with pytest.raises(RowRejected):
                load_rows(target, new_load(after), [row | wrong])

    def test_a_column_that_is_not_declared_is_left_alone(self, backend: Backend, target: Target) -> None:
        wide = table_of(_value(_TEXT), _value(_TEXT, name="more"))
        load_rows(target, new_load(wide), [{"id": 1, "value": "a", "more": "kept"}])
        narrow = table_of(_value(_TEXT))
        plan = target.plan_table(narrow, target.inspect(narrow))
        assert (plan.changes, plan.differences) == ((), ())
        assert any(line.mark == "=" and line.subject == "more" for line in plan.diff)
        load_rows(target, new_load(narrow), [{"id": 2, "value": "b"}])
        assert [row["more"] for row in self.rows(backend, wide)] == ["kept", None]

    def test_a_column_without_nulls_is_added_to_a_table_without_rows(self, target: Target) -> None:
        load_rows(target, new_load(table_of(_value(_TEXT))), [])
        fuller = table_of(_value(_TEXT), _value(_BIG, nullable=False, name="needed"))
        evolving(target, new_load(fuller), [{"id": 1, "value": "a", "needed": 7}])
        assert self.fits(target, fuller)

    def test_a_unique_key_is_added_and_holds(self, target: Target) -> None:
        plain = table_of(_value(_BIG))
        load_rows(target, new_load(plain), [{"id": 1, "value": 1}, {"id": 2, "value": None}])
        unique = replace(plain, unique=(("value",),))
        evolving(target, new_load(unique), [{"id": 3, "value": 3}])
        assert self.fits(target, unique)
        with pytest.raises(LoadError):
            load_rows(target, new_load(unique), [{"id": 4, "value": 3}])

    def test_rows_that_stand_in_the_way_of_a_unique_key_are_named(self, target: Target) -> None:
        plain = table_of(_value(_BIG))
        load_rows(target, new_load(plain), [{"id": 1, "value": 77}, {"id": 2, "value": 77}])
        unique = replace(plain, unique=(("value",),))
        plan = target.plan_table(unique, target.inspect(unique))
        assert any("77" in text and "(value)" in text for text in plan.differences)

    def test_keys_that_rows_are_merged_by_become_unique(self, target: Target) -> None:
        columns = (ColumnSpec("a", _BIG), ColumnSpec("b", _BIG), ColumnSpec("v", _TEXT, nullable=True))
        table = TableSpec("contract", "merged", columns, merge_keys=("a", "b"))
        load_rows(target, new_load(table), [{"a": 1, "b": 1, "v": "x"}, {"a": 1, "b": 2, "v": "y"}])
        assert self.fits(target, table)
        with pytest.raises(LoadError):
            load_rows(target, new_load(table), [{"a": 1, "b": 2, "v": "z"}])

    # ---------------------------------------------------------------- what is refused

    @pytest.mark.parametrize(("live", "declared"), REFUSALS, ids=str)
    def test_a_type_that_would_lose_values_is_refused_with_what_to_run(
        self, target: Target, live: DataType, declared: DataType
    ) -> None:
        load_rows(target, new_load(table_of(_value(live))), [])
        table = table_of(_value(declared))
        plan = target.plan_table(table, target.inspect(table))
        assert plan.changes == ()
        (told,) = plan.differences
        assert "'value'" in told and str(declared) in told and "By hand: " in told

    def test_a_column_without_nulls_is_not_added_to_rows(self, backend: Backend, target: Target) -> None:
        load_rows(target, new_load(table_of(_value(_TEXT))), [{"id": 1, "value": "a"}])
        table = table_of(_value(_TEXT), _value(_BIG, nullable=False, name="needed"))
        (told,) = target.plan_table(table, target.inspect(table)).differences
        assert "'needed'" in told and "ADD COLUMN" in told and "UPDATE" in told

    def test_another_primary_key_is_refused(self, target: Target) -> None:
        load_rows(target, new_load(table_of(_value(_BIG, nullable=False))), [])
        columns = (ColumnSpec("id", _BIG), ColumnSpec("value", _BIG, primary_key=True))
        table = TableSpec("contract", "evolving", columns)
        plan = target.plan_table(table, target.inspect(table))
        assert any("primary key is (id), declared as (value)" in text for text in plan.differences)

    # ---------------------------------------------------------------- together with the rows

    def test_a_crash_leaves_the_table_as_it_was_or_ready_for_the_next_run(
        self, backend: Backend, target: Target
    ) -> None:
        before = table_of(_value(_string(5), nullable=False))
        load_rows(target, new_load(before), [{"id": 1, "value": "a"}])
        after = table_of(_value(_string(9)), _value(_BIG, name="added"))
        load = new_load(after)
        with pytest.raises(faults.InjectedCrash), faults.inject("apply.before_commit", "crash"):
            evolving(target, load, [{"id": 2, "value": "b", "added": 1}])
        if getattr(target, "transactional_ddl", True):
            assert self.fits(target, before)
        assert self.rows(backend, before) == [{"id": 1, "value": "a"}]
        evolving(target, new_load(after), [{"id": 2, "value": "b", "added": 1}])
        assert len(self.rows(backend, after)) == 2

    def test_a_change_that_another_run_has_just_made_is_not_made_again(
        self, backend: Backend, target: Target
    ) -> None:
        before = table_of(_value(_string(5)))
        load_rows(target, new_load(before), [{"id": 1, "value": "a"}])
        after = table_of(_value(_string(9)), _value(_BIG, name="added"))
        plan = target.plan_table(after, target.inspect(after))
        for number in (2, 3):  # both planned before either ran
            evolving(target, new_load(after), [{"id": number, "value": "b", "added": 1}], plan)
        assert [row["id"] for row in self.rows(backend, after)] == [1, 2, 3]

    # ---------------------------------------------------------------- names

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_hostile_names_evolve_as_table_column_and_key(
        self, backend: Backend, target: Target, name: str
    ) -> None:
        def hostile(data_type: DataType, *more: ColumnSpec) -> TableSpec:
            columns = (ColumnSpec(name, data_type, primary_key=True), _value(data_type, name=name[:50] + "2"))
            other = columns[1].name
            return TableSpec("contract", name, (*columns, *more), unique=((other, name),))

        other = name[:50] + "2"
        load_rows(target, new_load(hostile(_string(5))), [{name: "a", other: "b"}])
        wider = hostile(_string(9), _value(_TEXT, name=name[:50] + "3"))
        evolving(target, new_load(wider), [{name: "123456789", other: "c", name[:50] + "3": "d"}])
        assert self.fits(target, wider)
        assert [row[other] for row in self.rows(backend, wider)] == ["c", "b"]
        matching = Matching(keys=(name,), compare=(other, name[:50] + "3"))
        history = replace(wider, keeps="versions", merge_keys=(name,))
        load = new_load(history, "scd2", matching=matching)
        applied = evolving(target, load, [{name: "a", other: "changed", name[:50] + "3": None}])
        assert applied.rows_inserted == 1
        assert self.fits(target, history, matching)
        assert len(self.rows(backend, history)) == 3


class HistoryContract(EvolutionContract):
    """Rows that were merged or appended become the first versions of an scd2 table."""

    def versions(self, backend: Backend, table: TableSpec) -> list[tuple[Any, ...]]:
        found = self.read_rows(backend, table.with_load_columns())
        shown = [(r["id"], r["value"], r[VALID_FROM], r[VALID_TO], r[IS_CURRENT]) for r in found]
        return sorted(shown, key=str)

    @pytest.mark.parametrize("mode", ["merge", "append"])
    def test_rows_become_versions_that_begin_when_they_were_loaded(
        self, backend: Backend, target: Target, mode: str
    ) -> None:
        table = table_of(_value(_TEXT))
        matching = Matching(keys=("id",), compare=("value",), update=("value",))
        first = new_load(table, mode, matching=matching)
        load_rows(target, first, [{"id": i, "value": f"v{i}"} for i in (1, 2)])
        history = replace(table, keeps="versions", merge_keys=("id",))
        second = new_load(history, "scd2", matching=matching)
        plan = target.plan_table(history, target.inspect(history), matching)
        assert plan.becomes_history and plan.differences == ()
        rows = [{"id": 1, "value": "v1"}, {"id": 2, "value": "changed"}, {"id": 3, "value": "new"}]
        evolving(target, second, rows)
        began, now = first.loaded_at, second.loaded_at
        assert self.versions(backend, history) == [
            (1, "v1", began, None, True),
            (2, "changed", now, None, True),
            (2, "v2", began, now, False),
            (3, "new", now, None, True),
        ]
        for row in self.read_rows(backend, history.with_load_columns()):
            assert row[ROW_HASH] == row_hash({"value": row["value"]}, {"value": _TEXT})
        assert self.fits(target, history, matching)

    def test_rows_become_versions_that_begin_at_their_events(self, backend: Backend, target: Target) -> None:
        def at(hour: int) -> dt.datetime:
            return dt.datetime(2026, 1, 1, hour, tzinfo=_UTC)

        table = table_of(_value(_TEXT), _value(DataType("timestamp_tz"), name="at"))
        merged = Matching(keys=("id",), compare=("value", "at"), update=("value", "at"))
        load_rows(
            target, new_load(table, "merge", matching=merged), [{"id": 1, "value": "noon", "at": at(12)}]
        )
        keeps: Keeps = "events"
        history = replace(table, keeps=keeps, merge_keys=("id",))
        matching = Matching(keys=("id",), compare=("value",), update=("value", "at"), order="at", event="at")
        events = [
            {"id": 1, "value": "noon", "at": at(12)},  # known
            {"id": 1, "value": "evening", "at": at(18)},
            {"id": 1, "value": "morning", "at": at(6)},  # late
        ]
        evolving(target, new_load(history, "scd2", matching=matching), events)
        assert self.versions(backend, history) == [
            (1, "evening", at(18), None, True),
            (1, "morning", at(6), at(12), False),
            (1, "noon", at(12), at(18), False),
        ]
        assert self.fits(target, history, matching)

    def test_rows_marked_as_deleted_become_closed_versions(self, backend: Backend, target: Target) -> None:
        keeps: Keeps = "soft_deletes"
        table = replace(table_of(_value(_TEXT)), keeps=keeps, merge_keys=("id",))
        matching = Matching(keys=("id",), compare=("value",), update=("value",), deletes="soft")
        first = new_load(table, "merge", matching=matching)
        load_rows(target, first, [{"id": 1, "value": "a"}, {"id": 2, "value": "b"}])
        second = new_load(table, "merge", matching=matching, max_shrink=1.0)
        load_rows(target, second, [{"id": 1, "value": "a"}])
        history = replace(table, keeps="versions")
        evolving(target, new_load(history, "scd2", matching=matching), [{"id": 1, "value": "a"}])
        assert self.versions(backend, history) == [
            (1, "a", first.loaded_at, None, True),
            (2, "b", first.loaded_at, second.loaded_at, False),
        ]

    def test_a_soft_delete_column_is_added_to_merged_rows(self, target: Target) -> None:
        table = table_of(_value(_TEXT))
        load_rows(target, new_load(table), [{"id": 1, "value": "a"}])
        keeps: Keeps = "soft_deletes"
        plan = target.plan_table(replace(table, keeps=keeps), target.inspect(table))
        assert [c.action for c in plan.changes] == ["add_column"] and plan.differences == ()

    def test_keys_by_which_rows_were_merged_keep_their_versions_apart(
        self, backend: Backend, target: Target
    ) -> None:
        columns = (ColumnSpec("id", _BIG), _value(_TEXT))
        table = TableSpec("contract", "evolving", columns, merge_keys=("id",))
        matching = Matching(keys=("id",), compare=("value",), update=("value",))
        load_rows(target, new_load(table, "merge", matching=matching), [{"id": 1, "value": "a"}])
        history = replace(table, keeps="versions")
        evolving(target, new_load(history, "scd2", matching=matching), [{"id": 1, "value": "b"}])
        assert [row[:2] for row in self.versions(backend, history)] == [(1, "a"), (1, "b")]
        assert self.fits(target, history, matching)

    def test_several_rows_of_one_key_cannot_become_versions(self, target: Target) -> None:
        table = TableSpec("contract", "evolving", (ColumnSpec("id", _BIG), _value(_TEXT)))
        load_rows(target, new_load(table), [{"id": 5, "value": "a"}, {"id": 5, "value": "b"}])
        history = replace(table, keeps="versions", merge_keys=("id",))
        plan = target.plan_table(history, target.inspect(history), Matching(keys=("id",), compare=("value",)))
        assert any("several rows" in text for text in plan.differences)

    def test_versions_do_not_become_plain_rows(self, target: Target) -> None:
        table = table_of(_value(_TEXT))
        history = replace(table, keeps="versions", merge_keys=("id",))
        matching = Matching(keys=("id",), compare=("value",), update=("value",))
        load_rows(target, new_load(history, "scd2", matching=matching), [{"id": 1, "value": "a"}])
        plan = target.plan_table(table, target.inspect(table), matching)
        (told,) = plan.differences
        assert "keeps versions" in told and "mode='scd2'" in told and plan.stops

    def test_a_whole_number_that_becomes_a_numeric_keeps_its_history(
        self, backend: Backend, target: Target
    ) -> None:
        matching = Matching(keys=("id",), compare=("value",), update=("value",))

        def history(data_type: DataType) -> TableSpec:
            return replace(table_of(_value(data_type)), keeps="versions", merge_keys=("id",))

        narrow, wide = history(DataType("integer")), history(_numeric(20, 2))
        load_rows(target, new_load(narrow, "scd2", matching=matching), [{"id": 1, "value": 100}])
        again = new_load(wide, "scd2", matching=matching)
        applied = evolving(target, again, [{"id": 1, "value": Decimal("100.00")}])
        assert applied.rows_inserted == 0
        (row,) = self.read_rows(backend, wide.with_load_columns())
        assert row[ROW_HASH] == row_hash({"value": Decimal("100.00")}, {"value": _numeric(20, 2)})
        assert row[LOADED_AT] < again.loaded_at
