"""Several targets in one SQLite database: what a failure and a rerun leave, without Spark."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import (
    BigInt,
    Pipeline,
    PostgresConnection,
    SQLiteConnection,
    Target,
    Text,
    ematix,
    fault_points,
    register_connection,
)
from ematix_flow.errors import (
    CannotConnect,
    ConfigError,
    FlowError,
    LoadError,
    PlanError,
    RowRejected,
    SourceFailed,
)
from ematix_flow.graph.registry import current_registry
from ematix_flow.plan.shared_read import widest_range
from ematix_flow.run.context_setup import run_context
from ematix_flow.run.pipeline import run_declared_pipeline
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.sql import SqlRunLog
from tests.unit.run.sqlite_file import execute


@ematix.table(schema="mart")
class Loose:
    id: BigInt
    name: Text | None


@ematix.table(schema="mart")
class Strict:
    id: BigInt
    name: Text


@ematix.table(schema="mart")
class Third:
    id: BigInt
    name: Text | None


@ematix.table(schema="mart")
class Drifted:
    id: BigInt
    name: Text | None


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    execute(path, "CREATE TABLE people (id INTEGER, name TEXT)")
    execute(path, "INSERT INTO people VALUES (1, 'Ada'), (2, NULL)")
    register_connection(SQLiteConnection(name="shop", path=str(path)))
    return path


def count(path: Path, table: str) -> int:
    if not execute(path, f"SELECT 1 FROM sqlite_master WHERE name = 'mart__{table}'"):
        return 0
    return int(execute(path, f"SELECT count(*) FROM mart__{table}")[0][0])


def declare(sql: str = "SELECT id, name FROM people", **options: Any) -> Pipeline:
    targets = [Target(connection="shop", table=Loose), Target(connection="shop", table=Strict)]

    @ematix.pipeline(**{"targets": targets, "name": "both", **options})
    def both(conn: Any) -> str:
        return sql

    return both


def counts(path: Path) -> tuple[int, int]:
    return count(path, "loose"), count(path, "strict")


@pytest.mark.parametrize("go_on", [True, False])
def test_a_rerun_loads_only_the_target_that_had_failed(database: Path, go_on: bool) -> None:
    load = declare(continue_on_target_failure=go_on)
    if go_on:
        assert load.sync().status == "failed"
    else:
        with pytest.raises(LoadError) as raised:
            load.sync()
        assert raised.value.state == "committed: shop:mart.loose; every other target is as before"
        assert "loads only what is missing" in str(raised.value)
    assert counts(database) == (2, 0)
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    again = load.sync()
    assert [(t.status, t.reason) for t in again.targets] == [
        ("skipped", "an earlier run had committed it"),
        ("succeeded", None),
    ]
    assert again.status == "succeeded"
    assert "committed to shop:mart.loose and not to shop:mart.strict" in again.notes[0]
    assert counts(database) == (2, 2)
    third = load.sync()
    assert (third.notes, counts(database)) == ((), (4, 4))


def test_a_rerun_that_fails_before_it_loads_does_not_forget_what_is_left_to_finish(database: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    with pytest.raises(SourceFailed):
        declare("SELECT id, name FROM nowhere").sync()
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    declare().sync()
    assert counts(database) == (2, 2)


def test_a_target_that_is_declared_later_is_loaded_with_what_is_missing(database: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    targets = [Target(connection="shop", table=Loose), Target(connection="shop", table=Third)]
    declare(targets=targets).sync()
    assert (count(database, "loose"), count(database, "third")) == (2, 2)


def test_a_run_that_failed_everywhere_or_nowhere_leaves_nothing_to_finish(database: Path) -> None:
    with fault_points.inject("apply.began", "raise"), pytest.raises(LoadError):
        declare().sync()
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    assert declare().sync().notes == ()
    assert declare().sync().notes == ()
    assert counts(database) == (4, 4)


def test_a_target_that_cannot_be_reached_fails_alone_when_the_others_are_to_go_on(database: Path) -> None:
    down = PostgresConnection(name="down", url="postgres://nobody@127.0.0.1:1/nothing")
    register_connection(down)
    targets = [Target(connection="down", table=Strict), Target(connection="shop", table=Loose)]
    with pytest.raises(CannotConnect):
        declare(targets=targets, source_connection="shop").sync()
    assert count(database, "loose") == 0
    load = declare(targets=targets, source_connection="shop", continue_on_target_failure=True)
    # the second time, what is left to finish is still down; for the third it is overdue
    for expected, loaded in (("succeeded", 2), ("skipped", 2), ("succeeded", 4), ("succeeded", 6)):
        result = load.sync()
        assert [(t.target, t.status) for t in result.targets] == [
            ("down:mart.strict", "failed"),
            ("shop:mart.loose", expected),
        ]
        assert (result.status, count(database, "loose")) == ("failed", loaded)


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_target_that_cannot_be_planned_fails_alone_when_the_others_are_to_go_on(
    database: Path, broken: int
) -> None:
    execute(database, "CREATE TABLE mart__drifted (id INTEGER, name INTEGER)")
    tables = [Loose, Third]
    tables.insert(broken, Drifted)
    load = declare(
        targets=[Target(connection="shop", table=table) for table in tables], continue_on_target_failure=True
    )
    result = load.sync()
    assert [each.status for each in result.targets].count("failed") == 1
    assert result.targets[broken].status == "failed" and "'name'" in (result.targets[broken].reason or "")
    assert result.failure is not None and "1 of 3 targets failed" in result.failure.what
    assert (count(database, "loose"), count(database, "third"), count(database, "drifted")) == (2, 2, 0)
    execute(database, "DROP TABLE mart__drifted")
    again = load.sync()
    assert again.targets[broken].status == "succeeded" and again.failure is None
    assert (count(database, "loose"), count(database, "third"), count(database, "drifted")) == (2, 2, 2)


def test_a_target_that_cannot_be_planned_stops_all_where_one_failure_ends_the_run(database: Path) -> None:
    execute(database, "CREATE TABLE mart__drifted (id INTEGER, name INTEGER)")
    targets = [Target(connection="shop", table=Loose), Target(connection="shop", table=Drifted)]
    with pytest.raises(FlowError, match="'name'"):
        declare(targets=targets).sync()
    assert count(database, "loose") == 0


def test_a_dead_run_is_finished_and_not_doubled_when_a_target_cannot_be_reached_then(database: Path) -> None:
    down = PostgresConnection(name="second", url="postgres://nobody@127.0.0.1:1/nothing")
    back = SQLiteConnection(name="second", path=str(database))
    targets = [Target(connection="shop", table=Loose), Target(connection="second", table=Third)]
    options: dict[str, Any] = {
        "targets": targets,
        "source_connection": "shop",
        "continue_on_target_failure": True,
    }
    register_connection(back)
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.after_commit", "crash"):
        declare(**options).sync()
    register_connection(down)
    result = declare(**options).sync()
    assert [t.status for t in result.targets] == ["skipped", "failed"]
    assert count(database, "loose") == 2
    assert "committed to shop:mart.loose; second:mart.third cannot be reached now" in result.notes[0]
    with open_local_run_log(env=os.environ, reading=True) as log:
        assert [record.status for record in log.list("both")] == ["failed", "interrupted"]
    register_connection(back)
    assert [t.rows_inserted for t in declare(**options).sync().targets] == [2, 2]


def test_a_dead_run_is_finished_by_the_run_after_it(database: Path) -> None:
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.after_commit", "crash"):
        declare().sync()
    # the one that finishes it dies as well, after its commit: nothing is left, and the next loads all
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.after_commit", "crash"):
        declare().sync()
    assert counts(database) == (2, 2)
    declare().sync()
    assert counts(database) == (4, 4)


# ------------------------------------------------------------------ a target that stays broken


def test_healthy_targets_follow_the_source_while_another_stays_broken(database: Path) -> None:
    """Of ``merge`` the first rerun finishes only what is missing; from the second on all is loaded."""
    targets = [Target(connection="shop", table=t, mode="merge", keys=["id"]) for t in (Loose, Strict)]
    load = declare(targets=targets, continue_on_target_failure=True)
    seen = []
    for number in range(6):
        execute(database, f"UPDATE people SET name = 'at {number}' WHERE id = 1")
        result = load.sync()
        assert (result.status, result.targets[1].status) == ("failed", "failed")
        seen.append(execute(database, "SELECT name FROM mart__loose WHERE id = 1")[0][0])
    assert seen == ["at 0", "at 0", "at 2", "at 3", "at 4", "at 5"]
    assert counts(database) == (2, 0)


def test_what_is_missing_is_finished_once_and_then_nothing_waits_for_it(database: Path) -> None:
    load, told = declare(), []
    for _ in range(4):
        with pytest.raises(LoadError) as raised:
            load.sync()
        told.append(str(raised.value.next_step).partition("  ")[2])
    assert told == ["loads only what is missing", *["loads all targets again"] * 3]
    assert counts(database) == (6, 0)  # by the first run, the third and the fourth
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    (note,) = load.sync().notes
    assert note.endswith("like the run before it: this run loads all targets again")
    assert counts(database) == (8, 2)
    # all have succeeded: the next failure is finished again
    execute(database, "UPDATE people SET name = NULL WHERE id = 2")
    with pytest.raises(LoadError):
        load.sync()
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    load.sync()
    assert counts(database) == (10, 4)


def test_another_target_that_fails_meanwhile_has_its_own_rerun(database: Path) -> None:
    load = declare(continue_on_target_failure=True)
    for _ in range(2):
        load.sync()
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    with fault_points.inject("apply.began", "raise"):
        assert [t.status for t in load.sync().targets] == ["failed", "succeeded"]
    assert [t.status for t in load.sync().targets] == ["succeeded", "skipped"]
    assert counts(database) == (4, 2)


def test_every_attempt_of_a_rerun_goes_on_with_what_is_missing(database: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    declare(retry={"max_attempts": 3})

    def fix(seconds: float) -> None:
        if len(waits) == 1:
            execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
        waits.append(seconds)

    waits: list[float] = []
    with run_context() as context:
        waiting = dataclasses.replace(context, sleep=fix)
        result = run_declared_pipeline(current_registry().pipeline("both"), waiting)
    assert (result.attempts, [t.status for t in result.targets]) == (3, ["skipped", "succeeded"])
    assert counts(database) == (2, 2)


def test_where_a_failure_kept_others_from_their_turn_it_stays_one(database: Path) -> None:
    """Though it turns out to be committed: the run has not loaded everything."""
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    with pytest.raises(LoadError), fault_points.inject("apply.after_commit", "raise"):
        declare(retry={"max_attempts": 1}).sync()
    assert counts(database) == (2, 0)
    declare().sync()
    assert counts(database) == (2, 2)


def test_an_attempt_that_committed_without_hearing_so_has_succeeded(database: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    declare(retry={"max_attempts": 2})
    with run_context() as context, fault_points.inject("apply.after_commit", "raise"):
        waiting = dataclasses.replace(context, sleep=lambda seconds: None)
        result = run_declared_pipeline(current_registry().pipeline("both"), waiting)
    assert (result.attempts, [t.status for t in result.targets]) == (1, ["skipped", "succeeded"])
    assert counts(database) == (2, 2)


def test_a_scheduled_slot_has_its_own_batch(database: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    declare()
    slot = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    with run_context(slot=slot) as context:
        for expected in ("succeeded", "skipped"):
            result = run_declared_pipeline(current_registry().pipeline("both"), context)
            assert (result.status, counts(database)) == (expected, (4, 2))


def test_each_attempt_is_recorded_with_the_batch_it_loads(database: Path) -> None:
    declare(retry={"max_attempts": 2})
    with run_context() as context:
        waiting = dataclasses.replace(context, sleep=lambda seconds: None)
        with pytest.raises(LoadError):
            run_declared_pipeline(current_registry().pipeline("both"), waiting)
    with open_local_run_log(env=os.environ, reading=True) as log:
        batches = {record.batch for record in log.list("both")}
    assert len(batches) == 1 and None not in batches


def test_the_table_that_was_computed_for_all_targets_is_gone_in_the_end(database: Path) -> None:
    leftovers = "SELECT name FROM sqlite_master WHERE name LIKE '%computed%'"
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.before_commit", "crash"):
        declare().sync()
    with pytest.raises(LoadError):
        declare().sync()
    assert execute(database, leftovers) == []
    with pytest.raises(RowRejected, match="name would be null"):  # as the run itself
        declare().dry_run()
    assert execute(database, leftovers) == []


# ------------------------------------------------------------------ the range of the one read


def at(value: int | None, high: int | None = None) -> SourceRange:
    low, top = (None if v is None else Watermark("at", DataType("integer"), v) for v in (value, high))
    return SourceRange("at", low, top)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([None, None], None),
        ([at(3), at(5)], at(3)),
        ([at(3), at(None)], at(None)),
        ([at(3, 9), at(5, 7)], at(3, 7)),
        ([at(5), at(3, 8)], at(3, 8)),
    ],
)
def test_the_one_read_covers_what_every_target_needs(
    ranges: list[SourceRange | None], expected: SourceRange | None
) -> None:
    assert widest_range(ranges) == expected


def test_positions_that_cannot_be_compared_are_refused() -> None:
    text = SourceRange("at", Watermark("at", DataType("text"), "b"))
    with pytest.raises(PlanError, match="as Integer and as Text") as raised:
        widest_range([at(3), text])
    assert raised.value.next_step == "declare it with the same type in every target"


@pytest.mark.parametrize("incremental", [True, False])
def test_what_is_left_to_finish_is_not_guessed_when_the_run_log_breaks(
    database: Path, monkeypatch: pytest.MonkeyPatch, incremental: bool
) -> None:
    def broken(log: SqlRunLog, pipeline: str) -> None:
        raise ConfigError("the run log is away")

    execute(database, "UPDATE people SET name = 'Grace' WHERE id = 2")
    load = declare(incremental=True, watermark_column="id") if incremental else declare()
    monkeypatch.setattr(SqlRunLog, "last_batch", broken)
    if incremental:
        assert "the run log is away" in load.sync().notes[0]
        assert counts(database) == (2, 2)
    else:
        with pytest.raises(ConfigError, match="away") as raised:
            load.sync()
        assert (raised.value.state or "").startswith("nothing was loaded")
        assert counts(database) == (0, 0)
