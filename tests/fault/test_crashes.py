"""What is left when a run dies, point by point: the rows before or after, and a next run that is exact."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ematix_flow import (
    DuckDBConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
    ematix,
    fault_points,
    register_connection,
)
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.state.local_stores import open_local_run_log
from tests.fault.forked_runs import MODULE as FORKED_MODULE
from tests.fault.forked_runs import ForkedRuns, forked_runs
from tests.reading import read_table

pytestmark = pytest.mark.fault

TABLE = TableSpec(
    "copied",
    "events",
    (ColumnSpec("id", DataType("big_int"), primary_key=True), ColumnSpec("at", DataType("integer"))),
)
STAGED = ("staging.created", "staging.loaded", "staging.dropped")
APPLIED = (
    "apply.began",
    "apply.rows_written",
    "apply.ledger_written",
    "apply.before_commit",
    "apply.after_commit",
)
INCREMENTAL = ("apply.first_rows_written",)  # of a lake: contract/test_delta_incremental.py
REPLAYED = ("replay.committed",)  # test_stream_crashes.py
FILES = ("files.version_written", "files.before_publish", "files.after_publish")
RECORDED = ("runlog.before_finish",)
POST_STEPS = ("post.recorded",)  # unit/run/test_restart.py
TASKS = ("task.staged",)  # of a worker, which may run again: tests/fault/test_task_retries.py
CHANGED = ("apply.table_changed",)  # each in turn: ematix_flow.testing.history, over every backend
GATED = ("gate.checked", "gate.quarantined", "gate.replay_removed")  # test_gates_killed.py
FOLDED = ("fold.entries_written", "fold.counts", "fold.files_removed")  # unit/backends/test_lake_journal.py
SET_ASIDE = (  # contract/test_gates_lake.py, contract/test_gates_files.py
    "quarantine.noted",
    "quarantine.written",
    "quarantine.settled",
)
SPOOLED = (  # unit/backends/test_spool.py, property/test_spool.py
    "spool.written",
    "spool.indexed",
    "spool.renamed",
    "spool.settled",
    "spool.acknowledged",
)
COMMITTED = ("apply.after_commit", "staging.dropped", "files.after_publish", "runlog.before_finish")


# streams die at these in test_stream_crashes.py, and senders of messages in test_kafka_sender.py
STREAMED = (
    "stream.dead_letters_sent",
    "stream.dead_letters",
    "stream.staged",
    "stream.target_committed",
    "stream.sent",
    "stream.committed",
    "stream.acknowledged",
)
# test_stream_windows.py and test_stream_state_store.py
WINDOWED = ("stream.state_committed", "stream.state_mirrored")
SENT = ("messages.produced", "messages.before_commit", "messages.after_commit")
ACTED = (  # test_actions_killed.py, unit/schedule/test_action_requests.py
    "action.requested",
    "action.effected",
    "action.claimed",
    "action.begun",
    "action.carried_out",
)
RESTARTED = ("restart.run_ended", "restart.slot_ended")  # test_actions_killed.py


def test_every_commit_point_has_a_crash_test() -> None:
    here = {
        *STAGED,
        *TASKS,
        *APPLIED,
        *CHANGED,
        *GATED,
        *FILES,
        *FOLDED,
        *SET_ASIDE,
        *SPOOLED,
        *RECORDED,
        *POST_STEPS,
    }
    elsewhere = {*INCREMENTAL, *REPLAYED, *STREAMED, *WINDOWED, *SENT, *ACTED, *RESTARTED}
    assert set(fault_points.declared_points()) == here | elsewhere


def source_with(path: Path, count: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, at INTEGER NOT NULL)")
        connection.executemany(
            "INSERT OR IGNORE INTO events VALUES (?, ?)", [(i, i // 3) for i in range(count)]
        )
    connection.close()


@pytest.mark.parametrize(
    ("kind", "point"),
    [("duckdb", point) for point in (*STAGED, *APPLIED, *RECORDED)]
    + [("parquet", point) for point in (*STAGED, *FILES)],
)
@pytest.mark.usefixtures("spark")
def test_a_crash_in_process_loses_and_doubles_nothing(tmp_path: Path, kind: str, point: str) -> None:
    source_with(tmp_path / "source.db", 10)
    register_connection(SQLiteConnection(name="source", path=str(tmp_path / "source.db")))
    target: Any = (
        DuckDBConnection(name="target", path=str(tmp_path / "target.duckdb"))
        if kind == "duckdb"
        else ObjectStoreLocalConnection(name="target", path=str(tmp_path / "lake"), format="parquet")
    )
    backend = open_backend(register_connection(target))

    @ematix.pipeline(
        target=TABLE,
        source_connection="source",
        target_connection="target",
        incremental=True,
        watermark_column="at",
    )
    def load(conn: Any) -> str:
        return "SELECT id, at FROM events"

    load.sync()
    source_with(tmp_path / "source.db", 20)
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
        load.sync()
    rows = sorted(row["id"] for row in read_table(backend, TABLE))
    assert rows == list(range(20 if point in COMMITTED else 10))
    result = load.sync()
    assert sorted(row["id"] for row in read_table(backend, TABLE)) == list(range(20))
    settled = [note for note in result.notes if note.startswith("run ")]
    assert len(settled) == 1
    assert ("it is committed" in settled[0]) == (point in COMMITTED)
    left = [path for path in tmp_path.rglob("staging/*")]
    assert left == []


MODULE = """
from typing import Annotated
from ematix_flow import BigInt, Integer, ematix, pk

@ematix.connection
class warehouse:
    kind = "{kind}"
    {field} = "{where}"

