"""The lag of a stream: asked for while no batch comes too, and unknown rather than old."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from ematix_flow.engine.streams import lag as lag_module
from ematix_flow.engine.streams.followed_sources import FollowedSource
from ematix_flow.engine.streams.lag import LagWatch, StreamLag
from ematix_flow.errors import CannotConnect


class Source(FollowedSource):
    """A source of which only the lag counts."""

    def __init__(self) -> None:
        self.waiting: Mapping[str, int] | CannotConnect = {"t/0": 5}
        self.asked: list[str | None] = []

    def lag(self, after: str | None) -> Mapping[str, int]:
        self.asked.append(after)
        if isinstance(self.waiting, CannotConnect):
            raise self.waiting
        return self.waiting

    def frame(self, spark: Any) -> Any:
        raise NotImplementedError

    def read_batch(self, frame: Any, before: str | None, after: str | None) -> Any:
        raise NotImplementedError

    def mark_committed(self, before: str | None, after: str) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_module, "IDLE_SECONDS", 0.01)


def test_a_stream_without_batches_tells_its_lag_again_and_again() -> None:
    source, told = Source(), list[Mapping[str, int]]()
    grown = threading.Event()

    def tell(lag: Mapping[str, int], unit: str) -> None:
        told.append(lag)
        assert unit == "messages"
        if lag == {"t/0": 5}:
            source.waiting = {"t/0": 9}  # nothing is read, and more comes
        elif lag == {"t/0": 9}:
            grown.set()

    watch = LagWatch("events", [source], tell)
    watch.start(("here",))
    assert grown.wait(60)
    watch.stop()
    assert source.asked[0] == "here"  # where the checkpoint ends, as no batch came yet


def test_lag_of_a_source_that_does_not_answer_is_unknown_and_not_the_last_one() -> None:
    source, told = Source(), list[Mapping[str, int]]()
    watch = LagWatch("events", [source], lambda lag, unit: told.append(lag))
    assert watch.after_batch(("a",)) == {"t/0": 5}
    source.waiting = CannotConnect("nobody answers")
    watch._asked = -60.0
    watch.refresh()
    assert told == [{}]


def test_many_small_batches_ask_once() -> None:
    source = Source()
    watch = LagWatch("events", [source], lambda lag, unit: None)
    for number in range(100):
        watch.after_batch((str(number),))
    assert source.asked == ["0"]


def test_of_targets_that_move_apart_the_one_that_is_furthest_behind_counts() -> None:
    parts = StreamLag()
    assert parts.update("one", {"t/0": 5, "t/1": 0}) == {"t/0": 5, "t/1": 0}
    assert parts.update("two", {"t/0": 1, "t/1": 7}) == {"t/0": 5, "t/1": 7}
    assert parts.update("one", {}) == {"t/0": 1, "t/1": 7}
