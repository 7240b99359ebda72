"""Observers get all events in order, and none of them can harm a run or another observer."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ematix_flow.observe import observer
from ematix_flow.observe.observer import Observer, Observers, RunEnd
from ematix_flow.state.runlog.records import RunRecord

RECORD = RunRecord(run_id="r1", pipeline="orders", target="t", mode="append")


class Hears(Observer):
    """Keeps the events that it gets; calls ``does`` first."""

    def __init__(self, does: Callable[[], None] = lambda: None) -> None:
        self.heard: list[str] = []
        self._does = does

    def run_started(self, record: RunRecord) -> None:
        self._does()
        self.heard.append(f"started {record.pipeline}")

    def run_finished(self, record: RunRecord, ending: RunEnd) -> None:
        self._does()
        self.heard.append(f"finished {ending.will_retry}")

    def slot_ended(self, pipeline: str, at: dt.datetime, status: str, reason: str | None) -> None:
        self.heard.append(f"{pipeline} {status}: {reason}")

    def close(self) -> None:
        self.heard.append("closed")


def told(*observers: Observer, seconds: float = 5.0) -> None:
    everyone = Observers(observers)
    everyone.run_started(RECORD)
    everyone.run_finished(RECORD, RunEnd(will_retry=True))
    everyone.slot_ended("orders", RECORD.started_at, "skipped", "upstream")
    everyone.close(seconds)


def test_each_hears_everything_in_order() -> None:
    one, other = Hears(), Hears()
    told(one, other)
    assert one.heard == ["started orders", "finished True", "orders skipped: upstream", "closed"]
    assert other.heard == one.heard


def test_a_failing_observer_is_reported_once_and_gets_the_next_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def breaks() -> None:
        raise OSError("no way to https://u:hunter22@pager/")

    broken, well = Hears(breaks), Hears()
    told(broken, well)
    assert broken.heard == ["orders skipped: upstream", "closed"]
    assert len(well.heard) == 4
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "could not report" in warning
    assert "hunter22" not in warning


def test_one_that_hangs_keeps_neither_the_run_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    for_ever, well = threading.Event(), Hears()
    told(Hears(lambda: for_ever.wait(30) and None), well, seconds=0.3)
    for_ever.set()
    assert len(well.heard) == 4
    assert "takes too long" in caplog.text


def test_however_many_hang_a_process_ends_less_than_five_seconds_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    class Hanging:
        """A thread that never ends, with a simulated clock."""

        def __init__(self, **_: object) -> None: ...

        def start(self) -> None: ...

        def is_alive(self) -> bool:
            return True

        def join(self, seconds: float) -> None:
            nonlocal now
            now += seconds

    monkeypatch.setattr(observer, "threading", SimpleNamespace(Thread=Hanging))
    monkeypatch.setattr(observer, "time", SimpleNamespace(monotonic=lambda: now))
    everyone = Observers([Hears() for _ in range(10)])
    everyone.run_started(RECORD)
    everyone.close()
    assert 4.0 < now < 5.0  # one alert has four, and libraries must be read as well


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(observer, "_WAITING", 5)
    for_ever = threading.Event()
    everyone = Observers([Hears(lambda: for_ever.wait(30) and None)])
    for _ in range(20):
        everyone.run_started(RECORD)
    everyone.close(0.1)
    for_ever.set()
    assert "events are waiting to be sent" in caplog.text


def test_without_events_no_thread_is_started() -> None:
    before = threading.active_count()
    quiet = Hears()
    everyone = Observers([quiet])
    assert threading.active_count() == before
    everyone.close()
    assert quiet.heard == []
