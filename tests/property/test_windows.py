"""Windows against a model: random event times, lateness, batches, repeated batches and restarts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from ematix_flow.engine.streams.state.state_file import StateFile
from ematix_flow.engine.streams.state.stateful_operator import state_version
from ematix_flow.engine.streams.windows.accumulators import build_accumulators
from ematix_flow.engine.streams.windows.window_operator import WindowOperator
from ematix_flow.engine.streams.windows.window_state import START, WindowState
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.windows import AGGREGATORS, Aggregation, Watermark, Window
from tests.property.fuzzed_project import new_folder
from tests.property.window_model import Event, Loaded, WindowModel, aggregates

BIG = DataType("big_int")
GROUPS = st.sampled_from(["a", "b", None])
TIMES = st.integers(-3_000_000, 12_000_000)  # microseconds; windows of seconds
EVENTS = st.tuples(TIMES, GROUPS, st.none() | st.integers(-5, 5))
LATENESS = st.sampled_from([0, 500, 3_000])
BATCHES = st.lists(st.lists(EVENTS, max_size=8), min_size=1, max_size=4)


@st.composite
def windows(draw: st.DrawFn, names: Sequence[str]) -> Window:
    duration = draw(st.sampled_from([1_000, 2_500, 3_000]))
    hop = draw(st.sampled_from([None, 1_000, duration]))
    late = draw(st.sampled_from(["drop", "reopen"]))
    return Window(
        kind="hopping" if hop else "tumbling",
        duration_ms=duration,
        hop_ms=hop,
        event_time_column="ts",
        group_by=("g",),
        late_data=late,
        allowed_lateness_ms=draw(st.sampled_from([500, 2_000])) if late == "reopen" else None,
        aggregations=[Aggregation(n, f"r_{n}", None if n == "count" else "v") for n in names],  # type: ignore[arg-type]
    )


def cases(number: int) -> settings:
    return settings(
        max_examples=number,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


# ------------------------------------------------------------------ the state alone

KEPT = ("count", "count_col", "sum", "min", "max", "first", "last")  # those that this file can prepare


def batch_file(window: Window, events: Sequence[Event], path: Path) -> list[str]:
    """The aggregates of a batch as Spark writes them."""
    placed: dict[tuple[int, Any], list[Event]] = {}
    for event in events:
        for start in WindowModel(window)._starts(event[0]):
            placed.setdefault((start, event[1]), []).append(event)
    rows = []
    for (start, group), own in placed.items():
        found = aggregates(own)
        filled = [at for at, _, value in own if value is not None]
        row = {START: start, "g0": group} | {f"a{n}": found[name] for n, name in enumerate(KEPT)}
        row["a5_at"], row["a6_at"] = min(filled, default=None), max(filled, default=None)
        rows.append(row)
    if not rows:
        return []
    types = {name: pa.int64() for name in rows[0]} | {"g0": pa.string()}
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(types.items()))), path)
    return [str(path)]


def loaded_rows(file: Path | None) -> list[Loaded]:
    if file is None:
        return []
    return [
        (row[START], row["g0"], row["revision"], {n: row[f"r{i}"] for i, n in enumerate(KEPT)})
        for row in pq.read_table(file).to_pylist()
    ]


@contextmanager
def open_state(window: Window, folder: Path) -> Iterator[WindowState]:
    file = StateFile(folder)
    try:
        yield WindowState(file, window, ["VARCHAR"], build_accumulators(window.aggregations, {"v": BIG}))
    finally:
        file.close()


def check_state(
    folder: Path, window: Window, batches: Sequence[Sequence[Event]], lateness: int, repeated: int
) -> None:
    """``repeated`` is a batch that comes twice, as after a crash before the targets had its rows."""
    model, output = WindowModel(window, lateness), folder / "closed.parquet"

    def load(state: WindowState, number: int, events: Sequence[Event]) -> None:
        files = batch_file(window, events, folder / "batch.parquet")
        expected, progress = _by_key(model.batch(events)), state.file.progress_before(state_version(number))
        if model.highest is not None and model.watermark is not None:
            progress = progress.advance(model.watermark, window.reopens_for * 1000)
        for _ in range(2 if number == repeated else 1):
            closed = state.advance(state_version(number), progress, batch=files, output=output)
            assert _by_key(loaded_rows(closed.file)) == expected

    runs = (range(repeated + 1), range(repeated + 1, len(batches)))
    for numbers in filter(None, runs):
        with open_state(window, folder / "state") as state:
            for number in numbers:
                load(state, number, batches[number])
            version, progress = state_version(numbers.stop - 1, 1), state.file.progress()
            closed = state.advance(version, progress, batch=[], output=output, flush=True)
            assert _by_key(loaded_rows(closed.file)) == _by_key(model.flush())
            assert state.open_windows().rows == len(model.groups)


def _by_key(rows: Sequence[Loaded]) -> dict[tuple[int, Any], Any]:
    found = {
        (start, group): (revision, {n: values[n] for n in KEPT}) for start, group, revision, values in rows
    }
    assert len(found) == len(rows), "a window is loaded twice"
    return found


@cases(300)
@given(window=windows(KEPT), batches=BATCHES, lateness=LATENESS, repeated=st.integers(0, 3))
def test_windows_are_those_of_the_model(
    tmp_path: Path, window: Window, batches: list[list[Event]], lateness: int, repeated: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_state(folder, window, batches, lateness, repeated % len(batches))


@pytest.mark.long
@pytest.mark.timeout(3_600)
@cases(10_000)
@given(window=windows(KEPT), batches=BATCHES, lateness=LATENESS, repeated=st.integers(0, 3))
def test_many_windows_are_those_of_the_model(
    tmp_path: Path, window: Window, batches: list[list[Event]], lateness: int, repeated: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_state(folder, window, batches, lateness, repeated % len(batches))


# ------------------------------------------------------------------ with Spark

COLUMNS = (
    ColumnSpec("ts", DataType("timestamp_tz"), nullable=True),
    ColumnSpec("g", DataType("text"), nullable=True),
    ColumnSpec("v", BIG, nullable=True),
)


def check_operator(
    spark: SparkSession, folder: Path, window: Window, batches: Sequence[Sequence[Event]], lateness: int
) -> None:
    spec = StreamSpec("s", (), (), window=window, watermark=Watermark(lateness_ms=lateness))
    model, operator = WindowModel(window, lateness), WindowOperator(spec, COLUMNS, folder / "state")
    try:
        late = 0
        for number, events in enumerate(batches):
            moments = [
                (dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=at), g, v)
                for at, g, v in events
            ]
            rows = spark.createDataFrame(moments, "ts timestamp, g string, v bigint")
            found = operator.load_batch(number, rows).collect()
            late += operator.counts.late
            expected = {
                (start, group): (revision, values) for start, group, revision, values in model.batch(events)
            }
            assert len(found) == len(expected)
            for row in found:
                start = round(row["window_start"].replace(tzinfo=dt.timezone.utc).timestamp() * 1e6)
                assert (row["window_end"] - row["window_start"]).total_seconds() * 1000 == window.duration_ms
                values = {name: row[f"r_{name}"] for name in AGGREGATORS}
                assert (row["revision"], values) == expected[start, row["g"]]
        assert late == model.late
    finally:
        operator.close()


@pytest.mark.slow
@cases(4)
@given(window=windows(AGGREGATORS), batches=BATCHES, lateness=LATENESS)
def test_batches_of_spark_become_the_windows_of_the_model(
    spark: SparkSession, tmp_path: Path, window: Window, batches: list[list[Event]], lateness: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_operator(spark, folder, window, batches, lateness)


@pytest.mark.long
@pytest.mark.timeout(7_200)
@cases(1_000)
@given(window=windows(AGGREGATORS), batches=BATCHES, lateness=LATENESS)
def test_many_batches_of_spark_become_the_windows_of_the_model(
    spark: SparkSession, tmp_path: Path, window: Window, batches: list[list[Event]], lateness: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_operator(spark, folder, window, batches, lateness)
