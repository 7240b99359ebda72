"""Logs runs with Python's `logging`: one record for each event, with its fields next to the message.

``.sync()`` logs this way, so that an orchestrator's task log shows what happened. A handler reads the fields
with `event_fields`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import FlowError, Interrupted, PipelineLocked
from ematix_flow.observe.listener import Attempt, Listener, Progress
from ematix_probe.redaction import mask

if TYPE_CHECKING:
    from ematix_flow.plan.results import RunResult

LOGGER = "ematix_flow.runs"
SECONDS_BETWEEN_LINES = 5.0
_FIELDS = "ematix_flow_fields"
_log = logging.getLogger(LOGGER)


def log_event(level: int, event: str, message: str, **fields: Any) -> None:
    """Log one record; fields that are None are left out."""
    if _log.isEnabledFor(level):
        known = {key: value for key, value in fields.items() if value is not None}
        _log.log(level, "%s", mask(message), extra={_FIELDS: {"event": event, **known}})


def event_fields(record: logging.LogRecord) -> Mapping[str, Any] | None:
    """Return the fields of a record that `log_event` made; None for any other record."""
    found: Mapping[str, Any] | None = getattr(record, _FIELDS, None)
    return found


class LoggingListener(Listener):
    """Logs runs. The end of a failed run has the level ``failure``: low if the error is raised as well."""

    def __init__(self, failure: int = logging.INFO, *, only_failures: bool = False) -> None:
        self._failure = failure
        self._only_failures = only_failures

    def run_started(self, attempt: Attempt) -> Listener:
        return _OneRunLogger(attempt, self._failure, self._only_failures)


class _OneRunLogger(LoggingListener):
    def __init__(self, attempt: Attempt, failure: int, only_failures: bool) -> None:
        super().__init__(failure, only_failures=only_failures)
        self._pipeline = attempt.pipeline
        self._run_fields: dict[str, Any] = {
            "pipeline": attempt.pipeline,
            "run_id": attempt.run_id,
            "slot": attempt.slot.isoformat() if attempt.slot else None,
            "attempt": attempt.number,
        }
        self._began = self._last_progress_line = time.monotonic()
        self._stages: dict[str, str] = {}
        self._last_progress: dict[str, Progress] = {}
        attempt_text = f", attempt {attempt.number}" if attempt.number > 1 else ""
        self._log_event(logging.INFO, "run_started", f"started{attempt_text}", trigger=attempt.trigger)

    def stage_started(self, target: str, stage: str) -> None:
        self._stages[target] = stage
        self._last_progress.pop(target, None)
        self._log_event(logging.INFO, "stage_started", f"{stage} begins", target=target, stage=stage)

    def progress(self, target: str, progress: Progress) -> None:
        self._last_progress[target] = progress
        if progress.rows and time.monotonic() - self._last_progress_line >= SECONDS_BETWEEN_LINES:
            self._last_progress_line = time.monotonic()
            self._log_event(
                logging.INFO,
                "progress",
                f"{progress.rows:,} rows so far",
                target=target,
                stage=self._stages.get(target),
                rows=progress.rows,
                bytes=progress.bytes,
                expected_rows=progress.expected_rows,
                seconds=time.monotonic() - self._began,
            )

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        reached = self._last_progress.pop(target, None)
        self._log_event(
            logging.INFO,
            "stage_finished",
            f"{stage} took {seconds:.1f} s",
            target=target,
            stage=stage,
            rows=reached.rows if reached else None,
            bytes=reached.bytes if reached else None,
            seconds=seconds,
        )

    def note(self, text: str) -> None:
        self._log_event(logging.INFO, "note", text)

    def run_finished(self, result: RunResult | None, error: BaseException | None) -> None:
        seconds = time.monotonic() - self._began
        if error is not None:
            what = error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
            self._log_event(
                self._failure,
                "run_finished",
                what,
                status=_status_of(error),
                seconds=seconds,
                error=error_fields(error),
            )
        elif result is not None:
            reason = f": {result.reason}" if result.reason else ""
            self._log_event(
                logging.INFO,
                "run_finished",
                f"{result.status}{reason}, {result.rows_inserted:,} rows inserted in {seconds:.1f} s",
                status=result.status,
                path=result.path,
                rows=result.rows_read,
                rows_inserted=result.rows_inserted,
                rows_updated=result.rows_updated,
                rows_deleted=result.rows_deleted,
                seconds=seconds,
            )

    def _log_event(self, level: int, event: str, message: str, **fields: Any) -> None:
        if self._only_failures and "error" not in fields:
            return
        log_event(level, event, f"{self._pipeline}: {message}", **self._run_fields, **fields)


def error_fields(error: BaseException) -> dict[str, object]:
    """Return the parts of an error for a log record."""
    if isinstance(error, FlowError):
        return error.to_json()
    return {"type": type(error).__name__, "what": mask(str(error))}


def _status_of(error: BaseException) -> str:
    """Return the status as in the run log."""
    if isinstance(error, PipelineLocked):
        return "locked"
    return "cancelled" if isinstance(error, (Interrupted, KeyboardInterrupt)) else "failed"
