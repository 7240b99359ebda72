"""The patterns that recognise dates: exactly the days of the calendar."""

import datetime as dt
import itertools
import re

import pytest

from ematix_flow.spec.portable_regex import FLAVOURS, translate, write_replacement
from ematix_flow.strategies.functions.parsing import _up_to
from ematix_flow.strategies.functions.time_patterns import VALID_DATE, VALID_MOMENT, patterns_of

YEARS = (0, 1, 4, 96, 100, 400, 1000, 1582, 1896, 1900, 1999, 2000, 2004, 2023, 2024, 2100, 9996, 9999)


def exists(year, month, day):
    try:
        dt.date(year, month, day)
    except ValueError:
        return False
    return True


def test_a_valid_date_is_one_that_exists():
    valid = re.compile(translate(VALID_DATE, "python"))
    for year, month, day in itertools.product(YEARS, range(14), range(33)):
        for text in (f"{year:04}-{month:02}-{day:02}", f"{year:04}-{month}-{day}"):
            assert bool(valid.search(text)) == exists(year, month, day), text


@pytest.mark.parametrize("clock", ["00:00:00", "23:59:59.999999", "9:05:07.1"])
def test_a_valid_moment_has_a_clock_and_a_zone(clock):
    valid = re.compile(translate(VALID_MOMENT, "python"))
    for zone in ("+00:00", "-14:59", "+05:30"):
        assert valid.search(f"2024-02-29 {clock}{zone}")
    for wrong in (f"2024-02-29 {clock}", f"2023-02-29 {clock}+00:00", f"2024-02-29 {clock}+15:00"):
        assert not valid.search(wrong)


@pytest.mark.parametrize("limit", [2**63 - 1, 2**63])
def test_a_number_pattern_ends_at_its_limit(limit):
    pattern = re.compile(f"^{_up_to(limit)}$")
    for delta in (0, 1, 9, 10, 999, 10**6, 10**18):
        assert pattern.search(str(limit - delta))
        assert pattern.search("00" + str(limit - delta))
        if delta:
            assert not pattern.search(str(limit + delta))


def test_no_pattern_names_more_groups_than_a_replacement_can():
    for form in ("ISO8601", "YYYY-MM-DD HH24:MI:SS.USOF", "MM/DD/YYYY HH12:MI:SS AM"):
        for pattern in patterns_of(form):
            assert re.compile(pattern.shape).groups == 0
            assert re.compile(pattern.capture).groups == len(pattern.groups) <= 9


@pytest.mark.parametrize(
    ("flavour", "expected"),
    [
        ("python", "[0-9]\\b[^\n]\\Z"),
        ("postgres", "[0-9]\\y[^\n]\\Z"),
        ("re2", "[0-9]\\b[^\n]\\z"),
        ("java", "[0-9]\\b[^\n]\\z"),
    ],
)
def test_a_pattern_is_written_in_the_flavour_of_the_engine(flavour, expected):
    assert flavour in FLAVOURS
    assert translate(r"\d\b.$", flavour) == expected


@pytest.mark.parametrize(
    ("flavour", "expected"),
    [
        ("python", r"\g<1>5$\\\g<0>"),
        ("postgres", r"\15$\\\&"),
        ("re2", r"\15$\\\0"),
        ("java", r"$1\5\$\\$0"),
    ],
)
def test_a_replacement_is_written_in_the_flavour_of_the_engine(flavour, expected):
    assert write_replacement((1, "5$\\", 0), flavour) == expected
