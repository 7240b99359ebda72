"""Processes of this machine that were started for a job each, in their own process groups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from ematix_flow.schedule.executors.base import CannotDispatch

STOP_SECONDS = 30.0  # for a stopped run to roll its load back
_POLL_SECONDS = 0.05
Job = TypeVar("Job")


class ChildProcesses(Generic[Job]):
    """The processes that run. They share the output of this process. Used by one thread."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[subprocess.Popen[bytes], Job]] = {}
        self._ended: list[tuple[Job, int]] = []

    def __len__(self) -> int:
        self._reap()
        return len(self._running)

    @property
    def jobs(self) -> list[Job]:
        return [job for _, job in self._running.values()]

    def start(self, arguments: Sequence[str], variables: Mapping[str, str], job: Job, what: str) -> None:
        """Start ``flow`` with these arguments. Raises CannotDispatch, about ``what``, if that fails."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "ematix_flow", *arguments],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C for this process does not reach it
            )
        except (OSError, ValueError) as error:
            raise CannotDispatch(
                f"{what} could not be started: {getattr(error, 'strerror', None) or error}",
                next_step="look at the limits of this machine: memory, open files, processes",
            ) from error
        self._running[process.pid] = (process, job)

    def take_ended(self) -> list[tuple[Job, int]]:
        """Return the processes that have ended since the last call, with their exit codes."""
        self._reap()
        ended, self._ended = self._ended, []
        return ended

    def wait(self, seconds: float) -> None:
        """Wait until all have ended, at most so long."""
        deadline = time.monotonic() + seconds
        while len(self) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def terminate(self) -> None:
        """Stop them; each rolls its load back."""
        for process, _ in self._running.values():
            process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Stop those that run, and kill those that do not end in time."""
        self.terminate()
        self.wait(STOP_SECONDS)
        for process, _ in self._running.values():
            process.kill()
            process.wait()
        self._reap()

    def _reap(self) -> None:
        for pid, (process, job) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[pid]
                self._ended.append((job, code))


def exit_reason(code: int) -> str:
    if code > 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was ended by {name}"
