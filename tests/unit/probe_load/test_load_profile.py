"""Profiles: the times of all arrivals and the activity of users follow from the stages alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_probe.load.profile import LoadProfile
from ematix_probe.load.shares import Share

STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, 7.25]), st.sampled_from([0.0, 1.0, 3.5, 40.0])),
    min_size=1,
    max_size=5,
).filter(lambda steps: any(s > 0 for s, _ in steps) and LoadProfile.ramps("open", tuple(steps)).peak > 0)


def arrivals(profile: LoadProfile) -> list[float]:
    return [profile.arrival_time(n) for n in range(profile.arrivals)]


def test_arrivals_of_a_constant_rate_are_evenly_spread_however_many_there_are() -> None:
    profile = LoadProfile.constant("open", 7, 1000)
    assert profile.arrivals == 7000
    for n in (0, 1, 3500, 6999):
        assert profile.arrival_time(n) == pytest.approx(n / 7, abs=1e-9)


def test_a_ramp_has_as_many_arrivals_as_the_area_below_it() -> None:
    profile = LoadProfile.ramps("open", ((10, 100), (5, 100), (10, 0)))
    assert profile.arrivals == 500 + 500 + 500
    # the rate at a time is the number of arrivals around it
    near = [t for t in arrivals(profile) if 4.5 <= t < 5.5]
    assert len(near) == pytest.approx(50, abs=1)


def test_a_step_of_no_time_jumps() -> None:
    profile = LoadProfile.ramps("open", ((0, 50), (2, 50), (0, 10), (1, 10)))
    assert arrivals(profile)[:3] == pytest.approx([0, 0.02, 0.04])
    assert profile.arrivals == 110
    assert (profile.level(1), profile.level(2.5), profile.level(3)) == (50, 10, 0)


@settings(max_examples=40)
@given(STEPS)
def test_arrivals_rise_within_the_load_and_agree_with_the_count_at_each_time(
    steps: list[tuple[float, float]],
) -> None:
    profile = LoadProfile.ramps("open", tuple(steps))
    times = arrivals(profile)
    assert all(one <= other for one, other in itertools.pairwise(times))
    assert all(0 <= time <= profile.seconds for time in times)
    for n in range(0, len(times), max(len(times) // 7, 1)):
        assert profile.arrivals_before(times[n] + 1e-3) >= n + 1
        assert profile.arrivals_until(times[n] + 1e-3) >= n + 1
        assert profile.arrivals_before(max(times[n] - 1e-4, 0)) <= n
    assert profile.arrivals_until(-1) == 0
    assert profile.arrivals_until(profile.seconds) == profile.arrivals


@settings(max_examples=40)
@given(STEPS, st.floats(0, 40))
def test_a_user_is_active_when_the_level_reaches_it(steps: list[tuple[float, float]], now: float) -> None:
    profile = LoadProfile.ramps("closed", tuple(steps))
    for user in (0, 2):
        found = profile.next_activity(user, now)
        grid = [now + n * 0.01 for n in range(int((profile.seconds - now) / 0.01) + 1)]
        first = next((t for t in grid if profile.level(t) >= user + 0.5 + 1e-6), None)
        if found is None:
            assert first is None
        else:
            assert found >= now
            assert first is None or found <= first + 1e-6
            assert profile.level(found) >= user + 0.5 - 1e-6


def test_processes_share_arrivals_and_users_without_a_rest() -> None:
    assert LoadProfile.constant("open", 100, 1).most_processes() == 100
    assert LoadProfile.constant("closed", 3, 10).most_processes() == 3
    shares = [range(share, 10, 4) for share in range(4)]
    assert sorted(itertools.chain(*shares)) == list(range(10))


def test_thinking_is_spread_over_its_range_and_repeats_with_its_seed() -> None:
    profile = LoadProfile.constant("closed", 1, 1)
    share = Share(None, (), profile, 0, 1, 1, think_time=(1.0, 3.0), seed=5)
    times = [share.thinking_seconds(n) for n in range(1000)]
    assert times == [share.thinking_seconds(n) for n in range(1000)]
    assert 1 <= min(times) < 1.05
    assert 2.95 < max(times) <= 3
    assert sum(times) / 1000 == pytest.approx(2, abs=0.1)
    assert Share(None, (), profile, 0, 1, 1).thinking_seconds(3) == 0
