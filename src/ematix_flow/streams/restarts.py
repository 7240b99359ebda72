"""When a stream that failed is started again: the policy as a value, and the supervisor that follows it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ematix_flow.errors import ConfigError, FlowError
from ematix_flow.spec.redaction import mask

T = TypeVar("T")

Wait = Callable[[float], bool]  # waits so many seconds; true when it was told to stop meanwhile


@dataclass(frozen=True)
class RestartPolicy:
    """How long to wait before the next start, and how often to try.

    The longest wait doubles with each failure in a row up to ``max_backoff_ms``; with ``jitter`` the wait
    is anything up to it, so that streams which one server's fall broke do not all come back at once. A run
    of ``reset_backoff_after_seconds`` or more counts as good: the next failure is a first one again.
    ``max_restarts`` limits the restarts in a row; None means for ever.
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
            raise ConfigError(f"the restart policy cannot be: {wrong}")

    def longest_delay(self, consecutive: int) -> float:
        """Seconds, for the failure that is so many-th in a row, from 1."""
        doublings = min(max(consecutive, 1) - 1, 63)  # beyond, the number only grows in digits
        return min(self.initial_backoff_ms << doublings, self.max_backoff_ms) / 1000

    def delay(self, consecutive: int, rng: random.Random) -> float:
        """Seconds to wait before the next start."""
        longest = self.longest_delay(consecutive)
        return rng.uniform(0, longest) if self.jitter else longest

    def allows(self, consecutive: int) -> bool:
        """Whether there is another start after so many failures in a row."""
        return self.max_restarts is None or consecutive <= self.max_restarts


@dataclass(frozen=True)
class RestartNotice:
    """One restart: the failure before it, how many there were in a row, and the wait in seconds."""

    error: FlowError
    consecutive: int
    delay: float
    limit: int | None = None

    def __str__(self) -> str:
        count = f"{self.consecutive}" + ("" if self.limit is None else f" of {self.limit}")
        first = self.error.what.splitlines()[0] if self.error.what else ""
        return mask(f"restart {count} in {self.delay:.1f} s, after {type(self.error).__name__}: {first}")


class RestartSupervisor(Generic[T]):
    """Runs what should not end again and again, until it ends well, is stopped, or cannot be cured.

    ``stop`` ends a wait at once; an attempt is expected to look at the same event. ``wait`` is for tests
    with a clock of their own. ``note`` and ``on_restart`` hear of each restart before the wait.
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
        """What the attempt that ended well returned; None when it was to stop before or between attempts.

        An error that is final is raised at once; one that comes while it is to stop, or after the last
        restart that the policy allows, too. Errors that are none of ours are bugs, and are raised.
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
        said = f"given up after {restarts} restart{'' if restarts == 1 else 's'} in a row"
        error.state = f"{error.state}; {said}" if error.state else said
