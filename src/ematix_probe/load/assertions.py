"""What must hold for a load, as frozen values. How each is judged is in `load.judging`.

Latencies are those of good answers, by nearest rank; ``include_errors`` takes the failed ones in as well.
``p99_under`` holds for a latency up to its limit (<=), ``error_rate_below`` for a share below it (<),
``throughput_above`` for a rate from it on (>=).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ematix_probe.assertions import Assertion
from ematix_probe.duration import format_duration

Comparison = Literal["below", "at_most", "above", "at_least", "between"]


@dataclass(frozen=True)
class LoadAssertion(Assertion):
    """The base of what is asserted of a load."""


@dataclass(frozen=True)
class PercentileUnder(LoadAssertion):
    kind = "percentile_under"
    p: float  # from 0 to 1
    limit: float  # seconds
    include_errors: bool = False

    @property
    def default_label(self) -> str:
        return f"p{self.p * 100:.10g}_under"

    @property
    def words(self) -> str:
        return f"p{self.p * 100:.10g} <= {format_duration(self.limit)}"


@dataclass(frozen=True)
class ErrorRateBelow(LoadAssertion):
    kind = "error_rate_below"
    share: float

    @property
    def default_label(self) -> str:
        return "error_rate_below"


@dataclass(frozen=True)
class ThroughputAbove(LoadAssertion):
    kind = "throughput_above"
    rate: float

    @property
    def default_label(self) -> str:
        return "throughput_above"


@dataclass(frozen=True)
class StatusIn(LoadAssertion):
    """Every answer has one of these statuses."""

    kind = "status_in"
    statuses: tuple[int, ...]

    @property
    def default_label(self) -> str:
        return "status_in"


@dataclass(frozen=True)
class MetricHolds(LoadAssertion):
    """A metric of `load.metrics` compares so with one bound, or lies in a range with both its bounds."""

    kind = "metric"
    metric: str
    comparison: Comparison
    low: float | None = None
    high: float | None = None

    @property
    def default_label(self) -> str:
        return f"{self.metric}.{self.comparison}"
