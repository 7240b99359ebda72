"""How running streams are shown, in a terminal and in a log."""

from __future__ import annotations

import io

import pytest

from ematix_flow.cli import stream_views
from ematix_flow.cli.stream_views import (
    LineStreamView,
    LiveStreamView,
    QuietStreamView,
    StreamCounters,
    choose_stream_view,
)
from ematix_flow.errors import TargetFailed
from ematix_flow.observe.stream_listener import StreamListener


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(stream_views, "time", found)
    return found


def said(view: LineStreamView) -> list[str]:
    """The lines so far, without their times."""
    assert isinstance(view.stream, io.StringIO)
    return [line.partition(" ")[2] for line in view.stream.getvalue().splitlines()]


def test_a_log_gets_a_line_every_ten_seconds_in_which_something_happened(clock: Clock) -> None:
    view = LineStreamView(["a"], io.StringIO())
    view.started("a", "")
    view.batch_committed("a", 0, 10, 10, 2.0, {})
    view.tick()
    assert said(view) == ["a: started"]
    clock.now += 10
    view.batch_committed("a", 1, 20, 20, 2.0, {"p": 5})
    view.tick()
    line = "a: batch=1 rows_read=30 rows_written=30 rows_per_second=10 batch_seconds=2.00 lag=5"
    assert said(view)[1:] == [line]
    clock.now += 10
    view.tick()
    assert said(view)[2:] == []
    view.dead_letters_added("a", 3)
    view.tick()
    assert said(view)[2:] == [f"{line} dead_letters=3"]


def test_lag_in_time_is_that_of_the_latest_partition(clock: Clock) -> None:
    state = StreamCounters("a")
    state.record_batch(1, 5, 5, 1.0, {"s/0": 1500, "s/1": 4000}, "milliseconds")
    assert state.key_values().endswith(" lag_ms=4000")
    assert ", lag 4.0 s," in state.summary()


def test_a_log_says_restarts_and_the_end_at_once(clock: Clock) -> None:
    view = LineStreamView(["a"], io.StringIO())
    view.restarting("a", TargetFailed("the disk is full"), 2.04)
    view.stopped("a")
    assert said(view) == [
        "a: failed, restarts in 2.0 s: the disk is full",
        "a: stopped batch=- rows_read=0 rows_written=0 rows_per_second=0 batch_seconds=0.00 restarts=1",
    ]


def test_a_terminal_gets_one_line_for_each_stream() -> None:
    view = LiveStreamView(["a", "b"], Terminal())
    with view.display():
        view.started("a", "")
        view.batch_committed("a", 4, 1000, 1000, 0.5, {"0": 7})
        view.dead_letters_added("a", 2)
        view._progress.refresh()
        view.stopped("a")
        view.failed("b", TargetFailed("the disk is full"))
    assert isinstance(view.stream, io.StringIO)
    text = view.stream.getvalue()
    assert "1,000 rows, 2,000 a second, batch 4, lag 7, last 0.5 s, 2 dead letters" in text
    assert "a: stopped:" in text
    assert "the disk is full" in text


def test_quiet_says_only_what_failed_for_good() -> None:
    view = QuietStreamView(["a", "b"], io.StringIO())
    view.started("a", "")
    view.batch_committed("a", 1, 1, 1, 1.0, {})
    view.note("x")
    view.restarting("a", TargetFailed("again"), 1)
    view.failed("b", TargetFailed("the disk is full"))
    view.stopped("a")
    assert isinstance(view.stream, io.StringIO)
    assert view.stream.getvalue() == "error in b: the disk is full\n"


def test_no_view_shows_a_secret() -> None:
    view = LineStreamView(["a"], io.StringIO())
    view.note("reading postgres://u:hunter2-secret@h/db")
    view.restarting("a", RuntimeError("postgres://u:hunter2-secret@h/db"), 1)
    assert isinstance(view.stream, io.StringIO)
    assert "hunter2-secret" not in view.stream.getvalue()


def test_the_stream_decides_which_view_it_gets() -> None:
    assert isinstance(choose_stream_view(["a"], stream=io.StringIO()), LineStreamView)
    assert isinstance(choose_stream_view(["a"], stream=Terminal()), LiveStreamView)
    assert isinstance(choose_stream_view(["a"], quiet=True, stream=Terminal()), QuietStreamView)


def test_a_listener_overrides_only_the_events_it_needs() -> None:
    stopped: list[str] = []

    class Listener(StreamListener):
        def stopped(self, name: str) -> None:
            stopped.append(name)

    listener = Listener()
    listener.started("a", "")
    listener.batch_committed("a", 1, 1, 1, 1.0, {})
    listener.lag_changed("a", {"0": 1}, "messages")
    listener.dead_letters_added("a", 1)
    listener.messages_left_out("a", 1, 1)
    listener.restarting("a", RuntimeError(), 1.0)
    listener.stopped("a")
    listener.note("x")
    assert stopped == ["a"]
