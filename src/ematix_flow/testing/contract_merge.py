"""The merge part of the target contract."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend, BatchTarget, LoadResult
from ematix_flow.errors import RowRejected, ShrinkRefused
from ematix_flow.spec.tables import BATCH_ID, DELETED_AT, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.contract import TargetContract
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load
from ematix_flow.testing.matched_loads import (
    PATHS,
    load_matched,
    load_matched_incremental,
    table_and_matching,
    table_of,
)
from ematix_flow.testing.samples import TYPES, every_type, every_value, row_per_type

BIG, TEXT, INTEGER = DataType("big_int"), DataType("text"), DataType("integer")
SMALL = table_of("merged", {"id": BIG}, {"name": TEXT, "size": INTEGER})
KEY_TYPES = [
    n for n, (t, _) in TYPES.items() if t.kind not in ("json", "jsonb", "float", "double", "boolean")
]
# keys that a careless comparison would treat as equal
UNICODE_KEYS = ("a", "A", "a ", " a", "á", "a\u0301", "ß", "ss", "", "\U0001f600", "'", '"', "a%", "a_")


def rows_of(*rows: tuple[int, str | None, int | None]) -> list[dict[str, Any]]:
    return [{"id": i, "name": name, "size": size} for i, name, size in rows]


def merge_rows(
    target: BatchTarget, table: TableSpec, rows: list[dict[str, Any]], **options: Any
) -> LoadResult:
    return load_matched(target, table, "merge", rows, **options)


def counts(applied: LoadResult) -> tuple[int | None, ...]:
    return applied.rows.inserted, applied.rows.updated, applied.rows.deleted, applied.rows.unchanged


class MergeContract(TargetContract):
    @pytest.mark.parametrize("path", PATHS)
    def test_merge_inserts_updates_and_leaves_the_rest_untouched(
        self, backend: Backend, target: BatchTarget, path: str
    ) -> None:
        merge_rows(target, SMALL, rows_of((1, "a", 1), (2, "b", None), (3, None, 3)), path=path)
        first = {row["id"]: row[BATCH_ID] for row in self.read_rows(backend, SMALL.with_load_columns())}
        second = rows_of((2, "b", None), (3, "c", 3), (4, "d", 4))
        assert counts(merge_rows(target, SMALL, second, path=path)) == (1, 1, 0, 1)
        assert self.rows(backend, SMALL) == rows_of((1, "a", 1), (2, "b", None), (3, "c", 3), (4, "d", 4))
        now = {row["id"]: row[BATCH_ID] for row in self.read_rows(backend, SMALL.with_load_columns())}
        assert [now[i] == first.get(i) for i in (1, 2, 3, 4)] == [True, True, False, False]

    def test_merge_sees_a_change_of_every_type_to_and_from_null(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        table = every_type("merged_types")
        assert merge_rows(target, table, every_value()).rows.inserted == 4
        assert counts(merge_rows(target, table, every_value())) == (0, 0, 0, 4)
        low, middle, _, empty = every_value()
        merge_rows(target, table, [*row_per_type(low, low, 10), *row_per_type(empty, empty, 60)])
        changed = [*row_per_type(low, middle, 10), *row_per_type(empty, middle, 60)]
        assert counts(merge_rows(target, table, changed)) == (0, 2 * len(TYPES), 0, 0)
        nulled = row_per_type(low, empty, 10)
        assert counts(merge_rows(target, table, nulled)) == (0, len(TYPES), 0, 0)
        stored = {row["id"]: row for row in self.read_rows(backend, table)}
        expected = [*every_value(), *nulled, *row_per_type(empty, middle, 60)]
        assert stored == {row["id"]: row for row in expected}

    @pytest.mark.parametrize("name", KEY_TYPES)
    def test_merge_matches_by_a_key_of_any_type(
        self, backend: Backend, target: BatchTarget, name: str
    ) -> None:
        kind, values = TYPES[name]
        if kind.kind in ("text", "bytes"):
            values = tuple(v[:100] for v in values)
        table = table_of("merged_keys", {name: kind}, {"n": INTEGER})
        merge_rows(target, table, [{name: v, "n": 1} for v in values])
        again = merge_rows(target, table, [{name: values[0], "n": 2}, {name: values[1], "n": 1}])
        assert counts(again) == (0, 1, 0, 1)
        assert len(self.read_rows(backend, table)) == 3

    def test_merge_takes_no_two_texts_for_one_key(self, backend: Backend, target: BatchTarget) -> None:
        table = table_of("merged_texts", {"k": TEXT}, {"n": INTEGER})
        for n in (1, 1, 2):
            merge_rows(target, table, [{"k": k, "n": n} for k in UNICODE_KEYS])
        found = {row["k"]: row["n"] for row in self.read_rows(backend, table)}
        assert found == dict.fromkeys(UNICODE_KEYS, 2)

    def test_merge_compares_composite_keys_column_by_column(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        table = table_of("merged_pairs", {"a": TEXT, "b": TEXT}, {"n": INTEGER})
        rows = [{"a": "x", "b": "yz", "n": 1}, {"a": "xy", "b": "z", "n": 2}, {"a": "", "b": "xyz", "n": 3}]
        merge_rows(target, table, rows)
        assert counts(merge_rows(target, table, [{**rows[0], "n": 9}, rows[1]])) == (0, 1, 0, 1)
        assert sorted(row["n"] for row in self.read_rows(backend, table)) == [2, 3, 9]

    @pytest.mark.parametrize("path", PATHS)
    def test_merge_by_hostile_names(self, backend: Backend, target: BatchTarget, path: str) -> None:
        keys, values = self.hostile_names[:5], self.hostile_names[5:]
        table = table_of("merged names", dict.fromkeys(keys, INTEGER), dict.fromkeys(values, TEXT))
        row: dict[str, Any] = {**dict.fromkeys(keys, 1), **{v: f"value of {v}" for v in values}}
        merge_rows(target, table, [row], path=path)
        changed = {**row, values[0]: "changed"}
        assert counts(merge_rows(target, table, [changed], path=path)) == (0, 1, 0, 0)
        assert self.read_rows(backend, table) == [changed]

    def test_merge_by_a_natural_key_that_is_not_the_primary_key(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        table = replace(
            table_of("merged_codes", {"id": BIG}, {"code": TEXT, "n": INTEGER}),
            merge_keys=("code",),
            unique=(("code",),),
        )
        merge_rows(target, table, [{"id": 1, "code": "x", "n": 1}, {"id": 2, "code": "y", "n": 1}])
        merge_rows(target, table, [{"id": 7, "code": "x", "n": 2}], update=("n",))
        assert self.rows(backend, table) == [{"id": 1, "code": "x", "n": 2}, {"id": 2, "code": "y", "n": 1}]

    @pytest.mark.parametrize("path", PATHS)
    def test_merge_into_a_table_of_keys_alone(self, backend: Backend, target: BatchTarget, path: str) -> None:
        table = table_of("merged_only_keys", {"a": BIG, "b": TEXT}, {})
        merge_rows(target, table, [{"a": 1, "b": "x"}], path=path)
        assert counts(merge_rows(target, table, [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}], path=path)) == (
            1,
            0,
            0,
            1,
        )
        assert self.rows(backend, table) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]

    def test_merge_of_nothing_and_of_one_row(self, backend: Backend, target: BatchTarget) -> None:
        assert counts(merge_rows(target, SMALL, [])) == (0, 0, 0, 0)
        merge_rows(target, SMALL, rows_of((1, "a", 1)))
        assert counts(merge_rows(target, SMALL, [])) == (0, 0, 0, 0)
        assert self.rows(backend, SMALL) == rows_of((1, "a", 1))

    def test_merge_of_a_hundredth_of_a_hundred_thousand_rows(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        rows = rows_of(*[(i, f"n{i}", i) for i in range(100_000)])
        merge_rows(target, SMALL, rows)
        changed = [{**row, "name": "new"} for row in rows[::100]]
        new = rows_of(*[(i, None, None) for i in range(100_000, 100_010)])
        assert counts(merge_rows(target, SMALL, [*changed, *rows[1:50], *new])) == (10, 1_000, 0, 49)
        found = self.read_rows(backend, SMALL)
        assert len(found) == 100_010
        assert sum(row["name"] == "new" for row in found) == 1_000

    # ---------------------------------------------------------------- keys that are refused

    @pytest.mark.parametrize("path", PATHS)
    def test_two_rows_with_one_key_are_refused_and_named(
        self, backend: Backend, target: BatchTarget, path: str
    ) -> None:
        merge_rows(target, SMALL, rows_of((1, "a", 1)), path=path)
        with pytest.raises(RowRejected, match="id=7"):
            merge_rows(target, SMALL, rows_of((7, "x", 1), (8, "y", 2), (7, "z", 3)), path=path)
        assert self.rows(backend, SMALL) == rows_of((1, "a", 1))
        assert len(target.ledger(PIPELINE, TARGET)) == 1

    def test_of_rows_with_one_key_the_last_by_the_order_column_wins(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        merge_rows(
            target,
            SMALL,
            rows_of((1, "old", 1), (1, "last", 3), (1, "mid", 2), (1, "when", None)),
            order="size",
        )
        assert self.rows(backend, SMALL) == rows_of((1, "last", 3))

    def test_a_null_in_the_key_is_refused_and_named(self, backend: Backend, target: BatchTarget) -> None:
        columns = (ColumnSpec("a", INTEGER), ColumnSpec("b", TEXT, nullable=True))
        table = TableSpec("contract", "merged_nulls", columns, merge_keys=("a", "b"))
        with pytest.raises(RowRejected, match="a=3"):
            merge_rows(target, table, [{"a": 1, "b": "x"}, {"a": 3, "b": None}])
        assert self.read_rows(backend, table) == []

    # ---------------------------------------------------------------- what is compared and written

    def test_only_update_columns_are_written(self, backend: Backend, target: BatchTarget) -> None:
        merge_rows(target, SMALL, rows_of((1, "a", 1)))
        assert counts(merge_rows(target, SMALL, rows_of((1, "b", 2)), update=("size",))) == (0, 1, 0, 0)
        assert counts(merge_rows(target, SMALL, rows_of((1, "c", 2)), update=("size",))) == (0, 0, 0, 1)
        assert self.rows(backend, SMALL) == rows_of((1, "a", 2))

    def test_only_compare_columns_decide(self, backend: Backend, target: BatchTarget) -> None:
        merge_rows(target, SMALL, rows_of((1, "a", 1)))
        assert counts(merge_rows(target, SMALL, rows_of((1, "b", 1)), compare=("size",))) == (0, 0, 0, 1)
        assert counts(merge_rows(target, SMALL, rows_of((1, "b", 2)), compare=("size",))) == (0, 1, 0, 0)
        assert self.rows(backend, SMALL) == rows_of((1, "b", 2))

    # ---------------------------------------------------------------- deletes

    @pytest.mark.parametrize("path", PATHS)
    def test_hard_deletes_remove_what_the_source_lacks(
        self, backend: Backend, target: BatchTarget, path: str
    ) -> None:
        merge_rows(target, SMALL, rows_of((1, "a", 1), (2, "b", 2), (3, "c", 3)), path=path)
        applied = merge_rows(target, SMALL, rows_of((2, "b", 2), (4, "d", 4)), deletes="hard", path=path)
        assert counts(applied) == (1, 0, 2, 1)
        assert self.rows(backend, SMALL) == rows_of((2, "b", 2), (4, "d", 4))

    @pytest.mark.parametrize("path", PATHS)
    def test_soft_deletes_mark_the_row_and_a_return_clears_the_mark(
        self, backend: Backend, target: BatchTarget, path: str
    ) -> None:
        stored = table_and_matching(SMALL, "merge", deletes="soft")[0].with_load_columns()
        both, one = rows_of((1, "a", 1), (2, "b", 2)), rows_of((2, "b", 2))
        marks: list[dict[int, Any]] = []
        missed = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)
        for rows in (both, one, one, both):
            at = missed + dt.timedelta(hours=len(marks))
            merge_rows(target, SMALL, rows, deletes="soft", path=path, load={"loaded_at": at})
            marks.append({row["id"]: row[DELETED_AT] for row in self.read_rows(backend, stored)})
        gone = {1: missed + dt.timedelta(hours=1), 2: None}
        assert marks == [{1: None, 2: None}, gone, gone, {1: None, 2: None}]

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_deletes_stop_at_an_empty_source_and_at_a_great_fall(
        self, backend: Backend, target: BatchTarget, deletes: str
    ) -> None:
        rows = rows_of(*[(i, "n", i) for i in range(2_000)])
        merge_rows(target, SMALL, rows, deletes=deletes)
        with pytest.raises(ShrinkRefused):
            merge_rows(target, SMALL, [], deletes=deletes)
        with pytest.raises(ShrinkRefused):
            merge_rows(target, SMALL, rows[:999], deletes=deletes)
        assert len(self.read_rows(backend, SMALL)) == 2_000
        applied = merge_rows(target, SMALL, rows[:999], deletes=deletes, load={"max_shrink": 1.0})
        assert applied.rows.deleted == 1_001
        applied = merge_rows(
            target, SMALL, [], deletes=deletes, load={"allow_empty": True, "max_shrink": 1.0}
        )
        assert applied.rows.deleted == 999

    @pytest.mark.parametrize("deletes", ["hard", "soft"])
    def test_rows_that_all_give_way_to_others_are_no_shrinking(
        self, backend: Backend, target: BatchTarget, deletes: str
    ) -> None:
        merge_rows(target, SMALL, rows_of((1, "a", 1)), deletes=deletes)
        applied = merge_rows(target, SMALL, rows_of((2, "b", 2)), deletes=deletes)
        assert (applied.rows.inserted, applied.rows.deleted) == (1, 1)

    # ---------------------------------------------------------------- the commit protocol

    def test_the_watermark_moves_with_a_merge_also_when_nothing_changed(self, target: BatchTarget) -> None:
        table = table_of("merged_marks", {"id": BIG}, {"name": TEXT, "seq": INTEGER})
        source = [{"id": 1, "name": "a", "seq": 1}]
        load_matched_incremental(target, table, "merge", "seq", source, compare=("name",))
        source.append({"id": 1, "name": "a", "seq": 5})
        applied = load_matched_incremental(target, table, "merge", "seq", source, compare=("name",))
        assert (applied.rows.inserted, applied.rows.updated) == (0, 0)
        mark = target.watermark(PIPELINE, TARGET, "seq")
        assert mark is not None and mark.value == 5
        assert (
            load_matched_incremental(target, table, "merge", "seq", source, compare=("name",)).rows.read == 1
        )
        assert len(target.ledger(PIPELINE, TARGET)) == 2

    def test_a_merge_whose_key_is_in_the_ledger_is_not_applied_again(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        merge_rows(target, SMALL, rows_of((1, "a", 1)), load={"batch_key": "slot:1"})
        assert merge_rows(target, SMALL, rows_of((1, "b", 2)), load={"batch_key": "slot:1"}).duplicate
        assert self.rows(backend, SMALL) == rows_of((1, "a", 1))

    @pytest.mark.parametrize("deletes", [None, "hard", "soft"])
    def test_a_merge_that_crashes_at_any_commit_point_leaves_before_or_after(
        self, backend: Backend, target: BatchTarget, deletes: str | None
    ) -> None:
        before, after = rows_of((1, "a", 1), (2, "b", 2)), rows_of((2, "c", 2), (3, "d", 3))
        kept = [row for row in before if deletes != "hard" and row["id"] == 1] + after
        options: dict[str, Any] = {"deletes": deletes, "load": {"max_shrink": 1.0}}
        for point in self.points:
            self._reset(target, before, deletes)
            ledger = len(target.ledger(PIPELINE, TARGET))
            with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
                merge_rows(target, SMALL, after, **options)
            committed = len(target.ledger(PIPELINE, TARGET)) > ledger
            assert committed == (point == "apply.after_commit"), point
            assert self.rows(backend, SMALL) == (kept if committed else before), point

    def _reset(self, target: BatchTarget, rows: list[dict[str, Any]], deletes: str | None) -> None:
        """Load exactly these rows again, without deletion marks."""
        stored = table_and_matching(SMALL, "merge", deletes=deletes)[0]
        load_rows(target, new_load(stored, "truncate", max_shrink=1.0), rows)

    @pytest.mark.parametrize("path", PATHS)
    def test_a_dry_run_of_a_merge_counts_and_changes_nothing(
        self, backend: Backend, target: BatchTarget, path: str
    ) -> None:
        merge_rows(target, SMALL, rows_of((1, "a", 1), (2, "b", 2)), path=path)
        rows = rows_of((2, "c", 2), (3, "d", 3))
        dry = merge_rows(target, SMALL, rows, deletes="hard", path=path, load={"dry_run": True})
        assert counts(dry) == (1, 1, 1, 0)
        assert self.rows(backend, SMALL) == rows_of((1, "a", 1), (2, "b", 2))
        assert len(target.ledger(PIPELINE, TARGET)) == 1
