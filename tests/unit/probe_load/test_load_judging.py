"""Each assertion of a load over counts that are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ematix_probe.load.judging import NOTHING_MEASURED, judge_load
from ematix_probe.load.metrics import LoadOutcome
from ematix_probe.load.outcome_report import find_warnings
from ematix_probe.load.profile import LoadProfile
from ematix_probe.load.recording import SECOND, Recorder
from ematix_probe.load.tester import LoadTester
from ematix_probe.report import AssertionResult


def outcome(errors: int = 0, delay: int = 0, recorder: Recorder | None = None, **given: Any) -> LoadOutcome:
    """100 answers in ten seconds that took 1 to 100 ms; the last ``errors`` of them failed."""
    if recorder is None:
        recorder = Recorder(0, 10 * SECOND)
        for n in range(100):
            start, status = n * SECOND // 10, 200 if n < 100 - errors else 503
            end, error = start + (n + 1) * 1_000_000, None if status == 200 else "status 503"
            recorder.record(start, start + delay, end, status, error, "", 1)
    return LoadOutcome(recorder, LoadProfile.constant("open", 10, 10), **{"elapsed": 10.0, **given})


def judged(assertion: Callable[[LoadTester], object], found: LoadOutcome) -> AssertionResult:
    tester = LoadTester()
    assertion(tester)
    (declared,) = tester.assertions
    return judge_load(declared, 0, found)


@pytest.mark.parametrize(
    ("assertion", "errors", "verdict", "message"),
    [
        (lambda t: t.p50_under("50ms"), 0, "pass", "p50 is 50 ms, the limit 50 ms"),
        (lambda t: t.p90_under(0.09), 0, "pass", "p90 is 90 ms, the limit 90 ms"),
        (lambda t: t.p95_under("94ms"), 0, "fail", "p95 is 95 ms, the limit 94 ms"),
        (lambda t: t.p95_under("94.9ms"), 0, "fail", "p95 is 95 ms, the limit 94.9 ms"),
        (lambda t: t.p95_under("94.96ms"), 0, "fail", "p95 is 95.0272 ms, the limit 95 ms"),
        (lambda t: t.percentile_under(1, "100ms"), 0, "pass", "p100 is 100 ms, the limit 100 ms"),
        (lambda t: t.percentile_under(99.5, "1m"), 0, "pass", "p99.5 is 100 ms, the limit 1m"),
        (lambda t: t.p99_under("90ms"), 10, "pass", "p99 is 90 ms, the limit 90 ms"),
        (lambda t: t.p99_under("90ms", include_errors=True), 10, "fail", "p99 is 99 ms, the limit 90 ms"),
        (lambda t: t.p99_under("1s"), 100, "fail", "no request succeeded: there is no latency"),
        (
            lambda t: t.error_rate_below(0.1),
            9,
            "pass",
            "9 of 100 requests failed: 9 %, the limit 10 % (9 × status 503)",
        ),
        (
            lambda t: t.error_rate_below(0.1),
            10,
            "fail",
            "10 of 100 requests failed: 10 %, the limit 10 % (10 × status 503)",
        ),
        (lambda t: t.throughput_above(10), 50, "pass", "10.0 requests a second were started, 10.0 asked for"),
        (
            lambda t: t.throughput_above(10.1),
            0,
            "fail",
            "10.0 requests a second were started, 10.1 asked for",
        ),
        (lambda t: t.status_in([200]), 0, "pass", "all 100 answers have one of these statuses"),
        (lambda t: t.status_in([200]), 2, "fail", "2 of 100 answers have another status: 2 × 503"),
        (
            lambda t: t.status_in([200], severity="warn"),
            2,
            "warn",
            "2 of 100 answers have another status: 2 × 503",
        ),
        (
            lambda t: t.metric("latency_ms.max").below(100),
            0,
            "fail",
            "latency_ms.max is 100, asked for below 100",
        ),
        (
            lambda t: t.metric("latency_ms.max").at_most(100),
            0,
            "pass",
            "latency_ms.max is 100, asked for at most 100",
        ),
        (lambda t: t.metric("errors").above(2), 2, "fail", "errors is 2, asked for above 2"),
        (lambda t: t.metric("errors").at_least(2), 2, "pass", "errors is 2, asked for at least 2"),
        (
            lambda t: t.metric("attempts").between(100, 100),
            0,
            "pass",
            "attempts is 100, asked for between 100 and 100",
        ),
        (
            lambda t: t.metric("latency_ms.mean").at_most(1),
            100,
            "fail",
            "latency_ms.mean has no value: no request succeeded",
        ),
    ],
)
def test_an_assertion_holds_or_not(
    assertion: Callable[[LoadTester], object], errors: int, verdict: str, message: str
) -> None:
    found = judged(assertion, outcome(errors))
    assert (found.verdict, found.message) == (verdict, message)


def test_the_figure_that_was_judged_is_recorded_under_a_stable_name() -> None:
    found = judged(lambda t: t.p99_under("50ms", name="fast"), outcome())
    assert found.name == "fast"
    assert found.measures == {"latency_ms.p99": pytest.approx(99, rel=0.001)}
    assert (found.failing, found.checked) == (50, 100)


def test_nothing_measured_is_an_error_and_not_a_pass() -> None:
    for found in (outcome(recorder=Recorder(0, SECOND)), outcome(elapsed=0.0)):
        assert judged(lambda t: t.error_rate_below(0.5), found).verdict == "error"
        assert judged(lambda t: t.p99_under("1s"), found).message == NOTHING_MEASURED


def test_a_load_that_was_cut_short_is_an_error_without_figures() -> None:
    for declare in (lambda t: t.error_rate_below(0.5), lambda t: t.p99_under("1s", severity="warn")):
        found = judged(declare, outcome(elapsed=4.0, interrupted=True))
        assert (found.verdict, found.message) == ("error", "interrupted after 4.0 s of 10 s")
        assert found.measures == {}


def test_answers_without_a_status_fail_the_assertion_about_statuses() -> None:
    recorder = Recorder(0, 10 * SECOND)
    recorder.record(0, 0, 1, 0, "connection refused", "", 0)
    assert (
        judged(lambda t: t.status_in([200]), outcome(recorder=recorder)).message == "no request was answered"
    )


def test_a_report_warns_of_what_makes_its_figures_doubtful() -> None:
    assert find_warnings(outcome()) == []
    assert find_warnings(outcome(delay=20_000_000)) == [
        "this machine started requests late, by 20 ms at p99: it is busy, or one process is too little; "
        "see processes="
    ]
    few = outcome(recorder=Recorder(0, 10 * SECOND))
    assert "only 0 of 100 intended requests were started in time" in find_warnings(few)[0]
    ended = outcome(
        recorder=Recorder(0, 10 * SECOND), elapsed=3.0, ended_early="the feeder had no row after 3"
    )
    assert find_warnings(ended) == ["ended early after 3.0 s: the feeder had no row after 3"]
    ended = outcome(elapsed=10.0, ended_early="the feeder had no row after 3", interrupted=True, abandoned=2)
    assert find_warnings(ended)[:3] == [
        "interrupted after 10.0 s of 10 s",
        "2 requests were in flight when it was interrupted: they are not counted",
        "ended early after 10.0 s: the feeder had no row after 3",
    ]
