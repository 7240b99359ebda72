"""The metrics of pipeline runs and of a scheduler's polls.

Owns the names, as `stream_metrics` does for streams; `metrics` decides where the numbers go. Names follow
OpenMetrics; the number of labels is bounded, and further ones count as ``other``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ematix_flow.observe.observer import RunEnd, SchedulerTick
from ematix_flow.observe.stream_metrics import LONGEST_LABEL, OTHER
from ematix_probe.redaction import mask

if TYPE_CHECKING:
    from ematix_flow.state.runlog.records import RunRecord

MOST_PIPELINES = 2_000
MOST_STAGES = 50
MOST_RULES = 2_000
VERDICTS = ("pass", "warn", "fail", "error")
KINDS = ("read", "inserted", "updated", "deleted", "unchanged")
OUTCOMES = {  # by the status in the run log
    "succeeded": "success",
    "failed": "failure",
    "skipped": "skipped",
    "locked": "locked",
    "cancelled": "cancelled",
    "interrupted": "interrupted",
}
SLOT_OUTCOMES = ("succeeded", "gave_up", "skipped", "missed")

_RUN_SECONDS = (0.1, 0.5, 1, 5, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 14_400)
_TICK_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LAG_SECONDS = (1, 5, 10, 15, 30, 60, 120, 300, 900, 3_600, 14_400, 86_400)


class RunMetrics:
    """The numbers of one process, in their own registry. One thread counts, any thread may read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._pipelines: set[str] = set()
        self._stages: set[str] = set()
        self._rules: set[str] = set()
        self._runs = self._counter("pipeline_runs", "Attempts, by how they ended.", "pipeline", "outcome")
        self._duration = self._histogram(
            "pipeline_duration_seconds", "How long an attempt took.", _RUN_SECONDS, "pipeline"
        )
        self._attempt = self._gauge(
            "pipeline_retry_attempt", "The number of the last attempt, from 1.", "pipeline"
        )
        self._rows = self._counter("pipeline_rows", "Rows, by what was done with them.", "pipeline", "kind")
        self._stage_seconds = self._counter(
            "pipeline_stage_seconds", "Time spent in a stage, of all targets.", "pipeline", "stage"
        )
        self._expectations = self._counter(
            "pipeline_expectations",
            "Expectations that were checked, by what they found.",
            "pipeline",
            "rule",
            "verdict",
        )
        self._quarantined = self._counter(
            "pipeline_quarantined_rows", "Rows that failed an expectation and were set aside.", "pipeline"
        )
        self._last_run = self._gauge(
            "pipeline_last_run_timestamp_seconds", "When the last attempt ended.", "pipeline"
        )
        self._last_success = self._gauge(
            "pipeline_last_success_timestamp_seconds", "When an attempt last ended well.", "pipeline"
        )
        self._last_run_succeeded = self._gauge(
            "pipeline_last_run_succeeded", "1 when the last attempt ended well, else 0.", "pipeline"
        )
        self._slots = self._counter(
            "pipeline_slots", "Scheduled slots, by how they ended.", "pipeline", "outcome"
        )
        self._gave_up = self._gauge(
            "pipeline_gave_up", "1 while the last slot is given up, until a success.", "pipeline"
        )
        self._freshness_sla = self._gauge(
            "pipeline_freshness_sla_seconds", "How old its last success may be, as declared.", "pipeline"
        )
        self._scheduler: _SchedulerMetrics | None = None

    def value(self, name: str, **labels: str) -> float | None:
        """Return one number by its full name, such as ``pipeline_runs_total``; None if there is none yet."""
        return self.registry.get_sample_value(name, labels)

    # ------------------------------------------------------------------ what is counted

    def start_at_zero(self, pipelines: Iterable[str]) -> None:
        """Start the counters of these pipelines at zero, so that the first failure is an increase."""
        for name in map(self._pipeline, pipelines):
            for outcome in ("success", "failure", "skipped"):
                self._runs.labels(name, outcome)
            for outcome in SLOT_OUTCOMES:
                self._slots.labels(name, outcome)
            self._gave_up.labels(name)

    def set_freshness_slas(self, seconds: Mapping[str, float]) -> None:
        """Set how old the last success of each pipeline may be."""
        for pipeline, allowed in seconds.items():
            self._freshness_sla.labels(self._pipeline(pipeline)).set(allowed)

    def set_last_success(self, pipeline: str, moment: dt.datetime) -> None:
        """Set when the pipeline last ended well."""
        self._last_success.labels(self._pipeline(pipeline)).set(moment.timestamp())

    def set_last_run_state(self, record: RunRecord, ending: RunEnd) -> None:
        """Set the state of a pipeline from its last run, without counting the run."""
        if record.mode == "stream" or record.finished_at is None:
            return
        name, well = self._pipeline(record.pipeline), record.ended_well
        self._attempt.labels(name).set(record.attempt)
        self._last_run.labels(name).set(record.finished_at.timestamp())
        if record.status in ("skipped", "locked") and not well:
            return  # it never began: the state of the pipeline is unchanged
        self._last_run_succeeded.labels(name).set(int(well))
        if well:
            self.set_last_success(record.pipeline, record.finished_at)
            self._gave_up.labels(name).set(0)
        elif _gave_up(record, ending):
            self._gave_up.labels(name).set(1)

    def forget_states(self) -> None:
        """Forget the states of the pipelines: another scheduler reports them now."""
        states = (self._attempt, self._last_run, self._last_success, self._last_run_succeeded, self._gave_up)
        for gauge in states:
            gauge.clear()

    def run_finished(self, record: RunRecord, ending: RunEnd) -> None:
        """Count an attempt at a pipeline; streams have their own numbers."""
        if record.mode == "stream" or record.finished_at is None:
            return
        name, well = self._pipeline(record.pipeline), record.ended_well
        self._runs.labels(name, OUTCOMES.get(record.status, OTHER)).inc()
        self.set_last_run_state(record, ending)
        if record.status not in ("skipped", "locked") or well:
            seconds = (record.finished_at - record.started_at).total_seconds()
            self._duration.labels(name).observe(max(seconds, 0.0))
        for kind in KINDS:
            self._rows.labels(name, kind).inc(max(getattr(record.rows, kind) or 0, 0))
        for stage, seconds in _stages(record.metrics):
            self._stage_seconds.labels(name, self._bounded(self._stages, stage, MOST_STAGES)).inc(seconds)
        for rule, verdict, quarantined in _expectations(record.metrics):
            shown = verdict if verdict in VERDICTS else OTHER
            self._expectations.labels(name, self._bounded(self._rules, rule, MOST_RULES), shown).inc()
            self._quarantined.labels(name).inc(quarantined)
        ended = (
            well and record.error_message is None
        )  # with a message, another process recorded the end, and its slot is counted separately
        if record.slot is not None and (ended or _gave_up(record, ending)):
            self._slots.labels(name, "succeeded" if well else "gave_up").inc()

    def slot_ended(self, pipeline: str, outcome: str) -> None:
        """Count a slot that ended without a run: given up, skipped or missed."""
        name = self._pipeline(pipeline)
        self._slots.labels(name, outcome if outcome in SLOT_OUTCOMES else OTHER).inc()
        if outcome == "gave_up":
            self._gave_up.labels(name).set(1)

    def scheduler_ticked(self, tick: SchedulerTick, now: float) -> None:
        """Count a poll of the scheduler of this process."""
        if self._scheduler is None:
            self._scheduler = _SchedulerMetrics(self.registry)
        self._scheduler.record_tick(tick, now)

    # ------------------------------------------------------------------ names and labels

    def _pipeline(self, name: str) -> str:
        return self._bounded(self._pipelines, name, MOST_PIPELINES)

    @staticmethod
    def _bounded(seen: set[str], value: str, most: int) -> str:
        label = mask(value).encode("utf-8", "backslashreplace").decode("utf-8")[:LONGEST_LABEL]
        if label not in seen and len(seen) >= most:
            return OTHER
        seen.add(label)
        return label

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, unit=_unit(name), registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, unit=_unit(name), registry=self.registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, meaning, labels, unit=_unit(name), registry=self.registry, buckets=buckets)


