"""The result of a run as a value, for the caller of ``.sync()``, the CLI and the run log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ematix_flow.errors import ExpectationFailed, FlowError, LoadError
from ematix_flow.spec.expectations import ExpectationResult
from ematix_flow.spec.pipelines import Mode
from ematix_flow.spec.row_counts import NO_ROWS, RowCountProperties, RowCounts

ResultStatus = Literal["succeeded", "skipped", "failed"]


@dataclass(frozen=True)
class TargetResult(RowCountProperties):
    """The result of one target of a run."""

    target: str
    mode: Mode
    path: str  # empty if the target could not be planned
    status: ResultStatus
    reason: str | None = None  # why it was skipped, or the error
    rows: RowCounts = NO_ROWS
    source_from: str | None = None
    source_to: str | None = None
    seconds: tuple[tuple[str, float], ...] = ()
    error: dict[str, Any] | None = field(default=None, compare=False)
    expectations: tuple[ExpectationResult, ...] = ()  # what the gate found in the rows

    @property
    def rows_quarantined(self) -> int:
        return sum(each.quarantined for each in self.expectations)

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "mode": self.mode,
            "path": self.path,
            "status": self.status,
            "reason": self.reason,
            **self.rows.to_json(),
            "source_from": self.source_from,
            "source_to": self.source_to,
            "seconds": {name: round(value, 3) for name, value in self.seconds},
            "error": self.error,
            "rows_quarantined": self.rows_quarantined,
            "expectations": [each.to_json() for each in self.expectations],
        }


@dataclass(frozen=True)
class RunResult(RowCountProperties):
    """The result of one run of a pipeline."""

    pipeline: str
    run_id: str
    status: ResultStatus
    targets: tuple[TargetResult, ...]
    seconds: float
    attempts: int = 1
    post: tuple[tuple[str, str], ...] = ()  # label and outcome of each post-load transform
    notes: tuple[str, ...] = ()
    probes: tuple[Mapping[str, Any], ...] = ()  # the reports of data probes before and after the load
    failure: FlowError | None = field(
        default=None, compare=False
    )  # the error of some targets, if the others continue

    @property
    def rows(self) -> RowCounts:
        return sum((t.rows for t in self.targets), NO_ROWS)

    @property
    def expectations(self) -> tuple[ExpectationResult, ...]:
        """What the gates of all targets found."""
        return tuple(each for target in self.targets for each in target.expectations)

    @property
    def rows_quarantined(self) -> int:
        return sum(target.rows_quarantined for target in self.targets)

    @property
    def path(self) -> str:
        return ", ".join(dict.fromkeys(t.path for t in self.targets if t.path))

    @property
    def reason(self) -> str | None:
        return "; ".join(dict.fromkeys(t.reason for t in self.targets if t.reason)) or None

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "run_id": self.run_id,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "attempts": self.attempts,
            **self.rows.to_json(),
            "targets": [t.to_json() for t in self.targets],
            "post": [{"step": label, "outcome": outcome} for label, outcome in self.post],
            "notes": list(self.notes),
            "rows_quarantined": self.rows_quarantined,
            "probes": [dict(report) for report in self.probes],
        }

    def _repr_html_(self) -> str:
        from html import escape

        cells = "".join(
            f"<tr><td>{escape(t.target)}</td><td>{escape(t.mode)}</td><td>{escape(t.path)}</td>"
            f"<td>{t.status}</td><td>{t.rows_inserted:,}</td><td>{escape(t.reason or '')}</td></tr>"
            for t in self.targets
        )
        head = "<tr><th>target</th><th>mode</th><th>path</th><th>status</th><th>inserted</th><th></th></tr>"
        title = f"<b>{escape(self.pipeline)}</b> {self.status} in {self.seconds:.1f} s"
        return f"{title}<table>{head}{cells}</table>"


def failed_result(target: str, mode: Mode, path: str, error: Exception) -> TargetResult:
    """The result of a target whose load failed with this error."""
    known = error if isinstance(error, FlowError) else unexpected_error(error)
    found = tuple(known.results) if isinstance(known, ExpectationFailed) else ()
    return TargetResult(target, mode, path, "failed", known.what, error=known.to_json(), expectations=found)


def unexpected_error(error: Exception) -> LoadError:
    """An unexpected exception as one of our errors."""
    return LoadError(f"an unexpected {type(error).__name__}: {error}")
