"""``subprocess://``: each run a process of this machine, in a group of its own."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

from ematix_flow.schedule.executors.base import CannotDispatch, Dispatch, Executor

_log = logging.getLogger(__name__)


class SubprocessExecutor(Executor):
    """``workers`` is how many run at once; their output is the scheduler's."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or max(1, os.cpu_count() or 1)
        self._running: dict[int, tuple[subprocess.Popen[bytes], Dispatch]] = {}

    def room(self) -> int:
        self._reap()
        return self.workers - len(self._running)

    def dispatch(self, job: Dispatch) -> None:
        command = [sys.executable, "-m", "ematix_flow", *job.arguments()]
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **job.variables()},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C for the scheduler is not one for its runs
            )
        except OSError as error:
            raise CannotDispatch(
                f"the run of {job.claim.slot.pipeline!r} could not be started: {error.strerror or error}",
                next_step="look at the limits of this machine: memory, open files, processes",
            ) from error
        self._running[process.pid] = (process, job)

    def close(self, grace: float) -> None:
        """Wait for those at work; who is not done in time is asked to stop, which rolls its load back."""
        deadline = time.monotonic() + grace
        while self._running and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.1)
        for process, job in self._running.values():
            _log.warning("%s is still at work, and is asked to stop", job.claim.slot.pipeline)
            process.send_signal(signal.SIGTERM)
        for process, _ in self._running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def _reap(self) -> None:
        for pid, (process, job) in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[pid]
            if code < 0:
                _log.warning("the run of %s was ended by signal %d", job.claim.slot.pipeline, -code)
