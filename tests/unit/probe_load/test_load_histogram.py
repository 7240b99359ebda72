"""Histograms against sorted lists: a percentile is never too low and at most one in 1,024 too high."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_probe.load.histogram import (
    COARSE_RELATIVE_ERROR,
    COARSE_SHIFT,
    RELATIVE_ERROR,
    Histogram,
    cell_of,
    coarse_upper_end,
    upper_end,
)

TIMES = st.lists(
    st.one_of(st.integers(0, 5000), st.integers(0, 10**7), st.integers(0, 10**13)), min_size=1, max_size=200
)


def exact(values: list[int], p: float) -> int:
    """The percentile by nearest rank."""
    return sorted(values)[max(math.ceil(p * len(values) - 1e-9), 1) - 1]


@given(TIMES, st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]))
def test_a_percentile_is_the_exact_one_or_at_most_a_thousandth_more(values: list[int], p: float) -> None:
    found, right = Histogram(values).percentile(p), exact(values, p)
    assert found is not None
    assert right <= found <= right * (1 + RELATIVE_ERROR)


@given(TIMES, st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.integers(0, 10**7))
def test_a_percentile_is_judged_as_the_exact_one_but_for_values_in_the_cell_of_the_limit(
    values: list[int], p: float, limit: int
) -> None:
    holds, right = Histogram(values).percentile_is_at_most(p, limit), exact(values, p)
    assert holds == (right <= limit) or (holds and cell_of(right) == cell_of(limit))


@given(st.integers(0, 10**15))
def test_a_cell_is_as_narrow_as_promised(value: int) -> None:
    cell = cell_of(value)
    assert value <= upper_end(cell) <= value * (1 + RELATIVE_ERROR)
    assert cell == 0 or upper_end(cell - 1) < value
    assert value <= coarse_upper_end(cell >> COARSE_SHIFT)
    assert coarse_upper_end(cell >> COARSE_SHIFT) <= max(value * (1 + COARSE_RELATIVE_ERROR), value + 15)
    assert Histogram().record(value) == cell


@settings(max_examples=40)
@given(TIMES, TIMES)
def test_histograms_add_up_as_if_one_had_counted_all(one: list[int], other: list[int]) -> None:
    sent = Histogram.from_json(json.loads(json.dumps(Histogram(other).to_json())))
    joined = Histogram(one)
    joined.add(sent)
    whole = Histogram(one + other)
    assert joined.to_json() == whole.to_json()
    assert (joined.count, joined.lowest, joined.highest) == (
        len(one + other),
        min(one + other),
        max(one + other),
    )


def test_mean_deviation_least_and_greatest_are_exact() -> None:
    values = [3, 1_000_003, 17, 999_999_937]
    histogram = Histogram(values)
    assert histogram.mean == pytest.approx(statistics.fmean(values), rel=1e-12)
    assert histogram.deviation == pytest.approx(statistics.pstdev(values), rel=1e-9)
    assert (histogram.percentile(0), histogram.percentile(1)) == (3, 999_999_937)


def test_values_above_a_limit_are_counted_as_far_as_cells_tell() -> None:
    histogram = Histogram([1_000_000] * 3 + [1_100_000] * 2 + [5_000_000])
    assert histogram.count_above(1_000_000) == 3
    assert histogram.count_above(5_000_000) == 0
    assert histogram.count_above(0) == 6


def test_an_empty_histogram_has_no_figures() -> None:
    empty = Histogram()
    assert (empty.percentile(0.5), empty.mean, empty.deviation, empty.lowest) == (None, None, None, None)
    empty.add(Histogram())
    assert empty.count == 0
