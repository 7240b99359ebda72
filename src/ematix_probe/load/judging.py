"""Turns the outcome of a load into the results of its assertions. Pure."""

from __future__ import annotations

import dataclasses

from ematix_probe.duration import format_duration
from ematix_probe.load.assertions import (
    ErrorRateBelow,
    LoadAssertion,
    MetricHolds,
    PercentileUnder,
    StatusIn,
    ThroughputAbove,
)
from ematix_probe.load.metrics import MILLISECOND, LoadOutcome
from ematix_probe.report import AssertionResult, Verdict

NOTHING_MEASURED = "nothing was measured: the load ended in its warm-up, or before its first request"


def judge_load(assertion: LoadAssertion, index: int, outcome: LoadOutcome) -> AssertionResult:
    """The result of one assertion. No good answer fails a limit of latency.

    A load that was interrupted, or measured nothing, is an error without figures: a part of a load must
    neither pass nor become a value of a trend.
    """
    if outcome.interruption is not None:
        return error_result(assertion, index, outcome.interruption)
    if outcome.recorder.attempts == 0 or outcome.effective_seconds == 0:
        return error_result(assertion, index, NOTHING_MEASURED)
    if isinstance(assertion, PercentileUnder):
        return _percentile(assertion, index, outcome)
    if isinstance(assertion, ErrorRateBelow):
        return _error_rate(assertion, index, outcome)
    if isinstance(assertion, ThroughputAbove):
        return _throughput(assertion, index, outcome)
    if isinstance(assertion, StatusIn):
        return _statuses(assertion, index, outcome)
    assert isinstance(assertion, MetricHolds)
    return _metric(assertion, index, outcome)


def error_result(assertion: LoadAssertion, index: int, message: str) -> AssertionResult:
    """The result of an assertion of a load that could not run, or not to its end."""
    return _result(assertion, index, "error", message, {})


def _percentile(assertion: PercentileUnder, index: int, outcome: LoadOutcome) -> AssertionResult:
    name = "latency_with_errors_ms" if assertion.include_errors else "latency_ms"
    histogram = outcome.distribution(name)
    measure = f"{name}.p{assertion.p * 100:.10g}"
    value = histogram.percentile(assertion.p)
    if value is None:
        return _judged(assertion, index, False, "no request succeeded: there is no latency", {measure: None})
    limit = round(assertion.limit * 1e9)
    label = f"p{assertion.p * 100:.10g}"
    above = histogram.count_above(limit)
    holds = histogram.percentile_is_at_most(assertion.p, limit)
    found, allowed = _milliseconds(value / MILLISECOND), format_limit(assertion.limit)
    if not holds and found == allowed:
        found = f"{value / MILLISECOND:,.6g} ms"
    text = f"{label} is {found}, the limit {allowed}"
    result = _judged(assertion, index, holds, text, {measure: value / MILLISECOND})
    return _with_rows(result, above, histogram.count)


def _error_rate(assertion: ErrorRateBelow, index: int, outcome: LoadOutcome) -> AssertionResult:
    recorder = outcome.recorder
    rate = recorder.failures / recorder.attempts
    text = f"{recorder.failures:,} of {recorder.attempts:,} requests failed: {_share(rate)}"
    text += f", the limit {_share(assertion.share)}"
    if recorder.errors:
        worst = sorted(recorder.errors.items(), key=lambda each: -each[1])[:3]
        text += " (" + ", ".join(f"{count:,} × {kind}" for kind, count in worst) + ")"
    result = _judged(assertion, index, rate < assertion.share, text, {"error_rate": rate})
    return _with_rows(result, recorder.failures, recorder.attempts)


def _throughput(assertion: ThroughputAbove, index: int, outcome: LoadOutcome) -> AssertionResult:
    rate = outcome.metric("throughput") or 0.0
    text = f"{rate:,.1f} requests a second were started, {assertion.rate:,.1f} asked for"
    return _judged(assertion, index, rate >= assertion.rate, text, {"throughput": rate})


def _statuses(assertion: StatusIn, index: int, outcome: LoadOutcome) -> AssertionResult:
    statuses = outcome.recorder.statuses
    answers = sum(statuses.values())
    others = {status: count for status, count in statuses.items() if status not in assertion.statuses}
    failing = sum(others.values())
    if not answers:
        return _with_rows(_judged(assertion, index, False, "no request was answered", {}), 0, 0)
    if failing:
        found = ", ".join(f"{count:,} × {status}" for status, count in sorted(others.items()))
        text = f"{failing:,} of {answers:,} answers have another status: {found}"
    else:
        text = f"all {answers:,} answers have one of these statuses"
    return _with_rows(
        _judged(assertion, index, not failing, text, {"other_statuses": failing}), failing, answers
    )


def _metric(assertion: MetricHolds, index: int, outcome: LoadOutcome) -> AssertionResult:
    value, low, high = outcome.metric(assertion.metric), assertion.low, assertion.high
    measures = {assertion.metric: value}
    if value is None:
        return _judged(
            assertion, index, False, f"{assertion.metric} has no value: no request succeeded", measures
        )
    holds = (low is None or value >= low) and (high is None or value <= high)
    if assertion.comparison == "below":
        holds = high is not None and value < high
    elif assertion.comparison == "above":
        holds = low is not None and value > low
    bounds = " and ".join(f"{bound:g}" for bound in (low, high) if bound is not None)
    words = assertion.comparison.replace("_", " ")
    return _judged(
        assertion, index, holds, f"{assertion.metric} is {value:,.6g}, asked for {words} {bounds}", measures
    )


def _judged(
    assertion: LoadAssertion, index: int, holds: bool, message: str, measures: dict[str, float | int | None]
) -> AssertionResult:
    bad: Verdict = "warn" if assertion.options.severity == "warn" else "fail"
    return _result(assertion, index, "pass" if holds else bad, message, measures)


def _result(
    assertion: LoadAssertion,
    index: int,
    verdict: Verdict,
    message: str,
    measures: dict[str, float | int | None],
) -> AssertionResult:
    return AssertionResult(index, verdict, message, assertion.label, assertion.kind, measures=dict(measures))


def _with_rows(result: AssertionResult, failing: int, checked: int) -> AssertionResult:
    return dataclasses.replace(result, failing=failing, checked=checked)


def format_limit(seconds: float) -> str:
    return _milliseconds(seconds * 1000) if seconds < 10 else format_duration(seconds)


def _milliseconds(value: float) -> str:
    return f"{value:,.3g} ms" if value < 100 else f"{value:,.0f} ms"


def _share(value: float) -> str:
    return f"{value * 100:.3g} %"
