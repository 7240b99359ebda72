"""Finds runs that ended in other processes in the run log: so a scheduler counts the runs of its executor."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ematix_flow.errors import UsageError

if TYPE_CHECKING:
    from ematix_flow.state.runlog.base import RunLog
    from ematix_flow.state.runlog.records import RunRecord

OVERLAP = dt.timedelta(minutes=1)  # how far the clocks of two machines may differ
MAX_RUNS = 5_000  # in one poll


class RunFollower:
    """Yields each run that ends after the first poll once, also runs of other processes."""

    def __init__(self, log: RunLog, now: Callable[[], dt.datetime]) -> None:
        self._log, self._now = log, now
        self._since: dt.datetime | None = None
        self._running: set[str] = set()
        self._known: dict[str, dt.datetime] = {}  # ended runs that the next poll may find again

    def poll_ended_runs(self) -> Iterator[RunRecord]:
        """Yield the runs that have ended since the last poll; none at the first."""
        moment = self._now()
        if self._since is None:
            self._running = {run.run_id for run in self._log.list(status="running", limit=MAX_RUNS)}
            started_runs = self._log.list(since=moment - OVERLAP, limit=MAX_RUNS)
            self._known = {run.run_id: run.started_at for run in started_runs if run.status != "running"}
        else:
            yield from self._ended_since(self._since)
        self._since = moment - OVERLAP
        self._known = {run: at for run, at in self._known.items() if at >= self._since}

    def _ended_since(self, since: dt.datetime) -> Iterator[RunRecord]:
        started_runs = {run.run_id: run for run in self._log.list(since=since, limit=MAX_RUNS)}
        older = self._running - started_runs.keys()
        if older:
            older -= {run.run_id for run in self._log.list(status="running", limit=MAX_RUNS)}
        for run_id in sorted(older):
            self._running.discard(run_id)
            with suppress(UsageError):  # it is purged
                started_runs[run_id] = self._log.get(run_id)
        for run in sorted(started_runs.values(), key=lambda each: each.started_at):
            if run.status == "running":
                self._running.add(run.run_id)
            elif run.run_id not in self._known:
                self._running.discard(run.run_id)
                self._known[run.run_id] = run.started_at
                yield run
