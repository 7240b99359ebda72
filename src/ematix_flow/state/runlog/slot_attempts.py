"""Finds the attempts at a slot in the run log. Restarts are none: they run outside the slot's claim."""

from __future__ import annotations

import datetime as dt

from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord

_LOOKBACK_RUNS = 100  # the attempts at a slot that has not ended are among the newest


def attempts_at_slot(run_log: RunLog, pipeline: str, fire_time: dt.datetime) -> tuple[RunRecord, ...]:
    """Return the recorded attempts at a slot, newest first, as far as they are among the newest runs."""
    runs = run_log.list(pipeline, limit=_LOOKBACK_RUNS)
    return tuple(run for run in runs if run.slot == fire_time and not is_restart(run))


def is_restart(run: RunRecord) -> bool:
    """Whether the run restarted another one. It has the slot of that run, and does not hold it."""
    return bool(run.metrics.get("restart_of"))
