"""Records a run from start to end: in the run log, to the observers, with its log output.

Every path that runs something uses this module, so that every run leaves the same records.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.config.code_version import code_version
from ematix_flow.errors import FlowError, Interrupted
from ematix_flow.observe.listener import Listener, Progress
from ematix_flow.observe.observer import ObservedListener, Observers, RunEnd
from ematix_flow.observe.run_output import RunOutput
from ematix_flow.spec.location import SourceLocation
from ematix_flow.state.runlog.base import RunLog, error_values, project_run_log, warn_once
from ematix_flow.state.runlog.records import RunRecord, RunStatus, new_run_id
from ematix_flow.state.times import utc_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ematix_flow.engine.connections import StartSpark
    from ematix_flow.plan.definition import Plan

NO_ENGINE = "none"  # only the databases worked
_SAVED_SECONDS = 2.0  # a running run saves its output at most this often
_PURGE_LIMIT = 200  # old runs that one run deletes at most


@dataclass(frozen=True)
class RunStage:
    """A stage of a run: when it began, in seconds after the run, and how long it took (None: not ended)."""

    target: str
    stage: str
    started_after: float
    seconds: float | None = None

    def to_json(self, now: float) -> dict[str, Any]:
        """A stage that has not ended lasts until ``now``."""
        ended = self.seconds is not None
        seconds = now - self.started_after if self.seconds is None else self.seconds
        return {
            "target": self.target,
            "stage": self.stage,
            "at": round(self.started_after, 3),
            "seconds": round(seconds, 3),
            "ended": ended,
        }


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
    ) -> None:
        self.record = with_code_version(record, where)
        self.output = RunOutput()
        self.is_over = False
        self._log, self._observers = run_log, observers or Observers()
        self._where, self._keep = where, keep
        self._engine = NO_ENGINE
        self._began = self._saved = time.monotonic()
        self._stages: list[RunStage] = []
        self._log.start(self.record)
        self._observers.run_started(self.record)

    def capture_output(self) -> AbstractContextManager[None]:
        """While the block runs, Python's log records and warnings become part of the run's output."""
        return self.output.capture()

    def wrap_listener(self, listener: Listener) -> Listener:
        """Return a listener that also notifies the observers and the run log."""
        return _RecordingListener(self, listener, self._observers)

    def stage_started(self, target: str, stage: str) -> None:
        self._stages.append(RunStage(target, stage, time.monotonic() - self._began))
        self.output.add_text(f"{target}: {stage} begins")

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        ended = time.monotonic() - self._began
        matches = [n for n, each in enumerate(self._stages) if (each.target, each.stage) == (target, stage)]
        found = RunStage(target, stage, max(0.0, ended - seconds), seconds)
        if matches:
            self._stages[matches[-1]] = found
        else:
            self._stages.append(found)
        self.output.add_text(f"{target}: {stage} took {seconds:.2f} s")
        self.save_output_periodically()

    def save_output_periodically(self) -> None:
        """Save the output now and then, so that it survives a kill and can be followed meanwhile."""
        if time.monotonic() - self._saved >= _SAVED_SECONDS:
            self._log.save_output(self.record.run_id, self.output.text())
            self._saved = time.monotonic()

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
        stages = [stage.to_json(time.monotonic() - self._began) for stage in self._stages]
        metrics = {**(values.get("metrics") or {}), **({"stages": stages} if stages else {})}
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
            with recording.capture_output():
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

    def planned(self, plan: Plan) -> None:
        super().planned(plan)
        for each in plan.targets:
            self._recording.output.add_text(f"{each.target.label}: {each.target.mode} by {each.path.value}")

    def stage_started(self, target: str, stage: str) -> None:
        super().stage_started(target, stage)
        self._recording.stage_started(target, stage)

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        super().stage_finished(target, stage, seconds)
        self._recording.stage_finished(target, stage, seconds)

    def progress(self, target: str, progress: Progress) -> None:
        super().progress(target, progress)
        self._recording.save_output_periodically()

    def note(self, text: str) -> None:
        super().note(text)
        self._recording.output.add_text(text)
        self._recording.save_output_periodically()


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