@ematix.table(schema="copied")
class Events:
    id: Annotated[BigInt, pk()]
    at: Integer

@ematix.pipeline(
    target=Events, target_connection="warehouse", mode="{mode}", incremental={incremental}, {watermark}
    max_shrink=1.0, allow_empty=True,
)
def load(conn):
    return 'SELECT id, "at" FROM events'
"""

RUN = "from killed_pipelines import load; print(load.sync().status)"


def run_in_a_process(folder: Path, fault: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    if fault:
        environment["EMATIX_FLOW_FAULT"] = f"{fault}=kill"
    return subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def write_module(
    folder: Path, kind: str, field: str, where: str, mode: str, name: str = "killed_pipelines"
) -> None:
    incremental = mode == "append"
    text = MODULE.format(
        kind=kind,
        field=field,
        where=where,
        mode=mode,
        incremental=incremental,
        watermark='watermark_column="at",' if incremental else "",
    )
    (folder / f"{name}.py").write_text(text)


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    with forked_runs() as warm:
        yield warm


@pytest.mark.parametrize("mode", ["append", "truncate"])
@pytest.mark.parametrize("point", [*APPLIED, *RECORDED])
def test_sigkill_on_sqlite_leaves_before_or_after_and_the_next_run_is_exact(
    tmp_path: Path, runs: ForkedRuns, point: str, mode: str
) -> None:
    database = tmp_path / "one.db"
    source_with(database, 10)
    write_module(tmp_path, "sqlite", "path", str(database), mode, FORKED_MODULE)
    assert runs.run(tmp_path).status == "succeeded"
    source_with(database, 20)
    killed = runs.run(tmp_path, fault=f"{point}=kill")
    assert killed.killed, killed.told
    with sqlite3.connect(database) as connection:
        found = [row[0] for row in connection.execute("SELECT id FROM copied__events ORDER BY 1")]
    connection.close()
    assert found == list(range(20 if point in COMMITTED else 10))
    again = runs.run(tmp_path)
    assert again.code == 0, again.told
    with sqlite3.connect(database) as connection:
        found = [row[0] for row in connection.execute("SELECT id FROM copied__events ORDER BY 1")]
    connection.close()
    assert found == list(range(20))
    with open_local_run_log(env=os.environ, reading=True) as log:
        statuses = [record.status for record in log.list()]
    assert statuses[1] == ("succeeded" if point in COMMITTED else "interrupted")


STAGED_MODULE = """
from typing import Annotated
from ematix_flow import BigInt, Integer, ematix, pk

@ematix.connection
class source:
    kind = "sqlite"
    path = "{source}"

@ematix.connection
class target:
    {target}

@ematix.table(schema="copied")
class Events:
    id: Annotated[BigInt, pk()]
    at: Integer

@ematix.pipeline(
    target=Events, source_connection="source", target_connection="target",
    incremental=True, watermark_column="at",
)
def load(conn):
    return "SELECT id, at FROM events"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "point"),
    [  # after Spark's tasks have staged; the other points are those of test_killed_runs.py without Spark
        ("postgres", "staging.loaded"),
        ("parquet", "files.before_publish"),
        pytest.param("postgres", "staging.created", marks=pytest.mark.long),
        pytest.param("postgres", "apply.before_commit", marks=pytest.mark.long),
    ],
)
def test_sigkill_of_a_run_with_spark_leaves_the_target_and_the_next_run_is_exact(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, point: str
) -> None:
    source_with(tmp_path / "source.db", 10)
    connection: Any
    if kind == "postgres":
        url = request.getfixturevalue("pg_database")
        fields, connection = f'kind = "postgres"; url = "{url}"', PostgresConnection(name="target", url=url)
    else:
        lake = str(tmp_path / "lake")
        fields = f'kind = "object_store_local"; path = "{lake}"; format = "parquet"'
        connection = ObjectStoreLocalConnection(name="target", path=lake, format="parquet")
    text = STAGED_MODULE.format(source=tmp_path / "source.db", target=fields)
    (tmp_path / "killed_pipelines.py").write_text(text)
    killed = run_in_a_process(tmp_path, point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    backend = open_backend(connection)
    assert read_table(backend, TABLE) == []
    again = run_in_a_process(tmp_path)
    assert again.stdout.strip() == "succeeded", again.stderr
    assert sorted(row["id"] for row in read_table(backend, TABLE)) == list(range(10))
    target = backend.target()
    assert target is not None
    assert target.sweep_staging("load", "target:copied.events") == []


def test_the_same_pipeline_started_twice_at_once_runs_once(tmp_path: Path) -> None:
    database = tmp_path / "one.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            'CREATE TABLE events AS SELECT range AS id, (range // 3)::INTEGER AS "at" FROM range(10)'
        )
    write_module(tmp_path, "duckdb", "path", str(database), "append")
    holder = (
        "import sys, killed_pipelines\n"
        "from ematix_flow import fault_points\n"
        "with fault_points.inject('apply.began', lambda: (print('holding', flush=True), sys.stdin.read())):\n"
        "    print(killed_pipelines.load.sync().status)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    first = subprocess.Popen(
        [sys.executable, "-c", holder],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert first.stdin is not None
    assert first.stdout.readline().strip() == "holding"
    second = run_in_a_process(tmp_path)
    assert second.returncode != 0
    assert "PipelineLocked" in second.stderr
    first.stdin.close()
    assert first.stdout.read().strip() == "succeeded"
    assert first.wait() == 0
    first.stdout.close()
    with duckdb.connect(str(database), read_only=True) as connection:
        counted = connection.execute("SELECT count(*) FROM copied.events").fetchone()
    assert counted == (10,)
