"""Runs as the interface shows them: as `flow runs` does, bounded to what a list needs."""

from __future__ import annotations

from typing import Any

from ematix_flow.state.runlog.history import RunSummary
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.runlog.shown_runs import listed_metrics, shown_run


def run_json(record: RunRecord) -> dict[str, Any]:
    """A run in a list."""
    value = shown_run(record).to_json()
    value["metrics"] = listed_metrics(value["metrics"])
    return value


def full_run_json(record: RunRecord) -> dict[str, Any]:
    """A run with everything that its record has."""
    return shown_run(record).to_json()


def bar_json(run: RunSummary) -> dict[str, Any]:
    seconds = None if run.finished_at is None else (run.finished_at - run.started_at).total_seconds()
    return {
        "run_id": run.run_id,
        "status": run.status,
        "started_at": run.started_at.isoformat(),
        "seconds": seconds,
        "rows": run.rows_written,
    }
