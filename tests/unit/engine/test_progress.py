"""How far event time has come in streams of several sources, with sources that are quiet."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.engine.streams.state.progress import Progress
from ematix_flow.engine.streams.state.stateful_operator import BatchCounts, OpenRows
from ematix_flow.engine.streams.windows.window_operator import WindowOperator
from ematix_flow.spec.connections import KafkaConnection
from ematix_flow.spec.streams import StreamSourceSpec, StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.windows import Aggregation, Watermark, Window

KAFKA = KafkaConnection(name="kafka", bootstrap_servers="localhost:9092")
SECOND = 1_000_000


def after(progress: Progress, *highest: int | None) -> Progress:
    return progress.after_rows(highest, 0, 0)


def test_the_slowest_source_decides() -> None:
    progress = after(Progress(), 10, None)
    assert progress.watermark is None, "the second source has sent nothing yet"
    progress = after(progress, 20, 5)
    assert (progress.watermark, progress.border) == (5, 5)
    progress = after(progress, None, 3)
    assert progress.watermark == 5, "it never goes back"
    assert after(progress, None, 30).watermark == 20


def test_an_idle_source_is_not_waited_for_until_it_brings_rows() -> None:
    progress = after(Progress(), 10, None).with_idle([1])
    progress = after(progress, 20, None)
    assert progress.watermark == 20
    progress = after(progress, 50, 15)
    assert progress.watermark == 20, "it is back, and behind"
    assert Progress.from_text(progress.to_text()) == progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def operator(tmp_path: Path, clock: Clock) -> WindowOperator:
    """Two sources that have both come to 100 s, and a window that ends at 110 s."""
    window = Window("tumbling", [Aggregation("count", "n")], duration_ms=10_000, event_time_column="ts")
    sources = tuple(StreamSourceSpec(KAFKA, topic) for topic in ("one", "other"))
    spec = StreamSpec("s", sources, (), window=window, watermark=Watermark(source_idleness_ms=5_000))
    columns = (ColumnSpec("ts", DataType("timestamp_tz"), nullable=True),)
    found = WindowOperator(spec, columns, tmp_path, clock)
    found.counts = BatchCounts(0, (100 * SECOND, 100 * SECOND))
    with found.file.transaction(0, ("windows",)):
        found.file.store_progress(0, found.progress_after(0, Progress()))
    found.open = OpenRows(1, 110 * SECOND)
    found.mark_active()
    return found


def test_the_clock_closes_a_window_when_all_sources_are_quiet(operator: WindowOperator, clock: Clock) -> None:
    clock.now = 9
    assert not operator.is_tick_due()
    clock.now = 11
    assert operator.is_tick_due()


def test_a_source_that_brings_rows_after_a_pause_is_not_idle(operator: WindowOperator, clock: Clock) -> None:
    """The broker was unreachable for a while: the rows that come now are not late."""
    clock.now = 600
    operator.mark_arriving([0, 1])
    assert not operator.is_tick_due()
    assert operator.has_version(0) and not operator.has_version(1)


def test_a_quiet_source_does_not_hold_back_the_other(operator: WindowOperator, clock: Clock) -> None:
    operator.counts = BatchCounts(0, (150 * SECOND, None))
    with operator.file.transaction(1_000_000, ("windows",)):
        operator.file.store_progress(1_000_000, operator.progress_after(1_000_000, operator.file.progress()))
    assert operator.file.progress().watermark == 100 * SECOND
    clock.now = 4
    operator.mark_active()  # of the first source
    clock.now = 6
    assert operator.is_tick_due()


def test_a_repeated_batch_has_the_progress_of_its_first_time(tmp_path: Path) -> None:
    """Also if the lateness was changed in between: the targets may already have its rows."""
    window = Window("tumbling", [Aggregation("count", "n")], duration_ms=10_000, event_time_column="ts")
    columns = (ColumnSpec("ts", DataType("timestamp_tz"), nullable=True),)
    for lateness in (0, 60_000):
        spec = StreamSpec("s", (), (), window=window, watermark=Watermark(lateness_ms=lateness))
        operator = WindowOperator(spec, columns, tmp_path)
        operator.counts = BatchCounts(0, (100 * SECOND,))
        progress = operator.progress_after(0, Progress())
        with operator.file.transaction(0, ("windows",)):
            operator.file.store_progress(0, progress)
        operator.close()
        assert progress.watermark == 100 * SECOND


def test_a_tick_with_the_number_of_a_finished_one_is_repeated_after_a_crash(operator: WindowOperator) -> None:
    """The end of a run may be a tick that changes no state: the next tick has the same number."""
    assert operator.begin_tick(0, flush=True) == 1
    operator.finish_tick(0, 1)
    assert operator.unfinished_tick() is None
    assert operator.begin_tick(0, flush=False) == 1
    assert operator.unfinished_tick() == (0, 1)
