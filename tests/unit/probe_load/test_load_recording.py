"""What a load counts: warm-up and measured time, errors, the series, and the sum over processes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_probe.load.metrics import LoadOutcome, check_metric
from ematix_probe.load.profile import LoadProfile
from ematix_probe.load.progress import build_progress
from ematix_probe.load.recording import (
    MESSAGES_OF_A_KIND,
    MOST_KINDS,
    MOST_ROWS,
    OTHER_KIND,
    SECOND,
    Recorder,
)
from ematix_probe.load.shares import ShareResult, take_snapshot

ATTEMPTS = st.lists(
    st.tuples(
        st.integers(0, 9 * SECOND),  # intended
        st.integers(0, SECOND),  # until it starts
        st.integers(0, 3 * SECOND),  # until it ends
        st.sampled_from([None, None, "timeout", "status 500"]),
    ),
    max_size=60,
)


def recorded(attempts: list[tuple[int, int, int, str | None]]) -> Recorder:
    recorder = Recorder(2 * SECOND, 10 * SECOND)
    for intended, delay, service, error in attempts:
        started = intended + delay
        recorder.record(intended, started, started + service, 200, error, f"{error} of x", 7)
    return recorder


def counts(recorder: Recorder) -> dict[str, Any]:
    value = recorder.to_json()
    value["messages"] = {kind: sorted(texts) for kind, texts in value["messages"].items()}
    return value


@settings(max_examples=40)
@given(ATTEMPTS)
def test_attempts_are_counted_by_their_intended_start(
    attempts: list[tuple[int, int, int, str | None]],
) -> None:
    recorder = recorded(attempts)
    measured = [each for each in attempts if each[0] >= 2 * SECOND]
    good = [each for each in measured if each[3] is None]
    assert recorder.attempts == len(measured)
    assert recorder.warmup_attempts == len(attempts) - len(measured)
    assert recorder.failures == len(measured) - len(good)
    assert recorder.latency.total == sum(delay + service for _, delay, service, _ in good)
    assert recorder.service.total == sum(service for _, _, service, _ in good)
    assert recorder.start_delay.total == sum(delay for _, delay, _, _ in measured)
    assert recorder.started == sum(i + d < 10 * SECOND for i, d, _, _ in measured)
    assert recorder.completed == sum(2 * SECOND <= i + d + s < 10 * SECOND for i, d, s, _ in attempts)
    assert sum(row.attempts for row in recorder.rows) == len(attempts)
    assert sum(row.completed for row in recorder.rows) == sum(
        i + d + s < 10 * SECOND for i, d, s, _ in attempts
    )
    for number, row in enumerate(recorder.rows):
        inside = [each for each in attempts if each[0] // SECOND == number]
        assert row.attempts == len(inside)
        assert row.highest == max((d + s for _, d, s, error in inside if error is None), default=0)


@settings(max_examples=40)
@given(ATTEMPTS, ATTEMPTS)
def test_the_recorders_of_processes_add_up(
    one: list[tuple[int, int, int, str | None]], other: list[tuple[int, int, int, str | None]]
) -> None:
    sent = ShareResult(recorded(other), 5, False, None, 0).to_json()
    received = ShareResult.from_json(json.loads(json.dumps(sent)))
    joined = recorded(one)
    joined.add(received.recorder)
    assert counts(joined) == counts(recorded(one + other))


def test_the_series_of_a_long_load_stays_small() -> None:
    recorder = Recorder(0, 5000 * SECOND)
    for second in range(5000):
        recorder.record(second * SECOND, second * SECOND, second * SECOND + 1000, 200, None, "", 1)
    assert recorder.row_seconds == 16
    assert len(recorder.rows) <= MOST_ROWS
    assert sum(row.attempts for row in recorder.rows) == 5000
    brief = Recorder(0, 5000 * SECOND)
    brief.record(0, 0, 1000, 200, None, "", 1)
    brief.add(recorder)
    assert (brief.row_seconds, brief.rows[0].attempts) == (16, 17)


def test_kinds_and_messages_of_errors_are_bounded() -> None:
    recorder = Recorder(0, SECOND)
    for n in range(200):
        recorder.record(0, 0, 1, 0, f"kind {n}", f"password=opensesame {n}", 0)
        recorder.record(0, 0, 1, 0, "kind 0", f"message {n}", 0)
    assert len(recorder.errors) == MOST_KINDS + 1
    assert recorder.errors[OTHER_KIND] == 150
    assert sum(recorder.errors.values()) == recorder.failures == 400
    assert all(len(texts) <= MESSAGES_OF_A_KIND for texts in recorder.messages.values())
    assert "opensesame" not in str(recorder.messages)


def test_a_snapshot_has_what_happened_since_the_last_one() -> None:
    recorder = Recorder(0, 10 * SECOND)
    recorder.record(0, 0, 2_000_000, 200, None, "", 1)
    first = take_snapshot(recorder, SECOND, 3, 0)
    recorder.record(SECOND, SECOND, SECOND + 1, 500, "status 500", "", 1)
    second = take_snapshot(recorder, 2 * SECOND, 4, 9)
    assert (first.completed, first.errors, second.completed, second.errors) == (1, 0, 1, 1)
    assert (second.cells, second.all_attempts, second.all_errors) == ((), 2, 1)
    profile = LoadProfile.constant("open", 20, 10)
    progress = build_progress([first, second], profile, 0, 1.0)
    assert (progress.rate, progress.in_flight, progress.waiting, progress.errors) == (2, 7, 9, 1)
    assert progress.p50_ms == pytest.approx(2, rel=0.02)
    assert progress.line() == (
        "2s of 10s · measuring · 2/20 req/s · p50 2.02 ms, p99 2.02 ms · 1 errors of 3 · 7 in flight"
        " · 9 waiting"
    )


def outcome(recorder: Recorder, **given: Any) -> LoadOutcome:
    return LoadOutcome(recorder, LoadProfile.constant("open", 10, 10), **{"elapsed": 10.0, **given})


def test_metrics_are_those_of_the_measured_time() -> None:
    recorder = Recorder(2 * SECOND, 10 * SECOND)
    for n in range(100):
        start = n * SECOND // 10
        error = "timeout" if n == 99 else None
        recorder.record(start, start, start + (n + 1) * 1_000_000, 200, error, "", 5)
    found = outcome(recorder)
    assert found.metric("attempts") == 80
    assert found.metric("throughput") == found.metric("scheduled_rate") == 10
    assert found.metric("error_rate") == 1 / 80
    assert found.metric("received") == 400
    assert found.metric("latency_ms.max") == 99
    assert found.metric("latency_with_errors_ms.max") == 100
    assert found.metric("latency_ms.p50") == pytest.approx(60, rel=0.001)
    assert found.metric("start_delay_ms.p99") == 0
    early = outcome(recorder, elapsed=6.0, interrupted=True)
    assert (early.effective_seconds, early.scheduled, early.is_whole) == (4, 41, False)


@pytest.mark.parametrize("name", ["latency_ms.p99.9", "service_ms.stddev", "errors", "latency_ms.p100"])
def test_the_names_of_metrics_are_known(name: str) -> None:
    assert check_metric(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("latency.p99", "there is no metric 'latency.p99'. Did you mean 'latency_ms.p99'?"),
        ("latency_ms", "there is no metric"),
        ("latency_ms.p101", "is not from 0 to 100"),
        ("eror_rate", "Did you mean 'error_rate'?"),
        (7, "is a text"),
    ],
)
def test_a_metric_that_does_not_exist_is_refused(name: object, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        check_metric(name)
    assert why in str(refused.value)
