"""Observers of every run: alerts, metrics, traces. An observer never changes the outcome of a run."""

from __future__ import annotations

import datetime as dt
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError
from ematix_flow.observe.listener import Attempt, Listener, PostStepEnd, Progress
from ematix_probe.redaction import mask

if TYPE_CHECKING:
    from ematix_flow.plan.definition import Plan
    from ematix_flow.spec.expectations import ExpectationResult
    from ematix_flow.state.runlog.records import RunRecord

CLOSE_SECONDS = 4.5  # to send what is queued; with its imports a process ends within 5 s
_WAITING = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunEnd:
    """What the record of a run does not hold: whether a retry follows, and the error itself."""

    max_attempts: int = 1
    will_retry: bool = False
    error: BaseException | None = None
    already_reported: bool = False  # reported before: it is counted already


@dataclass(frozen=True)
class SchedulerTick:
    """One poll of a scheduler."""

    seconds: float
    leads: bool = True  # the others wait for the leader's lease to end
    failed: bool = False
    started: int = 0  # runs started, first and later attempts
    lags: tuple[float, ...] = ()  # seconds between the fire time of a slot and its start
    refused: int = 0  # runs that could not be started
    taken_over: int = 0  # slots taken over from a run without heartbeat
    max_attempts: Mapping[str, int] = field(default_factory=dict)  # by scheduled pipeline
    freshness_slas: Mapping[str, float] = field(
        default_factory=dict
    )  # seconds, by pipeline with a freshness_sla
    due: int | None = 0  # due slots that were not started; None if unknown
    oldest_due_seconds: float = 0.0  # seconds since the oldest of them fired


@dataclass(frozen=True)
class StreamBatch:
    """One batch that a stream has committed."""

    stream: str
    number: int
    rows_read: int
    rows_written: Mapping[str, int]  # by target
    dead_letters: int
    seconds: Mapping[str, float]  # by phase, in their order


class Observer:
    """Override the events you need. Each observer gets all events in order, on its own thread."""

    name = "observer"  # for messages about it; without secrets

    def run_started(self, record: RunRecord) -> None:
        """An attempt begins."""

    def stage_finished(self, record: RunRecord, target: str, stage: str, seconds: float) -> None:
        """A stage of the attempt has just ended well."""

    def run_is_well(self, record: RunRecord) -> None:
        """A run that goes on, such as a stream's, has done a part of its work."""

    def expectations_failed(self, record: RunRecord, failures: Sequence[ExpectationResult]) -> None:
        """A run that goes on has done a part of its work, with rows that fail these expectations.

        Each expectation is reported once in a run.
        """

    def run_finished(self, record: RunRecord, ending: RunEnd) -> None:
        """The attempt is over; the record holds its outcome.

        If the attempt died, the next run finds it and sends this event.
        """

    def slot_ended(self, pipeline: str, at: dt.datetime, status: str, reason: str | None) -> None:
        """A scheduled slot ended without a run.

        It was ``skipped`` because of an upstream, or ``missed``, or its runs died: ``gave_up``, or
        ``succeeded`` if one of them had loaded it.
        """

    def scheduler_ticked(self, tick: SchedulerTick) -> None:
        """A scheduler has polled."""

    def batch_committed(self, batch: StreamBatch) -> None:
        """A stream has just committed a batch."""

    def close(self) -> None:
        """Send what is left. It is abandoned if it takes too long."""


class Observers:
    """Notifies all observers, each in isolation: a slow or broken one delays neither a run nor another."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._threads = [_ObserverThread(observer) for observer in observers]

    def __bool__(self) -> bool:
        """Whether there are observers."""
        return bool(self._threads)

    def run_started(self, record: RunRecord) -> None:
        self._notify(lambda observer: observer.run_started(record))

    def stage_finished(self, record: RunRecord, target: str, stage: str, seconds: float) -> None:
        self._notify(lambda observer: observer.stage_finished(record, target, stage, seconds))

    def run_is_well(self, record: RunRecord) -> None:
        self._notify(lambda observer: observer.run_is_well(record))

    def expectations_failed(self, record: RunRecord, failures: Sequence[ExpectationResult]) -> None:
        self._notify(lambda observer: observer.expectations_failed(record, failures))

    def run_finished(self, record: RunRecord, ending: RunEnd) -> None:
        self._notify(lambda observer: observer.run_finished(record, ending))

    def slot_ended(self, pipeline: str, at: dt.datetime, status: str, reason: str | None) -> None:
        self._notify(lambda observer: observer.slot_ended(pipeline, at, status, reason))

    def scheduler_ticked(self, tick: SchedulerTick) -> None:
        self._notify(lambda observer: observer.scheduler_ticked(tick))

    def batch_committed(self, batch: StreamBatch) -> None:
        self._notify(lambda observer: observer.batch_committed(batch))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until queued events are sent, for at most this many seconds in total."""
        for thread in self._threads:
            thread.end()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _notify(self, event: Callable[[Observer], None]) -> None:
        for thread in self._threads:
            thread.notify(event)


class _ObserverThread:
    """One observer with its thread, which starts with the first event."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._events: queue.Queue[Callable[[Observer], None] | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._has_warned = False

    def notify(self, event: Callable[[Observer], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"ematix-flow-{self._observer.name}", daemon=True
            )
            self._thread.start()
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._warn_once(f"{_WAITING:,} events are waiting to be sent")

    def end(self) -> None:
        if self._thread is not None:
            try:
                self._events.put_nowait(None)
            except queue.Full:
                self._warn_once(f"{_WAITING:,} events are waiting to be sent")

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._warn_once("it takes too long; events that it had not sent are lost")

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            self._call_observer(event)
        self._call_observer(lambda observer: observer.close())

    def _call_observer(self, event: Callable[[Observer], None]) -> None:
        try:
            event(self._observer)
        except Exception as error:  # a library may raise anything, and the run goes on
            message = str(error) if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
            self._warn_once(message)

    def _warn_once(self, why: str) -> None:
        if not self._has_warned:  # once per process
            self._has_warned = True
            _log.warning("%s", mask(f"{self._observer.name} could not report a run: {why}"))


class ObservedListener(Listener):
    """A run's listener that also reports its stages to the observers."""

    def __init__(self, record: RunRecord, listener: Listener, observers: Observers) -> None:
        self._record, self._listener, self._observers = record, listener, observers

    def run_started(self, attempt: Attempt) -> Listener:
        return self._listener.run_started(attempt)  # a run inside this one has its own stages

    def planned(self, plan: Plan) -> None:
        self._listener.planned(plan)

    def stage_started(self, target: str, stage: str) -> None:
        self._listener.stage_started(target, stage)

    def progress(self, target: str, progress: Progress) -> None:
        self._listener.progress(target, progress)

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        self._listener.stage_finished(target, stage, seconds)
        self._observers.stage_finished(self._record, target, stage, seconds)

    def post_step_finished(self, step: PostStepEnd) -> None:
        self._listener.post_step_finished(step)

    def note(self, text: str) -> None:
        self._listener.note(text)
