"""A state of a million keys in Postgres: the cost of a batch, and the time to restore it."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

import duckdb
import pytest

from ematix_flow.backends.state_stores.stream_states import open_stream_states
from ematix_flow.engine.streams.checkpoint import Checkpoint
from ematix_flow.engine.streams.state.mirror import StateMirror
from ematix_flow.engine.streams.state.progress import Progress
from ematix_flow.engine.streams.state.state_file import StateFile
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.engine.streams.windows.accumulators import build_accumulators
from ematix_flow.engine.streams.windows.window_state import START, WindowState
from ematix_flow.spec.types import DataType
from ematix_flow.spec.windows import Aggregation, StateStore, Window

KEYS, CHANGED, BATCHES = 1_000_000, 1_000, 60
WINDOW = Window(
    kind="tumbling",
    duration_ms=3_600_000,
    event_time_column="ts",
    group_by=("user",),
    aggregations=[
        Aggregation(agg="count", as_="n"),
        Aggregation(agg="sum", column="v", as_="total"),
        Aggregation(agg="last", column="v", as_="newest"),
    ],
)
TYPES = {"v": DataType("big_int"), "user": DataType("text")}
CONTENTS = "SELECT count(*), sum(a0), sum(hash(g0, a0, a1, a2, since)) FROM windows WHERE until IS NULL"


def open_state(folder: Path) -> WindowState:
    return WindowState(StateFile(folder), WINDOW, ["VARCHAR"], build_accumulators(WINDOW.aggregations, TYPES))


def add_batch(state: WindowState, folder: Path, version: int, first: int, groups: int) -> None:
    names = [field.name for each in state.accumulators for field in each.fields]
    values = ", ".join(f"range AS {name}" for name in names)
    duckdb.sql(
        f"COPY (SELECT 0::BIGINT AS {START}, 'user-' || ({first} + range * 37) % {KEYS} AS g0, {values} "
        f"FROM range({groups})) TO '{folder / 'batch.parquet'}' (FORMAT parquet)"
    )
    batch = [str(folder / "batch.parquet")]
    state.advance(version, Progress(), batch=batch, output=folder / "closed.parquet")


@pytest.mark.bench
@pytest.mark.long
def test_a_million_keys_are_restored_in_ten_seconds(pg_database: str, tmp_path: Path) -> None:
    """Run with ``-s`` to see the times."""
    store = StateStore(kind="postgres", url=pg_database)
    checkpoint = Checkpoint(tmp_path / "stream" / "checkpoints" / "all")

    def new_mirror() -> StateMirror:
        states = open_stream_states(store)
        return StateMirror(states, "s", "all", StreamFolder(tmp_path / "stream"), checkpoint, 60_000)

    mirror = new_mirror()
    assert not mirror.open()
    state = open_state(checkpoint.state_folder)
    add_batch(state, tmp_path, 0, 0, KEYS)
    mirror.publish(state.file, "{}")
    seconds = []
    for version in range(1, BATCHES + 1):
        add_batch(state, tmp_path, version, version * 7_919, CHANGED)
        began = time.perf_counter()
        mirror.publish(state.file, "{}")
        seconds.append(time.perf_counter() - began)
    expected = state.file.database.execute(CONTENTS).fetchall()
    state.file.close()
    mirror.close()
    shutil.rmtree(tmp_path / "stream")
    mirror, began = new_mirror(), time.perf_counter()
    assert mirror.open()
    restored = time.perf_counter() - began
    print(
        f"{CHANGED:,} changed groups: {statistics.median(seconds) * 1e3:.0f} ms; restored in {restored:.1f} s"
    )
    state = open_state(checkpoint.state_folder)
    assert state.file.database.execute(CONTENTS).fetchall() == expected
    state.file.close()
    mirror.close()
    assert restored < 10
    assert statistics.median(seconds) < 0.5
