"""Joins against a model: random event times, lateness, batches, repeated batches, ticks and restarts."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from ematix_flow.engine.streams.joins.join_operator import JoinOperator
from ematix_flow.engine.streams.joins.join_state import EVENT, JoinState
from ematix_flow.engine.streams.state.progress import Progress
from ematix_flow.engine.streams.state.state_file import StateFile
from ematix_flow.engine.streams.state.stateful_operator import SOURCE, state_version
from ematix_flow.spec.connections import KafkaConnection
from ematix_flow.spec.joins import JOIN_KINDS, Join
from ematix_flow.spec.streams import StreamSourceSpec, StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.windows import Watermark
from tests.property.fuzzed_project import new_folder
from tests.property.join_model import Event, Joined, JoinModel
from tests.property.test_windows import cases

TIMES = st.integers(-3_000, 12_000).map(lambda ms: ms * 1_000)
EVENTS = st.tuples(st.integers(0, 1), TIMES, st.sampled_from(["a", "b", None]))
BATCHES = st.lists(st.lists(EVENTS, max_size=8), min_size=1, max_size=4)
LATENESS = st.sampled_from([0, 500, 3_000])
BOUNDS = st.sampled_from([(0, 0), (-1_000, 1_000), (-2_500, 500), (1_000, 3_000), (-3_000, -1_000)])


@st.composite
def joins(draw: st.DrawFn) -> Join:
    late, (least, most) = draw(st.sampled_from(["drop", "reopen", "dlq"])), draw(BOUNDS)
    return Join(
        left_source="left",
        right_source="right",
        left_keys=("k",),
        right_keys=("k",),
        kind=draw(st.sampled_from(JOIN_KINDS)),
        min_delta_ms=least,
        max_delta_ms=most,
        event_time_column="ts",
        late_data=late,
        allowed_lateness_ms=draw(st.sampled_from([500, 2_000])) if late == "reopen" else None,
    )


def numbered(batches: Sequence[Sequence[tuple[int, int, Any]]]) -> list[list[Event]]:
    numbers = iter(range(1_000))
    return [[(*event, next(numbers)) for event in events] for events in batches]


# ------------------------------------------------------------------ the state alone


def batch_files(events: Sequence[Event], folder: Path) -> tuple[list[str], list[str]]:
    """The rows of each side as Spark writes them: key and row number."""
    files: tuple[list[str], list[str]] = ([], [])
    for side, letter in ((0, "l"), (1, "r")):
        rows = [{EVENT: e[1], f"{letter}0": e[2], f"{letter}1": e[3]} for e in events if e[0] == side]
        if rows:
            names = {EVENT: pa.int64(), f"{letter}0": pa.string(), f"{letter}1": pa.int64()}
            path = folder / f"{letter}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(names.items()))), path)
            files[side].append(str(path))
    return files


def joined_rows(file: Path | None) -> Counter[Joined]:
    rows = [] if file is None else pq.read_table(file).to_pylist()
    return Counter((row["l1"], row["r1"]) for row in rows)


@contextmanager
def open_state(join: Join, folder: Path) -> Iterator[JoinState]:
    file = StateFile(folder)
    try:
        yield JoinState(file, join, (["VARCHAR", "BIGINT"],) * 2, ([0], [0]))
    finally:
        file.close()


def check_state(
    folder: Path, join: Join, batches: Sequence[Sequence[Event]], lateness: int, repeated: int, clock: int
) -> None:
    """``repeated`` is a batch that comes twice, as after a crash before the targets had its rows.

    After it the clock moves the watermark by ``clock`` seconds, and the state is opened again.
    """
    model, output, loaded = JoinModel(join, lateness), folder / "joined.parquet", Counter[Joined]()

    def progress_at(state: JoinState, version: int) -> Progress:
        before = state.file.progress_before(version)
        return before if model.watermark is None else before.advance(model.watermark, join.reopens_for * 1000)

    def load(state: JoinState, number: int, events: Sequence[Event]) -> None:
        files, expected = batch_files(events, folder), Counter(model.batch(events))
        version = state_version(number)
        for _ in range(2 if number == repeated else 1):
            progress = progress_at(state, version)
            found = state.advance(version, progress, batch=files, output=output)
            assert joined_rows(found.file) == expected
            assert found.late == len(model.late)
            kept = [pq.read_table(file).num_rows for file in found.late_files if file is not None]
            assert sum(kept) == (len(model.late) if join.late_data == "dlq" else 0)
        loaded.update(expected)

    def tick(state: JoinState, number: int) -> None:
        if model.watermark is not None:
            model.advance(model.watermark + clock * 1_000_000)
        expected, version = Counter(model.remove_ended()), state_version(number, 1)
        for _ in range(1 + clock % 2):  # twice, as after a crash
            found = state.advance(version, progress_at(state, version), output=output)
            assert joined_rows(found.file) == expected
        loaded.update(expected)
        assert state.waiting_rows().rows == sum(map(len, model.rows))

    runs = (range(repeated + 1), range(repeated + 1, len(batches)))
    for numbers in filter(None, runs):
        with open_state(join, folder / "state") as state:
            for number in numbers:
                load(state, number, batches[number])
            tick(state, numbers.stop - 1)
    check_result(loaded, join)


def check_result(loaded: Counter[Joined], join: Join) -> None:
    """No pair and no row comes twice, and no row comes both with and without a partner."""
    assert not [row for row, times in loaded.items() if times > 1]
    for side in (0, 1):
        alone = {row[side] for row in loaded if row[1 - side] is None}
        assert alone.isdisjoint(row[side] for row in loaded if row[1 - side] is not None)


def test_a_batch_marks_its_own_rows_and_earlier_ones_every_time(tmp_path: Path) -> None:
    """One statement for both missed the earlier ones in one of ten tries."""
    join = Join("left", "right", ("k",), ("k",), kind="left_outer", time_window_ms=10_000)
    first = [(0, 0, "a"), (0, 5, "b"), (0, 100, "d"), (1, 3, "a"), (1, 20, "b"), (1, 100, "c")]
    second = [(0, 105, "c"), (0, 200, "e"), (1, 95, "d"), (1, 200, "f"), (1, 201, "f")]
    batches = numbered([[(side, at * 1_000_000, key) for side, at, key in each] for each in (first, second)])
    for _ in range(30):
        with new_folder(tmp_path) as folder:
            check_state(folder, join, batches, 0, 0, 0)


STATE = {
    "join": joins(),
    "batches": BATCHES.map(numbered),
    "lateness": LATENESS,
    "repeated": st.integers(0, 3),
    "clock": st.sampled_from([0, 1, 5]),
}


@cases(300)
@given(**STATE)
def test_joins_are_those_of_the_model(
    tmp_path: Path, join: Join, batches: list[list[Event]], lateness: int, repeated: int, clock: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_state(folder, join, batches, lateness, repeated % len(batches), clock)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@cases(10_000)
@given(**STATE)
def test_many_joins_are_those_of_the_model(
    tmp_path: Path, join: Join, batches: list[list[Event]], lateness: int, repeated: int, clock: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_state(folder, join, batches, lateness, repeated % len(batches), clock)


# ------------------------------------------------------------------ with Spark

KAFKA = KafkaConnection(name="kafka", bootstrap_servers="localhost:9092")
COLUMNS = (
    ColumnSpec("ts", DataType("timestamp_tz"), nullable=True),
    ColumnSpec("k", DataType("text"), nullable=True),
    ColumnSpec("n", DataType("integer"), nullable=True),
)


def check_operator(
    spark: SparkSession, folder: Path, join: Join, batches: Sequence[Sequence[Event]], lateness: int
) -> None:
    """The right source is declared first: what a source is called decides, not its place."""
    sources = (StreamSourceSpec(KAFKA, "right"), StreamSourceSpec(KAFKA, "left"))
    spec = StreamSpec("s", sources, (), join=join, watermark=Watermark(lateness_ms=lateness))
    model, operator = JoinModel(join, lateness), JoinOperator(spec, (COLUMNS, COLUMNS), folder / "state")
    names = [
        f"{letter}{n} {kind}" for letter in "lr" for n, kind in enumerate(("timestamp", "string", "int"))
    ]
    try:
        for number, events in enumerate(batches):
            rows = []
            for side, at, key, n in events:
                moment = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=at)
                own, other = (moment, key, n), (None, None, None)
                rows.append((*own, *other, 1) if side == 0 else (*other, *own, 0))
            frame = spark.createDataFrame(rows, ", ".join([*names, f"{SOURCE} int"]))
            found = operator.load_batch(number, frame).collect()
            assert Counter((row["left_n"], row["right_n"]) for row in found) == Counter(model.batch(events))
            assert operator.counts.late == len(model.late)
            letters = sorted(int(text.split('"n":')[1].rstrip("}")) for text in operator.late_rows())
            assert letters == (sorted(model.late) if join.late_data == "dlq" else [])
            assert operator.file.progress().watermark == model.watermark
            ends = {n: at for each in batches for _, at, _, n in each}
            for row in found:
                if row["left_n"] is not None:
                    moment = row["left_ts"].replace(tzinfo=dt.timezone.utc).timestamp() * 1e6
                    assert round(moment) == ends[row["left_n"]]
    finally:
        operator.close()


@pytest.mark.slow
@cases(4)
@given(join=joins(), batches=BATCHES.map(numbered), lateness=LATENESS)
def test_batches_of_spark_become_the_joins_of_the_model(
    spark: SparkSession, tmp_path: Path, join: Join, batches: list[list[Event]], lateness: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_operator(spark, folder, join, batches, lateness)


@pytest.mark.long
@pytest.mark.timeout(7_200)
@cases(1_000)
@given(join=joins(), batches=BATCHES.map(numbered), lateness=LATENESS)
def test_many_batches_of_spark_become_the_joins_of_the_model(
    spark: SparkSession, tmp_path: Path, join: Join, batches: list[list[Event]], lateness: int
) -> None:
    with new_folder(tmp_path) as folder:
        check_operator(spark, folder, join, batches, lateness)
