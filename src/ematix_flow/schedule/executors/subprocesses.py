"""``subprocess://``: each run is a process of this machine, in its own process group."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

from ematix_flow.errors import UsageError
from ematix_flow.schedule.executors.base import CannotDispatch, Executor, RunDispatch, WorkerExit, WorkerState

STOP_SECONDS = 30.0  # for a stopped run to roll its load back
_log = logging.getLogger(__name__)


class SubprocessExecutor(Executor):
    """Runs slots as processes, at most ``workers`` at once. They share the scheduler's output."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or max(1, os.cpu_count() or 1)
        self._running: dict[int, tuple[subprocess.Popen[bytes], RunDispatch]] = {}
        self._ended: list[WorkerExit] = []
        self._has_freed = self._is_stopping = False

    def check(self, run_log: str, engine: str | None = None) -> None:
        """Its runs reach everything that the scheduler reaches, except its memory."""
        if run_log.startswith("memory://"):
            raise UsageError(
                f"runs of subprocess:// are other processes, and cannot reach the run log {run_log}",
                next_step="give a run log that they reach, as --run-log sqlite:///… or postgres://…",
            )

    def capacity(self) -> int:
        self._reap()
        return self.workers - len(self._running)

    def dispatch(self, job: RunDispatch) -> None:
        command = [sys.executable, "-m", "ematix_flow", *job.arguments()]
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **job.variables()},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C for the scheduler does not reach its runs
            )
        except (OSError, ValueError) as error:
            raise CannotDispatch(
                f"the run of {job.claim.slot.pipeline!r} could not be started: "
                f"{getattr(error, 'strerror', None) or error}",
                next_step="look at the limits of this machine: memory, open files, processes",
            ) from error
        self._running[process.pid] = (process, job)

    def poll_workers(self) -> WorkerState:
        self._reap()
        ended, self._ended = self._ended, []
        return WorkerState(ended)

    def has_freed_worker(self) -> bool:
        self._reap()
        freed, self._has_freed = self._has_freed, False
        return freed

    def close(self, grace: float) -> None:
        """Wait for running processes; stop those that do not end in time, which rolls their loads back."""
        self._wait(grace)
        for _, job in self._running.values():
            _log.warning("%s is still running and is stopped now", job.claim.slot.pipeline)
        self.abandon()
        self._wait(STOP_SECONDS)
        for process, _ in self._running.values():
            process.kill()
            process.wait()
        self._reap()

    def abandon(self) -> None:
        self._is_stopping = True
        for process, _ in self._running.values():
            process.send_signal(signal.SIGTERM)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._reap()
        while self._running and time.monotonic() < deadline:
            time.sleep(0.05)
            self._reap()

    def _reap(self) -> None:
        for pid, (process, job) in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[pid]
            self._has_freed = True
            if code != 0:
                never_began = (
                    self._is_stopping and code == -signal.SIGTERM
                )  # a run that has begun handles SIGTERM
                self._ended.append(WorkerExit(job.claim, _exit_reason(code), never_began))


def _exit_reason(code: int) -> str:
    if code > 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was ended by {name}"
