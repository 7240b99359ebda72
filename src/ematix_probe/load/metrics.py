"""The metrics of a finished load by name, for assertions, reports and history."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from ematix_probe.load.histogram import Histogram
from ematix_probe.load.profile import LoadProfile
from ematix_probe.load.recording import SECOND, Recorder

MILLISECOND = 1_000_000
PERCENTILES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0)

COUNTS = {
    "attempts": "requests of the measured time",
    "errors": "requests that failed",
    "error_rate": "the share of the requests that failed",
    "throughput": "requests started in the measured time, a second",
    "completed_rate": "requests answered in the measured time, a second",
    "scheduled_rate": "arrivals that the open model intended, a second",
    "late_starts": "arrivals that had to wait for a free place",
    "not_started": "arrivals that never got a place",
    "max_in_flight": "the most requests at a time",
    "connections": "connections that were opened",
    "received": "bytes over HTTP, rows of a database",
}
DISTRIBUTIONS = {
    "latency_ms": "of good answers: from the intended start in the open model",
    "service_ms": "of good answers, from the real start",
    "latency_with_errors_ms": "as latency_ms, failed requests included",
    "start_delay_ms": "from the intended to the real start",
}
FIGURES = ("min", "max", "mean", "stddev")
_NAME = re.compile(r"(?P<distribution>[a-z_]+)\.(?:(?P<figure>[a-z]+)|p(?P<p>\d+(?:\.\d+)?))")


@dataclass(frozen=True)
class LoadOutcome:
    """What a whole load did, all processes together."""

    recorder: Recorder
    profile: LoadProfile
    elapsed: float  # seconds in which requests were started
    interrupted: bool = False
    ended_early: str | None = None
    abandoned: int = 0

    @property
    def effective_seconds(self) -> float:
        """The measured time: without the warm-up."""
        return max(self.elapsed - self.recorder.begin / SECOND, 0.0)

    @property
    def is_whole(self) -> bool:
        return not self.interrupted and self.ended_early is None

    @property
    def interruption(self) -> str | None:
        """How far an interrupted load came, in words; None for a load that was not interrupted."""
        if not self.interrupted:
            return None
        return f"interrupted after {self.elapsed:.1f} s of {self.profile.seconds:g} s"

    @cached_property
    def scheduled(self) -> int:
        """The arrivals of the measured time that the open model intended."""
        if self.profile.model == "closed":
            return self.recorder.attempts
        whole = self.elapsed >= self.profile.seconds
        due = self.profile.arrivals if whole else self.profile.arrivals_until(self.elapsed)
        begin = self.recorder.begin / SECOND
        return max(due - (self.profile.arrivals_before(begin) if begin else 0), 0)

    @cached_property
    def latency_with_errors(self) -> Histogram:
        joined = Histogram()
        joined.add(self.recorder.latency)
        joined.add(self.recorder.failed_latency)
        return joined

    def metric(self, name: str) -> float | None:
        """The value of a metric; None when nothing was measured."""
        if name in COUNTS:
            return self._count(name)
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(name)
        histogram = self.distribution(found["distribution"])
        if found["p"] is not None:
            value: float | None = histogram.percentile(float(found["p"]) / 100)
        elif not histogram.count:
            value = None
        else:
            figures = {
                "min": histogram.lowest,
                "max": histogram.highest,
                "mean": histogram.mean,
                "stddev": histogram.deviation,
            }
            value = figures[found["figure"]]
        return None if value is None else value / MILLISECOND

    def distribution(self, name: str) -> Histogram:
        recorder = self.recorder
        return {
            "latency_ms": recorder.latency,
            "service_ms": recorder.service,
            "start_delay_ms": recorder.start_delay,
            "latency_with_errors_ms": self.latency_with_errors,
        }[name]

    def _count(self, name: str) -> float | None:
        recorder, seconds = self.recorder, self.effective_seconds

        def a_second(count: int) -> float | None:
            return count / seconds if seconds else None

        return {
            "attempts": recorder.attempts,
            "errors": recorder.failures,
            "error_rate": recorder.failures / recorder.attempts if recorder.attempts else None,
            "throughput": a_second(recorder.started),
            "completed_rate": a_second(recorder.completed),
            "scheduled_rate": a_second(self.scheduled),
            "late_starts": recorder.late,
            "not_started": recorder.not_started,
            "max_in_flight": recorder.most_in_flight,
            "connections": recorder.connections,
            "received": recorder.size,
        }[name]


def check_metric(name: object) -> str:
    """The name of a metric that exists; ValueError with what was probably meant."""
    from ematix_probe.suggestions import did_you_mean

    known = [*COUNTS, *(f"{each}.{figure}" for each in DISTRIBUTIONS for figure in (*FIGURES, "p50", "p99"))]
    if not isinstance(name, str):
        raise ValueError(f"the name of a metric is a text, not {name!r}")
    if name in COUNTS:
        return name
    found = _NAME.fullmatch(name)
    if (
        found is None
        or found["distribution"] not in DISTRIBUTIONS
        or (found["figure"] and found["figure"] not in FIGURES)
    ):
        raise ValueError(f"there is no metric {name!r}{did_you_mean(name, known)}")
    if found["p"] is not None and not 0 <= float(found["p"]) <= 100:
        raise ValueError(f"the percentile of {name!r} is not from 0 to 100")
    return name
