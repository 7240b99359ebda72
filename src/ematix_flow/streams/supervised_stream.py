"""Runs a stream over all its restarts: records each attempt, measures and reports its batches.

The thread that it runs in, and the counts over all attempts, belong to `running_stream`.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ematix_flow.backends.messages.base import LagUnit
from ematix_flow.engine.spark.spark_users import using_spark
from ematix_flow.engine.streams.batch_report import BatchReport
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.engine.streams.stream_runner import StreamRunner
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
from ematix_flow.observe.observer import Observers, RunEnd, StreamBatch
from ematix_flow.observe.stream_listener import StreamListener
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.run.attempt_waits import wait_for_next_attempt
from ematix_flow.run.context_setup import spark_starter
from ematix_flow.run.pipeline import open_connections
from ematix_flow.run.recording import RunRecording
from ematix_flow.run.run_control import RunControl
from ematix_flow.spec.row_counts import UNKNOWN_ROWS
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.next_attempts import next_attempt_mark
from ematix_flow.state.runlog.records import RunRecord, RunStatus
from ematix_flow.state.times import utc_now
from ematix_flow.streams.dead_letters import dead_letters_of_stream
from ematix_flow.streams.expectation_totals import ExpectationTotals, first_failure_note
from ematix_flow.streams.restarts import RestartNotice, RestartPolicy, RestartSupervisor
from ematix_flow.streams.run_options import StreamRunOptions
from ematix_flow.streams.stream_gate import RequestedGate
from ematix_flow.streams.stream_samples import SampleWriter
from ematix_flow.streams.stream_stores import StreamStores

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


class StreamThread(Protocol):
    """The thread of a stream: whether it is to stop, and what its attempts have done together."""

    watch: StreamListener
    stop_requested: threading.Event
    counts: dict[str, int]

    def add_counts(self, **counts: int) -> None: ...

    def stop(self) -> None: ...


class SupervisedStream:
    """One run of a stream, over all its restarts."""

    def __init__(
        self,
        spec: StreamSpec,
        running: StreamThread,
        options: StreamRunOptions,
        metrics: StreamMetrics,
        log: RunLog,
        observers: Observers,
        stores: StreamStores | None = None,
        jar_groups: frozenset[str] = frozenset(),
    ) -> None:
        self.stores = stores or StreamStores.at(options.run_log)
        self.jar_groups = jar_groups  # of other streams of this process
        self.spec, self.running, self.watch, self.options = spec, running, running.watch, options
        self.metrics, self.log, self.observers = metrics, log, observers
        self._record: RunRecord | None = None  # of the current or last attempt
        self._healthy_after = dt.timedelta()
        self._is_healthy = False
        self._longest_wait: float | None = None  # in seconds before a restart; None: there is none
        self._expectations = ExpectationTotals()  # of the current attempt
        self._has_followed = False  # whether its source and targets existed in an earlier attempt

    def run_supervised(self, policy: RestartPolicy) -> None:
        self._healthy_after = dt.timedelta(seconds=policy.reset_backoff_after_seconds)
        self._longest_wait = policy.max_backoff_ms / 1000 if policy.allows(1) else None
        supervisor: RestartSupervisor[None] = RestartSupervisor(
            policy, stop=self.running.stop_requested, wait=self._wait_for_restart, on_restart=self._on_restart
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
            attempt=self.running.counts["restarts"] + 1,
            pid=os.getpid(),
        )
        earlier = () if self._record is None else (self._record.run_id,)
        control = self._control_of(record.run_id, earlier)
        recording = RunRecording(record, self.log, where=self.spec.where, control=control)
        samples = SampleWriter(self.spec.name, record.run_id, self.stores.open_samples)
        self._record, self._is_healthy = recording.record, False
        self._expectations = ExpectationTotals()
        self.observers.run_started(self._record)
        before = dict(self.running.counts)
        try:
            with (
                recording.at_work(lambda: samples.write_if_due("held" if control.is_held else "running")),
                using_spark(f"stream {self.spec.name!r}", is_endless=not self.options.once),
            ):
                self._follow(recording, samples)
        except PipelineLocked as error:
            self._finish(recording, before, "locked", error)
            raise
        except (Interrupted, KeyboardInterrupt) as error:
            samples.write_last("stopped")
            self._finish(recording, before, "cancelled", error)
            raise
        except BaseException as error:
            stopped = control.stop_error
            if stopped is None or not isinstance(error, Exception):
                samples.write_last("failed")
                self._finish(recording, before, "failed", error)
                raise
            # a stream is often stopped because its target fails: it is not to start again
            what = error.what if isinstance(error, FlowError) else str(error)
            stopped.state = f"its last batch failed with {type(error).__name__}: {what}"
            self.running.stop()
        else:
            stopped = control.stop_error  # the stream ended as by a signal, but the record says who
        samples.write_last("stopped")
        self._finish(recording, before, "cancelled" if stopped else "succeeded", stopped)
        self._notify_run_finished(stopped)

    def _control_of(self, run_id: str, earlier_run_ids: Sequence[str] = ()) -> RunControl:
        return RunControl(self.spec.name, run_id, self.stores.open_actions, "stream", earlier_run_ids)

    def _wait_for_restart(self, seconds: float) -> bool:
        """Wait before a restart; true if the stream was stopped, also if somebody asks for that meanwhile."""
        stop = self.running.stop_requested
        if self._record is not None:
            control = self._control_of(self._record.run_id)
            if wait_for_next_attempt(control, seconds, stop.wait, stop.is_set) is not None:
                self.running.stop()
        return stop.is_set()

    def _follow(self, recording: RunRecording, samples: SampleWriter) -> None:
        def report(batch: BatchReport) -> None:
            samples.add_batch(batch)
            for text in self._on_batch(batch):
                note(text)

        def note(text: str) -> None:
            self.watch.note(text)
            recording.output.add_text(text)

        def lag_changed(lag: Mapping[str, int], unit: LagUnit) -> None:
            samples.set_lag(lag, unit)
            self._on_lag(lag, unit)

        recording.control.note = note
        recording.control.wake()  # while Spark starts
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
                stop=self.running.stop_requested,
                lag=lag_changed,
                gate=RequestedGate(recording.control, self.running.stop),
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
        self.running.add_counts(
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
        self.running.add_counts(restarts=1)
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
        now = self.running.counts
        done = {key: now[key] - before[key] for key in now}
        may_restart = isinstance(error, FlowError) and not self._is_final(error)
        mark: dict[str, Any] = {}
        if status == "failed" and may_restart and self._longest_wait is not None:
            mark = next_attempt_mark(self._longest_wait)
        if isinstance(error, ExpectationFailed) and error.results:
            self._expectations.add(self._record_target(), error.results)
        self._record = recording.finish(
            status,
            error,
            path="stream",
            rows=replace(UNKNOWN_ROWS, read=done["rows_read"], inserted=done["total_rows"]),
            metrics={"stream": done, "targets": self._expectations.to_json(), **mark},
        )

    def _record_target(self) -> str:
        return ", ".join(target.label for target in self.spec.targets)
