"""The fluent API that the body of a load probe gets: each call adds one assertion."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ematix_probe.assertions import Options
from ematix_probe.duration import Duration, parse_duration
from ematix_probe.errors import DeclarationError
from ematix_probe.load.assertions import (
    Comparison,
    ErrorRateBelow,
    LoadAssertion,
    MetricHolds,
    PercentileUnder,
    StatusIn,
    ThroughputAbove,
)
from ematix_probe.load.checks import read_statuses
from ematix_probe.load.metrics import check_metric
from ematix_probe.location import caller_location


class LoadTester:
    """Collects the assertions of a load probe. Each takes ``severity=`` and ``name=``."""

    __test__ = False  # pytest: this is no test class

    def __init__(self) -> None:
        self._assertions: list[LoadAssertion] = []

    @property
    def assertions(self) -> tuple[LoadAssertion, ...]:
        return tuple(self._assertions)

    def add(self, assertion: LoadAssertion) -> LoadTester:
        """Add an assertion that is already a value."""
        if not isinstance(assertion, LoadAssertion):
            raise _wrong(f"add() takes an assertion of a load, not {assertion!r}")
        self._assertions.append(assertion)
        return self

    def p50_under(self, limit: Duration, **options: Any) -> LoadTester:
        return self._percentile("p50_under()", 0.5, limit, options)

    def p90_under(self, limit: Duration, **options: Any) -> LoadTester:
        return self._percentile("p90_under()", 0.9, limit, options)

    def p95_under(self, limit: Duration, **options: Any) -> LoadTester:
        return self._percentile("p95_under()", 0.95, limit, options)

    def p99_under(self, limit: Duration, **options: Any) -> LoadTester:
        """99 of 100 good answers came within ``limit``. ``include_errors=True`` counts failed ones too."""
        return self._percentile("p99_under()", 0.99, limit, options)

    def percentile_under(self, p: float, limit: Duration, **options: Any) -> LoadTester:
        """``p=95`` or ``p=0.95``: from 0 to 1 it is a share, above 1 a percentage."""
        if not _is_number(p) or not 0 < p <= 100:
            raise _wrong(f"percentile_under(p=) is a percentage up to 100 or a share up to 1, not {p!r}")
        return self._percentile("percentile_under()", p if p <= 1 else p / 100, limit, options)

    def _percentile(self, what: str, p: float, limit: Duration, options: dict[str, Any]) -> LoadTester:
        include = options.pop("include_errors", False)
        if not isinstance(include, bool):
            raise _wrong(f"{what}: include_errors= is True or False, not {include!r}")
        try:
            seconds = parse_duration(limit)
        except ValueError as error:
            raise _wrong(f"{what}: {error}") from None
        return self.add(PercentileUnder(float(p), seconds, include, options=_options(options)))

    def error_rate_below(self, share: float, **options: Any) -> LoadTester:
        """Fewer than this share of all requests failed. 0.01 is one of a hundred."""
        if not _is_number(share) or not 0 < share <= 1:
            raise _wrong(
                f"error_rate_below() takes a share above 0 and up to 1, not {share!r}; "
                'for no error at all write  t.metric("errors").at_most(0)'
            )
        return self.add(ErrorRateBelow(float(share), options=_options(options)))

    def throughput_above(self, rate: float, **options: Any) -> LoadTester:
        """At least so many requests a second were started in the measured time."""
        if not _is_number(rate) or rate < 0:
            raise _wrong(f"throughput_above() takes requests a second, not {rate!r}")
        return self.add(ThroughputAbove(float(rate), options=_options(options)))

    def status_in(self, statuses: Iterable[int], **options: Any) -> LoadTester:
        """Every answer has one of these HTTP statuses."""
        listed = tuple(sorted(read_statuses("status_in()", statuses)))
        return self.add(StatusIn(listed, options=_options(options)))

    def metric(self, name: str) -> MetricTester:
        """Any metric: ``latency_ms.max``, ``service_ms.p99.9``, ``error_rate``, ``completed_rate`` …"""
        try:
            return MetricTester(self, check_metric(name))
        except ValueError as error:
            raise _wrong(f"metric(): {error}") from None


class MetricTester:
    """One metric of a load. Every call adds an assertion and returns the same metric."""

    __test__ = False

    def __init__(self, tester: LoadTester, name: str) -> None:
        self._tester, self._name = tester, name

    def _add(
        self, comparison: Comparison, low: float | None, high: float | None, options: dict[str, Any]
    ) -> MetricTester:
        given = {"above": (low,), "at_least": (low,), "between": (low, high)}.get(comparison, (high,))
        for bound in given:
            if not _is_number(bound):
                raise _wrong(f"{comparison}() takes a number, not {bound!r}")
        if low is not None and high is not None and low > high:
            raise _wrong(f"{comparison}(): the lower bound {low!r} is above the upper bound {high!r}")
        self._tester.add(MetricHolds(self._name, comparison, low, high, options=_options(options)))
        return self

    def below(self, limit: float, **options: Any) -> MetricTester:
        return self._add("below", None, limit, options)

    def at_most(self, limit: float, **options: Any) -> MetricTester:
        return self._add("at_most", None, limit, options)

    def above(self, limit: float, **options: Any) -> MetricTester:
        return self._add("above", limit, None, options)

    def at_least(self, limit: float, **options: Any) -> MetricTester:
        return self._add("at_least", limit, None, options)

    def between(self, low: float, high: float, **options: Any) -> MetricTester:
        """``low`` and ``high`` belong to the range."""
        return self._add("between", low, high, options)


def _options(given: dict[str, Any]) -> Options:
    for name in given:
        if name not in ("severity", "name"):
            raise _wrong(f"this assertion takes severity= and name=; not {name}=")
    severity, label = given.get("severity", "fail"), given.get("name")
    if severity not in ("fail", "warn"):
        raise _wrong(f'severity= is "fail" or "warn", not {severity!r}')
    if label is not None and (not isinstance(label, str) or not label.strip()):
        raise _wrong(f"name= takes a text, not {label!r}")
    return Options(severity=severity, name=label)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(what: str) -> DeclarationError:
    return DeclarationError(what, where=caller_location())
