"""The metadata of a load's report, as JSON: summary, percentiles, histogram, series, errors and warnings."""

from __future__ import annotations

from typing import Any

from ematix_probe.load.declaration import LoadPlan
from ematix_probe.load.histogram import (
    COARSE_RELATIVE_ERROR,
    COARSE_SHIFT,
    RELATIVE_ERROR,
    Histogram,
    coarse_upper_end,
    nearest_rank,
    value_at_rank,
)
from ematix_probe.load.metrics import COUNTS, DISTRIBUTIONS, FIGURES, MILLISECOND, PERCENTILES, LoadOutcome
from ematix_probe.load.recording import SeriesRow

HELD_RATE = 0.99  # of the intended rate: below, the report warns


def describe_outcome(plan: LoadPlan, outcome: LoadOutcome, *, processes: int) -> dict[str, Any]:
    recorder = outcome.recorder
    return {
        "kind": "load",
        "target": plan.target.label,
        "model": plan.profile.model,
        "load": plan.describe()["load"],
        "stages": plan.profile.to_json()["stages"],
        "duration_seconds": plan.profile.seconds,
        "warmup_seconds": plan.warmup,
        "effective_seconds": round(outcome.effective_seconds, 6),
        "processes": processes,
        "interrupted": outcome.interrupted,
        "ended_early": outcome.ended_early,
        "warnings": find_warnings(outcome),
        "summary": summarise(outcome),
        "percentiles": [
            {
                "percentile": p * 100,
                "latency_ms": _ms(recorder.latency.percentile(p)),
                "service_ms": _ms(recorder.service.percentile(p)),
            }
            for p in PERCENTILES
        ],
        "relative_error": RELATIVE_ERROR,
        "histogram": _coarse_histogram(recorder.latency),
        "series_relative_error": COARSE_RELATIVE_ERROR,
        "series": [
            _series_row(row, number * recorder.row_seconds, recorder.row_seconds)
            for number, row in enumerate(recorder.rows)
        ],
        "errors": dict(sorted(recorder.errors.items(), key=lambda each: -each[1])),
        "error_messages": recorder.messages,
        "statuses": {str(status): count for status, count in sorted(recorder.statuses.items())},
        "warmup_attempts": recorder.warmup_attempts,
    }


def summarise(outcome: LoadOutcome) -> dict[str, float | None]:
    """All counts, and the usual figures of all distributions that have values."""
    summary = {name: outcome.metric(name) for name in COUNTS}
    for distribution in DISTRIBUTIONS:
        if outcome.distribution(distribution).count:
            for figure in (*FIGURES, "p50", "p90", "p95", "p99", "p99.9"):
                summary[f"{distribution}.{figure}"] = outcome.metric(f"{distribution}.{figure}")
    return {name: None if value is None else round(value, 6) for name, value in summary.items()}


def find_warnings(outcome: LoadOutcome) -> list[str]:
    """What a reader must know before trusting the figures."""
    warnings, recorder = [], outcome.recorder
    if outcome.interruption is not None:
        warnings.append(outcome.interruption)
    if outcome.abandoned:
        warnings.append(
            f"{outcome.abandoned:,} requests were in flight when it was interrupted: they are not counted"
        )
    if outcome.ended_early:
        warnings.append(f"ended early after {outcome.elapsed:.1f} s: {outcome.ended_early}")
    if (
        outcome.profile.model == "open"
        and outcome.ended_early is None  # else arrivals were left out because the feeder had no row for them
        and outcome.scheduled
        and recorder.started < HELD_RATE * outcome.scheduled
    ):
        warnings.append(
            f"only {recorder.started:,} of {outcome.scheduled:,} intended requests were started in time, "
            f"{recorder.started / outcome.scheduled:.1%}: {_cause(outcome)}"
        )
    elif recorder.late > (1 - HELD_RATE) * max(recorder.attempts, 1):
        warnings.append(f"{recorder.late:,} requests waited before they could be started: {_cause(outcome)}")
    delay = recorder.start_delay.percentile(0.99)
    if not recorder.late and delay is not None and delay > 10 * MILLISECOND:
        warnings.append(
            f"this machine started requests late, by {delay / MILLISECOND:.0f} ms at p99: "
            "it is busy, or one process is too little; see processes="
        )
    return warnings


def _cause(outcome: LoadOutcome) -> str:
    if outcome.recorder.late or outcome.recorder.not_started:
        return "all places were taken by requests without an answer"
    return "this machine was too busy to send them; more processes= may help"


def _coarse_histogram(histogram: Histogram) -> list[list[float]]:
    """Pairs of the upper end of a coarse cell in milliseconds, and its count."""
    cells: dict[int, int] = {}
    for cell, count in histogram.counts.items():
        cells[cell >> COARSE_SHIFT] = cells.get(cell >> COARSE_SHIFT, 0) + count
    return [[coarse_upper_end(cell) / MILLISECOND, cells[cell]] for cell in sorted(cells)]


def _series_row(row: SeriesRow, second: int, seconds: int) -> dict[str, Any]:
    count = sum(row.cells.values())

    def percentile(p: float) -> float | None:
        if not count:
            return None
        return _ms(min(coarse_upper_end(value_at_rank(row.cells, nearest_rank(p, count))), row.highest))

    return {
        "second": second,
        "seconds": seconds,
        "attempts": row.attempts,
        "started": row.started,
        "completed": row.completed,
        "errors": row.errors,
        "p50_ms": percentile(0.5),
        "p90_ms": percentile(0.9),
        "p99_ms": percentile(0.99),
        "max_ms": _ms(row.highest) if count else None,
    }


def _ms(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / MILLISECOND, 6)
