"""One read, several writers: each gets every batch, and what becomes of one is not the others' affair."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from ematix_flow.backends.base import StagedPart
from ematix_flow.engine.execution.tee import QUEUE_SIZE, BatchWriter, WriterStopped, tee
from ematix_flow.errors import SourceFailed, TargetFailed


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number]})


def collecting(into: list[int], *, pause: float = 0.0) -> BatchWriter:
    def write(batches: Iterable[pa.RecordBatch]) -> StagedPart:
        for item in batches:
            time.sleep(pause)
            into.extend(item.column(0).to_pylist())
        return StagedPart("part", len(into), 0)

    return write


def failing_at(count: int) -> BatchWriter:
    def write(batches: Iterable[pa.RecordBatch]) -> StagedPart:
        for seen, _ in enumerate(batches):
            if seen == count:
                raise TargetFailed("the disk is full")
        raise AssertionError("it was to fail before")

    return write


def test_every_writer_gets_every_batch_in_order() -> None:
    first: list[int] = []
    second: list[int] = []
    told = tee(map(batch, range(50)), [collecting(first), collecting(second)], go_on=False)
    assert first == second == list(range(50))
    assert told == [StagedPart("part", 50, 0)] * 2


def test_a_source_without_rows_still_makes_a_part_each() -> None:
    assert tee([], [collecting([]), collecting([])], go_on=False) == [StagedPart("part", 0, 0)] * 2


def test_a_slow_writer_holds_the_read_back_so_that_memory_stays_bounded() -> None:
    fast: list[int] = []
    slow: list[int] = []
    furthest = 0

    def read() -> Iterator[pa.RecordBatch]:
        nonlocal furthest
        for number in range(20):
            furthest = max(furthest, number - len(slow))
            yield batch(number)

    tee(read(), [collecting(fast), collecting(slow, pause=0.005)], go_on=False)
    assert fast == slow == list(range(20))
    assert furthest <= QUEUE_SIZE + 1  # those that wait, and the one that is being written


@pytest.mark.parametrize("at", [0, 3])
def test_a_failing_writer_does_not_stop_the_others_when_they_are_to_go_on(at: int) -> None:
    rows: list[int] = []
    failed, fine = tee(map(batch, range(50)), [failing_at(at), collecting(rows)], go_on=True)
    assert isinstance(failed, TargetFailed)
    assert rows == list(range(50))
    assert fine == StagedPart("part", 50, 0)


def test_a_failing_writer_stops_the_read_and_the_others_otherwise() -> None:
    read: list[int] = []

    def endless() -> Iterator[pa.RecordBatch]:
        number = 0
        while True:
            read.append(number)
            yield batch(number)
            number += 1

    failed, other = tee(endless(), [failing_at(3), collecting([])], go_on=False)
    assert isinstance(failed, TargetFailed)
    assert isinstance(other, WriterStopped)
    assert len(read) < 20


def test_nothing_more_is_read_when_every_writer_has_failed() -> None:
    told = tee(map(batch, range(10**9)), [failing_at(0), failing_at(1)], go_on=True)
    assert [type(error) for error in told] == [TargetFailed, TargetFailed]


@pytest.mark.parametrize("go_on", [True, False])
def test_an_error_of_the_source_is_raised_and_no_writer_takes_it_for_the_end(go_on: bool) -> None:
    ended: list[str] = []

    def write(batches: Iterable[pa.RecordBatch]) -> StagedPart:
        for _ in batches:
            time.sleep(0)
        ended.append("well")
        return StagedPart("part", 0, 0)

    def breaking() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise SourceFailed("the connection was lost")

    with pytest.raises(SourceFailed):
        tee(breaking(), [write, write], go_on=go_on)
    assert ended == []


def test_a_writer_that_ends_before_the_rows_do_has_failed() -> None:
    def hasty(batches: Iterable[pa.RecordBatch]) -> StagedPart:
        next(iter(batches))
        return StagedPart("part", 1, 0)

    (told,) = tee(map(batch, range(10)), [hasty], go_on=True)
    assert isinstance(told, RuntimeError)


def test_no_thread_is_left_behind() -> None:
    before = threading.active_count()
    tee(map(batch, range(5)), [collecting([]), failing_at(1)], go_on=True)
    assert threading.active_count() == before
