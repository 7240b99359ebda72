"""A run and its log as `flow runs`, `flow logs` and the web page show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ematix_flow.state.runlog.records import RunRecord
from ematix_probe.failing_values import are_samples_wanted

if TYPE_CHECKING:
    from ematix_flow.state.runlog.base import RunLog


def shown_run(record: RunRecord) -> RunRecord:
    """The record without the failing rows that it may have, if they are not to be shown."""
    return record if are_samples_wanted() else replace(record, metrics=without_samples(record.metrics))


def listed_run(record: RunRecord) -> RunRecord:
    """The record as a list shows it: without its plan, which is long."""
    shown = shown_run(record)
    return replace(shown, metrics=listed_metrics(shown.metrics))


def listed_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in metrics.items() if name != "plan"}


def without_samples(value: Any) -> Any:
    """What a run log holds of a run, without the failing rows."""
    if isinstance(value, Mapping):
        return {
            name: [] if name == "samples" and isinstance(each, Sequence) else without_samples(each)
            for name, each in value.items()
        }
    return [without_samples(each) for each in value] if isinstance(value, (list, tuple)) else value


def run_log_lines(log: RunLog, record: RunRecord, tail: int | None = None) -> list[str]:
    """The lines that a run has logged, or the last ``tail`` of them."""
    lines = (log.output(record.run_id) or "").splitlines()
    return lines if tail is None else lines[-tail:]


def run_lines_json(record: RunRecord, lines: Sequence[str]) -> dict[str, Any]:
    return {"run_id": record.run_id, "status": record.status, "lines": list(lines)}
