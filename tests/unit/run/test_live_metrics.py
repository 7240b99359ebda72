"""What a run tells while it works, and what its record holds at its end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import BigInt, Pipeline, SQLiteConnection, ematix, register_connection
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.errors import Interrupted, PostTransformFailed
from ematix_flow.graph.registry import current_registry
from ematix_flow.observe.listener import Listener, PostStepEnd, Progress
from ematix_flow.run.context_setup import run_context
from ematix_flow.run.live_metrics import LONGEST_PLAN, LiveMetrics, bounded_plan
from ematix_flow.run.recording import RunRecording
from ematix_flow.run.restart import restart_run
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.runlog.sql import SqlRunLog
from tests.unit.run.sqlite_file import execute
from tests.waiting import wait_until


@ematix.table(schema=None)
class Numbers:
    n: BigInt


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    execute(path, "CREATE TABLE raw (n INTEGER)")
    execute(path, "INSERT INTO raw VALUES (1), (2)")
    register_connection(SQLiteConnection(name="shop", path=str(path)))
    return path


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """What was written into the metrics of runs that had not ended."""
    found: list[Mapping[str, Any]] = []
    original = SqlRunLog.add_metrics

    def add_metrics(log: SqlRunLog, run_id: str, metrics: Mapping[str, Any]) -> None:
        found.append(metrics)
        original(log, run_id, metrics)

    monkeypatch.setattr(SqlRunLog, "add_metrics", add_metrics)
    return found


def declare(*steps: Any, sql: str = "SELECT n FROM raw", **options: Any) -> Pipeline:
    @ematix.pipeline(
        target=Numbers,
        target_connection="shop",
        mode="truncate",
        name="numbers",
        transforms_post=list(steps),
        **options,
    )
    def numbers(conn: Any) -> str:
        return sql

    return numbers


def record() -> RunRecord:
    with open_run_log(env=os.environ, reading=True) as log:
        return log.get(log.list("numbers")[0].run_id)  # a list leaves plans out


def output() -> str:
    with open_run_log(env=os.environ, reading=True) as log:
        return log.output(log.list("numbers")[0].run_id) or ""


def test_a_short_run_writes_nothing_but_its_start_and_its_end(database: Path, saved: list[Any]) -> None:
    declare().sync()
    assert saved == []


def test_progress_and_stages_are_saved_while_a_run_works(
    database: Path, saved: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.run.run_watcher.INTERVAL_SECONDS", 0.02)
    with open_run_log(env=os.environ) as log:
        recording = RunRecording(RunRecord("r1", "numbers", "t", "append"), log)
        listener = recording.wrap_listener(Listener())
        with recording.at_work():
            listener.stage_started("t", "copy")
            started = wait_until(lambda: log.get("r1").metrics.get("progress"))
            listener.progress("t", Progress(500, 1_000, 2_000))
            reached = wait_until(
                lambda: found if (found := log.get("r1").metrics["progress"])["rows"] else None
            )
        writes = len(saved)
        stages = log.get("r1").metrics["stages"]
    assert (started["target"], started["stage"], started["rows"]) == ("t", "copy", None)
    assert (reached["rows"], reached["expected_rows"]) == (500, 2_000)
    assert reached["rows_per_second"] > 0 and reached["eta_seconds"] > 0 and reached["at"] > started["at"]
    assert [(each["stage"], each["ended"]) for each in stages] == [("copy", False)]
    assert writes == 2  # what does not change is not written again


def test_the_end_of_a_run_leaves_no_progress(database: Path) -> None:
    with open_run_log(env=os.environ) as log:
        recording = RunRecording(RunRecord("r1", "numbers", "t", "append"), log)
        listener = recording.wrap_listener(Listener())
        listener.stage_started("t", "apply")
        recording.save_changes()
        recording.finish("succeeded")
        recording.save_changes()  # as by a watcher that is late
        assert sorted(log.get("r1").metrics) == ["stages"]


def test_the_progress_of_several_targets_is_that_of_the_slowest() -> None:
    live = LiveMetrics()
    for target in ("a", "b"):
        live.stage_started(target, "copy")
    live.progress("a", Progress(900))
    live.progress("b", Progress(100))
    progress = live.take_changes()["progress"]
    assert (progress["target"], progress["stage"], progress["rows"]) == ("b", "copy", 100)
    assert live.take_changes() == {}


def test_each_post_load_step_is_recorded_as_it_ends(database: Path, saved: list[Any]) -> None:
    def second(conn: Any) -> None:
        known = record().metrics["post"]
        assert [(step["label"], step["status"]) for step in known] == [("SELECT 1", "ok")]
        raise RuntimeError("password=hunter2 is wrong")

    with pytest.raises(PostTransformFailed):
        declare("SELECT 1", second, "SELECT 3").sync()
    one, two = record().metrics["post"]
    assert (one["status"], one["error"]) == ("ok", None) and one["seconds"] >= 0
    assert (two["status"], two["error"]) == ("failed", "RuntimeError: password=*** is wrong")
    assert [(each["stage"], each["ended"]) for each in record().metrics["stages"]][-2:] == [
        ("then SELECT 1", True),
        (f"then {two['label']}", True),
    ]
    assert [each.get("failed", False) for each in record().metrics["stages"]][-2:] == [False, True]
    assert f"then {two['label']} failed after 0.0" in output() and "then SELECT 1 took 0.0" in output()
    assert len(saved) == 2


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_rows_of_a_load_are_recorded_although_a_later_step_did_not_end(
    database: Path, error: type[BaseException]
) -> None:
    def step(conn: Any) -> None:
        raise error

    with pytest.raises((PostTransformFailed, Interrupted)):
        declare(step).sync()
    run = record()
    assert run.status == ("failed" if error is RuntimeError else "cancelled") == run.metrics["status"]
    assert (run.rows.read, run.rows.inserted, run.path) == (2, 2, "same_db")
    assert [(each["target"], each["status"]) for each in run.metrics["targets"]] == [
        ("shop:numbers", "succeeded")
    ]


def test_a_restart_does_not_count_the_rows_of_the_failed_run_again(database: Path) -> None:
    with pytest.raises(PostTransformFailed):
        declare("INSERT INTO later SELECT 1").sync()
    execute(database, "CREATE TABLE later (n INTEGER)")
    failed = record()
    with run_context(trigger="cli") as context:
        restart_run(current_registry().pipeline("numbers"), context, failed)
    assert (failed.rows.inserted, record().rows.inserted) == (2, 0)


def test_a_step_that_fails_is_recorded_although_the_run_goes_on(database: Path) -> None:
    declare("SELECT broken", "SELECT 1", continue_on_failure_post=True).sync()
    assert [step["status"] for step in record().metrics["post"]] == ["failed", "ok"]


def test_the_plan_is_shown_while_the_run_works(
    database: Path, saved: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.run.run_watcher.INTERVAL_SECONDS", 0.02)
    seen: list[Any] = []

    def look(conn: Any) -> None:
        seen.append(wait_until(lambda: record().metrics.get("plan")))

    def work_on(conn: Any) -> None:
        written = len(saved)
        wait_until(lambda: len(saved) > written)  # the stages

    declare(look, work_on).sync()
    assert seen == [record().metrics["plan"]] and seen[0]["pipeline"] == "numbers"
    assert len([each for each in saved if "plan" in each]) == 1


def test_the_record_holds_the_plan_of_its_run(database: Path) -> None:
    load = declare("SELECT 'password=hunter2'")
    load.sync()
    plan = record().metrics["plan"]
    assert plan["pipeline"] == "numbers" and plan["source"]["sql"] == "SELECT n FROM raw"
    assert plan["targets"][0]["path"] == "same_db"
    assert plan["post"] == [{"kind": "sql", "text": "SELECT 'password=***'"}]
    assert "hunter2" not in json.dumps(record().metrics)


def test_a_failed_run_holds_its_plan_too(database: Path) -> None:
    with pytest.raises(PostTransformFailed):
        declare("SELECT broken").sync()
    assert record().metrics["plan"]["pipeline"] == "numbers"


@pytest.mark.parametrize(
    "plan",
    [
        {"pipeline": "p", "source": {"sql": "password=hunter2 " * 20_000}},
        {"pipeline": "p", "targets": [{"changes": ["x" * 300] * 5_000}]},
        {"pipeline": "p", "targets": [{"stages": [["ü" * 200] * 200] * 200}]},
        {"pipeline": "p", "names": {f"n{n}": "x" for n in range(20_000)}},
    ],
)
def test_a_long_plan_is_cut(plan: dict[str, Any]) -> None:
    cut = bounded_plan(plan)
    assert len(json.dumps(cut)) <= LONGEST_PLAN
    assert cut["pipeline"] == "p" and cut["is_cut"] is True
    assert "hunter2" not in json.dumps(cut)


def test_steps_that_an_earlier_run_ended_come_first() -> None:
    live = LiveMetrics([{"label": "one", "status": "ok", "seconds": 1.0, "error": None}])
    live.post_step_finished(PostStepEnd("two", "t", 0.5))
    assert [step["label"] for step in live.at_end()["post"]] == ["one", "two"]
