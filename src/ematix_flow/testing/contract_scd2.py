"""The scd2 part of the target contract: versions by load time and by event time."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace
from typing import Any

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend, BatchTarget, LoadResult
from ematix_flow.errors import RowRejected, ShrinkRefused
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import row_hash
from ematix_flow.testing.contract import TargetContract
from ematix_flow.testing.loads import PIPELINE, TARGET
from ematix_flow.testing.matched_loads import (
    PATHS,
    load_matched,
    load_matched_incremental,
    table_and_matching,
    table_of,
)
from ematix_flow.testing.samples import TYPES, every_type, every_value, row_per_type

BIG, TEXT, INTEGER, MOMENT = (DataType(k) for k in ("big_int", "text", "integer", "timestamp_tz"))
NAMED = table_of("versions", {"id": BIG}, {"name": TEXT})
DATED = table_of("events_of", {"id": BIG}, {"name": TEXT, "at": MOMENT})
Version = tuple[Any, int, int | None]  # content, first and last minute


def minute(number: float) -> dt.datetime:
    return dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc) + dt.timedelta(minutes=number)


def named_rows(*rows: tuple[int, str | None]) -> list[dict[str, Any]]:
    return [{"id": i, "name": name} for i, name in rows]


def dated_rows(*rows: tuple[int, str | None, float]) -> list[dict[str, Any]]:
    return [{"id": i, "name": name, "at": minute(at)} for i, name, at in rows]


def load_version(
    target: BatchTarget, table: TableSpec, rows: list[dict[str, Any]], now: float = 1_000, **options: Any
) -> LoadResult:
    """One load at a given minute."""
    load = {"loaded_at": minute(now), **options.pop("load", {})}
    return load_matched(target, table, "scd2", rows, load=load, **options)


def add_events(
    target: BatchTarget, rows: list[dict[str, Any]], now: float = 1_000, **options: Any
) -> LoadResult:
    return load_version(target, DATED, rows, now, event="at", **options)


class Scd2Contract(TargetContract):
    def history(
        self, backend: Backend, table: TableSpec, event: str | None = None
    ) -> dict[Any, list[Version]]:
        """The versions of each key in order of time, as (name, from minute, to minute)."""
        stored, matching = table_and_matching(table, "scd2", event=event)
        found: dict[Any, list[Version]] = {}
        rows = self.read_rows(backend, stored.with_load_columns())
        for row in sorted(rows, key=lambda row: row["valid_from"]):
            assert row["is_current"] == (row["valid_to"] is None)
            ends = None if row["valid_to"] is None else _minutes(row["valid_to"])
            key = tuple(row[k] for k in matching.keys)
            content = row[matching.compare[0]] if matching.compare else None
            found.setdefault(key if len(key) > 1 else key[0], []).append(
                (content, _minutes(row["valid_from"]), ends)
            )
        return found

    # ---------------------------------------------------------------- by the time of the load

    @pytest.mark.parametrize("path", PATHS)
    def test_a_change_closes_the_version_and_opens_the_next(
        self, backend: Backend, target: BatchTarget, path: str
    ) -> None:
        load_version(target, NAMED, named_rows((1, "a"), (2, None)), 1, path=path)
        applied = load_version(target, NAMED, named_rows((1, "b"), (2, None), (3, "c")), 2, path=path)
        assert (applied.rows.inserted, applied.rows.updated, applied.rows.unchanged) == (2, 1, 1)
        load_version(target, NAMED, named_rows((2, "d")), 3, path=path)
        assert self.history(backend, NAMED) == {
            1: [("a", 1, 2), ("b", 2, None)],
            2: [(None, 1, 3), ("d", 3, None)],
            3: [("c", 2, None)],
        }

    def test_a_change_of_every_type_to_and_from_null_is_a_version_with_its_hash(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        table = every_type("version_types")
        stored = table_and_matching(table, "scd2")[0].with_load_columns()
        load_version(target, table, every_value(), 0)
        assert load_version(target, table, every_value(), 1).rows.inserted == 0
        low, middle, _, empty = every_value()
        load_version(target, table, [*row_per_type(low, low, 10), *row_per_type(empty, empty, 60)], 2)
        changed = [*row_per_type(low, middle, 10), *row_per_type(empty, middle, 60)]
        assert load_version(target, table, changed, 3).rows.inserted == 2 * len(TYPES)
        assert load_version(target, table, row_per_type(low, empty, 10), 4).rows.inserted == len(TYPES)
        types = {c.name: c.type for c in table.columns}
        for row in self.read_rows(backend, stored):
            assert row["row_hash"] == row_hash({n: row[n] for n in TYPES}, types), row

    def test_a_source_without_a_key_closes_it_and_a_return_opens_a_new_version(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        for at, rows in enumerate([((1, "a"), (2, "b")), ((2, "b"),), ((2, "b"),), ((1, "a"), (2, "b"))], 1):
            load_version(target, NAMED, named_rows(*rows), at, deletes="soft")
        assert self.history(backend, NAMED) == {1: [("a", 1, 2), ("a", 4, None)], 2: [("b", 1, None)]}

    def test_a_clock_that_went_back_opens_no_version_before_the_last(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        load_version(target, NAMED, named_rows((1, "a")), 5)
        load_version(target, NAMED, named_rows((1, "b")), 4)
        stored = table_and_matching(NAMED, "scd2")[0].with_load_columns()
        first, second = sorted(self.read_rows(backend, stored), key=lambda row: row["valid_from"])
        assert first["valid_from"] < first["valid_to"] == second["valid_from"]
        assert (first["name"], second["name"], second["is_current"]) == ("a", "b", True)

    def test_a_key_comes_back_after_its_end_though_a_clock_went_back(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        for now, rows in ((5, ((1, "a"), (2, "b"))), (20, ((2, "b"),)), (10, ((1, "a"), (2, "b")))):
            load_version(target, NAMED, named_rows(*rows), now, deletes="soft")
        assert self.history(backend, NAMED) == {1: [("a", 5, 20), ("a", 20, None)], 2: [("b", 5, None)]}

    @pytest.mark.parametrize("event", [None, "at"])
    def test_deletes_of_versions_stop_at_an_empty_source_and_at_a_great_fall(
        self, target: BatchTarget, event: str | None
    ) -> None:
        table = DATED if event else NAMED
        rows = [{"id": i, "name": "n", **({"at": minute(0)} if event else {})} for i in range(2_000)]
        options: dict[str, Any] = {"deletes": "soft", "event": event}
        load_version(target, table, rows, 1, **options)
        for few in (rows[:999], []):
            with pytest.raises(ShrinkRefused):
                load_version(target, table, few, 2, **options)
        allowed = {"max_shrink": 1.0}
        assert load_version(target, table, rows[:999], 3, load=allowed, **options).rows.updated == 1_001

    def test_the_time_to_live_ends_what_loads_no_longer_bring(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        load_version(target, NAMED, named_rows((1, "a"), (2, "b")), 0, ttl_seconds=600)
        load_version(target, NAMED, named_rows((2, "b")), 9, ttl_seconds=600)
        load_version(target, NAMED, named_rows((2, "b")), 10, ttl_seconds=600)
        assert self.history(backend, NAMED) == {1: [("a", 0, 10)], 2: [("b", 0, None)]}
        load_version(target, NAMED, named_rows((1, "a")), 11, ttl_seconds=600)
        assert self.history(backend, NAMED)[1] == [("a", 0, 10), ("a", 11, None)]

    def test_an_added_column_that_is_null_makes_no_version(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        wide = replace(NAMED, columns=(*NAMED.columns, ColumnSpec("extra", INTEGER, nullable=True)))
        load_version(target, NAMED, named_rows((1, "a"), (2, "b")), 1)
        rows = [{"id": 1, "name": "a", "extra": None}, {"id": 2, "name": "b", "extra": 7}]
        assert load_version(target, wide, rows, 2).rows.inserted == 1
        assert self.history(backend, NAMED) == {1: [("a", 1, None)], 2: [("b", 1, 2), ("b", 2, None)]}

    # ---------------------------------------------------------------- by the time of events

    @pytest.mark.parametrize("path", PATHS)
    def test_a_late_event_splits_the_version_it_falls_into(
        self, backend: Backend, target: BatchTarget, path: str
    ) -> None:
        add_events(target, dated_rows((1, "a", 1), (1, "c", 9)), path=path)
        add_events(target, dated_rows((1, "b", 5)), path=path)
        add_events(target, dated_rows((1, "a", 3), (1, "a", 7)), path=path)
        expected: list[Version] = [("a", 1, 5), ("b", 5, 7), ("a", 7, 9), ("c", 9, None)]
        assert self.history(backend, DATED, "at") == {1: expected}

    def test_events_give_the_same_table_in_any_order_and_batching(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        events = dated_rows((1, "a", 1), (1, "a", 4), (1, "b", 2), (1, "b", 4), (2, None, 3), (1, None, 4))
        found = []
        for size, order in ((6, events), (2, events[::-1]), (3, events[2:] + events[:2])):
            table = replace(DATED, name=f"events_{size}")
            for start in range(0, len(order), size):
                for _ in range(2):  # each batch comes twice
                    load_version(target, table, order[start : start + size], event="at")
            found.append(self.history(backend, table, "at"))
        assert all(history == found[0] for history in found)
        assert found[0][1][0] == ("a", 1, 2)
        assert found[0][2] == [(None, 3, None)]

    def test_a_column_that_is_added_is_filled_when_its_events_come_again(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        narrow = table_of("filled", {"id": BIG}, {"name": TEXT, "at": MOMENT})
        wide = table_of("filled", {"id": BIG}, {"name": TEXT, "at": MOMENT, "size": BIG})
        rows = dated_rows(*[(i, "n", 1) for i in range(8)])
        load_version(target, narrow, rows, 10, event="at")
        load_version(target, wide, [row | {"size": row["id"]} for row in rows], 20, event="at")
        stored = table_and_matching(wide, "scd2", event="at")[0].with_load_columns()
        assert sorted(row["size"] for row in self.read_rows(backend, stored)) == list(range(8))

    def test_of_events_at_one_moment_the_greatest_hash_holds(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        names = sorted("abc", key=lambda n: row_hash({"name": n}, {"name": TEXT}))
        for name in itertools.chain(names, reversed(names)):
            add_events(target, dated_rows((1, name, 1)))
        assert self.history(backend, DATED, "at") == {1: [(names[-1], 1, None)]}

    def test_a_deleted_key_holds_again_from_the_load_that_brings_it_back(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        log = dated_rows((1, "a", 1), (1, "b", 2), (2, "x", 1))
        for now, rows in (
            (10, log),
            (20, log[2:]),
            (30, log),
            (40, log),
            (50, [*log, *dated_rows((1, "c", 45))]),
        ):
            add_events(target, rows, now, deletes="soft")
        expected: list[Version] = [("a", 1, 2), ("b", 2, 20), ("b", 30, 45), ("c", 45, None)]
        assert self.history(backend, DATED, "at") == {1: expected, 2: [("x", 1, None)]}

    def test_a_change_that_is_older_than_a_return_holds_from_the_load_that_brings_it(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        other = dated_rows((2, "x", 1))
        stale, changed = [*dated_rows((1, "a", 1)), *other], [*dated_rows((1, "b", 25)), *other]
        for now, rows in ((10, stale), (20, other), (30, stale), (40, changed), (50, changed)):
            add_events(target, rows, now, deletes="soft")
        expected: list[Version] = [("a", 1, 20), ("b", 25, 30), ("a", 30, 40), ("b", 40, None)]
        assert self.history(backend, DATED, "at")[1] == expected

    def test_other_compare_columns_make_no_version_of_what_they_no_longer_compare(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        table = table_of("recompared", {"id": BIG}, {"name": TEXT, "size": BIG, "at": MOMENT})
        for now, size, compare in ((1, 1, ("name", "size")), (2, 2, ("name",)), (3, 3, ("name",))):
            row = {"id": 1, "name": "a", "size": size, "at": minute(now)}
            load_version(target, table, [row], now, event="at", compare=compare)
        assert self.history(backend, table, "at") == {1: [("a", 1, None)]}

    @pytest.mark.parametrize("event", [None, "at"])
    def test_keys_that_all_give_way_to_others_are_no_shrinking(
        self, backend: Backend, target: BatchTarget, event: str | None
    ) -> None:
        table = DATED if event else NAMED
        for now, key in ((1, 1), (2, 2)):
            row = {"id": key, "name": "n", **({"at": minute(now)} if event else {})}
            load_version(target, table, [row], now, deletes="soft", event=event)
        assert self.history(backend, table, event) == {1: [("n", 1, 2)], 2: [("n", 2, None)]}

    def test_a_key_that_is_confirmed_for_a_time_to_come_is_deleted_all_the_same(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        add_events(target, dated_rows((1, "a", 1), (1, "a", 50), (2, "x", 1)), 10, deletes="soft")
        add_events(target, dated_rows((2, "x", 1)), 20, deletes="soft")
        assert self.history(backend, DATED, "at")[1] == [("a", 1, 50)]

    def test_the_time_to_live_counts_from_the_last_event_that_confirmed(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        events = dated_rows((1, "a", 0), (1, "a", 10), (1, "a", 30), (2, "x", 995))
        for event in reversed(events):  # the end of the first is already past when it comes
            add_events(target, [event], 1_000, ttl_seconds=600)
        expected = {1: [("a", 0, 20), ("a", 30, 40)], 2: [("x", 995, None)]}
        assert self.history(backend, DATED, "at") == expected
        add_events(target, dated_rows((1, "a", 20)), 1_001, ttl_seconds=600)
        add_events(target, [], 1_005, ttl_seconds=600)
        assert self.history(backend, DATED, "at") == {1: [("a", 0, 40)], 2: [("x", 995, 1_005)]}

    def test_a_null_event_time_is_refused_and_its_key_named(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        with pytest.raises(RowRejected, match="77"):
            add_events(target, [*dated_rows((1, "a", 1)), {"id": 77, "name": "b", "at": None}])
        assert self.history(backend, DATED, "at") == {}

    # ---------------------------------------------------------------- keys and columns

    def test_only_compare_columns_make_a_version(self, backend: Backend, target: BatchTarget) -> None:
        table = table_of("versions_compared", {"id": BIG}, {"name": TEXT, "note": TEXT})
        load_version(target, table, [{"id": 1, "name": "a", "note": "x"}], 1, compare=("name",))
        load_version(target, table, [{"id": 1, "name": "a", "note": "y"}], 2, compare=("name",))
        load_version(target, table, [{"id": 1, "name": "b", "note": "z"}], 3, compare=("name",))
        assert self.history(backend, table) == {1: [("a", 1, 3), ("b", 3, None)]}

    @pytest.mark.parametrize("event", [None, "at"])
    def test_versions_of_a_table_of_keys_alone(
        self, backend: Backend, target: BatchTarget, event: str | None
    ) -> None:
        keys = {"a": TEXT, "b": TEXT}
        table = table_of(f"versions_keys_{event}", keys, {"at": MOMENT} if event else {})
        rows: list[dict[str, Any]] = [{"a": "x", "b": "yz"}, {"a": "xy", "b": "z"}]
        if event:
            rows = [{**row, "at": minute(1)} for row in rows]
        for now in (1, 2):
            load_version(target, table, rows, now, event=event)
        load_version(target, table, rows[:1], 3, event=event, deletes="soft")
        assert self.history(backend, table, event) == {
            ("x", "yz"): [(None, 1, None)],
            ("xy", "z"): [(None, 1, 3)],
        }

    @pytest.mark.parametrize("path", PATHS)
    def test_versions_by_hostile_names(self, backend: Backend, target: BatchTarget, path: str) -> None:
        keys, values = self.hostile_names[:4], self.hostile_names[4:]
        table = table_of("versions; named", dict.fromkeys(keys, INTEGER), dict.fromkeys(values, TEXT))
        for now, text in ((1, "x"), (2, "y")):
            row = {**dict.fromkeys(keys, 1), **dict.fromkeys(values, text)}
            load_version(target, table, [row], now, path=path)
        assert self.history(backend, table) == {(1,) * 4: [("x", 1, 2), ("y", 2, None)]}

    def test_versions_by_a_natural_key_that_is_not_the_primary_key(
        self, backend: Backend, target: BatchTarget
    ) -> None:
        table = replace(
            table_of("versions_codes", {"id": BIG}, {"code": TEXT, "n": INTEGER}), merge_keys=("code",)
        )
        load_version(target, table, [{"id": 1, "code": "x", "n": 1}], 1, compare=("n",))
        load_version(target, table, [{"id": 1, "code": "x", "n": 2}], 2, compare=("n",))
        stored = table_and_matching(table, "scd2")[0].with_load_columns()
        found = sorted((row["n"], row["is_current"]) for row in self.read_rows(backend, stored))
        assert found == [(1, False), (2, True)]

    @pytest.mark.parametrize("path", PATHS)
    def test_several_rows_of_a_key_without_an_order_are_refused_and_named(
        self, backend: Backend, target: BatchTarget, path: str
    ) -> None:
        with pytest.raises(RowRejected, match="id=7"):
            load_version(target, NAMED, named_rows((7, "a"), (8, "b"), (7, "c")), path=path)
        assert self.history(backend, NAMED) == {}

    @pytest.mark.parametrize("event", [None, "at"])
    def test_versions_of_a_hundredth_of_twenty_thousand_rows(
        self, backend: Backend, target: BatchTarget, event: str | None
    ) -> None:
        table = DATED if event else NAMED
        rows = [{"id": i, "name": f"n{i}", **({"at": minute(0)} if event else {})} for i in range(20_000)]
        load_version(target, table, rows, 1, event=event)
        changed = [{**row, "name": "new", **({"at": minute(1)} if event else {})} for row in rows[::100]]
        applied = load_version(target, table, [*changed, *rows[1:50]], 2, event=event)
        assert (applied.rows.inserted, applied.rows.updated) == (200, 200)
        assert len(self.read_rows(backend, table_and_matching(table, "scd2", event=event)[0])) == 20_200

    # ---------------------------------------------------------------- the commit protocol

    @pytest.mark.parametrize("event", [None, "at"])
    def test_the_watermark_moves_with_versions_also_when_nothing_changed(
        self, target: BatchTarget, event: str | None
    ) -> None:
        source = dated_rows((1, "a", 1))
        compare = ("name",)
        load_matched_incremental(target, DATED, "scd2", "at", source, event=event, compare=compare)
        source += dated_rows((1, "a", 5))
        applied = load_matched_incremental(target, DATED, "scd2", "at", source, event=event, compare=compare)
        assert applied.rows.inserted == 0
        mark = target.watermark(PIPELINE, TARGET, "at")
        assert mark is not None and mark.value == minute(5)

    @pytest.mark.parametrize("event", [None, "at"])
    def test_an_scd2_load_that_crashes_at_any_commit_point_leaves_before_or_after(
        self, backend: Backend, target: BatchTarget, event: str | None
    ) -> None:
        before: list[Version] = []
        for number, point in enumerate(self.points, start=1):
            rows = [{"id": 1, "name": f"n{number}", **({"at": minute(number)} if event else {})}]
            after: list[Version] = [*before[:-1]]
            if before:
                after.append((before[-1][0], before[-1][1], number))
            after.append((f"n{number}", number, None))
            table = DATED if event else NAMED
            load = {"batch_key": f"slot:{number}"}
            with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
                load_version(target, table, rows, number, event=event, load=load)
            committed = point == "apply.after_commit"
            found = self.history(backend, table, event).get(1, [])
            assert found == (after if committed else before), point
            assert load_version(target, table, rows, number, event=event, load=load).duplicate == committed
            assert self.history(backend, table, event) == {1: after}
            before = after

    @pytest.mark.parametrize("path", PATHS)
    def test_a_dry_run_of_scd2_counts_and_changes_nothing(
        self, backend: Backend, target: BatchTarget, path: str
    ) -> None:
        load_version(target, NAMED, named_rows((1, "a")), 1, path=path)
        dry = load_version(
            target, NAMED, named_rows((1, "b"), (2, "c")), 2, path=path, load={"dry_run": True}
        )
        assert (dry.rows.inserted, dry.rows.updated) == (2, 1)
        assert self.history(backend, NAMED) == {1: [("a", 1, None)]}
        assert len(target.ledger(PIPELINE, TARGET)) == 1


def _minutes(moment: dt.datetime) -> int:
    return round((moment - minute(0)).total_seconds() / 60)
