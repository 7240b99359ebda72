"""The state of windows on disk: after a killed process, a failed change, and a checkpoint that is behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from ematix_flow.engine.streams.state.progress import Progress
from ematix_flow.engine.streams.state.state_file import StateFile
from ematix_flow.engine.streams.windows.accumulators import build_accumulators
from ematix_flow.engine.streams.windows.window_state import START, WindowState
from ematix_flow.errors import EngineError
from ematix_flow.spec.types import DataType
from ematix_flow.spec.windows import Aggregation, Window

WINDOW = Window(
    kind="tumbling",
    duration_ms=1,
    event_time_column="ts",
    aggregations=[Aggregation(agg="sum", column="v", as_="total")],
)
REPOSITORY = Path(__file__).resolve().parents[3]
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.engine.test_window_state import add, open_state

folder = Path(sys.argv[1])
state = open_state(folder)
for version in range(3):
    add(state, folder, version, 10)
database = state.file.database
database.execute("BEGIN")
database.execute("UPDATE windows SET a0 = 1")
os.kill(os.getpid(), signal.SIGKILL)
"""


def open_state(folder: Path) -> WindowState:
    file = StateFile(folder / "state")
    return WindowState(file, WINDOW, [], build_accumulators(WINDOW.aggregations, {"v": DataType("big_int")}))


def add(state: WindowState, folder: Path, version: int, value: int) -> None:
    """Add a value to the window that begins at zero."""
    batch = folder / "batch.parquet"
    duckdb.sql(f"COPY (SELECT 0::BIGINT AS {START}, {value}::BIGINT AS a0) TO '{batch}' (FORMAT parquet)")
    state.advance(version, Progress(), batch=[str(batch)], output=folder / "closed.parquet")


def total(state: WindowState) -> int:
    found = state.file.first_row("SELECT sum(a0) FROM windows WHERE until IS NULL")
    assert found is not None
    return int(found[0])


def test_a_killed_process_leaves_the_last_whole_version(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, cwd=REPOSITORY)
    assert done.returncode == -signal.SIGKILL
    state = open_state(tmp_path)
    assert (state.file.last_version(), total(state)) == (2, 30)
    add(state, tmp_path, 2, 5)  # the last batch comes again, with other rows
    assert total(state) == 25
    state.file.close()


def test_a_change_that_fails_names_the_state_and_leaves_it(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    add(state, tmp_path, 0, 2**62)
    with pytest.raises(EngineError, match=r"cannot be changed: .*out of range"):
        add(state, tmp_path, 1, 2**62)
    assert (state.file.last_version(), total(state)) == (0, 2**62)
    add(state, tmp_path, 1, 1)
    assert total(state) == 2**62 + 1
    state.file.close()


def test_a_state_that_is_newer_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    add(state, tmp_path, 0, 1)
    add(state, tmp_path, 1, 1)
    with pytest.raises(EngineError, match="is newer than the stream's checkpoint"):
        add(state, tmp_path, 0, 1)
    assert total(state) == 2
    state.file.close()
