"""Sessions against a model: random event times, lateness, batches, repeated batches and restarts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from ematix_flow.engine.streams.state.state_file import StateFile
from ematix_flow.engine.streams.state.stateful_operator import state_version
from ematix_flow.engine.streams.windows.accumulators import build_accumulators
from ematix_flow.engine.streams.windows.session_state import ROWS, SessionState
from ematix_flow.engine.streams.windows.window_operator import WindowOperator
from ematix_flow.engine.streams.windows.window_state import START
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.windows import AGGREGATORS, Aggregation, Watermark, Window
from tests.property.fuzzed_project import new_folder
from tests.property.session_model import Loaded, SessionModel
from tests.property.test_windows import BIG, COLUMNS, KEPT, cases
from tests.property.window_model import Event, aggregates

# few times, so that sessions touch, join and reach their longest duration
EVENTS = st.tuples(
    st.integers(-4, 24).map(lambda n: n * 500_000),
    st.sampled_from(["a", "b", None]),
    st.none() | st.integers(-5, 5),
)
LATENESS = st.sampled_from([0, 500, 3_000, 60_000])
BATCHES = st.lists(st.lists(EVENTS, max_size=8), min_size=1, max_size=5)


@st.composite
def sessions(draw: st.DrawFn, names: Sequence[str]) -> Window:
    late = draw(st.sampled_from(["drop", "reopen", "dlq"]))
    return Window(
        kind="session",
        gap_ms=draw(st.sampled_from([500, 1_000, 1_500])),
        max_session_duration_ms=draw(st.sampled_from([2_000, 4_500, 100_000])),
        event_time_column="ts",
        group_by=("g",),
        late_data=late,
        allowed_lateness_ms=draw(st.sampled_from([500, 2_000])) if late == "reopen" else None,
        aggregations=[Aggregation(n, f"r_{n}", None if n == "count" else "v") for n in names],  # type: ignore[arg-type]
    )


# ------------------------------------------------------------------ the state alone


def batch_file(events: Sequence[Event], path: Path) -> list[str]:
    """The aggregates of a batch as Spark writes them: one row for each group and time."""
    rows = []
    for at, group in {(event[0], event[1]) for event in events}:
        own = [event for event in events if event[:2] == (at, group)]
        found, filled = aggregates(own), [value for _, _, value in own if value is not None]
        row = {START: at, "g0": group} | {f"a{n}": found[name] for n, name in enumerate(KEPT)}
        rows.append(row | dict.fromkeys(("a5_at", "a6_at"), at if filled else None) | {ROWS: len(own)})
    if not rows:
        return []
    types = {name: pa.int64() for name in rows[0]} | {"g0": pa.string()}
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(types.items()))), path)
    return [str(path)]


def loaded_rows(file: Path | None) -> list[Loaded]:
    return [
        (
            row["id"],
            row["first_at"],
            row["window_end"],
            row["g0"],
            row["revision"],
            None if row["merged_into"] else {name: row[f"r{n}"] for n, name in enumerate(KEPT)},
            row["merged_into"],
        )
        for row in (pq.read_table(file).to_pylist() if file is not None else ())
    ]


@contextmanager
def open_state(window: Window, folder: Path) -> Iterator[SessionState]:
    file = StateFile(folder)
    try:
        yield SessionState(file, window, ["VARCHAR"], build_accumulators(window.aggregations, {"v": BIG}))
    finally:
        file.close()


def check_state(
    folder: Path, window: Window, batches: Sequence[Sequence[Event]], lateness: int, repeated: int
) -> None:
    """``repeated`` is a batch that comes twice, as after a crash before the targets had its rows."""
    model, output = SessionModel(window, lateness), folder / "closed.parquet"

    def load(state: SessionState, number: int, events: Sequence[Event]) -> None:
        files, late = batch_file(events, folder / "batch.parquet"), model.late
        expected, progress = _by_id(model.batch(events)), state.file.progress_before(state_version(number))
        if model.watermark is not None:
            progress = progress.advance(model.watermark, window.reopens_for * 1000)
        for _ in range(2 if number == repeated else 1):
            closed = state.advance(state_version(number), progress, batch=files, output=output)
            assert _by_id(loaded_rows(closed.file)) == expected
            assert state.late.rows == model.late - late
        new = [id_ for id_, (_, _, _, revision, *_) in expected.items() if revision == 0]
        assert ids.isdisjoint(new), "two sessions have the same id"
        ids.update(new)

    ids: set[str] = set()
    runs = (range(repeated + 1), range(repeated + 1, len(batches)))
    for numbers in filter(None, runs):
        with open_state(window, folder / "state") as state:
            for number in numbers:
                load(state, number, batches[number])
            version, progress = state_version(numbers.stop - 1, 1), state.file.progress()
            closed = state.advance(version, progress, batch=[], output=output, flush=True)
            flushed = _by_id(model.flush())
            assert _by_id(loaded_rows(closed.file)) == flushed
            ids.update(id_ for id_, (_, _, _, revision, *_) in flushed.items() if revision == 0)
            assert state.open_windows().rows == sum(map(len, model.groups.values()))


def _by_id(rows: Sequence[Loaded]) -> dict[str, tuple[Any, ...]]:
    found = {
        id_: (*rest, None if values is None else {n: values[n] for n in KEPT}, merged_into)
        for id_, *rest, values, merged_into in rows
    }
    assert len(found) == len(rows), "a session is loaded twice"
    return found


@example(  # a row between two sessions that were loaded at the end of a run, while nothing else is due
    window=Window(
        kind="session",
        gap_ms=1_000,
        max_session_duration_ms=100_000,
        event_time_column="ts",
        group_by=("g",),
        aggregations=[Aggregation(n, f"r_{n}", None if n == "count" else "v") for n in KEPT],  # type: ignore[arg-type]
    ),
    batches=[[(0, "a", 1), (1_500_000, "a", 2)], [(750_000, "a", 3)]],
    lateness=60_000,
    repeated=0,
)
@cases(300)
@given(window=sessions(KEPT), batches=BATCHES, lateness=LATENESS, repeated=st.integers(0, 4))
def test_sessions_are_those_of_the_model(
    tmp_path: Path, window: Window, batches: list[list[Event]], lateness: int, repeated: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_state(folder, window, batches, lateness, repeated % len(batches))


@pytest.mark.long
@pytest.mark.timeout(3_600)
@cases(10_000)
@given(window=sessions(KEPT), batches=BATCHES, lateness=LATENESS, repeated=st.integers(0, 4))
def test_many_sessions_are_those_of_the_model(
    tmp_path: Path, window: Window, batches: list[list[Event]], lateness: int, repeated: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_state(folder, window, batches, lateness, repeated % len(batches))


# ------------------------------------------------------------------ with Spark


def check_operator(
    spark: SparkSession, folder: Path, window: Window, batches: Sequence[Sequence[Event]], lateness: int
) -> None:
    spec = StreamSpec("s", (), (), window=window, watermark=Watermark(lateness_ms=lateness))
    model, operator = SessionModel(window, lateness), WindowOperator(spec, COLUMNS, folder / "state")
    try:
        for number, events in enumerate(batches):
            late = model.late
            expected = {row[0]: row[1:] for row in model.batch(events)}
            rows = [(_moment(at), group, value) for at, group, value in events]
            found = operator.load_batch(
                number, spark.createDataFrame(rows, "ts timestamp, g string, v bigint")
            ).collect()
            assert len(found) == len(expected)
            for row in found:
                first, end, group, revision, values, merged_into = expected[row["session_id"]]
                assert (row["window_start"], row["window_end"]) == (_naive(first), _naive(end))
                assert (row["g"], row["revision"], row["merged_into"]) == (group, revision, merged_into)
                nothing = dict.fromkeys(AGGREGATORS)
                assert {name: row[f"r_{name}"] for name in AGGREGATORS} == (values or nothing)
            assert operator.counts.late == model.late - late
            assert len(list(operator.late_rows())) == model.late - late
    finally:
        operator.close()


def _moment(micros: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=micros)


def _naive(micros: int) -> dt.datetime:
    return _moment(micros).replace(tzinfo=None)


@pytest.mark.slow
@cases(4)
@given(window=sessions(AGGREGATORS), batches=BATCHES, lateness=LATENESS)
def test_batches_of_spark_become_the_sessions_of_the_model(
    spark: SparkSession, tmp_path: Path, window: Window, batches: list[list[Event]], lateness: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_operator(spark, folder, window, batches, lateness)


@pytest.mark.long
@pytest.mark.timeout(7_200)
@cases(1_000)
@given(window=sessions(AGGREGATORS), batches=BATCHES, lateness=LATENESS)
def test_many_batches_of_spark_become_the_sessions_of_the_model(
    spark: SparkSession, tmp_path: Path, window: Window, batches: list[list[Event]], lateness: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_operator(spark, folder, window, batches, lateness)
