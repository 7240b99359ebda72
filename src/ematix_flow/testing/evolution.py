"""The suite about table changes that every SQL target passes: evolving, refusing, conversion to scd2.

Subclass `EvolutionContract` next to the subclass of `TargetContract`; it needs the same ``backend`` fixture
and `read_rows`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend, BatchTarget, Load, LoadResult, TablePlan
from ematix_flow.errors import LoadError, RowRejected, SchemaMismatch
from ematix_flow.spec.tables import (
    ColumnSpec,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.samples import HOSTILE_NAMES

_UTC = dt.timezone.utc
TEXT, BIG = DataType("text"), DataType("big_int")


def _string(length: int) -> DataType:
    return DataType("string", length=length)


def numeric(precision: int, scale: int) -> DataType:
    return DataType("numeric", precision=precision, scale=scale)


# the live type, the declared one, values of both
WIDENINGS: tuple[tuple[DataType, DataType, Any, Any], ...] = (
    (DataType("small_int"), DataType("integer"), -32768, 2**31 - 1),
    (DataType("small_int"), BIG, 7, -(2**63)),
    (DataType("integer"), BIG, -(2**31), 2**63 - 1),
    (DataType("float"), DataType("double"), 1.5, 1e300),
    (_string(5), _string(20), "ÄÖÜ☃a", "twenty characters!!!"),
    (_string(5), TEXT, "five5", "x" * 3000),
    (numeric(6, 2), numeric(12, 2), Decimal("-1234.50"), Decimal("1234567890.25")),
    (numeric(6, 2), numeric(12, 4), Decimal("1234.50"), Decimal("12345678.1234")),
    (numeric(12, 2), numeric(30, 4), Decimal("1234567890.25"), Decimal("12345678901234567890123456.1234")),
    (DataType("integer"), numeric(12, 2), 1_000_000, Decimal("1234567890.25")),
    (BIG, numeric(38, 10), 2**63 - 1, Decimal("1234567890123456789012345678.0123456789")),
)
# the live type and a declared one that cannot hold it, or that means something else
REFUSALS: tuple[tuple[DataType, DataType], ...] = (
    (BIG, DataType("small_int")),
    (_string(20), _string(5)),
    (numeric(12, 4), numeric(12, 2)),
    (numeric(12, 2), BIG),
    (TEXT, DataType("bytes")),
    (DataType("double"), numeric(12, 2)),
    (TEXT, BIG),
)


def load_with_changes(
    target: BatchTarget, load: Load, rows: Sequence[dict[str, Any]], plan: TablePlan | None = None
) -> LoadResult:
    """A load that changes its table in its own transaction, as a run does."""
    matching = load.plan.matching if load.plan.matching.keys else None
    plan = plan or target.plan_table(load.table, target.inspect(load.table), matching)
    assert plan.differences == ()
    changed = replace(load, plan=replace(load.plan, table_plan=plan))
    return load_rows(target, changed, rows, change=False)


def table_of(*columns: ColumnSpec, name: str = "evolving", **options: Any) -> TableSpec:
    return TableSpec("contract", name, (ColumnSpec("id", BIG, primary_key=True), *columns), **options)


def value_column(data_type: DataType, *, nullable: bool = True, name: str = "value") -> ColumnSpec:
    return ColumnSpec(name, data_type, nullable=nullable)


class EvolutionContract:
    """Override ``backend`` and `read_rows`. ``never_named`` are names that the system cannot keep."""

    never_named: tuple[str, ...] = ()

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError("a subclass gives the backend under test")

    @pytest.fixture
    def target(self, backend: Backend) -> BatchTarget:
        target = backend.target()
        assert target is not None
        return target

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        raise NotImplementedError("a subclass says how rows are read back")

    def rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        found = self.read_rows(backend, table)
        return sorted(found, key=lambda row: tuple(str(row[c]) for c in table.column_names))

    def fits(self, target: BatchTarget, table: TableSpec, matching: Matching | None = None) -> bool:
        plan = target.plan_table(table, target.inspect(table), matching)
        return (plan.changes, plan.differences) == ((), ())

    # ---------------------------------------------------------------- what loses nothing

    def test_types_are_widened_and_keep_their_values(self, backend: Backend, target: BatchTarget) -> None:
        def every(place: int) -> TableSpec:
            return table_of(*[value_column(pair[place], name=f"v{n}") for n, pair in enumerate(WIDENINGS)])

        def row(number: int, place: int | None) -> dict[str, Any]:
            values = {f"v{n}": None if place is None else pair[place] for n, pair in enumerate(WIDENINGS)}
            return {"id": number, **values}

        load_rows(target, new_load(every(0)), [row(1, 2), row(2, None)])
        load_with_changes(target, new_load(every(1)), [row(3, 3)])
        assert self.fits(target, every(1))
        found = {found["id"]: found for found in self.rows(backend, every(1))}
        for expected in (row(1, 2), row(2, None), row(3, 3)):
            for name, value in expected.items():
                assert found[expected["id"]][name] == value, name

    def test_a_key_is_widened_and_stays_a_key(self, backend: Backend, target: BatchTarget) -> None:
        def keyed(data_type: DataType) -> TableSpec:
            columns = (
                ColumnSpec("k", data_type, primary_key=True),
                ColumnSpec("u", data_type),
                ColumnSpec("v", TEXT, nullable=True),
            )
            return TableSpec("contract", "keyed", columns, unique=(("u",),))

        load_rows(target, new_load(keyed(DataType("integer"))), [{"k": 1, "u": 1, "v": "a"}])
        wider = keyed(BIG)
        load_with_changes(target, new_load(wider), [{"k": 2**40, "u": 2**41, "v": "b"}])
        assert self.fits(target, wider)
        for row in ({"k": 2**40, "u": 5, "v": "x"}, {"k": 6, "u": 2**41, "v": "x"}):
            with pytest.raises(LoadError):
                load_rows(target, new_load(wider), [row])
        assert len(self.rows(backend, wider)) == 2

    def test_a_column_may_become_nullable(self, backend: Backend, target: BatchTarget) -> None:
        load_rows(target, new_load(table_of(value_column(TEXT, nullable=False))), [{"id": 1, "value": "a"}])
        relaxed = table_of(value_column(TEXT))
        load_with_changes(target, new_load(relaxed), [{"id": 2, "value": None}])
        assert self.fits(target, relaxed)
        assert [row["value"] for row in self.rows(backend, relaxed)] == ["a", None]

    def test_several_changes_come_together(self, backend: Backend, target: BatchTarget) -> None:
        before = table_of(
            value_column(_string(5), nullable=False), value_column(DataType("integer"), name="n")
        )
        load_rows(target, new_load(before), [{"id": 1, "value": "a", "n": 1}])
        after = table_of(
            value_column(_string(9)),
            value_column(BIG, name="n"),
            value_column(_string(3), name="added"),
            value_column(DataType("timestamp_tz"), name="at"),
        )
        at = dt.datetime(2026, 1, 2, 3, 4, 5, 6, _UTC)
        load_with_changes(
            target, new_load(after), [{"id": 2, "value": None, "n": 2**40, "added": "abc", "at": at}]
        )
        assert self.fits(target, after)
        assert self.rows(backend, after) == [
            {"id": 1, "value": "a", "n": 1, "added": None, "at": None},
            {"id": 2, "value": None, "n": 2**40, "added": "abc", "at": at},
        ]
        for wrong in ({"value": "x" * 10}, {"added": "abcd"}):
            row = {"id": 3, "value": "x", "n": 1, "added": "x", "at": at}
            with pytest.raises(RowRejected):
                load_rows(target, new_load(after), [row | wrong])

    def test_a_column_that_is_not_declared_is_left_alone(self, backend: Backend, target: BatchTarget) -> None:
        wide = table_of(value_column(TEXT), value_column(TEXT, name="more"))
        load_rows(target, new_load(wide), [{"id": 1, "value": "a", "more": "kept"}])
        narrow = table_of(value_column(TEXT))
        plan = target.plan_table(narrow, target.inspect(narrow))
        assert (plan.changes, plan.differences) == ((), ())
        assert any(line.mark == "=" and line.subject == "more" for line in plan.diff)
        load_rows(target, new_load(narrow), [{"id": 2, "value": "b"}])
        assert [row["more"] for row in self.rows(backend, wide)] == ["kept", None]

    def test_a_column_without_nulls_is_added_to_a_table_without_rows(self, target: BatchTarget) -> None:
        load_rows(target, new_load(table_of(value_column(TEXT))), [])
        fuller = table_of(value_column(TEXT), value_column(BIG, nullable=False, name="needed"))
        load_with_changes(target, new_load(fuller), [{"id": 1, "value": "a", "needed": 7}])
        assert self.fits(target, fuller)

    def test_a_unique_key_is_added_and_holds(self, target: BatchTarget) -> None:
        plain = table_of(value_column(BIG))
        load_rows(target, new_load(plain), [{"id": 1, "value": 1}, {"id": 2, "value": None}])
        unique = replace(plain, unique=(("value",),))
        load_with_changes(target, new_load(unique), [{"id": 3, "value": 3}])
        assert self.fits(target, unique)
        with pytest.raises(LoadError):
            load_rows(target, new_load(unique), [{"id": 4, "value": 3}])

    def test_rows_that_stand_in_the_way_of_a_unique_key_are_named(self, target: BatchTarget) -> None:
        plain = table_of(value_column(BIG))
        load_rows(target, new_load(plain), [{"id": 1, "value": 77}, {"id": 2, "value": 77}])
        unique = replace(plain, unique=(("value",),))
        plan = target.plan_table(unique, target.inspect(unique))
        assert any("77" in text and "(value)" in text for text in plan.differences)

    def test_keys_that_rows_are_merged_by_become_unique(self, target: BatchTarget) -> None:
        columns = (ColumnSpec("a", BIG), ColumnSpec("b", BIG), ColumnSpec("v", TEXT, nullable=True))
        table = TableSpec("contract", "merged", columns, merge_keys=("a", "b"))
        load_rows(target, new_load(table), [{"a": 1, "b": 1, "v": "x"}, {"a": 1, "b": 2, "v": "y"}])
        assert self.fits(target, table)
        with pytest.raises(LoadError):
            load_rows(target, new_load(table), [{"a": 1, "b": 2, "v": "z"}])

    # ---------------------------------------------------------------- what is refused

    def test_types_that_would_lose_values_are_refused_with_what_to_run(self, target: BatchTarget) -> None:
        def every(place: int) -> TableSpec:
            return table_of(*[value_column(pair[place], name=f"v{n}") for n, pair in enumerate(REFUSALS)])

        load_rows(target, new_load(every(0)), [])
        plan = target.plan_table(every(1), target.inspect(every(1)))
        assert plan.changes == ()
        assert len(plan.differences) == len(REFUSALS)
        for number, (_, declared) in enumerate(REFUSALS):
            difference = plan.differences[number]
            assert f"'v{number}'" in difference and str(declared) in difference and "By hand: " in difference

    def test_a_column_without_nulls_is_not_added_to_rows(self, backend: Backend, target: BatchTarget) -> None:
        load_rows(target, new_load(table_of(value_column(TEXT))), [{"id": 1, "value": "a"}])
        table = table_of(value_column(TEXT), value_column(BIG, nullable=False, name="needed"))
        (difference,) = target.plan_table(table, target.inspect(table)).differences
        assert "'needed'" in difference and "ADD COLUMN" in difference and "UPDATE" in difference

    def test_another_primary_key_is_refused(self, target: BatchTarget) -> None:
        load_rows(target, new_load(table_of(value_column(BIG, nullable=False))), [])
        columns = (ColumnSpec("id", BIG), ColumnSpec("value", BIG, primary_key=True))
        table = TableSpec("contract", "evolving", columns)
        plan = target.plan_table(table, target.inspect(table))
        assert any("primary key is (id), declared as (value)" in text for text in plan.differences)

    # ---------------------------------------------------------------- together with the rows

    def test_a_crash_leaves_the_table_as_it_was_or_ready_for_the_next_run(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        before = table_of(value_column(_string(5), nullable=False))
        load_rows(target, new_load(before), [{"id": 1, "value": "a"}])
        after = table_of(value_column(_string(9)), value_column(BIG, name="added"))
        load = new_load(after)
        with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.before_commit", "crash"):
            load_with_changes(target, load, [{"id": 2, "value": "b", "added": 1}])
        if getattr(target, "transactional_ddl", True):
            assert self.fits(target, before)
        assert self.rows(backend, before) == [{"id": 1, "value": "a"}]
        load_with_changes(target, new_load(after), [{"id": 2, "value": "b", "added": 1}])
        assert len(self.rows(backend, after)) == 2

    def test_a_change_that_another_run_has_just_made_is_not_made_again(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        before = table_of(value_column(_string(5)))
        load_rows(target, new_load(before), [{"id": 1, "value": "a"}])
        after = table_of(value_column(_string(9)), value_column(BIG, name="added"))
        plan = target.plan_table(after, target.inspect(after))
        for number in (2, 3):  # both planned before either ran
            load_with_changes(target, new_load(after), [{"id": number, "value": "b", "added": 1}], plan)
        assert [row["id"] for row in self.rows(backend, after)] == [1, 2, 3]

    # ---------------------------------------------------------------- names

    @pytest.mark.parametrize("table_name", ["select", 'Quoted "and` so', "x" * 63])
    def test_hostile_names_evolve_as_table_column_and_key(
        self, backend: Backend, target: BatchTarget, table_name: str
    ) -> None:
        for name in self.never_named:
            with pytest.raises(SchemaMismatch):
                target.plan_table(table_of(name=name), None)
        names = [name for name in HOSTILE_NAMES if name not in self.never_named]
        keys, grouped, rest = tuple(names[:2]), tuple(names[2:4]), names[4:]

        def hostile(data_type: DataType, *more: ColumnSpec) -> TableSpec:
            columns = [ColumnSpec(n, data_type, nullable=n not in keys, primary_key=n in keys) for n in names]
            return TableSpec("contract", table_name, (*columns, *more), unique=(grouped,))

        first, second = ({n: text for n in names} for text in ("a", "b" * 9))
        load_rows(target, new_load(hostile(_string(5))), [first])
        wider = hostile(_string(9), value_column(TEXT, name="new; new"))
        load_with_changes(target, new_load(wider), [second | {"new; new": "c"}])
        assert self.fits(target, wider)
        assert self.rows(backend, wider) == [first | {"new; new": None}, second | {"new; new": "c"}]
        matching = Matching(keys=keys, compare=(*grouped, *rest, "new; new"))
        history = replace(wider, keeps="versions", merge_keys=keys)
        changed = first | {"new; new": "changed", rest[0]: None}
        assert (
            load_with_changes(target, new_load(history, "scd2", matching=matching), [changed]).rows.inserted
            == 1
        )
        assert self.fits(target, history, matching)
        assert len(self.rows(backend, history)) == 3
