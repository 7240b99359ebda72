"""Obeys what people ask of a run at work: stop it, or hold it until it is resumed.

A run reads requests at its safe points: before each stage, before each post-load step, between two batches
of a stream. The store is asked by the run's watcher, never by the run: a store that is away delays no run,
and a held run goes on waiting until the store says otherwise.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError, RunStopped
from ematix_flow.state.runlog.base import warn_once
from ematix_probe.redaction import mask

if TYPE_CHECKING:
    from ematix_flow.state.actions.base import ActionStore
    from ematix_flow.state.actions.records import ActionRecord, Hold

FIRST_ANSWER_SECONDS = 20.0  # that a run waits for at its start, if it may have been held before
START_ANSWER_SECONDS = 2.0  # the same of every run: one that was paused before it began is held
_LONGEST_PAUSE_SECONDS = 30.0  # between two polls of a store that is away
_HELD_PAUSE_SECONDS = 2.0  # the same while the run is held
_CHECK_SECONDS = 0.2
_CANCEL_SECONDS = 3.0  # for a cancelled Spark job to end the run, before the run is interrupted
_SIGNAL = getattr(signal, "SIGURG", None)  # ignored by default: one that comes too late does no harm


class RunControl:
    """The requests about one run. ``poll`` is called by its watcher, the rest by the run's own threads.

    ``earlier_run_ids`` are the attempts before, newest first: the run also obeys the stops of these.
    """

    def __init__(
        self,
        name: str,
        run_id: str,
        open_actions: Callable[[], ActionStore] | None,
        what: str = "pipeline",
        earlier_run_ids: Sequence[str] = (),
    ) -> None:
        self._name, self._run_id, self._open = name, run_id, open_actions
        self._earlier_run_ids = tuple(earlier_run_ids)
        self._subject = f"{what} {name!r}"
        self._store: ActionStore | None = None
        self._failures, self._not_before = 0, 0.0
        self._changed = threading.Condition()
        self._stop: ActionRecord | None = None
        self._hold: Hold | None = None
        self._has_answer = open_actions is None
        self._safe_point: str | None = None  # where the run waits now
        self._marked: str | None = None  # where it waits as far as the store knows
        self._is_over = False
        self._is_interruptible = False  # the run is in the main thread, and has not been interrupted yet
        self._cancelled_at: float | None = None
        self.note: Callable[[str], None] = lambda text: None
        self.wake: Callable[[], None] = lambda: None  # lets the watcher poll now

    # ------------------------------------------------------------------ called by the run

    @property
    def stop_error(self) -> RunStopped | None:
        """The error of a run that somebody asked to stop; None if nobody did."""
        stop = self._stop
        return None if stop is None else RunStopped(f"{self._subject} was stopped by {stop.requested_by}")

    @property
    def is_held(self) -> bool:
        return self._hold is not None

    def safe_point(self, label: str, until: Callable[[], bool] = lambda: False) -> None:
        """Wait here while the run is held. Raises RunStopped if it is to stop.

        A wait also ends when ``until`` is true.
        """
        if self._hold is not None:
            self._wait(label, until)
        error = self.stop_error
        if error is not None and not until():
            self._is_interruptible = False
            raise error

    def wait_for_answer(
        self, until: Callable[[], bool] = lambda: False, at_most: float = FIRST_ANSWER_SECONDS
    ) -> None:
        """Wait until the store has been asked once, or could not be."""
        if self._has_answer:
            return
        self.wake()
        deadline = time.monotonic() + at_most
        with self._changed:
            while not (self._has_answer or self._failures or until()) and time.monotonic() < deadline:
                self._changed.wait(_CHECK_SECONDS)

    def rest(self, label: str | None) -> None:
        """Note that the run waits at this point although it has nothing to do; None: not any more."""
        if label != self._safe_point:
            self._safe_point = label
            self.wake()

    def _wait(self, label: str, until: Callable[[], bool]) -> None:
        since = time.monotonic()
        with self._changed:
            hold = self._hold
            if hold is None:
                return
            reason = f" ({hold.reason})" if hold.reason else ""
            self.note(f"held {label} by {hold.by}{reason}; flow resume {self._name}  lets it go on")
            self._safe_point = label
            self.wake()
            try:
                while self._hold is not None and self._stop is None and not until():
                    self._changed.wait(_CHECK_SECONDS)
            finally:
                self._safe_point = None
                self.wake()
        self.note(f"goes on after {time.monotonic() - since:.0f} s")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within the block, in the main thread, a stop interrupts what is being worked on."""
        if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._is_interruptible = True
        with _handling_stops(self):
            try:
                yield
            finally:
                self._is_interruptible = False

    def close(self, outcome: str) -> None:
        """End the request to stop, if there is one: the run is over."""
        self._is_over = True
        stop, store = self._stop, self._store
        if store is None:
            return
        try:
            if self._marked is not None:
                store.mark_released(self._name, self._run_id)
            if stop is not None:
                store.end(stop, "done", outcome, (self._run_id,))
            store.close()
        except Exception as error:  # the run is over in any case
            self._warn(error)

    # ------------------------------------------------------------------ called by the watcher

    def poll(self) -> None:
        """Ask the store, and tell it where the run waits."""
        if self._open is None or time.monotonic() < self._not_before:
            return
        try:
            if self._store is None:
                self._store = self._open()
            self._ask(self._store)
            self._failures = 0
        except Exception as error:  # no problem of the store stops the run
            self._failures += 1
            longest = _LONGEST_PAUSE_SECONDS if self._hold is None else _HELD_PAUSE_SECONDS
            self._not_before = time.monotonic() + min(2.0 ** min(self._failures, 10), longest)
            self._warn(error)
        if self._stop is not None:
            self._interrupt()

    def _ask(self, store: ActionStore) -> None:
        stop, hold = self._find_stop(store), store.find_hold("run", self._name)
        with self._changed:
            self._stop, self._hold, self._has_answer = stop, hold, True
            self._changed.notify_all()
            waits_at = self._safe_point
        if hold is not None and waits_at is not None and hold.held_run != self._run_id:
            store.mark_held(self._name, self._run_id, waits_at)
            self._marked = waits_at
        elif self._marked is not None and waits_at is None:
            if hold is not None:
                store.mark_released(self._name, self._run_id)
            self._marked = None

    def _find_stop(self, store: ActionStore) -> ActionRecord | None:
        for run_id in (self._run_id, *self._earlier_run_ids):
            if (stop := store.stop_requested(run_id)) is not None:
                return stop
        self._earlier_run_ids = self._earlier_run_ids[:1]  # from now on only the newest may be stopped
        return None

    def _interrupt(self) -> None:
        """Interrupt the run if it does not come to a safe point by itself."""
        if not self._is_interruptible or self._safe_point is not None:
            return
        now = time.monotonic()
        if self._cancelled_at is None:  # a cancelled job ends without breaking the connection to Java
            from ematix_flow.engine.spark.session import cancel_jobs  # commands that only read need no engine

            self._cancelled_at = now
            if cancel_jobs():
                return
        elif now - self._cancelled_at < _CANCEL_SECONDS:
            return
        assert _SIGNAL is not None
        ident = threading.main_thread().ident
        if ident is not None:
            signal.pthread_kill(ident, _SIGNAL)

    def _take_interrupt(self) -> bool:
        """Whether the signal is for this run: it is at work, and somebody asked it to stop."""
        if self._is_over or not self._is_interruptible or self._stop is None:
            return False
        self._is_interruptible = False
        return True

    def _warn(self, error: Exception) -> None:
        what = error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
        message = mask(f"requests to stop or pause runs cannot be read: {what}. Runs go on")
        warn_once("requests about runs", message)


_at_work: list[RunControl] = []  # in the main thread, the innermost last


@contextmanager
def _handling_stops(control: RunControl) -> Iterator[None]:
    assert _SIGNAL is not None
    before = signal.signal(_SIGNAL, _stop_run)
    _at_work.append(control)
    try:
        yield
    finally:
        _at_work.remove(control)
        signal.signal(_SIGNAL, before)


def _stop_run(number: int, frame: FrameType | None) -> None:
    if any(control._take_interrupt() for control in _at_work):
        raise KeyboardInterrupt
