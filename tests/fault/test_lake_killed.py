"""Loads of lake tables that die, read by delta-rs and pyiceberg after each death; the next run is exact.

Every strategy dies in the session's own Spark by a crash that nothing handles. That a process which is killed
for real, Spark and all, leaves the same is proven on a few.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ematix_flow import fault_points
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.run.context_setup import refuse_spark
from ematix_flow.run.run_context import RunContext
from ematix_flow.schedule.run_due import SlotOutcome, SlotRunner
from ematix_flow.schedule.slot_lifecycle import ALREADY_LOADED, MAX_DEATHS
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.base import project_run_log
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.slots.memory import MemorySlotStore
from tests.fault.databases import Database, file_database
from tests.fault.forked_runs import MODULE, run_here
from tests.fault.histories import BY_NAME, LOADS, History, LoadKind
from tests.fault.lake_tables import DeltaFolder, IcebergFolder, LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.timeout(600)]

POINTS = (
    "apply.before_commit",
    "staging.created",
    "apply.ledger_written",
    "apply.after_commit",
    "apply.rows_written",
    "staging.loaded",
    "apply.began",
    "staging.dropped",
    "runlog.before_finish",
)
EVERY_RUN = {
    "append_new": "delta",
    "replace_all": "delta",
    "merge_all": "delta",
    "versions_of_events": "iceberg",
}
RUN = (
    "from pathlib import Path; from tests.fault.test_lake_killed import run_alone; run_alone(Path('.'), {!r})"
)


def lake_history(kind: str, load: LoadKind, folder: Path) -> History:
    lake = str(folder / "lake")
    target: Database = {"delta": DeltaFolder, "iceberg": IcebergFolder, "files": LocalFiles}[kind](where=lake)
    history = History(load, file_database("sqlite", folder, "source"), target)
    history.write_module(folder)
    history.create()
    return history


def require_whole(history: History, number: int) -> int:
    """The target holds what it held before the round or after it, no table before the first; its batches."""
    batches, rows = history.seen()
    assert batches in (number, number + 1)
    assert rows == history.must_hold(batches - 1)
    assert history.is_there() == (batches > 0)
    return batches


def finish(history: History, folder: Path, number: int, spark: SparkSession) -> None:
    """The next run is exact, and leaves nothing of the dead one."""
    run_here(folder, history.slot(number), spark=spark)
    assert history.seen() == (number + 1, history.must_hold(number))
    assert history.target.left_behind("loads", history.load.name) == []


def crash(history: History, folder: Path, number: int, spark: SparkSession, point: str) -> None:
    history.advance(number)
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
        run_here(folder, history.slot(number), spark=spark)
    batches = require_whole(history, number)
    assert (batches > number) == (point in POINTS[-2:] or point == "apply.after_commit")
    finish(history, folder, number, spark)


@pytest.mark.parametrize(
    ("kind", "load"),
    [
        pytest.param(kind, load, id=f"{kind}-{load.name}", marks=() if chosen else pytest.mark.long)
        for kind in ("delta", "iceberg")
        for load in LOADS
        for chosen in [EVERY_RUN.get(load.name) == kind]
    ],
)
def test_a_lake_load_that_dies_loses_and_doubles_nothing(
    tmp_path: Path, spark: SparkSession, kind: str, load: LoadKind
) -> None:
    """While it makes the table, and when the table is there."""
    history = lake_history(kind, load, tmp_path)
    first = [*EVERY_RUN].index(load.name) * 2 if load.name in EVERY_RUN else LOADS.index(load)
    for number in range(2):
        crash(history, tmp_path, number, spark, POINTS[(first + number) % len(POINTS)])


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_lake_load_that_dies_at_any_point_loses_and_doubles_nothing(
    tmp_path: Path, spark: SparkSession, kind: str, load: LoadKind, point: str
) -> None:
    history = lake_history(kind, load, tmp_path)
    for number in range(2):
        crash(history, tmp_path, number, spark, point)


@pytest.mark.parametrize("kind", ["delta", "iceberg", "files"])
def test_a_slot_whose_last_attempt_died_after_its_commit_has_succeeded_with_its_counts(
    tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    """The scheduler finds that out from the journal or the log of the table, and starts no engine for it."""
    history = lake_history(kind, BY_NAME["append_all"], tmp_path)
    history.advance(0)
    at = history.slot(0)
    assert at is not None
    slot, store = Slot("load", dt.datetime.fromisoformat(at)), MemorySlotStore()
    store.open([slot])
    for _ in range(MAX_DEATHS):
        seen = store.get(slot)
        assert seen is not None
        claim = store.claim(seen, "a run that dies", 0.0)
        assert claim is not None and store.begin(claim, 0.0)
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.after_commit", "crash"):
        run_here(tmp_path, at, spark=spark)
    died = store.get(slot)
    assert died is not None
    with (
        open_local_run_log(project_run_log(os.environ), env=os.environ) as log,
        use_registry(Registry()) as here,
    ):
        exec(compile((tmp_path / f"{MODULE}.py").read_text(), MODULE, "exec"), {"__name__": MODULE})
        found = SlotRunner(here, store, log, lambda _: RunContext(log, refuse_spark)).try_claim(died)
        newest = log.list("load")[0]
    ended = store.get(slot)
    assert isinstance(found, SlotOutcome) and (found.status, found.reason) == ("succeeded", ALREADY_LOADED)
    assert ended is not None and ended.status == "succeeded"
    loaded = len(history.must_hold(0))
    assert (newest.status, newest.rows.read, newest.rows.inserted) == ("succeeded", loaded, loaded)


# ------------------------------------------------------------------ processes that are killed


def run_alone(folder: Path, slot: str | None) -> None:
    """The body of a process that has its own Spark."""
    from ematix_flow.engine.spark.session import spark_session
    from ematix_flow.engine.spark.settings import EngineSettings

    session = spark_session(EngineSettings.resolve(env={}), jar_groups=("delta",))
    run_here(folder, slot, spark=session)


def start(folder: Path, slot: str | None, fault: str = "") -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "EMATIX_FLOW_FAULT": f"{fault}=kill" if fault else ""}
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", RUN.format(slot)],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
        )


def kill_when(process: subprocess.Popen[bytes], ready: Callable[[], bool], folder: Path) -> None:
    """Wait until that is true; the test's own time limit ends the wait otherwise."""
    while not ready():
        assert process.poll() is None, (folder / "output").read_text()
        time.sleep(0.01)
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_the_first_rows_shows_no_table(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The folder then has files with rows and no log: the next run still creates the table."""
    history = lake_history("delta", BY_NAME["append_new"], tmp_path)
    history.advance(0)
    table = tmp_path / "lake" / "loads" / "append_new"
    kill_when(start(tmp_path, None), lambda: any(table.glob("*.parquet")), tmp_path)
    require_whole(history, 0)
    finish(history, tmp_path, 0, spark)


@pytest.mark.long
@pytest.mark.parametrize("name", ["append_all", "merge_new", "versions_of_events"])
@pytest.mark.parametrize("point", ["apply.before_commit", "apply.after_commit"])
def test_a_process_that_is_killed_leaves_a_lake_table_as_it_was_or_loaded(
    tmp_path: Path, spark: SparkSession, point: str, name: str
) -> None:
    history = lake_history("delta", BY_NAME[name], tmp_path)
    for number in range(2):
        history.advance(number)
        process = start(tmp_path, history.slot(number), point)
        assert process.wait() == -signal.SIGKILL, (tmp_path / "output").read_text()
        assert require_whole(history, number) == number + (point == "apply.after_commit")
        finish(history, tmp_path, number, spark)
