"""The lag of a stream, measured after batches and also while no batch comes.

If a source cannot tell its lag, the lag is unknown; the last known number is never shown instead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context

from ematix_flow.backends.messages.base import LagUnit
from ematix_flow.engine.streams.followed_sources import FollowedSource

_log = logging.getLogger(__name__)
BATCH_SECONDS = 2.0  # do not ask a broker after every small batch
IDLE_SECONDS = 5.0
_STOP_SECONDS = 2.0

Lag = Mapping[str, int]
ReportLag = Callable[[Lag, LagUnit], None]
Positions = tuple[str | None, ...]


class LagWatch:
    """The lag of one query. While no batch comes, a thread measures the lag and passes it to ``tell``."""

    def __init__(self, name: str, sources: Sequence[FollowedSource], tell: ReportLag) -> None:
        self._name, self._sources, self._tell = name, sources, tell
        self._lock = threading.Lock()  # one measurement at a time
        self._asked, self._last = -IDLE_SECONDS, dict[str, int]()
        self._reached: Positions = (None,) * len(sources)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def unit(self) -> LagUnit:
        return self._sources[0].lag_unit  # several sources always have one kind

    def start(self, reached: Positions) -> None:
        """Start the thread. ``reached`` is the query's position in each source."""
        if len(reached) == len(self._sources):
            self._reached = reached
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._watch,), name=f"ematix-flow lag {self._name}", daemon=True
        )
        self._thread.start()

    def after_batch(self, reached: Positions) -> Lag:
        """The lag after a loaded batch; at most `BATCH_SECONDS` old."""
        with self._lock:
            self._reached = reached
            if time.monotonic() - self._asked >= BATCH_SECONDS:
                self._measure()
            return self._last

    def stop(self) -> None:
        """Stop, and wait shortly for a running measurement, because its source is closed next."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def _watch(self) -> None:
        while not self._ended.wait(min(IDLE_SECONDS, 1.0)):
            self.refresh()

    def refresh(self) -> None:
        """Measure and report the lag, unless it was measured just now."""
        with self._lock:
            if time.monotonic() - self._asked < IDLE_SECONDS:
                return
            self._measure()
            found = self._last
        if not self._ended.is_set():
            self._tell(found, self.unit)

    def _measure(self) -> None:
        found: dict[str, int] = {}
        for source, position in zip(self._sources, self._reached, strict=True):
            try:
                found |= source.lag(position)
            except Exception as error:  # a failed measurement must not stop the stream
                _log.debug("the lag of %s is not known: %s", self._name, error)
        self._asked, self._last = time.monotonic(), found


class StreamLag:
    """The lag of a stream whose targets are not equally far: that of the part that is furthest behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[str, Lag] = {}

    def update(self, part: str, lag: Lag) -> Lag:
        """Record the lag of one part, and return the lag of all."""
        with self._lock:
            self._parts[part] = lag
            found: dict[str, int] = {}
            for each in self._parts.values():
                for place, much in each.items():
                    found[place] = max(much, found.get(place, 0))
            return found
