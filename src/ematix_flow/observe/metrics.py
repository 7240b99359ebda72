"""Opens metrics sinks from URLs: they count the runs of a process and send or show the numbers."""

from __future__ import annotations

import datetime as dt
import errno
import logging
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prometheus_client.registry import Collector

from ematix_flow.errors import ConfigError
from ematix_flow.observe.metric_families import (
    CombinedCollector,
    MetricFamilies,
    families_added_since,
    read_families,
)
from ematix_flow.observe.metrics_server import MetricsServer
from ematix_flow.observe.observer import Observer, RunEnd, SchedulerTick, StreamBatch
from ematix_flow.observe.run_follower import RunFollower
from ematix_flow.observe.run_metrics import RunMetrics
from ematix_flow.observe.sink_urls import parse_sink_url, unknown_scheme

if TYPE_CHECKING:
    from ematix_flow.state.run_records import RunRecord
    from ematix_flow.state.runlog.base import RunLog

SCHEMES = (
    "null",
    "stdout",
    "memory",
    "prometheus",
    "prometheus+push",
    "prometheus+file",
    "otlp",
    "otlp+http",
    "otlp+grpc",
)
PORT = 9464
SEND_SECONDS = 10.0  # between two sends of a process that goes on
_LOOKBACK_RUNS = 20  # of a pipeline, to find its last success; longer failures are queried one by one
_NOT_STARTED_ERROR = (
    "CannotDispatch"  # of a slot whose run was not started: no attempt, so it waits, whatever its policy
)
_log = logging.getLogger(__name__)
_memory: dict[str, RunMetrics] = {}


def memory_metrics(name: str = "") -> RunMetrics:
    """Return the numbers of ``memory://name`` in this process, even if nothing was counted yet."""
    return _memory.setdefault(name, RunMetrics())


def open_metrics(url: str, run_log: RunLog, also: Sequence[Collector] = ()) -> Observer:
    """Open the sink that a URL names; ``also`` are further metrics. Raises ConfigError if it names none."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise unknown_scheme(url, "metrics", SCHEMES)
    if scheme == "null":
        return Observer()
    if scheme == "memory":
        return CountingObserver("memory://", run_log, memory_metrics(rest.strip("/")))
    if scheme == "stdout":
        return _StdoutMetrics(run_log, also)
    if scheme == "prometheus":
        return _open_prometheus(url, run_log, also)
    if scheme.startswith("otlp"):
        from ematix_flow.observe.otlp_metrics import OtlpMetrics

        return OtlpMetrics(url, run_log, also)
    from ematix_flow.observe.prometheus_sinks import PushgatewayMetrics, TextfileMetrics

    return (TextfileMetrics if scheme == "prometheus+file" else PushgatewayMetrics)(url, run_log, also)


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


class _StdoutMetrics(CountingObserver):
    """Prints changed numbers after each run on stderr: stdout is for data."""

    def __init__(self, run_log: RunLog, also: Sequence[Collector]) -> None:
        super().__init__("stdout://", run_log)
        self._numbers = CombinedCollector((self.metrics.registry, *also))
        self._shown: MetricFamilies = {}

    def on_change(self) -> None:
        now = read_families(self._numbers)
        for name, family in now.items():
            known = self._shown[name].series if name in self._shown else {}
            for key, value in family.series.items():
                if known.get(key) != value and not _is_noise(key[0]):
                    print(_line(key, value), file=sys.stderr)
        self._shown = now


def _is_noise(sample: str) -> bool:
    """Parts of a histogram, and numbers that change with every poll of a scheduler."""
    return sample.endswith("_bucket") or any(
        each in sample for each in ("_scheduler_tick", "_last_tick", "_oldest_due_seconds")
    )


def _line(key: tuple[str, tuple[tuple[str, str], ...]], value: float) -> str:
    labels = ",".join(f'{name}="{text}"' for name, text in key[1])
    return f"{key[0]}{{{labels}}} {value:.15g}" if labels else f"{key[0]} {value:.15g}"


class _PrometheusMetrics(CountingObserver):
    """Serves the numbers to be scraped while the process runs."""

    def __init__(self, run_log: RunLog, server_of: Callable[[Collector], MetricsServer]) -> None:
        super().__init__("prometheus://", run_log)
        self._server = server_of(self.metrics.registry)

    def close(self) -> None:
        self._server.close()


def _open_prometheus(url: str, run_log: RunLog, also: Sequence[Collector]) -> Observer:
    parts = parse_sink_url(url, "metrics", PORT)
    host = parts.host if urlsplit(url).hostname else "127.0.0.1"

    def serve(numbers: Collector) -> MetricsServer:
        return MetricsServer(CombinedCollector((numbers, *also)), host, parts.port, parts.path or "/metrics")

    try:
        return _PrometheusMetrics(run_log, serve)
    except ConfigError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
            raise
        # a manual run next to a scheduler that has the port may still run
        _log.warning("%s; the numbers of this process are not shown", error.what)
        return Observer()