class _SchedulerMetrics:
    """The numbers of a scheduler, created at its first poll: other processes do not show them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "ematix_flow_scheduler"
        self._leads: bool = False
        self._ticks = Counter(
            f"{prefix}_ticks",
            "Polls by outcome; idle while another scheduler leads.",
            ("outcome",),
            registry=registry,
        )
        for outcome in ("ok", "idle", "failed"):
            self._ticks.labels(outcome)
        self._seconds = Histogram(
            f"{prefix}_tick_seconds",
            "How long a poll took.",
            unit="seconds",
            registry=registry,
            buckets=_TICK_SECONDS,
        )
        self._last = Gauge(
            f"{prefix}_last_tick_timestamp_seconds",
            "When the scheduler last polled.",
            unit="seconds",
            registry=registry,
        )
        self._leader = Gauge(f"{prefix}_leader", "1 while this scheduler leads.", registry=registry)
        self._lost = Counter(f"{prefix}_leases_lost", "How often it ceased to lead.", registry=registry)
        self._pipelines = Gauge(f"{prefix}_pipelines", "Pipelines with a schedule.", registry=registry)
        self._claims = Counter(
            f"{prefix}_claims",
            "Slots claimed: started, refused by the executor, or taken over from a run that died.",
            ("outcome",),
            registry=registry,
        )
        for outcome in ("started", "refused", "taken_over"):
            self._claims.labels(outcome)
        self._lag = Histogram(
            f"{prefix}_due_lag_seconds",
            "How long after its fire a slot was started.",
            unit="seconds",
            registry=registry,
            buckets=_LAG_SECONDS,
        )
        self._due = Gauge(
            f"{prefix}_due_slots", "Slots that are due and wait to be started.", registry=registry
        )
        self._oldest_due = Gauge(
            f"{prefix}_oldest_due_seconds",
            "How long ago the oldest slot fired that is due and waits; 0 when none does.",
            unit="seconds",
            registry=registry,
        )

    def record_tick(self, tick: SchedulerTick, now: float) -> None:
        self._ticks.labels("failed" if tick.failed else "ok" if tick.leads else "idle").inc()
        self._seconds.observe(tick.seconds)
        self._last.set(now)
        self._lost.inc(int(self._leads and not tick.leads))
        self._leads = tick.leads
        self._leader.set(int(tick.leads))
        self._pipelines.set(len(tick.max_attempts))
        self._claims.labels("started").inc(tick.started)
        self._claims.labels("refused").inc(tick.refused)
        self._claims.labels("taken_over").inc(tick.taken_over)
        for late in tick.lags:
            self._lag.observe(max(late, 0.0))
        if tick.due is not None:
            self._due.set(tick.due)
            self._oldest_due.set(tick.oldest_due_seconds)


def _gave_up(record: RunRecord, ending: RunEnd) -> bool:
    return record.slot is not None and record.status == "failed" and not ending.will_retry


def _unit(name: str) -> str:
    return "seconds" if name.endswith("_seconds") else ""


def _expectations(metrics: dict[str, Any]) -> Iterable[tuple[str, str, int]]:
    """Yield rule, verdict and quarantined rows of what the gates of a run checked."""
    for target in metrics.get("targets", ()):
        for each in target.get("expectations", ()):
            yield str(each["rule"]), str(each["verdict"]), max(int(each["quarantined"] or 0), 0)


def _stages(metrics: dict[str, Any]) -> Iterable[tuple[str, float]]:
    """Yield the stages and their seconds, for each target with a result."""
    for target in metrics.get("targets", ()):
        for stage, seconds in target.get("seconds", {}).items():
            yield str(stage), max(float(seconds), 0.0)
