"""Runs a stream in its own thread: restarts it, measures it, records it, and stops it between two batches."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.messages.base import LagUnit
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.engine.spark.spark_users import using_spark
from ematix_flow.engine.streams.batch_report import BatchReport
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.engine.streams.stream_runner import StreamRunner, build_stream_plan
from ematix_flow.errors import (
    ConfigError,
    DataLost,
    DeclarationError,
    ExpectationFailed,
    FlowError,
    Interrupted,
    PipelineLocked,
    PlanError,
    RowRejected,
    SourceMissing,
    TargetMissing,
    UnreadableMessages,
    UsageError,
)
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.observe.metrics_server import MetricsServer
from ematix_flow.observe.observer import Observers, RunEnd, StreamBatch
from ematix_flow.observe.settings import Observability, open_observers
from ematix_flow.observe.stream_listener import StreamListener
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.run import signal_handlers
from ematix_flow.run.context_setup import spark_starter
from ematix_flow.run.pipeline import open_connections
from ematix_flow.run.recording import RunRecording
from ematix_flow.run.worker_pool import stream_jar_groups
from ematix_flow.spec.row_counts import UNKNOWN_ROWS
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.runlog.base import RunLog, project_run_log
from ematix_flow.state.runlog.records import RunRecord, RunStatus
from ematix_flow.state.times import utc_now
from ematix_flow.streams.dead_letters import dead_letters_of_stream
from ematix_flow.streams.expectation_totals import ExpectationTotals, first_failure_note
from ematix_flow.streams.restarts import RestartNotice, RestartPolicy, RestartSupervisor
from ematix_flow.streams.run_options import StreamRunOptions

if TYPE_CHECKING:
    from ematix_flow.engine.spark.settings import EngineSettings

_log = logging.getLogger(__name__)

# errors that another start would meet again
_NOT_RESTARTED = (
    DeclarationError,
    ConfigError,
    UsageError,
    PlanError,
    PipelineLocked,
    Interrupted,
    RowRejected,
    ExpectationFailed,
    UnreadableMessages,
    DataLost,
)


_COUNTS = (
    *("total_rows", "rows_read", "iterations", "dead_letters", "dropped", "quarantined", "empty", "late"),
    "restarts",
)


@dataclass(frozen=True)
class StreamResult:
    """What a stream did until it ended. It also works as a mapping: ``result["total_rows"]``."""

    name: str
    total_rows: int  # written to targets, counted once per target
    rows_read: int
    iterations: int
    shutdown_triggered: bool
    dead_letters: int
    dropped: int  # unreadable messages that transform_on_error="drop" ignored
    quarantined: int  # rows that failed an expectation and were set aside
    empty: int  # messages without a payload, which produce no row
    late: int  # rows of windows that were already loaded, or of joins after their partners
    restarts: int
    seconds: float

    def __getitem__(self, key: str) -> Any:
        try:
            return self.to_json()[key]
        except KeyError:
            raise KeyError(key) from None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class RunningStream:
    """A stream that runs in this process."""

    def __init__(self, name: str, run: Callable[[RunningStream], None], watch: StreamListener) -> None:
        self.name, self.watch = name, watch
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._started = time.monotonic()
        self._counts: dict[str, int] = dict.fromkeys(_COUNTS, 0)
        self._was_stopped = False
        self._seconds: float | None = None
        self._thread = threading.Thread(
            target=self._run, args=(run,), name=f"ematix-flow stream {name}", daemon=True
        )
        self._thread.start()

    def _run(self, run: Callable[[RunningStream], None]) -> None:
        try:
            run(self)
        except BaseException as error:
            self._failure = error
        finally:
            self._seconds = time.monotonic() - self._started

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop the stream after the current batch. Returns at once; call `wait` to wait for the end."""
        self._was_stopped = self._was_stopped or self.is_running
        self._stop.set()

    def wait(self, timeout: float | None = None, *, handle_signals: bool = False) -> StreamResult:
        """Wait until the stream has ended, or for ``timeout`` seconds. Raises the error that ended it.

        With ``handle_signals`` SIGTERM and Ctrl-C stop it after the current batch; a second one at once.
        """
        with signal_handlers.handle_signals(self._stop_on_signal) if handle_signals else nullcontext():
            deadline = None if timeout is None else time.monotonic() + timeout
            while self._thread.is_alive() and (deadline is None or time.monotonic() < deadline):
                self._thread.join(0.2)
        if self._failure is not None:
            raise self._failure
        return self.result()

    def _stop_on_signal(self, number: int, frame: object) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        self.stop()

    def result(self) -> StreamResult:
        """Return what the stream has done so far."""
        seconds = self._seconds if self._seconds is not None else time.monotonic() - self._started
        return StreamResult(
            name=self.name, shutdown_triggered=self._was_stopped, seconds=seconds, **self._counts
        )

    def _add_counts(self, **counts: int) -> None:
        for name, count in counts.items():
            self._counts[name] += count


