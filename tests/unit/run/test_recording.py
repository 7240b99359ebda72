"""What every run leaves in the run log, for all paths and outcomes."""

from __future__ import annotations

import datetime as dt
import logging
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, SQLiteConnection, Text, ematix, pk, register_connection
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.errors import ConfigError, FlowError
from ematix_flow.run.context_setup import run_context
from ematix_flow.run.recording import RunRecording, record_command
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now
from tests.waiting import wait_until

LOG = logging.getLogger("users.own")


@ematix.table(schema="analytics")
class People:
    id: Annotated[BigInt, pk()]
    name: Text | None


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE raw_people (id INTEGER, name TEXT)")
        connection.execute("INSERT INTO raw_people VALUES (1, 'Ada'), (2, NULL)")
    register_connection(SQLiteConnection(name="shop", path=str(path)))
    return path


def declared(name: str = "people", sql: str = "SELECT id, name FROM raw_people") -> Any:
    @ematix.pipeline(target=People, target_connection="shop", mode="truncate", name=name)
    def people(conn: Any) -> str:
        LOG.warning("%s asks with password=hunter2", name)
        return sql

    return people


def last(name: str = "people") -> tuple[RunRecord, str]:
    with open_run_log(env=os.environ, reading=True) as log:
        (run,) = log.newest([name])[name]
        return run, log.output(run.run_id) or ""


def test_a_run_leaves_its_stages_engine_code_and_words(shop: Path) -> None:
    declared().sync()
    run, said = last()
    assert run.status == "succeeded" and run.engine == "none" and run.code_version is not None
    stages = run.metrics["stages"]
    assert [(stage["target"], stage["stage"], stage["ended"]) for stage in stages] == [
        ("shop:analytics.people", "prepare", True),
        ("shop:analytics.people", "apply", True),
    ]
    assert stages[0]["at"] + stages[0]["seconds"] <= stages[1]["at"] + 0.01
    assert "WARNING users.own: people asks with password=***" in said
    assert "shop:analytics.people: apply took" in said and said.endswith("INFO succeeded\n")


def test_a_failed_run_leaves_its_place_and_the_stage_it_broke_in(shop: Path) -> None:
    with closing(sqlite3.connect(shop)) as connection, connection:
        connection.execute("INSERT INTO raw_people VALUES (1, 'again')")
    with pytest.raises(FlowError):
        declared().sync()
    run, said = last()
    assert run.status == "failed" and run.error_type is not None
    assert run.error_where is not None and run.error_where.rpartition(":")[0].endswith("test_recording.py")
    assert [stage["ended"] for stage in run.metrics["stages"]] == [True, False]
    assert f"ERROR failed: {run.error_type}: " in said


def test_runs_side_by_side_keep_their_own_words(shop: Path, tmp_path: Path) -> None:
    pipelines = []
    for number in range(3):
        path = tmp_path / f"shop{number}.db"
        path.write_bytes(shop.read_bytes())
        register_connection(SQLiteConnection(name=f"shop{number}", path=str(path)))

        @ematix.pipeline(target=People, target_connection=f"shop{number}", mode="truncate", name=f"p{number}")
        def people(conn: Any, number: int = number) -> str:
            LOG.warning("this is p%d", number)
            return "SELECT id, name FROM raw_people"

        pipelines.append(people)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda pipeline: pipeline.sync(), pipelines))
    for number in range(3):
        said = last(f"p{number}")[1]
        assert [n for n in range(3) if f"this is p{n}" in said] == [number]


def test_a_command_is_recorded_as_a_separate_run(shop: Path) -> None:
    with record_command("people", "shop:people", "maintain", None) as recording:
        LOG.warning("compacting")
        recording.output.add_text("one more")
    run, said = last("maintain:people")
    assert (run.status, run.mode, run.trigger) == ("succeeded", "maintain", "cli")
    assert "compacting" in said and "one more" in said
    with pytest.raises(RuntimeError), record_command("people", "shop:people", "maintain", None):
        raise RuntimeError("no space")
    assert (last("maintain:people")[0].status, last("maintain:people")[0].error_message) == (
        "failed",
        "no space",
    )
    with open_run_log(env=os.environ, reading=True) as log:
        assert log.last("people") is None


def test_what_a_long_run_says_is_kept_while_it_runs(
    shop: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ematix_flow.run.run_watcher.INTERVAL_SECONDS", 0.01)
    with open_run_log(env=os.environ) as log:
        recording = RunRecording(RunRecord("r1", "people", "t", "append"), log)
        with recording.at_work():
            LOG.warning("half way")
            wait_until(lambda: "half way" in (log.output("r1") or ""))


def test_the_engine_is_known_while_a_run_that_may_be_killed_runs(shop: Path) -> None:
    session: Any = SimpleNamespace(version="4.1.3", sparkContext=SimpleNamespace(master="local[2]"))
    with open_run_log(env=os.environ) as log:
        recording = RunRecording(RunRecord("r1", "people", "t", "append"), log)
        assert log.get("r1").engine == "none"
        recording.wrap_spark_start(lambda groups: session)(())
        assert log.get("r1").engine == "local[2], Spark 4.1.3"


def test_old_runs_of_a_pipeline_are_forgotten_when_it_runs(shop: Path, tmp_path: Path) -> None:
    (tmp_path / ".ematix-flow.toml").write_text('[run_log]\nkeep = "30d"\n')
    with open_run_log(env=os.environ) as log:
        for days in (40, 35, 10):
            started = utc_now() - dt.timedelta(days=days)
            for name in ("people", "others"):
                run = RunRecord(f"{name}-{days}", name, "t", "append", started_at=started)
                log.start(run)
                log.finish(run.run_id, "succeeded")
    declared().sync()
    with open_run_log(env=os.environ) as log:
        assert [run.run_id for run in log.list("people")][1:] == ["people-10"]
        assert len(log.list("others")) == 3


def test_a_duration_that_is_none_is_refused(shop: Path, tmp_path: Path) -> None:
    (tmp_path / ".ematix-flow.toml").write_text('[run_log]\nkeep = "for long"\n')
    with pytest.raises(ConfigError, match="keep = 'for long' is not a duration"), run_context():
        pass
