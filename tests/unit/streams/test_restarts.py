"""When a failed stream is started again, in a time of the test's own."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.errors import CannotConnect, ConfigError, DeclarationError, FlowError, LoadError
from ematix_flow.streams.restarts import RestartNotice, RestartPolicy, RestartSupervisor


class Time:
    """A clock that moves only when the code waits or works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.waits.append(seconds)
        return False


def attempts(time: Time, *ends: tuple[float, BaseException | str]) -> Callable[[], str]:
    """Each attempt runs so many seconds and ends so; a text is what it returns."""
    left: Iterator[tuple[float, BaseException | str]] = iter(ends)

    def attempt() -> str:
        seconds, end = next(left)
        time.now += seconds
        if isinstance(end, str):
            return end
        raise end

    return attempt


def supervisor(time: Time, policy: RestartPolicy, **given: Any) -> RestartSupervisor[str]:
    return RestartSupervisor(policy, clock=time.clock, wait=time.wait, rng=random.Random(1), **given)


def is_declared_wrong(error: FlowError) -> bool:
    return isinstance(error, (DeclarationError, ConfigError))


PLAIN = RestartPolicy(jitter=False)
AWAY = CannotConnect("the broker is away")


def test_what_ends_well_is_not_started_again() -> None:
    time = Time()
    assert supervisor(time, PLAIN).run(attempts(time, (5, "done")), is_declared_wrong) == "done"
    assert time.waits == []


def test_the_wait_doubles_up_to_its_limit() -> None:
    time = Time()
    ends = [(1, AWAY)] * 8
    assert supervisor(time, PLAIN).run(attempts(time, *ends, (1, "done")), is_declared_wrong) == "done"
    assert time.waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_after_a_long_good_run_the_wait_is_short_again() -> None:
    time = Time()
    ends = [(1, AWAY), (1, AWAY), (60, AWAY), (59, AWAY), (0, "done")]
    supervisor(time, PLAIN).run(attempts(time, *ends), is_declared_wrong)
    assert time.waits == [1, 2, 1, 2]


def test_a_final_error_is_raised_at_once() -> None:
    time = Time()
    wrong = DeclarationError("there is no such option")
    with pytest.raises(DeclarationError):
        supervisor(time, PLAIN).run(attempts(time, (1, AWAY), (1, wrong)), is_declared_wrong)
    assert time.waits == [1]


def test_a_bug_is_not_taken_for_a_failure_that_passes() -> None:
    time = Time()
    with pytest.raises(ZeroDivisionError):
        supervisor(time, PLAIN).run(attempts(time, (1, ZeroDivisionError())), is_declared_wrong)


def test_after_the_last_restart_the_error_says_that_it_was_the_last() -> None:
    time = Time()
    policy = RestartPolicy(jitter=False, max_restarts=2)
    last = LoadError("refused", state="the target is unchanged")
    with pytest.raises(LoadError) as raised:
        supervisor(time, policy).run(attempts(time, (0, AWAY), (0, AWAY), (0, last)), is_declared_wrong)
    assert raised.value.state == "the target is unchanged; given up after 2 restarts in a row"
    assert time.waits == [1, 2]


def test_the_limit_of_restarts_counts_only_those_in_a_row() -> None:
    time = Time()
    policy = RestartPolicy(jitter=False, max_restarts=1)
    ends = [(70, AWAY)] * 5
    assert supervisor(time, policy).run(attempts(time, *ends, (0, "done")), is_declared_wrong) == "done"


def test_no_restart_may_be_allowed() -> None:
    time = Time()
    with pytest.raises(CannotConnect) as raised:
        supervisor(time, RestartPolicy(max_restarts=0)).run(attempts(time, (0, AWAY)), is_declared_wrong)
    assert raised.value.state is None


