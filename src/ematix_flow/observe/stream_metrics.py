"""The metrics and the health of running streams.

Owns the numbers; `metrics_server` serves them. A call never raises and never waits: metrics never stop a
stream. Names follow OpenMetrics; the number of labels is bounded, and further ones count as ``other``.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ematix_flow.spec.expectations import ExpectationResult
from ematix_probe.redaction import mask

if TYPE_CHECKING:
    from ematix_flow.observe.metrics_server import MetricsServer

StreamState = Literal["starting", "running", "restarting", "stopped", "failed"]
PHASES = ("read", "decode", "transform", "stage", "apply", "commit")
STAGES = ("decode", "transform", "write", "expectation", "late_data")
BATCH_STATUSES = ("committed", "empty", "repeated", "failed")

MOST_PIPELINES = 200
MOST_TARGETS = 50  # of a pipeline
MOST_RULES = 500  # of a pipeline
MOST_PARTITIONS = 500  # of a pipeline
LONGEST_LABEL = 200
LONGEST_ERROR = 500
OTHER = "other"

_PREFIX = "ematix_flow_stream"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass
class _StreamStatus:
    """The state of one stream that is not a metric; times are of the monotonic clock."""

    state: StreamState = "starting"
    since: float = 0.0
    batch: float | None = None
    attempt: float | None = None
    restarts: int = 0
    error: str | None = None
    failing: dict[str, tuple[float, str]] = field(
        default_factory=dict
    )  # by target: since when, and the error
    targets: set[str] = field(default_factory=set)
    rules: set[str] = field(default_factory=set)
    partitions: set[tuple[Gauge, str, str]] = field(default_factory=set)  # whose lag is shown


@dataclass(frozen=True)
class StreamHealth:
    """The health of all streams: whether all is well, and the state of each stream.

    ``status`` is one word for it; ``degraded``: a stream runs on while one of its targets fails.
    """

    is_healthy: bool
    pipelines: Mapping[str, Mapping[str, Any]]
    status: str

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status, "pipelines": dict(self.pipelines)}


class StreamMetrics:
    """The numbers of the streams of this process, in their own registry. Any thread may call.

    A stream is ready while it runs and its last batch, or its last check for one, is at most
    ``stale_after_seconds`` old.
    """

    def __init__(
        self,
        *,
        stale_after_seconds: float = 300.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.stale_after_seconds = stale_after_seconds
        self._clock, self._monotonic = clock, monotonic
        self._lock = threading.RLock()
        self._pipelines: dict[str, _StreamStatus] = {}
        self._rows = self._counter("rows", "Rows that a target has taken.", "pipeline", "target")
        self._rows_read = self._counter("rows_read", "Rows or messages read from the source.", "pipeline")
        self._batches = self._counter("batches", "Batches, by how they ended.", "pipeline", "status")
        self._seconds = Histogram(
            f"{_PREFIX}_batch_seconds",
            "How long a phase of a batch took.",
            ("pipeline", "phase"),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._lag = self._gauge("lag", "Messages that wait.", "pipeline", "topic", "partition")
        self._lag_seconds = self._gauge(
            "lag_seconds",
            "Time behind the newest message, for sources that measure lag in time.",
            "pipeline",
            "topic",
            "partition",
        )
        self._watermark = self._gauge(
            "watermark_lag_seconds", "How far the watermark is behind the clock.", "pipeline"
        )
        self._dead = self._counter("dead_letters", "Letters kept as dead.", "pipeline", "stage")
        self._restarts = self._counter("restarts", "Restarts after a failure.", "pipeline")
        self._skipped = self._counter("skipped", "Messages left out on purpose.", "pipeline")
        self._expectations = self._counter(
            "expectations",
            "Expectations that were checked on a batch, by what they found.",
            "pipeline",
            "rule",
            "verdict",
        )
        self._quarantined = self._counter(
            "quarantined_rows", "Rows that failed an expectation and were set aside.", "pipeline"
        )
        self._late_rows = self._counter("late_rows", "Rows of windows that were already loaded.", "pipeline")
        self._state_rows = self._gauge("state_rows", "Open windows and their groups.", "pipeline")
        self._state_bytes = self._gauge("state_bytes", "Size of the state on disk.", "pipeline")
        self._tombstones = self._counter("tombstones", "Messages without a value.", "pipeline")
        self._last_batch = self._gauge(
            "last_batch_timestamp_seconds", "When the last batch was committed.", "pipeline"
        )
        self._up = self._gauge("up", "1 while the stream runs.", "pipeline")

    # ------------------------------------------------------------------ what a stream reports

    def set_state(self, pipeline: str, state: StreamState, error: BaseException | str | None = None) -> None:
        """Set the state of a stream, with the error that caused it, if any."""
        if state not in get_args(StreamState):
            return
        with self._lock:
            name, known = self._status_of(pipeline)
            if known.state != state:
                known.state, known.since = state, self._monotonic()
            if state in ("starting", "stopped"):
                known.failing.clear()
            if error is not None:
                known.error = _error_line(error)
            elif state == "running":
                known.attempt = None if known.attempt is None else max(known.attempt, known.since)
            self._up.labels(name).set(1 if state == "running" else 0)

    def count_batch(
        self,
        pipeline: str,
        rows_read: int,
        rows_by_target: Mapping[str, int],
        seconds_by_phase: Mapping[str, float],
        status: str = "committed",
    ) -> None:
        """Count a batch: ``committed``, ``empty``, ``repeated`` (it was committed before) or ``failed``."""
        with self._lock:
            name, known = self._status_of(pipeline)
            known.attempt = self._monotonic()
            if status == "committed":
                known.batch = known.attempt
                self._last_batch.labels(name).set(self._clock())
            self._batches.labels(name, _known_or_other(status, BATCH_STATUSES)).inc()
            self._rows_read.labels(name).inc(_not_negative(rows_read))
            for target, rows in rows_by_target.items():
                label = _bounded(known.targets, _label(target), MOST_TARGETS)
                self._rows.labels(name, label).inc(_not_negative(rows))
            for phase, seconds in seconds_by_phase.items():
                if math.isfinite(seconds):
                    self._seconds.labels(name, _known_or_other(phase, PHASES)).observe(max(seconds, 0.0))

    def mark_alive(self, pipeline: str) -> None:
        """Record that the stream checked for a batch and there was none: it is alive."""
        with self._lock:
            self._status_of(pipeline)[1].attempt = self._monotonic()

    def set_lag(self, pipeline: str, waiting: Mapping[str, int], unit: str = "messages") -> None:
        """Set the backlog by ``topic/partition``: messages, or ``milliseconds`` behind the newest one.

        Partitions that are no longer named are removed. Times that share a label are not added: the longest
        counts.
        """
        timed = unit == "milliseconds"
        gauge, per = (self._lag_seconds, 1000) if timed else (self._lag, 1)
        with self._lock:
            name, known = self._status_of(pipeline)
            found: dict[tuple[str, str], int] = {}
            for place in sorted(waiting):
                topic, _, partition = place.rpartition("/")
                label = (_label(topic or place), _label(partition if topic else ""))
                if len(found) >= MOST_PARTITIONS and label not in found:
                    label = (OTHER, OTHER)
                before, waiting_here = found.get(label, 0), _not_negative(waiting[place])
                found[label] = max(before, waiting_here) if timed else before + waiting_here
            for old, topic, partition in known.partitions - {(gauge, *label) for label in found}:
                old.remove(name, topic, partition)
            known.partitions = {(gauge, *label) for label in found}
            for label, much in found.items():
                gauge.labels(name, *label).set(much / per)

    def set_watermark_lag(self, pipeline: str, seconds: float) -> None:
        if math.isfinite(seconds):
            self._watermark.labels(self._pipeline_label(pipeline)).set(seconds)

    def count_dead_letters(self, pipeline: str, stage: str, letters: int = 1) -> None:
        self._dead.labels(self._pipeline_label(pipeline), _known_or_other(stage, STAGES)).inc(
            _not_negative(letters)
        )

    def count_skipped(self, pipeline: str, messages: int = 1) -> None:
        self._skipped.labels(self._pipeline_label(pipeline)).inc(_not_negative(messages))

    def count_tombstones(self, pipeline: str, messages: int = 1) -> None:
        self._tombstones.labels(self._pipeline_label(pipeline)).inc(_not_negative(messages))

    def count_expectations(self, pipeline: str, results: Sequence[ExpectationResult]) -> None:
        """Count what the expectations of a batch found in the rows of one target."""
        with self._lock:
            name, known = self._status_of(pipeline)
            for each in results:
                rule = _bounded(known.rules, _label(each.rule), MOST_RULES)
                self._expectations.labels(name, rule, each.verdict).inc()
                self._quarantined.labels(name).inc(_not_negative(each.quarantined))

    def count_late_rows(self, pipeline: str, rows: int) -> None:
        self._late_rows.labels(self._pipeline_label(pipeline)).inc(_not_negative(rows))

    def set_state_size(self, pipeline: str, rows: int, size: int) -> None:
        name = self._pipeline_label(pipeline)
        self._state_rows.labels(name).set(rows)
        self._state_bytes.labels(name).set(size)

    def count_restart(self, pipeline: str, error: BaseException | str) -> None:
        """Count a restart after a failure."""
        with self._lock:
            name, known = self._status_of(pipeline)
            known.restarts += 1
            self._restarts.labels(name).inc()
            self.set_state(pipeline, "restarting", error)

    def target_failed(self, pipeline: str, target: str, error: BaseException | str) -> None:
        """Record that one of several targets fails: the stream goes on without it and retries it."""
        with self._lock:
            failing, label = self._status_of(pipeline)[1].failing, _label(target)
            if label in failing or len(failing) < MOST_TARGETS:
                since = failing[label][0] if label in failing else self._monotonic()
                failing[label] = since, _error_line(error)

    def target_recovered(self, pipeline: str, target: str) -> None:
        """Record that the target accepts batches again."""
        with self._lock:
            self._status_of(pipeline)[1].failing.pop(_label(target), None)

    # ------------------------------------------------------------------ what is read

    def health(self) -> StreamHealth:
        """Return the health: well unless a stream has failed; ``degraded`` while one target fails."""
        with self._lock:
            well = all(known.state != "failed" for known in self._pipelines.values())
            degraded = any(known.failing for known in self._pipelines.values())
            pipelines = {
                name: {**self._status_json(known), "failing_targets": self._failing_targets(known)}
                for name, known in self._pipelines.items()
            }
        return StreamHealth(well, pipelines, "failed" if not well else "degraded" if degraded else "ok")

    def readiness(self) -> StreamHealth:
        """Return the readiness: well if there are streams and each of them runs and is not stuck."""
        with self._lock:
            pipelines = {
                name: {**self._status_json(known), "ready": self._is_ready(known)}
                for name, known in self._pipelines.items()
            }
        ready = bool(pipelines) and all(each["ready"] for each in pipelines.values())
        return StreamHealth(ready, pipelines, "ready" if ready else "not ready")

    def serve(self, port: int, host: str = "127.0.0.1") -> MetricsServer:
        """Serve the numbers at ``/metrics``, ``/health`` and ``/ready``; port 0 is any free port."""
        from ematix_flow.observe.metrics_server import MetricsServer

        def answer(health: StreamHealth) -> tuple[bool, Any]:
            return health.is_healthy, health.to_json()

        answers = {"/health": lambda: answer(self.health()), "/ready": lambda: answer(self.readiness())}
        return MetricsServer(self.registry, host, port, answers=answers)

    def _is_ready(self, known: _StreamStatus) -> bool:
        last = known.since if known.attempt is None else max(known.attempt, known.since)
        return known.state == "running" and self._monotonic() - last <= self.stale_after_seconds

    def _failing_targets(self, known: _StreamStatus) -> dict[str, dict[str, Any]]:
        now = self._monotonic()
        return {
            target: {"since_seconds": round(now - since, 3), "last_error": error}
            for target, (since, error) in known.failing.items()
        }

    def _status_json(self, known: _StreamStatus) -> dict[str, Any]:
        now = self._monotonic()

        def ago(moment: float | None) -> float | None:
            return None if moment is None else round(now - moment, 3)

        return {
            "state": known.state,
            "since_seconds": ago(known.since),
            "last_batch_seconds_ago": ago(known.batch),
            "last_attempt_seconds_ago": ago(known.attempt),
            "restarts": known.restarts,
            "last_error": known.error,
        }

    # ------------------------------------------------------------------ labels

    def _status_of(self, pipeline: str) -> tuple[str, _StreamStatus]:
        name = _label(pipeline)
        if name not in self._pipelines:
            if len(self._pipelines) >= MOST_PIPELINES:
                name = OTHER
            self._pipelines.setdefault(name, _StreamStatus(since=self._monotonic()))
            for stage in STAGES:  # from zero, so that the first letter is an increase
                self._dead.labels(name, stage)
        return name, self._pipelines[name]

    def _pipeline_label(self, pipeline: str) -> str:
        with self._lock:
            return self._status_of(pipeline)[0]

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", meaning, labels, registry=self.registry)


def _bounded(seen: set[str], value: str, most: int) -> str:
    if value not in seen and len(seen) >= most:
        return OTHER
    seen.add(value)
    return value


def _label(text: str) -> str:
    return mask(text).encode("utf-8", "backslashreplace").decode("utf-8")[:LONGEST_LABEL]


def _known_or_other(value: str, known: tuple[str, ...]) -> str:
    return value if value in known else OTHER


def _not_negative(number: int) -> int:
    return max(int(number), 0)


def _error_line(error: BaseException | str) -> str:
    """Return the first line of an error, without secrets."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    line = mask(text).split("\n")[0].encode("utf-8", "backslashreplace").decode("utf-8")
    return line if len(line) <= LONGEST_ERROR else line[: LONGEST_ERROR - 1] + "…"
