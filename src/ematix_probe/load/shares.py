"""The share of a load that one process carries out: what it gets, what it reports, how it is stopped.

With several processes, process ``share`` of ``shares`` starts the arrivals, or runs the users, whose number
is ``share`` modulo ``shares``: together they do exactly what one process would do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ematix_probe.load.feeders import scattered
from ematix_probe.load.hosts import Endpoint
from ematix_probe.load.profile import LoadProfile
from ematix_probe.load.recording import SECOND, RecentCounts, Recorder

PAUSE_AFTER_REFUSAL = 0.05  # seconds that a user waits who could not connect, so that it does not spin
FAREWELL = SECOND  # how long an interrupted load waits for what is in flight
REFUSALS = frozenset(
    {
        "connection refused",
        "cannot connect",
        "too many open files",
        "tls certificate",
        "tls",
        "no http2",
        "template",
    }
)


@dataclass(frozen=True)
class Share:
    """One process's part of a load. ``target`` is resolved: it holds secrets in clear."""

    target: Any  # HttpTarget or SqlTarget
    endpoints: tuple[Endpoint, ...]
    profile: LoadProfile
    warmup: float
    timeout: float
    max_in_flight: int
    think_time: tuple[float, float] | None = None
    seed: int = 0
    share: int = 0
    shares: int = 1

    @property
    def recorder(self) -> Recorder:
        return Recorder(round(self.warmup * SECOND), round(self.profile.seconds * SECOND))

    def intended_start(self, number: int, end: int) -> int:
        """When an arrival is due, in nanoseconds from the beginning: before the ``end`` of the load."""
        return min(round(self.profile.arrival_time(number) * SECOND), end - 1)

    def thinking_seconds(self, n: int) -> float:
        """How long the user waits after iteration ``n``: evenly spread over the range."""
        if self.think_time is None:
            return 0.0
        low, high = self.think_time
        return low + (high - low) * (scattered(self.seed, n) / 2**64)


@dataclass
class ShareResult:
    """What one process did. ``elapsed`` is when the last arrival could have started, in nanoseconds."""

    recorder: Recorder
    elapsed: int
    interrupted: bool = False
    ended_early: str | None = None  # why, in words
    abandoned: int = 0  # requests in flight that an interruption left

    def to_json(self) -> dict[str, Any]:
        return {
            "recorder": self.recorder.to_json(),
            "elapsed": self.elapsed,
            "interrupted": self.interrupted,
            "ended_early": self.ended_early,
            "abandoned": self.abandoned,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShareResult:
        return cls(**{**value, "recorder": Recorder.from_json(value["recorder"])})


@dataclass(frozen=True)
class Snapshot:
    """What one process did since its last snapshot, and how it stands. Times in nanoseconds."""

    elapsed: int
    completed: int
    errors: int
    cells: tuple[tuple[int, int], ...]  # latencies in coarse cells
    in_flight: int
    waiting: int  # arrivals that are due and wait for a free place
    all_attempts: int
    all_errors: int


Publish = Callable[[Snapshot], None]
Ready = Callable[[], int]  # says that all is prepared; returns the time of the start


def take_snapshot(recorder: Recorder, elapsed: int, in_flight: int, waiting: int) -> Snapshot:
    """A snapshot; what happens from now on belongs to the next."""
    recent, recorder.recent = recorder.recent, RecentCounts()
    return Snapshot(
        elapsed,
        recent.completed,
        recent.errors,
        tuple(recent.cells.items()),
        in_flight,
        waiting,
        recorder.attempts,
        recorder.failures,
    )


class StopSignal:
    """Asks a running share to stop, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._callbacks: list[Callable[[], None]] = []

    def set(self) -> None:
        with self._lock:
            self._is_set = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                callback()

    @property
    def is_set(self) -> bool:
        return self._is_set

    def call(self, callback: Callable[[], None]) -> None:
        """Call back once the signal is set, at once when it is."""
        with self._lock:
            if not self._is_set:
                self._callbacks.append(callback)
                return
        callback()
