"""Records a run from start to end: in the run log, to the observers, with its log output.

Every path that runs something uses this module, so that every run leaves the same records.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.config.code_version import code_version
from ematix_flow.errors import FlowError, Interrupted
from ematix_flow.observe.listener import Listener, PostStepEnd, Progress, safe_point_before
from ematix_flow.observe.observer import ObservedListener, Observers, RunEnd
from ematix_flow.observe.run_output import RunOutput
from ematix_flow.run.live_metrics import LiveMetrics
from ematix_flow.run.run_control import RunControl
from ematix_flow.run.run_watcher import RunWatcher
from ematix_flow.spec.location import SourceLocation
from ematix_flow.state.runlog.base import RunLog, error_values, project_run_log, warn_once
from ematix_flow.state.runlog.records import RunRecord, RunStatus, new_run_id
from ematix_flow.state.times import utc_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ematix_flow.engine.connections import StartSpark
    from ematix_flow.plan.definition import Plan

NO_ENGINE = "none"  # only the databases worked
_PURGE_LIMIT = 200  # old runs that one run deletes at most


def with_code_version(record: RunRecord, where: SourceLocation | None) -> RunRecord:
    """Return the record with the version of the code that runs. Its engine is ``none`` until one starts."""
    return replace(record, engine=NO_ENGINE, code_version=code_version(where.file if where else None))


class RunRecording:
    """Records one run; creating it records the start. ``keep`` is how long runs of this pipeline are kept."""

    def __init__(
        self,
        record: RunRecord,
        run_log: RunLog,
        observers: Observers | None = None,
        *,
        where: SourceLocation | None = None,
        keep: dt.timedelta | None = None,
        control: RunControl | None = None,
    ) -> None:
        self.record = with_code_version(record, where)
        self.output = RunOutput()
        self.is_over = False
        self._log, self._observers = run_log, observers or Observers()
        self._where, self._keep = where, keep
        self._engine = NO_ENGINE
        self.live = LiveMetrics(record.metrics.get("post") or ())
        self._first_metrics = dict(record.metrics)
        self.control = control or RunControl(record.pipeline, record.run_id, None)
        self._saved_output = ""
        self._writing = threading.Lock()  # a write that began before the end is not to replace the end
        self._log.start(self.record)
        self._observers.run_started(self.record)

    @contextmanager
    def at_work(self, *tasks: Callable[[], None]) -> Iterator[None]:
        """The run is what the block does.

        Its log records and warnings become part of the output, its progress is saved now and then, and it
        can be held and stopped. ``tasks`` are done as often.
        """
        with self.output.capture(), RunWatcher(self.save_changes, self.control.poll, *tasks) as watcher:
            self.control.wake = watcher.wake
            yield

    def wrap_listener(self, listener: Listener) -> Listener:
        """Return a listener that also notifies the observers and the run log."""
        return _RecordingListener(self, listener, self._observers)

    def save_changes(self) -> None:
        """Save output and progress, so that they survive a kill and can be followed meanwhile."""
        output, changes = self.output.text(), self.live.take_changes()
        with self._writing:
            if not self.is_over and output != self._saved_output:
                self._log.save_output(self.record.run_id, output)
                self._saved_output = output
            if not self.is_over and changes:
                self._log.add_metrics(self.record.run_id, changes)

    def save_post_steps(self) -> None:
        """Save at once which post-load steps have ended: a restart does not repeat them."""
        with self._writing:
            self._log.add_metrics(self.record.run_id, {"post": self.live.post_steps()})

    def wrap_spark_start(self, start: StartSpark) -> StartSpark:
        """Return the same function, which also records the engine that it started."""

        def started(jar_groups: Sequence[str]) -> SparkSession:
            session = start(jar_groups)
            engine = engine_name(session)
            if engine != self._engine:  # recorded now: a run that is killed cannot record it at its end
                self._engine = engine
                self._log.record_engine(self.record.run_id, engine)
            return session

        return started

    def finish(
        self,
        status: RunStatus,
        error: BaseException | None = None,
        ending: RunEnd | None = None,
        **values: Any,
    ) -> RunRecord:
        """Record the end of the run and return its record. ``values`` are further fields of the record."""
        metrics = {**self._first_metrics, **(values.get("metrics") or {}), **self.live.at_end()}
        with self._writing:
            self.is_over = True
        changes: dict[str, Any] = {
            "finished_at": utc_now(),
            "engine": self._engine,
            **values,
            "metrics": metrics,
        }
        self.output.add_text(_closing_line(status, error), "INFO" if error is None else "ERROR")
        self._log.save_output(self.record.run_id, self.output.text())
        self._log.finish(self.record.run_id, status, error=error, where=self._where, **changes)
        changes |= error_values(error, self._where)
        ended = replace(self.record, status=status, **changes)
        self._observers.run_finished(ended, ending or RunEnd(error=error))
        self.control.close(f"run {self.record.run_id[:8]} ended: {status}")
        self._purge()
        return ended

    def _purge(self) -> None:
        if self._keep is None:
            return
        try:
            before = utc_now() - self._keep
            self._log.purge(before, pipeline=self.record.pipeline, most=_PURGE_LIMIT)
        except FlowError as error:
            warn_once(self._log.location, f"old runs could not be deleted: {error.what}")


@contextmanager
def record_command(
    name: str,
    target: str,
    mode: str,
    run_log: str | None,
    where: SourceLocation | None = None,
    run_id: str | None = None,
) -> Iterator[RunRecording]:
    """Record a command as its own run: ``maintain:orders`` is not a run of ``orders``.

    The run fails if the block raises. It succeeds if the block ends without finishing the recording.
    ``run_id`` is given by a command that writes to a ledger.
    """
    with open_run_log(run_log or project_run_log(os.environ), env=os.environ) as log:
        run = RunRecord(run_id or new_run_id(), f"{mode}:{name}", target, mode, path=mode, trigger="cli")
        recording = RunRecording(run, log, where=where)
        try:
            with recording.at_work():
                yield recording
        except (KeyboardInterrupt, Interrupted) as error:
            recording.finish("cancelled", error)
            raise
        except BaseException as error:
            recording.finish("failed", error)
            raise
        if not recording.is_over:
            recording.finish("succeeded")


class _RecordingListener(ObservedListener):
    """Records what a run reports to its listener."""

    def __init__(self, recording: RunRecording, listener: Listener, observers: Observers) -> None:
        super().__init__(recording.record, listener, observers)
        self._recording = recording
        recording.control.note = self.note

    def planned(self, plan: Plan) -> None:
        super().planned(plan)
        self._recording.live.planned(plan)
        for each in plan.targets:
            self._recording.output.add_text(f"{each.target.label}: {each.target.mode} by {each.path.value}")

    def stage_started(self, target: str, stage: str) -> None:
        self._recording.control.safe_point(safe_point_before(target, stage))
        super().stage_started(target, stage)
        self._recording.live.stage_started(target, stage)
        self._recording.output.add_text(f"{target}: {stage} begins")

    def progress(self, target: str, progress: Progress) -> None:
        super().progress(target, progress)
        self._recording.live.progress(target, progress)

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        super().stage_finished(target, stage, seconds)
        self._recording.live.stage_finished(target, stage, seconds)
        self._recording.output.add_text(f"{target}: {stage} took {seconds:.2f} s")

    def post_step_finished(self, step: PostStepEnd) -> None:
        super().post_step_finished(step)
        self._recording.live.post_step_finished(step)
        ended = "took" if step.error is None else "failed after"
        self._recording.output.add_text(f"{step.target}: {step.stage} {ended} {step.seconds:.2f} s")
        self._recording.save_post_steps()

    def note(self, text: str) -> None:
        super().note(text)
        self._recording.output.add_text(text)


def _closing_line(status: str, error: BaseException | None) -> str:
    return status if error is None else f"{status}: {type(error).__name__}: {error}"


def engine_name(session: SparkSession) -> str:
    """Return the engine as in ``local[2], Spark 4.1.3``. No answer of a session stops a run."""
    try:
        connected = type(session).__module__.startswith("pyspark.sql.connect")
        master = "Spark Connect" if connected else session.sparkContext.master
        return f"{master}, Spark {session.version}"
    except Exception as error:
        return f"Spark ({type(error).__name__})"
