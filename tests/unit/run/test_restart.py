"""Restarting a run that did not end well: what had committed and what had ended well is not done again."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import (
    BigInt,
    DuckDBConnection,
    Pipeline,
    SQLiteConnection,
    Target,
    Text,
    ematix,
    fault_points,
    register_connection,
)
from ematix_flow.errors import FlowError, LoadError, PostTransformFailed, SourceFailed, UsageError
from ematix_flow.graph.registry import current_registry
from ematix_flow.plan.results import RunResult
from ematix_flow.run.context_setup import run_context
from ematix_flow.run.last_runs import record_skipped_run
from ematix_flow.run.pipeline import run_declared_pipeline
from ematix_flow.run.restart import restart_run
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord
from tests.unit.run.sqlite_file import execute

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)
TRACE = "INSERT INTO trace VALUES ('{}')"


@ematix.table(schema="mart")
class Loose:
    id: BigInt
    name: Text | None


@ematix.table(schema="mart")
class Strict:
    id: BigInt
    name: Text


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    execute(path, "CREATE TABLE people (id INTEGER, name TEXT)")
    execute(path, "CREATE TABLE trace (step TEXT)")
    execute(path, "INSERT INTO people VALUES (1, 'Ada'), (2, NULL)")
    register_connection(SQLiteConnection(name="shop", path=str(path)))
    return path


def declare(*steps: Any, sql: str = "SELECT id, name FROM people", **options: Any) -> Pipeline:
    targets = [Target(connection="shop", table=Loose), Target(connection="shop", table=Strict)]

    @ematix.pipeline(**{"targets": targets, "name": "both", "transforms_post": list(steps), **options})
    def both(conn: Any) -> str:
        return sql

    return both


def declare_one(*steps: Any, **options: Any) -> Pipeline:
    return declare(*steps, targets=[Target(connection="shop", table=Loose)], **options)


def fix(path: Path) -> None:
    execute(path, "UPDATE people SET name = 'Grace' WHERE id = 2")


def rows(path: Path, *tables: str) -> tuple[int, ...]:
    return tuple(int(execute(path, f"SELECT count(*) FROM mart__{table}")[0][0]) for table in tables)


def trace(path: Path) -> list[str]:
    return [step for (step,) in execute(path, "SELECT step FROM trace ORDER BY rowid")]


def records(name: str = "both") -> tuple[RunRecord, ...]:
    with open_local_run_log(env=os.environ, reading=True) as log:
        return log.list(name)


def restart(which: RunRecord | None = None) -> RunResult:
    record = which or records()[0]
    with run_context(trigger="cli") as context:
        return restart_run(current_registry().pipeline("both"), context, record)


def crash(point: str, action: Callable[[], object], nth: int = 1) -> None:
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash", nth):
        action()


# ------------------------------------------------------------------ targets


def test_a_target_that_had_committed_is_not_loaded_again(database: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    fix(database)
    failed = records()[0]
    result = restart()
    assert [(t.status, t.reason) for t in result.targets] == [
        ("succeeded", f"run {failed.run_id[:8]} had committed it"),
        ("succeeded", None),
    ]
    assert rows(database, "loose", "strict") == (2, 2)
    again = records()[0]
    assert (again.status, again.batch, again.metrics["restart_of"]) == (
        "succeeded",
        failed.batch,
        failed.run_id,
    )
    declare().sync()
    assert rows(database, "loose", "strict") == (4, 4)


def test_a_restart_that_fails_or_dies_is_restarted(database: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    first = records()[0]
    with pytest.raises(LoadError):
        restart()
    fix(database)
    crash("apply.after_commit", restart)
    # of the run that somebody first asked for, or of the newest: both go on where the last one stopped
    assert restart(first).status == "skipped" or records()[0].status == "succeeded"
    assert rows(database, "loose", "strict") == (2, 2)
    assert {each.batch for each in records()} == {first.batch}


def test_a_restart_that_cannot_reach_a_target_keeps_the_batch(database: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    register_connection(SQLiteConnection(name="shop", path=str(tmp_path / "nowhere" / "shop.db")))
    with pytest.raises(FlowError):
        restart()
    register_connection(SQLiteConnection(name="shop", path=str(database)))
    fix(database)
    restart()
    assert rows(database, "loose", "strict") == (2, 2)


def test_an_incremental_target_that_had_committed_gets_nothing_newer_in_a_restart(database: Path) -> None:
    targets = [Target(connection="shop", table=t, mode="merge", keys=["id"]) for t in (Loose, Strict)]
    load = declare(targets=targets, incremental=True, watermark_column="id")
    with pytest.raises(LoadError):
        load.sync()
    execute(database, "INSERT INTO people VALUES (3, 'Lin')")
    fix(database)
    restart()
    assert rows(database, "loose", "strict") == (2, 3)
    load.sync()
    assert rows(database, "loose", "strict") == (3, 3)


def test_a_run_that_failed_before_it_loaded_is_loaded_whole(database: Path) -> None:
    with pytest.raises(SourceFailed):
        declare(sql="SELECT id, name FROM nowhere").sync()
    fix(database)
    declare()
    assert restart().status == "succeeded"
    assert rows(database, "loose", "strict") == (2, 2)


def test_a_slot_is_restarted_under_its_batch(database: Path) -> None:
    declare()
    with run_context(slot=NOON) as context, pytest.raises(LoadError):
        run_declared_pipeline(current_registry().pipeline("both"), context)
    fix(database)
    restart()
    assert (records()[0].slot, rows(database, "loose", "strict")) == (NOON, (2, 2))
    with run_context(slot=NOON) as context:  # the scheduler's next attempt finds it loaded
        result = run_declared_pipeline(current_registry().pipeline("both"), context)
    assert (result.status, rows(database, "loose", "strict")) == ("skipped", (2, 2))


def test_duckdb_targets_are_restarted_the_same_way(tmp_path: Path) -> None:
    register_connection(DuckDBConnection(name="shop", path=str(tmp_path / "shop.duckdb")))

    def run(statement: str) -> list[Any]:
        import duckdb

        with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
            return connection.execute(statement).fetchall()

    run("CREATE TABLE people AS SELECT 1 AS id, 'Ada' AS name UNION ALL SELECT 2, NULL")
    with pytest.raises(LoadError):
        declare().sync()
    run("UPDATE people SET name = 'Grace' WHERE id = 2")
    assert restart().status == "succeeded"
    assert run("SELECT (SELECT count(*) FROM mart.loose), (SELECT count(*) FROM mart.strict)") == [(2, 2)]


# ------------------------------------------------------------------ post-load steps


def test_a_post_load_step_that_ended_well_is_not_run_again(database: Path) -> None:
    with pytest.raises(PostTransformFailed) as raised:
        declare_one(TRACE.format("one"), "INSERT INTO later VALUES (2)", TRACE.format("three")).sync()
    failed = records()[0]
    assert f"flow restart {failed.run_id[:8]}" in (raised.value.next_step or "")
    assert [(step["status"], bool(step["error"])) for step in failed.metrics["post"]] == [
        ("ok", False),
        ("failed", True),
    ]
    execute(database, "CREATE TABLE later (n INTEGER)")
    result = restart()
    assert trace(database) == ["one", "three"]
    assert rows(database, "loose") == (2,)
    assert [outcome for _, outcome in result.post] == ["done by the restarted run", "ok", "ok"]
    assert [step["status"] for step in records()[0].metrics["post"]] == ["ok"] * 3
    assert execute(database, "SELECT count(*) FROM later") == [(1,)]


def test_a_corrected_step_is_run_in_place_of_the_one_that_failed(database: Path) -> None:
    with pytest.raises(PostTransformFailed):
        declare_one(TRACE.format("one"), "INSERT INTO later VALUES (2)").sync()
    declare_one(TRACE.format("one"), TRACE.format("two"))
    restart()
    assert trace(database) == ["one", "two"]


@pytest.mark.parametrize("nth", [1, 2])
def test_a_crash_between_two_steps_repeats_none_of_them(database: Path, nth: int) -> None:
    load = declare_one(TRACE.format("one"), TRACE.format("two"), TRACE.format("three"))
    crash("post.recorded", load.sync, nth)
    assert trace(database) == ["one", "two"][:nth]
    crash("post.recorded", restart)  # the restart dies as well, one step later
    assert trace(database) == ["one", "two", "three"][: nth + 1]
    restart()
    assert trace(database) == ["one", "two", "three"]
    assert rows(database, "loose") == (2,)


def test_the_same_statement_twice_is_run_as_often_as_it_is_declared(database: Path) -> None:
    load = declare_one(TRACE.format("one"), TRACE.format("one"), TRACE.format("two"))
    crash("post.recorded", load.sync)
    restart()
    assert trace(database) == ["one", "one", "two"]


def test_a_step_sees_the_load_that_the_restarted_run_had_committed(database: Path) -> None:
    seen = []

    def look(conn: Any, parent: Any) -> None:
        seen.append((parent.run_id, parent.rows_inserted))
        if len(seen) == 1:
            raise RuntimeError("not yet")

    with pytest.raises(PostTransformFailed):
        declare_one(look).sync()
    restart()
    assert seen == [(records()[-1].run_id, 2)] * 2


def test_a_restart_with_nothing_left_to_do_succeeds_and_does_nothing(database: Path) -> None:
    crash("runlog.before_finish", declare_one(TRACE.format("one")).sync)
    restart()
    assert (trace(database), rows(database, "loose"), records()[0].status) == (["one"], (2,), "succeeded")


# ------------------------------------------------------------------ refusals


def refused(record: RunRecord) -> str:
    with pytest.raises(UsageError) as raised:
        restart(record)
    assert raised.value.state == "nothing was run" and raised.value.next_step
    return raised.value.what


def test_a_run_that_ended_well_is_not_restarted(database: Path) -> None:
    declare_one().sync()
    assert "has ended well: succeeded" in refused(records()[0])
    assert rows(database, "loose") == (2,)


def test_a_run_that_was_restarted_with_success_is_not_restarted_again(database: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    fix(database)
    restart()
    newest, first = records()
    assert f"run {newest.run_id[:8]} has ended well" in refused(first)


def test_only_the_newest_run_is_restarted(database: Path) -> None:
    for _ in range(2):
        with pytest.raises(LoadError):
            declare().sync()
    newest, older = records()
    assert f"run {newest.run_id[:8]} of 'both' is newer" in refused(older)
    with run_context() as context:  # a run that never began is no newer one
        record_skipped_run(context.run_log, declare().spec, "its upstream failed", "cli")
    fix(database)
    assert restart(newest).status == "succeeded"


def test_a_pipeline_with_other_targets_is_not_restarted(database: Path) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    record = records()[0]
    declare(targets=[Target(connection="shop", table=Loose)])
    assert "has other targets since: shop:mart.loose (append) instead of" in refused(record)


def test_runs_of_streams_of_others_and_at_work_are_refused(database: Path) -> None:
    declare_one()
    failed = RunRecord("abc", "both", "shop:mart.loose", "append", status="failed", finished_at=NOON)
    assert "no run of 'both'" in refused(replace(failed, pipeline="maintain:both"))
    assert "run of a stream" in refused(replace(failed, mode="stream"))
    at_work = RunRecord("def", "both", "shop:mart.loose", "append", pid=os.getppid())
    assert "is still running" in refused(at_work)
