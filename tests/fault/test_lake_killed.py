"""A merge into a Delta table by a process that is killed for real, read by delta-rs after each death."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

MODULE = """
from ematix_flow import Annotated, BigInt, Text, ematix, pk

@ematix.connection
class source:
    kind = "sqlite"
    path = "source.db"

@ematix.connection
class lake:
    kind = "delta_local"
    path = "lake"

@ematix.table(schema="copied")
class Events:
    id: Annotated[BigInt, pk()]
    at: BigInt
    name: Text

@ematix.pipeline(
    target=Events, source_connection="source", target_connection="lake", mode="merge",
    incremental=True, watermark_column="at", lag=0,
)
def load(conn):
    return "SELECT id, at, name FROM events"
"""
RUN = "import pipelines; result = pipelines.load.sync(); print(result.rows_inserted, result.rows_updated)"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipelines.py").write_text(MODULE)
    with sqlite3.connect(tmp_path / "source.db") as source:
        source.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at INTEGER, name TEXT)")
    source.close()
    return tmp_path


def change(project: Path, at: int, ids: range) -> None:
    """Rows that are new or changed at a time."""
    rows = [(number, at, f"{number} at {at}") for number in ids]
    with sqlite3.connect(project / "source.db") as source:
        source.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", rows)
    source.close()


def run(project: Path, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EMATIX_FLOW_FAULT": f"{fault}=kill" if fault else ""}
    return subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def in_the_lake(project: Path) -> list[tuple[int, str]]:
    try:
        table = DeltaTable(str(project / "lake/copied/events")).to_pyarrow_table(columns=["id", "name"])
    except TableNotFoundError:
        return []
    return sorted((row["id"], row["name"]) for row in table.to_pylist())


def in_the_source(project: Path) -> list[tuple[int, str]]:
    with sqlite3.connect(project / "source.db") as source:
        found = source.execute("SELECT id, name FROM events ORDER BY id").fetchall()
    source.close()
    return found


def test_a_killed_merge_is_there_whole_or_not_at_all_and_the_next_run_is_exact(project: Path) -> None:
    change(project, 1, range(10))
    first = run(project)
    assert first.stdout.strip() == "10 0", first.stderr
    before = in_the_lake(project)
    assert before == in_the_source(project)

    change(project, 2, range(5, 15))
    killed = run(project, "apply.before_commit")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert in_the_lake(project) == before

    killed = run(project, "apply.after_commit")  # the journal does not say yet that it is done
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert in_the_lake(project) == in_the_source(project)

    change(project, 3, range(14, 16))
    last = run(project)
    assert last.stdout.strip() == "1 1", last.stderr
    assert in_the_lake(project) == in_the_source(project)
    assert not list((project / "lake/.ematix_flow/staging").rglob("*.parquet"))
