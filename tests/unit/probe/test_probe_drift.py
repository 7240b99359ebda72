"""Drift and change against recorded runs: which figures are taken for odd, and how that is said."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_probe import probe, source
from ematix_probe.assertions import Drift
from ematix_probe.declaration import DataProbe
from ematix_probe.drift import expected_band, judge_drift
from ematix_probe.run_history import RunHistory

ROWS = Drift("row_count")
AVERAGE = Drift("average", "amount")
FIGURES = st.floats(-1e9, 1e9, allow_subnormal=False).map(lambda value: round(value, 3))


def middle(values: Sequence[Fraction]) -> Fraction:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def distance_and_reach(past: Sequence[float], value: float, sensitivity: int = 4) -> tuple[float, float]:
    """In exact numbers: how far the value is from the median, and how far it may be."""
    exact = [Fraction(each) for each in past]
    center = middle(exact)
    spread = middle([abs(each - center) for each in exact]) * Fraction(14826, 10000)
    least = max(abs(center) / 400, Fraction(1, 10**12))
    return float(abs(Fraction(value) - center)), float(sensitivity * max(spread, least))


@given(st.lists(FIGURES, min_size=5, max_size=30), FIGURES)
def test_a_figure_is_odd_when_it_is_further_from_the_median_than_the_robust_reach(
    past: list[float], value: float
) -> None:
    distance, reach = distance_and_reach(past, value)
    if not math.isclose(distance, reach, rel_tol=1e-6, abs_tol=1e-9):
        assert judge_drift(AVERAGE, value, past)[0] == (distance <= reach)


@given(
    st.lists(st.integers(900, 1100), min_size=11, max_size=30),
    st.lists(st.sampled_from([0, 10**9, -(10**9)]), max_size=5),
)
def test_a_few_odd_runs_neither_widen_the_band_beyond_bounds_nor_move_it_away(
    usual: list[int], odd: list[int]
) -> None:
    band = expected_band(AVERAGE, [*usual, *odd])
    assert band.low <= max(usual)
    assert band.high >= min(usual)
    assert band.high - band.low <= 2 * 4 * 1.4826 * 200  # the spread of the usual runs, and no more
    assert not judge_drift(AVERAGE, 10**9, [*usual, *odd])[0]


@pytest.mark.parametrize(
    ("assertion", "value", "past", "holds", "message"),
    [
        (ROWS, 100, [], True, "100 rows; no run is recorded, and drift is judged from 5 on"),
        (ROWS, 1, [1], True, "1 row; 1 run is recorded, and drift is judged from 5 on"),
        (ROWS, 1, [1] * 4, True, "1 row; 4 runs are recorded, and drift is judged from 5 on"),
        (
            *(ROWS, 500, [1000, 1010, 990, 1005, 995], False),
            "500 rows; the last 5 runs had 990 … 1,010, so 971 … 1,029 was expected",
        ),
        (ROWS, 1001, [1000] * 5, True, "1,001 rows; the last 5 runs had 1,000, so 990 … 1,010 was expected"),
        (ROWS, 1, [0] * 5, True, "1 row; the last 5 runs had 0, so 0 … 1 was expected"),
        (ROWS, 2, [0] * 5, False, "2 rows; the last 5 runs had 0, so 0 … 1 was expected"),
        (
            *(Drift("null_share", "email"), 0.25, [0.0, 0.0, 0.01, 0.0, 0.0], False),
            "share of NULLs 25 %; the last 5 runs had 0 % … 1 %, so 0 % … 0.1 % was expected",
        ),
        (
            *(Drift("percentile", "amount", 0.99), "12.5", ["10", "11", "10.5", "10", "11"], True),
            "p99 12.5; the last 5 runs had 10 … 11, so 7.5348 … 13.465 was expected",
        ),
        (AVERAGE, None, [1.0] * 5, False, "no average; the last 5 runs had 1, so 0.99 … 1.01 was expected"),
        (
            *(AVERAGE, 1.0100000001, [1.0] * 5, False),
            "average 1.0100000001; the last 5 runs had 1, so 0.99 … 1.01 was expected",
        ),
        (
            *(Drift("cardinality", "country"), 9, [3] * 5, False),
            "9 different values; the last 5 runs had 3, so 2 … 4 was expected",
        ),
    ],
)
def test_each_judgement_says_its_reason_in_words(
    assertion: Drift, value: Any, past: list[Any], holds: bool, message: str
) -> None:
    assert judge_drift(assertion, value, past) == (holds, message)


@given(st.lists(st.sampled_from([1.0, None, "x", float("nan"), True]), max_size=12))
def test_past_values_that_are_no_numbers_do_not_count(past: list[Any]) -> None:
    known = sum(type(each) is float and each == 1.0 for each in past)
    holds, message = judge_drift(AVERAGE, 50.0, past)
    assert holds == (known < 5)
    assert ("drift is judged from 5 on" in message) == (known < 5)


# ----------------------------------------------------------------------------- with a history


def set_rows(number: int) -> None:
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.execute("DROP TABLE IF EXISTS orders")
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount REAL)")
        database.executemany(
            "INSERT INTO orders (amount) VALUES (?)", [(float(n % 7),) for n in range(number)]
        )


def growing() -> DataProbe:
    """A probe of the orders. Not in the module: pytest would take it for tests."""

    @probe.data(source=source.sqlite("shop.db"), table="orders")
    def orders(t: Any) -> None:
        t.row_count_change(max_drop=0.2, max_rise=0.5)
        t.drift()
        t.column("amount").drift("average", at_least_runs=40, severity="warn")

    return orders


def test_a_table_is_compared_with_its_recorded_runs() -> None:
    history = RunHistory("h.db")
    messages = []
    for rows in (100, 104, 98, 102, 101, 101, 60, 101, 160):
        set_rows(rows)
        report = growing().run(history=history)
        change, drift, _ = report.assertions
        messages.append((rows, change.verdict, drift.verdict))
    assert messages == [
        *((rows, "pass", "pass") for rows in (100, 104, 98, 102, 101, 101)),
        (60, "fail", "fail"),
        (101, "fail", "pass"),  # 68 % more than the odd run, and where the other runs were
        (160, "fail", "fail"),
    ]
    assert change.message.startswith("160 rows")
    assert "a rise of 58.42 %" in change.message


def test_a_drift_that_asks_for_many_runs_gets_them() -> None:
    history = RunHistory("h.db")
    set_rows(70)
    usual = growing().run()
    measured = [replace(each, measures={"average": 3.0}) for each in usual.assertions]
    for _ in range(40):
        history.record(replace(usual, assertions=measured))
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.execute("UPDATE orders SET amount = 1000")
    assert growing().run(history=history).assertions[2].verdict == "warn"


def test_without_a_history_change_and_drift_are_errors_that_say_how_to_give_one() -> None:
    set_rows(3)
    report = growing().run()
    assert [each.verdict for each in report.assertions] == ["error"] * 3
    assert "--history PATH" in report.assertions[0].message


def test_a_history_that_cannot_be_read_is_an_error_of_these_assertions_alone(shop: object) -> None:
    with closing(sqlite3.connect("h.db")) as database, database:
        database.execute("CREATE TABLE runs (distance INTEGER)")

    @probe.data(source=source.sqlite("shop.db"), table="customers")
    def customers(t: Any) -> None:
        t.drift()
        t.row_count(at_least=1)

    from ematix_probe.history.forgiving import ForgivingHistory

    history = ForgivingHistory(RunHistory("h.db"))
    report = customers.run(history=history)
    assert [each.verdict for each in report.assertions] == ["error", "pass"]
    assert "that is not a history" in report.assertions[0].message
    assert [name for name, _ in history.errors] == ["customers"]
