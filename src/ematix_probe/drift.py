"""Judges whether a figure is where its past suggests: robust bands, with the reason in words. Pure.

The band is the median of the past values plus and minus ``sensitivity`` robust deviations: the median
distance from the median (MAD), scaled so that it is the standard deviation of normal values. A few odd runs
move neither: fewer than half of the values may be anything, and the band stays between bounds that the
other values give. A series that hardly changes gets a band of a least width, so that the first ordinary
change is no alarm.

Seasons are not modelled. A table that is twice as large on Mondays has a wide band, or a probe for Mondays.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ematix_probe.assertions import Drift

_MAD_TO_DEVIATION = 1.4826
_LEAST_SHARE = 0.0025  # of the median: with a sensitivity of 4, the band is at least 1 % wide on each side
_LEAST_STEP = {"row_count": 0.25, "cardinality": 0.25, "null_share": 0.00025}  # 1 row, 0.1 percentage points
_COUNTS = ("row_count", "cardinality")


@dataclass(frozen=True)
class Band:
    """The range in which a figure is expected; both ends belong to it."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def judge_drift(assertion: Drift, value: Any, past_values: Sequence[Any]) -> tuple[bool, str]:
    """Whether the value is inside the band of its past, and why. The order of the past does not matter.

    With too few recorded runs it passes and says so. Past values that are no numbers do not count. A value
    that is not a number, such as the average of no rows, is outside of every band.
    """
    past = [number for number in map(as_number, past_values) if number is not None]
    current = as_number(value)
    if len(past) < assertion.at_least_runs:
        said = _measured(assertion, current, value)
        runs = (
            "no run is recorded"
            if not past
            else f"{len(past)} run{'s are' if len(past) > 1 else ' is'} recorded"
        )
        return True, f"{said}; {runs}, and drift is judged from {assertion.at_least_runs} on"
    band = expected_band(assertion, past)
    digits = _digits(assertion, current, band)
    had = _range(assertion, min(past), max(past), digits)
    expected = _range(assertion, band.low, band.high, digits)
    return (
        current is not None and band.holds(current),
        f"{_measured(assertion, current, value, digits)}; the last {len(past)} runs had {had}, "
        f"so {expected} was expected",
    )


def expected_band(assertion: Drift, past: Sequence[float]) -> Band:
    """The band that these past values give."""
    middle = statistics.median(past)
    deviation = statistics.median(abs(value - middle) for value in past) * _MAD_TO_DEVIATION
    least = max(abs(middle) * _LEAST_SHARE, _LEAST_STEP.get(assertion.metric, 0.0), 1e-12)
    reach = assertion.sensitivity * max(deviation, least)
    low, high = middle - reach, middle + reach
    if assertion.metric in (*_COUNTS, "null_share"):
        low = max(low, 0.0)
    if assertion.metric == "null_share":
        high = min(high, 1.0)
    if assertion.metric in _COUNTS:  # whole numbers: the same band, in numbers that can occur
        low, high = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    return Band(low, high)


def as_number(value: Any) -> float | None:
    """A recorded measure as a number: decimals are recorded as texts. None for what is no finite number."""
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _measured(assertion: Drift, number: float | None, value: Any, digits: int = 5) -> str:
    shown = str(value) if number is None else _show(assertion, number, digits)
    if assertion.metric == "row_count":
        return f"{shown} row{'' if number == 1 else 's'}"
    if assertion.metric == "cardinality":
        return f"{shown} different value{'' if number == 1 else 's'}"
    named = {"null_share": "share of NULLs", "percentile": f"p{(assertion.p or 0) * 100:g}"}
    name = named.get(assertion.metric, assertion.metric)
    return f"no {name}" if value is None else f"{name} {shown}"


def _range(assertion: Drift, low: float, high: float, digits: int) -> str:
    ends = _show(assertion, low, digits), _show(assertion, high, digits)
    return ends[0] if low == high else f"{ends[0]} … {ends[1]}"


def _digits(assertion: Drift, value: float | None, band: Band) -> int:
    """As many digits as show that a value is outside of the band."""
    digits = 5
    if value is not None and not band.holds(value):
        end = band.low if value < band.low else band.high
        while digits < 17 and _show(assertion, value, digits) == _show(assertion, end, digits):
            digits += 1
    return digits


def _show(assertion: Drift, value: float, digits: int) -> str:
    if assertion.metric == "null_share":
        return f"{_plain(value * 100, digits)} %"
    return f"{value:,.0f}" if assertion.metric in _COUNTS else _plain(value, digits)


def _plain(value: float, digits: int) -> str:
    """The number with so many digits, and no exponent where it needs none."""
    if abs(value) >= 1:  # no digit before the point is rounded away
        digits = max(digits, math.floor(math.log10(abs(value))) + 1)
    rounded = float(f"{value:.{digits}g}")
    if rounded == 0 or not 1e-4 <= abs(rounded) < 1e15:
        return f"{rounded:.{digits}g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