def test_each_restart_is_reported_with_its_error_and_wait_and_without_secrets() -> None:
    time = Time()
    told: list[str] = []
    seen: list[RestartNotice] = []
    error = CannotConnect("no route to amqp://ann:hunter22@mq/\nand more")
    policy = RestartPolicy(jitter=False, max_restarts=3)
    supervised = supervisor(time, policy, note=told.append, on_restart=seen.append)
    supervised.run(attempts(time, (0, error), (0, "done")), is_declared_wrong)
    assert told == ["restart 1 of 3 in 1.0 s, after CannotConnect: no route to amqp://ann:***@mq/"]
    assert [(restart.consecutive, restart.delay, restart.error) for restart in seen] == [(1, 1.0, error)]


def test_a_stop_ends_a_long_wait_at_once() -> None:
    stop, waiting = threading.Event(), threading.Event()
    policy = RestartPolicy(initial_backoff_ms=3_600_000, max_backoff_ms=3_600_000, jitter=False)
    supervised: RestartSupervisor[str] = RestartSupervisor(
        policy, stop=stop, on_restart=lambda _: waiting.set()
    )
    ended: list[str | None] = []
    attempt = attempts(Time(), (0, AWAY))
    thread = threading.Thread(target=lambda: ended.append(supervised.run(attempt, is_declared_wrong)))
    thread.start()
    assert waiting.wait(60)
    stop.set()
    thread.join(60)
    assert ended == [None]


def test_a_stop_before_the_first_attempt_means_none() -> None:
    stop = threading.Event()
    stop.set()
    assert RestartSupervisor[str](PLAIN, stop=stop).run(attempts(Time()), is_declared_wrong) is None


def test_an_error_while_it_is_to_stop_is_raised_and_not_retried() -> None:
    stop = threading.Event()

    def attempt() -> str:
        stop.set()
        raise AWAY

    with pytest.raises(CannotConnect):
        RestartSupervisor[str](PLAIN, stop=stop).run(attempt, is_declared_wrong)


@given(
    initial=st.integers(1, 10**6),
    growth=st.integers(0, 10**7),
    consecutive=st.integers(1, 10**9),
    seed=st.integers(0, 2**32),
)
def test_a_delay_is_never_longer_than_the_limit_nor_negative(
    initial: int, growth: int, consecutive: int, seed: int
) -> None:
    policy = RestartPolicy(initial_backoff_ms=initial, max_backoff_ms=initial + growth)
    longest = policy.longest_delay(consecutive)
    assert 0 <= policy.delay(consecutive, random.Random(seed)) <= longest <= (initial + growth) / 1000
    assert longest >= initial / 1000
    assert policy.longest_delay(consecutive + 1) >= longest


@given(
    ends=st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=40),
    limit=st.none() | st.integers(0, 5),
    reset=st.integers(0, 100),
)
def test_there_are_never_more_restarts_in_a_row_than_allowed(
    ends: list[tuple[int, bool]], limit: int | None, reset: int
) -> None:
    """Against a model that counts what a person would."""
    time, seen = Time(), list[RestartNotice]()
    policy = RestartPolicy(max_restarts=limit, reset_backoff_after_seconds=reset, jitter=False)
    fates: list[tuple[float, BaseException | str]] = [
        (seconds, LoadError("x") if fails else "done") for seconds, fails in ends
    ]
    supervised = supervisor(time, policy, on_restart=seen.append)
    expected, row = [], 0
    outcome = "done"
    for seconds, end in [*fates, (0.0, "done")]:
        if isinstance(end, str):
            break
        row = 1 if seconds >= reset else row + 1
        if limit is not None and row > limit:
            outcome = "gave up"
            break
        expected.append(row)
    try:
        result = supervised.run(attempts(time, *fates, (0.0, "done")), is_declared_wrong)
    except LoadError:
        result = "gave up"
    assert (result, [restart.consecutive for restart in seen]) == (outcome, expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_backoff_ms": 0},
        {"initial_backoff_ms": 10, "max_backoff_ms": 5},
        {"max_restarts": -1},
        {"reset_backoff_after_seconds": -1},
        {"reset_backoff_after_seconds": float("nan")},
    ],
)
def test_a_policy_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="restart policy"):
        RestartPolicy(**wrong)