def plan_stream(
    spec: StreamSpec, registry: Registry, *, engine: str | EngineSettings | None = None
) -> StreamPlan:
    """Return the plan of a stream. Changes nothing."""
    with use_registry(registry):
        return build_stream_plan(spec, open_connections(spark_starter(engine)), stream_folder_for(spec))


def start_stream(
    spec: StreamSpec,
    registry: Registry,
    options: StreamRunOptions,
    *,
    metrics: StreamMetrics | None = None,
    observers: Observers | None = None,
    together_with: Iterable[StreamSpec] = (),
) -> RunningStream:
    """Start the stream in its own thread.

    Streams that run together in one process share ``metrics`` and ``observers``. Spark starts with the jars
    of this stream and of the streams in ``together_with``.
    """
    policy = options.restart_policy()
    listener = options.watch or StreamListener()
    stream_metrics = metrics or StreamMetrics()
    if observers is None:
        Observability.resolve(os.environ).check()
    server = stream_metrics.serve(options.metrics_port) if options.metrics_port is not None else None

    def run(running: RunningStream) -> None:
        with (
            _close_server_after(server),
            use_registry(registry),
            open_run_log(options.run_log or project_run_log(os.environ), env=os.environ) as log,
            _open_observers(observers, log, stream_metrics) as run_observers,
        ):
            jars = stream_jar_groups(registry, together_with)
            _SupervisedStream(
                spec, running, options, stream_metrics, log, run_observers, jars
            ).run_supervised(policy)

    return RunningStream(spec.name, run, listener)


def run_stream(spec: StreamSpec, registry: Registry, options: StreamRunOptions) -> StreamResult:
    """Run the stream until it ends. SIGTERM and Ctrl-C stop it after the current batch."""
    return start_stream(spec, registry, options).wait(handle_signals=True)


