"""A run from its first word to its last: in the run log, before the observers, with what it says.

Every path that runs something goes through here, so that each leaves the same traces.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.run_logs import open_run_log
from ematix_flow.config.code_version import code_version
from ematix_flow.errors import FlowError, Interrupted
from ematix_flow.observe.capture import RunOutput
from ematix_flow.observe.listener import Listener, Progress
from ematix_flow.observe.observer import Ending, Observers, StageTeller
from ematix_flow.spec.location import SourceLocation
from ematix_flow.state.records import RunRecord, RunStatus, new_run_id, utc_now
from ematix_flow.state.runlog import RunLog, error_values, project_run_log, warn_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ematix_flow.plan.definition import Plan
    from ematix_flow.plan.world import StartSpark

NO_ENGINE = "none"  # the databases did it alone
_SAVED_SECONDS = 2.0  # what a run says is kept no more often while it runs
_PURGED_AT_ONCE = 200  # what one run forgets of the older ones


@dataclass(frozen=True)
class Stage:
    """A stage of a run: when it began, in seconds after it, and how long it took; None unless it ended."""

    target: str
    stage: str
    at: float
    seconds: float | None = None

    def to_json(self, now: float) -> dict[str, Any]:
        """One that did not end took until ``now``."""
        ended = self.seconds is not None
        seconds = now - self.at if self.seconds is None else self.seconds
        return {
            "target": self.target,
            "stage": self.stage,
            "at": round(self.at, 3),
            "seconds": round(seconds, 3),
            "ended": ended,
        }


def signed(record: RunRecord, where: SourceLocation | None) -> RunRecord:
    """With the code that it is a run of; as long as no engine is started it has none."""
    return replace(record, engine=NO_ENGINE, code_version=code_version(where.file if where else None))


class Recording:
    """Begins with its record's start. ``keep`` is how long runs of this pipeline are remembered."""

    def __init__(
        self,
        record: RunRecord,
        run_log: RunLog,
        observers: Observers | None = None,
        *,
        where: SourceLocation | None = None,
        keep: dt.timedelta | None = None,
    ) -> None:
        self.record = signed(record, where)
        self.output = RunOutput()
        self.is_over = False
        self._log, self._observers = run_log, observers or Observers()
        self._where, self._keep = where, keep
        self._engine = NO_ENGINE
        self._began = self._saved = time.monotonic()
        self._stages: list[Stage] = []
        self._log.start(self.record)
        self._observers.run_started(self.record)

    def captured(self) -> AbstractContextManager[None]:
        """While the block runs, what Python logs and warns of is part of what the run says."""
        return self.output.captured()

    def listener(self, listener: Listener) -> Listener:
        """Who watches the run, with the observers and the run log listening too."""
        return _Scribe(self, listener, self._observers)

    def stage_started(self, target: str, stage: str) -> None:
        self._stages.append(Stage(target, stage, time.monotonic() - self._began))
        self.output.line(f"{target}: {stage} begins")

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        ended = time.monotonic() - self._began
        begun = [n for n, each in enumerate(self._stages) if (each.target, each.stage) == (target, stage)]
        found = Stage(target, stage, max(0.0, ended - seconds), seconds)
        if begun:
            self._stages[begun[-1]] = found
        else:
            self._stages.append(found)
        self.output.line(f"{target}: {stage} took {seconds:.2f} s")
        self.save_now_and_then()

    def save_now_and_then(self) -> None:
        """So that the log of a run that is killed is not lost, and one that goes on can be followed."""
        if time.monotonic() - self._saved >= _SAVED_SECONDS:
            self._log.save_output(self.record.run_id, self.output.text())
            self._saved = time.monotonic()

    def spark(self, start: StartSpark) -> StartSpark:
        """The same, and it is noted which engine was started."""

        def started(jar_groups: Sequence[str]) -> SparkSession:
            session = start(jar_groups)
            engine = engine_of(session)
            if engine != self._engine:  # noted now: a run that is killed cannot say it in the end
                self._engine = engine
                self._log.take_engine(self.record.run_id, engine)
            return session

        return started

    def finish(
        self,
        status: RunStatus,
        error: BaseException | None = None,
        ending: Ending | None = None,
        **told: Any,
    ) -> RunRecord:
        """The run is over; its record. What is ``told`` are fields of it."""
        stages = [stage.to_json(time.monotonic() - self._began) for stage in self._stages]
        metrics = {**(told.get("metrics") or {}), **({"stages": stages} if stages else {})}
        self.is_over = True
        over: dict[str, Any] = {"finished_at": utc_now(), "engine": self._engine, **told, "metrics": metrics}
        self.output.line(_last_word(status, error), "INFO" if error is None else "ERROR")
        self._log.save_output(self.record.run_id, self.output.text())
        self._log.finish(self.record.run_id, status, error=error, where=self._where, **over)
        over |= error_values(error, self._where)
        ended = replace(self.record, status=status, **over)
        self._observers.run_finished(ended, ending or Ending(error=error))
        self._purge()
        return ended

    def _purge(self) -> None:
        if self._keep is None:
            return
        try:
            before = utc_now() - self._keep
            self._log.purge(before, pipeline=self.record.pipeline, most=_PURGED_AT_ONCE)
        except FlowError as error:
            warn_once(self._log.location, f"old runs could not be forgotten: {error.what}")


@contextmanager
def recorded(
    name: str,
    target: str,
    mode: str,
    run_log: str | None,
    where: SourceLocation | None = None,
) -> Iterator[Recording]:
    """What a command does beside loading, as a run of its own: ``maintain:orders`` is no run of ``orders``.

    One that raises has failed; one that is not finished by the block has succeeded.
    """
    with open_run_log(run_log or project_run_log(os.environ), env=os.environ) as log:
        run = RunRecord(new_run_id(), f"{mode}:{name}", target, mode, path=mode, trigger="cli")
        recording = Recording(run, log, where=where)
        try:
            with recording.captured():
                yield recording
        except (KeyboardInterrupt, Interrupted) as error:
            recording.finish("cancelled", error)
            raise
        except BaseException as error:
            recording.finish("failed", error)
            raise
        if not recording.is_over:
            recording.finish("succeeded")


class _Scribe(StageTeller):
    """Writes down what a run's listener hears."""

    def __init__(self, recording: Recording, listener: Listener, observers: Observers) -> None:
        super().__init__(recording.record, listener, observers)
        self._recording = recording

    def planned(self, plan: Plan) -> None:
        super().planned(plan)
        for each in plan.targets:
            self._recording.output.line(f"{each.target.label}: {each.target.mode} by {each.path.value}")

    def stage_started(self, target: str, stage: str) -> None:
        super().stage_started(target, stage)
        self._recording.stage_started(target, stage)

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        super().stage_finished(target, stage, seconds)
        self._recording.stage_finished(target, stage, seconds)

    def progress(self, target: str, progress: Progress) -> None:
        super().progress(target, progress)
        self._recording.save_now_and_then()

    def note(self, text: str) -> None:
        super().note(text)
        self._recording.output.line(text)
        self._recording.save_now_and_then()


def _last_word(status: str, error: BaseException | None) -> str:
    return status if error is None else f"{status}: {type(error).__name__}: {error}"


def engine_of(session: SparkSession) -> str:
    """As in ``local[2], Spark 4.1.3``. Nothing that a session answers, or does not, stops a run."""
    try:
        connected = type(session).__module__.startswith("pyspark.sql.connect")
        master = "Spark Connect" if connected else session.sparkContext.master
        return f"{master}, Spark {session.version}"
    except Exception as error:
        return f"Spark ({type(error).__name__})"
