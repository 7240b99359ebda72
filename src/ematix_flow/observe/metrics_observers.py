"""Observers that count runs: the base of the metrics sinks."""

from __future__ import annotations

import datetime as dt
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from ematix_flow.observe.metric_families import (
    CombinedCollector,
    MetricFamilies,
    families_added_since,
    read_families,
)
from ematix_flow.observe.observer import Observer, RunEnd, SchedulerTick, StreamBatch
from ematix_flow.observe.run_follower import RunFollower
from ematix_flow.observe.run_metrics import RunMetrics

if TYPE_CHECKING:
    from ematix_flow.state.runlog.base import RunLog
    from ematix_flow.state.runlog.records import RunRecord

SEND_SECONDS = 10.0  # between two sends of a process that goes on
_LOOKBACK_RUNS = 20  # of a pipeline, to find its last success; longer failures are queried one by one
# of a slot whose run was not started: this does not count as an attempt, so the slot waits
_NOT_STARTED_ERROR = "CannotDispatch"


class CountingObserver(Observer):
    """Counts runs. In a scheduler, whose runs are other processes, it counts them from the run log."""

    def __init__(
        self,
        name: str,
        run_log: RunLog,
        metrics: RunMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = f"metrics sink {name}"
        self.metrics = metrics or RunMetrics()
        self._run_log, self._clock = run_log, clock
        self._follower: RunFollower | None = None
        self._attempts: Mapping[str, int] = {}

    def run_finished(self, record: RunRecord, ending: RunEnd) -> None:
        if self._follower is not None or ending.already_reported:
            return  # it is counted from the run log
        self.metrics.run_finished(record, ending)
        self.on_change()

    def slot_ended(self, pipeline: str, at: dt.datetime, status: str, reason: str | None) -> None:
        self.metrics.slot_ended(pipeline, status)
        self.on_change()

    def batch_committed(self, batch: StreamBatch) -> None:
        self.on_change()

    def scheduler_ticked(self, tick: SchedulerTick) -> None:
        self.metrics.scheduler_ticked(tick, self._clock())
        try:
            self._follow_runs(tick)
        finally:
            self.on_change()

    def close(self) -> None:
        """Also count the runs that ended while the scheduler waited for them."""
        if self._follower is not None:
            self._count_ended_runs(self._follower)

    def on_change(self) -> None:
        """The numbers may have changed. A sink that sends them does so from time to time."""

    def _follow_runs(self, tick: SchedulerTick) -> None:
        """Only the leader counts, so that the schedulers of one run log count each run once."""
        if not tick.leads:
            if self._follower is not None:
                self.metrics.forget_states()
            self._follower = None
            return
        self._attempts = tick.max_attempts
        if self._follower is None:
            follower = RunFollower(
                self._run_log, lambda: dt.datetime.fromtimestamp(self._clock(), dt.timezone.utc)
            )
            self._restore_states()
            self.metrics.set_freshness_slas(tick.freshness_slas)
            self._follower = follower
        self._count_ended_runs(self._follower)

    def _count_ended_runs(self, follower: RunFollower) -> None:
        for record in follower.poll_ended_runs():
            self.metrics.run_finished(record, self._run_end(record))

    def _run_end(self, record: RunRecord) -> RunEnd:
        max_attempts = self._attempts.get(record.pipeline, 1)
        may_retry = record.attempt < max_attempts or record.error_type == _NOT_STARTED_ERROR
        return RunEnd(max_attempts, record.status == "failed" and may_retry)

    def _restore_states(self) -> None:
        """Restore the state before this scheduler became the leader: an alert survives a restart."""
        self.metrics.start_at_zero(self._attempts)
        for name, runs in self._run_log.newest(list(self._attempts), _LOOKBACK_RUNS).items():
            if len(runs) == _LOOKBACK_RUNS and runs[-1].status != "succeeded":
                for success in self._run_log.list(name, "succeeded", limit=1):
                    self.metrics.set_last_success(name, success.finished_at or success.started_at)
            for record in reversed(runs):
                self.metrics.set_last_run_state(record, self._run_end(record))


class SendingObserver(CountingObserver):
    """Sends the numbers at the end, and every few seconds if they changed."""

    def __init__(self, name: str, run_log: RunLog, also: Sequence[Collector]) -> None:
        super().__init__(name, run_log)
        self.numbers = CombinedCollector((self.metrics.registry, *also))
        self._sent: MetricFamilies = {}
        self._next = time.monotonic() + SEND_SECONDS

    def on_change(self) -> None:
        if time.monotonic() >= self._next:
            self._flush()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._flush()

    def _flush(self) -> None:
        self._next = time.monotonic() + SEND_SECONDS
        now = read_families(self.numbers)
        if now != self._sent:
            self.send(now, families_added_since(now, self._sent))
            self._sent = now

    @abstractmethod
    def send(self, now: MetricFamilies, added: MetricFamilies) -> None:
        """Send the numbers: ``now`` are all of them, ``added`` those since the last successful send."""
