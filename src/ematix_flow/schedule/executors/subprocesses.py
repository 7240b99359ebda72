"""``subprocess://``: each run is a process of this machine, in its own process group."""

from __future__ import annotations

import logging
import os
import signal

from ematix_flow.errors import UsageError
from ematix_flow.schedule.executors.base import Executor, RunDispatch, WorkerExit, WorkerState
from ematix_flow.schedule.executors.child_processes import ChildProcesses, exit_reason

_log = logging.getLogger(__name__)


class SubprocessExecutor(Executor):
    """Runs slots as processes, at most ``workers`` at once. They share the scheduler's output."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or max(1, os.cpu_count() or 1)
        self._processes = ChildProcesses[RunDispatch]()
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
        return self.workers - len(self._processes)

    def dispatch(self, job: RunDispatch) -> None:
        what = f"the run of {job.claim.slot.pipeline!r}"
        self._processes.start(job.arguments(), job.variables(), job, what)

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
        self._processes.wait(grace)
        for job in self._processes.jobs:
            _log.warning("%s is still running and is stopped now", job.claim.slot.pipeline)
        self._is_stopping = True
        self._processes.close()
        self._reap()

    def abandon(self) -> None:
        self._is_stopping = True
        self._processes.terminate()

    def _reap(self) -> None:
        for job, code in self._processes.take_ended():
            self._has_freed = True
            if code != 0:
                never_began = (
                    self._is_stopping and code == -signal.SIGTERM
                )  # a run that has begun handles SIGTERM
                self._ended.append(WorkerExit(job.claim, exit_reason(code), never_began))