class _SupervisedStream:
    """One run of a stream, over all its restarts."""

    def __init__(
        self,
        spec: StreamSpec,
        running: RunningStream,
        options: StreamRunOptions,
        metrics: StreamMetrics,
        log: RunLog,
        observers: Observers,
        jar_groups: frozenset[str] = frozenset(),
    ) -> None:
        self.jar_groups = jar_groups  # of other streams of this process
        self.spec, self.running, self.watch, self.options = spec, running, running.watch, options
        self.metrics, self.log, self.observers = metrics, log, observers
        self._record: RunRecord | None = None  # of the current or last attempt
        self._healthy_after = dt.timedelta()
        self._is_healthy = False
        self._expectations = ExpectationTotals()  # of the current attempt
        self._has_followed = False  # whether its source and targets existed in an earlier attempt

    def run_supervised(self, policy: RestartPolicy) -> None:
        self._healthy_after = dt.timedelta(seconds=policy.reset_backoff_after_seconds)
        supervisor: RestartSupervisor[None] = RestartSupervisor(
            policy, stop=self.running._stop, on_restart=self._on_restart
        )
        try:
            supervisor.run(self.attempt, self._is_final)
        except BaseException as error:
            self.metrics.set_state(self.spec.name, "failed", error if isinstance(error, FlowError) else None)
            self._notify_run_finished(error, policy.max_restarts)
            raise
        self.metrics.set_state(self.spec.name, "stopped")
        self.watch.stopped(self.spec.name)

    def _is_final(self, error: FlowError) -> bool:
        """Whether another start would fail in the same way.

        A source or target that is missing from the start is a mistake that no restart fixes. One that
        disappeared while the stream ran may come back, such as a table that is created again.
        """
        is_missing = isinstance(error, SourceMissing | TargetMissing)
        return isinstance(error, _NOT_RESTARTED) or (is_missing and not self._has_followed)

    def attempt(self) -> None:
        """Run the stream once, recorded in the run log."""
        self.metrics.set_state(self.spec.name, "starting")
        record = RunRecord(
            run_id=str(uuid.uuid4()),
            pipeline=self.spec.name,
            target=self._record_target(),
            mode="stream",
            trigger="consume",
            attempt=self.running._counts["restarts"] + 1,
            pid=os.getpid(),
        )
        recording = RunRecording(record, self.log, where=self.spec.where)
        self._record, self._is_healthy = recording.record, False
        self._expectations = ExpectationTotals()
        self.observers.run_started(self._record)
        before = dict(self.running._counts)
        try:
            with (
                recording.capture_output(),
                using_spark(f"stream {self.spec.name!r}", is_endless=not self.options.once),
            ):
                self._follow(recording)
        except PipelineLocked as error:
            self._finish(recording, before, "locked", error)
            raise
        except (Interrupted, KeyboardInterrupt) as error:
            self._finish(recording, before, "cancelled", error)
            raise
        except BaseException as error:
            self._finish(recording, before, "failed", error)
            raise
        self._finish(recording, before, "succeeded")
        self._notify_run_finished(None)

    def _follow(self, recording: RunRecording) -> None:
        def report(batch: BatchReport) -> None:
            for text in self._on_batch(batch):
                note(text)
            recording.save_output_periodically()

        def note(text: str) -> None:
            self.watch.note(text)
            recording.output.add_text(text)

        with dead_letters_of_stream(self.spec) as letters:
            connections = open_connections(
                recording.wrap_spark_start(spark_starter(self.options.engine, self.jar_groups))
            )
            stream = StreamRunner(
                self.spec,
                connections,
                stream_folder_for(self.spec),
                once=self.options.once,
                letters=letters,
                report=report,
                note=note,
                alive=self._on_alive,
                failing=self._on_target_failure,
                stop=self.running._stop,
                lag=self._on_lag,
            )
            self.watch.started(self.spec.name, "")
            self.metrics.set_state(self.spec.name, "running")
            stream.run()

    def _on_alive(self) -> None:
        self._has_followed = True
        self.metrics.mark_alive(self.spec.name)
        if self._record is not None and utc_now() - self._record.started_at >= self._healthy_after:
            self._report_healthy()

    def _on_lag(self, lag: Mapping[str, int], unit: LagUnit) -> None:
        self.metrics.set_lag(self.spec.name, lag, unit)
        self.watch.lag_changed(self.spec.name, lag, unit)

    def _report_healthy(self) -> None:
        """Report that the stream is healthy: it loaded a batch, or ran long enough without one."""
        if self._record is not None and not self._is_healthy:
            self._is_healthy = True
            self.observers.run_is_well(self._record)

    def _notify_run_finished(
        self, error: BaseException | None, most: int | None = None, *, again: bool = False
    ) -> None:
        """Notify the observers that the attempt is over.

        ``most`` is the limit of restarts, ``again`` a retry.
        """
        if self._record is not None and self._record.finished_at is not None:
            self.observers.run_finished(self._record, RunEnd((most or 0) + 1, again, error))

    def _on_batch(self, batch: BatchReport) -> list[str]:
        """Count the batch. Returns notes about expectations that fail for the first time."""
        first = {
            target: self._expectations.add(target, found) for target, found in batch.expectations.items()
        }
        failures = [result for found in first.values() for result in found]
        if failures and self._record is not None:
            self._is_healthy = True
            self.observers.expectations_failed(self._record, failures)
        self._report_healthy()
        name = self.spec.name
        written, letters = sum(batch.rows_written.values()), sum(batch.dead_letters.values())
        self.running._add_counts(
            total_rows=written,
            rows_read=batch.rows_read,
            iterations=1,
            dead_letters=letters,
            dropped=batch.dropped,
            quarantined=batch.quarantined,
            empty=batch.empty,
            late=batch.late,
        )
        self.metrics.count_batch(name, batch.rows_read, batch.rows_written, batch.seconds)
        self.metrics.set_lag(name, batch.lag, batch.lag_unit)
        for stage, count in batch.dead_letters.items():
            self.metrics.count_dead_letters(name, stage, count)
        self.observers.batch_committed(
            StreamBatch(name, batch.number, batch.rows_read, batch.rows_written, letters, batch.seconds)
        )
        seconds = sum(batch.seconds.values())
        self.watch.batch_committed(
            name, batch.number, batch.rows_read, written, seconds, batch.lag, batch.lag_unit
        )
        if letters:
            self.watch.dead_letters_added(name, letters)
        if batch.state is not None:
            self.metrics.set_state_size(name, batch.state.rows, batch.state.bytes)
            if batch.state.watermark is not None:
                self.metrics.set_watermark_lag(name, time.time() - batch.state.watermark)
        if batch.late:
            self.metrics.count_late_rows(name, batch.late)
        lost = batch.dropped + batch.late - batch.dead_letters.get("late_data", 0)
        if lost or batch.empty:
            self.metrics.count_skipped(name, batch.dropped)
            self.metrics.count_tombstones(name, batch.empty)
            self.watch.messages_left_out(name, lost, batch.empty)
        if batch.quarantined:
            self.watch.rows_quarantined(name, batch.quarantined)
        for found in batch.expectations.values():
            self.metrics.count_expectations(name, found)
        return [first_failure_note(target, result) for target, found in first.items() for result in found]

    def _on_target_failure(self, target: str, error: FlowError | None) -> None:
        if error is None:
            self.metrics.target_recovered(self.spec.name, target)
        else:
            self.metrics.target_failed(self.spec.name, target, error)

    def _on_restart(self, restart: RestartNotice) -> None:
        self.running._add_counts(restarts=1)
        self.metrics.count_restart(self.spec.name, restart.error)
        self.watch.restarting(self.spec.name, restart.error, restart.delay)
        self._notify_run_finished(restart.error, restart.limit, again=True)

    def _finish(
        self,
        recording: RunRecording,
        before: Mapping[str, int],
        status: RunStatus,
        error: BaseException | None = None,
    ) -> None:
        now = self.running._counts
        done = {key: now[key] - before[key] for key in now}
        if isinstance(error, ExpectationFailed) and error.results:
            self._expectations.add(self._record_target(), error.results)
        self._record = recording.finish(
            status,
            error,
            path="stream",
            rows=replace(UNKNOWN_ROWS, read=done["rows_read"], inserted=done["total_rows"]),
            metrics={"stream": done, "targets": self._expectations.to_json()},
        )

    def _record_target(self) -> str:
        return ", ".join(target.label for target in self.spec.targets)


@contextmanager
def _open_observers(given: Observers | None, log: RunLog, metrics: StreamMetrics) -> Iterator[Observers]:
    """Return the given observers, or else open this stream's own from the settings."""
    if given is not None:
        yield given
        return
    with open_observers(Observability.resolve(os.environ), log, [metrics.registry]) as observers:
        yield observers


@contextmanager
def _close_server_after(server: MetricsServer | None) -> Iterator[None]:
    try:
        yield
    finally:
        if server is not None:
            server.close()
