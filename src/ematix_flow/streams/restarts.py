"""Restarts failed streams: the restart policy, and the supervisor that applies it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ematix_flow.errors import ConfigError, FlowError
from ematix_probe.redaction import mask

T = TypeVar("T")

Wait = Callable[[float], bool]  # waits this many seconds; true if it was stopped meanwhile


@dataclass(frozen=True)
class RestartPolicy:
    """How long to wait before a restart, and how many restarts to allow.

    The longest wait doubles with each consecutive failure up to ``max_backoff_ms``. With ``jitter`` the wait
    is random up to that, so that streams that failed together do not restart together. A run of at least
    ``reset_backoff_after_seconds`` resets the count of failures. ``max_restarts`` limits consecutive
    restarts; None means no limit.
    """

    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    max_restarts: int | None = None
    reset_backoff_after_seconds: float = 60.0
    jitter: bool = True

    def __post_init__(self) -> None:
        wrong = None
        if self.initial_backoff_ms < 1:
            wrong = f"initial_backoff_ms is {self.initial_backoff_ms}; it is at least 1"
        elif self.max_backoff_ms < self.initial_backoff_ms:
            wrong = f"max_backoff_ms is {self.max_backoff_ms}, less than initial_backoff_ms"
        elif self.max_restarts is not None and self.max_restarts < 0:
            wrong = f"max_restarts is {self.max_restarts}; it is at least 0"
        elif not self.reset_backoff_after_seconds >= 0:
            wrong = f"reset_backoff_after_seconds is {self.reset_backoff_after_seconds}; it is at least 0"
        if wrong:
            raise ConfigError(f"the restart policy is invalid: {wrong}")

    def longest_delay(self, consecutive: int) -> float:
        """Return the longest wait in seconds after this many consecutive failures, from 1."""
        doublings = min(max(consecutive, 1) - 1, 63)  # more doublings only make the number longer
        return min(self.initial_backoff_ms << doublings, self.max_backoff_ms) / 1000

    def delay(self, consecutive: int, rng: random.Random) -> float:
        """Return the seconds to wait before the next start."""
        longest = self.longest_delay(consecutive)
        return rng.uniform(0, longest) if self.jitter else longest

    def allows(self, consecutive: int) -> bool:
        """Whether another start follows after this many consecutive failures."""
        return self.max_restarts is None or consecutive <= self.max_restarts


@dataclass(frozen=True)
class RestartNotice:
    """One restart: the failure before it, the count of consecutive failures, and the wait in seconds."""

    error: FlowError
    consecutive: int
    delay: float
    limit: int | None = None

    def __str__(self) -> str:
        count = f"{self.consecutive}" + ("" if self.limit is None else f" of {self.limit}")
        first = self.error.what.splitlines()[0] if self.error.what else ""
        return mask(f"restart {count} in {self.delay:.1f} s, after {type(self.error).__name__}: {first}")


class RestartSupervisor(Generic[T]):
    """Runs an attempt again after each failure, until it ends well, is stopped, or fails for good.

    ``stop`` ends a wait at once; an attempt must check the same event. ``wait`` is for tests with their own
    clock. ``note`` and ``on_restart`` are called for each restart, before the wait.
    """

    def __init__(
        self,
        policy: RestartPolicy,
        *,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait | None = None,
        rng: random.Random | None = None,
        on_restart: Callable[[RestartNotice], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.policy = policy
        self.stop = stop or threading.Event()
        self._clock = clock
        self._wait: Wait = wait or self.stop.wait
        self._rng = rng or random.Random()
        self._on_restart = on_restart
        self._note = note

    def run(self, attempt: Callable[[], T], is_final: Callable[[FlowError], bool]) -> T | None:
        """Return the result of the attempt that ended well; None if stopped before or between attempts.

        Final errors are raised at once. So are errors that occur after ``stop`` is set or after the last
        allowed restart. Errors that are not a FlowError are bugs, and are raised too.
        """
        consecutive = 0
        while not self.stop.is_set():
            started = self._clock()
            try:
                return attempt()
            except FlowError as error:
                if self.stop.is_set() or is_final(error):
                    raise
                if self._clock() - started >= self.policy.reset_backoff_after_seconds:
                    consecutive = 0
                consecutive += 1
                if not self.policy.allows(consecutive):
                    _note_given_up(error, consecutive - 1)
                    raise
                delay = self.policy.delay(consecutive, self._rng)
                self._notify(RestartNotice(error, consecutive, delay, self.policy.max_restarts))
            if self._wait(delay):
                return None
        return None

    def _notify(self, restart: RestartNotice) -> None:
        if self._note is not None:
            self._note(str(restart))
        if self._on_restart is not None:
            self._on_restart(restart)


def _note_given_up(error: FlowError, restarts: int) -> None:
    if restarts:
        given_up = f"given up after {restarts} restart{'' if restarts == 1 else 's'} in a row"
        error.state = f"{error.state}; {given_up}" if error.state else given_up
