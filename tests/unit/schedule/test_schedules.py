"""When schedules fire: every wall-clock time once, over years and zones, held against a count of minutes."""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from itertools import islice, pairwise

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_flow.spec.schedules import NAMED_SCHEDULES, BadSchedule, Schedule

UTC = dt.timezone.utc
MINUTE, HOUR, DAY = dt.timedelta(minutes=1), dt.timedelta(hours=1), dt.timedelta(days=1)
QUARTER = 15 * MINUTE
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",  # half an hour
    "Africa/Casablanca",  # around Ramadan
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Pacific/Apia",  # left out a day
    "America/St_Johns",
)
# five years of each in which its clocks change in an unusual way
FIVE_YEARS = {
    "UTC": 2024,
    "Europe/Berlin": 2024,
    "Europe/Dublin": 2024,  # its winter is the exception, by an hour less
    "America/New_York": 2024,
    "America/St_Johns": 2024,
    "America/Sao_Paulo": 2015,  # the change left midnight out, until there was none any more
    "Australia/Lord_Howe": 2024,  # half an hour
    "Africa/Casablanca": 2022,  # around Ramadan
    "Asia/Kathmandu": 2024,
    "Asia/Tehran": 2019,
    "Asia/Pyongyang": 2014,  # half an hour for three years
    "Pacific/Apia": 2009,  # left out a day
    "Antarctica/Troll": 2024,  # two hours
}
# Every day of five years; the others run around each change of their clocks, and whole in the long tests
IN_EVERY_RUN = {"Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia"}
STILL = {"UTC", "Asia/Kathmandu"}
CHANGES = (9, 55, 83, 101, 102, 275, 313, 319)  # days on which some of the clocks are set
Offsets = list[tuple[dt.datetime, dt.timedelta]]


def utc(*parts: int) -> dt.datetime:
    year, month, day, *clock = parts
    return dt.datetime(year, month, day, *clock, tzinfo=UTC)


def fires(cron: str, zone: str, after: dt.datetime, until: dt.datetime) -> list[dt.datetime]:
    return list(Schedule(cron, zone).fire_times(after, until))


def counted(
    minutes: set[int], hours: set[int], zone: str, after: dt.datetime, until: dt.datetime
) -> list[dt.datetime]:
    """The times of every local day, each found among all the minutes that there are."""
    own, walls, offsets = zoneinfo.ZoneInfo(zone), dict[dt.datetime, dt.datetime](), Offsets()
    moment = after - 4 * DAY
    while moment <= until + 4 * DAY:  # no clock is set within a quarter of an hour
        local = moment.astimezone(own)
        wall, offset = local.replace(tzinfo=None, fold=0), local.utcoffset() or dt.timedelta()
        for n in range(15):
            if (wall.minute + n) % 60 in minutes:
                walls.setdefault(wall + MINUTE * n, moment + MINUTE * n)
        if not offsets or offsets[-1][1] != offset:
            offsets.append((moment, offset))
        moment += QUARTER
    found, day = set(), (after - 2 * DAY).date()
    while day <= (until + DAY).date():
        for hour in hours:
            for minute in minutes:
                wall = dt.datetime.combine(day, dt.time(hour, minute))
                found.add(walls.get(wall) or wall.replace(tzinfo=UTC) - offset_before(offsets, wall))
        day += DAY
    return sorted(each for each in found if after < each <= until)


def offset_before(offsets: Offsets, wall: dt.datetime) -> dt.timedelta:
    """That of the clock before it was set over this time."""
    for (_, before), (changed, after) in pairwise(offsets):
        at = changed.replace(tzinfo=None)
        if at + before <= wall < at + after:
            return before
    raise AssertionError(wall)


@settings(max_examples=25, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=3),
    hours=st.sets(st.integers(0, 23), min_size=1, max_size=5),
    day=st.sampled_from(CHANGES) | st.integers(0, 364),
)
def test_each_time_of_the_wall_clock_fires_once(
    zone: str, minutes: set[int], hours: set[int], day: int
) -> None:
    after = utc(2011, 12, 20) + dt.timedelta(days=day)
    until = after + 3 * DAY
    cron = f"{','.join(map(str, sorted(minutes)))} {','.join(map(str, sorted(hours)))} * * *"
    assert fires(cron, zone, after, until) == counted(minutes, hours, zone, after, until)


@functools.cache
def offsets_of(zone: str, after: dt.datetime, until: dt.datetime) -> Offsets:
    """Every change of a zone's clock: checked every hour, and every quarter of an hour with a change."""
    own, begin = zoneinfo.ZoneInfo(zone), after - 4 * DAY

    def offset_at(moment: dt.datetime) -> dt.timedelta:
        return moment.astimezone(own).utcoffset() or dt.timedelta()

    found: Offsets = [(begin, offset_at(begin))]
    for hour in range((until + 4 * DAY - begin) // HOUR):
        if offset_at(begin + (hour + 1) * HOUR) != found[-1][1]:
            quarters = (begin + hour * HOUR + n * QUARTER for n in range(1, 5))
            changed = next(each for each in quarters if offset_at(each) != found[-1][1])
            found.append((changed, offset_at(changed)))
    return found


def once_a_day(
    wall_clock: dt.time, offsets: Offsets, after: dt.datetime, until: dt.datetime
) -> set[dt.datetime]:
    """The first time of each local day at which the clock shows this time, or would have shown it."""
    ends = [*(changed for changed, _ in offsets[1:]), until + 9 * DAY]
    found, day, passed = set(), (after - 2 * DAY).date(), 0
    while day <= (until + 2 * DAY).date():
        wall = dt.datetime.combine(day, wall_clock)
        while ends[passed] < wall.replace(tzinfo=UTC) - DAY:  # no clock is that far from UTC
            passed += 1
        near = zip(offsets[passed : passed + 3], ends[passed : passed + 3], strict=True)
        moments = [
            wall.replace(tzinfo=UTC) - offset
            for (begin, offset), end in near
            if begin <= wall.replace(tzinfo=UTC) - offset < end
        ]
        found.add(min(moments, default=None) or wall.replace(tzinfo=UTC) - offset_before(offsets, wall))
        day += DAY
    return {moment for moment in found if after < moment <= until}


@pytest.mark.parametrize(
    ("zone", "year"),
    [
        pytest.param(zone, year, marks=() if zone in IN_EVERY_RUN else pytest.mark.long)
        for zone, year in FIVE_YEARS.items()
    ],
)
def test_five_years_of_the_calendar_lose_and_double_no_fire(zone: str, year: int) -> None:
    """A schedule for some hours fires once a local day for each time, also when the clocks change."""
    after, until = utc(year, 1, 1), utc(year + 5, 1, 1)
    offsets = offsets_of(zone, after, until)
    for hour, minute in ((2, 30), (0, 0), (0, 15), (23, 45), (1, 59)):
        found = fires(f"{minute} {hour} * * *", zone, after, until)
        assert len(found) == len(set(found))
        assert set(found) == once_a_day(dt.time(hour, minute), offsets, after, until), f"{hour}:{minute}"


@pytest.mark.parametrize(("zone", "year"), FIVE_YEARS.items())
def test_around_each_change_of_five_years_every_quarter_fires_once(zone: str, year: int) -> None:
    """Held against the minutes of those days; once by the wall clock, once by the time that passes."""
    changes = offsets_of(zone, utc(year, 1, 1), utc(year + 5, 1, 1))[1:]
    assert (len(changes) >= 1) == (zone not in STILL)
    hours = set(range(24)) - {12}  # one of all hours would go by the time that passes
    own = zoneinfo.ZoneInfo(zone)
    for changed, _ in changes:
        after, until = changed - 2 * DAY, changed + 2 * DAY
        cron = f"*/15 {','.join(map(str, sorted(hours)))} * * *"
        assert fires(cron, zone, after, until) == counted({0, 15, 30, 45}, hours, zone, after, until)
        minutes = (after + 5 * MINUTE * n for n in range(1, (until - after) // (5 * MINUTE) + 1))
        passing = [each for each in minutes if each.astimezone(own).minute in (5, 30)]
        assert fires("5,30 * * * *", zone, after, until) == passing


def test_a_time_that_is_left_out_fires_as_much_later() -> None:
    found = fires("30 2 * * *", "Europe/Berlin", utc(2026, 3, 28, 12), utc(2026, 3, 30, 12))
    assert found == [utc(2026, 3, 29, 1, 30), utc(2026, 3, 30, 0, 30)]  # 03:30 on the day of the change


def test_a_time_that_comes_twice_fires_the_first_time() -> None:
    found = fires("30 2 * * *", "Europe/Berlin", utc(2026, 10, 24, 12), utc(2026, 10, 26, 12))
    assert found == [utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)]


@pytest.mark.parametrize(("cron", "times"), [("*/30 2 * * *", 2), ("0 */2 * * *", 12)])
def test_a_star_in_another_field_neither_loses_nor_doubles_a_fire(cron: str, times: int) -> None:
    for midnight, hours in ((utc(2026, 3, 28, 23), 23), (utc(2026, 10, 24, 22), 25)):
        end = midnight + hours * HOUR
        assert len(fires(cron, "Europe/Berlin", midnight - MINUTE, end - MINUTE)) == times


@pytest.mark.parametrize("name", NAMED_SCHEDULES)
def test_names_stand_for_their_fields(name: str) -> None:
    after = utc(2026, 5, 17, 3, 4)
    assert Schedule(name).next_fire_time(after) == Schedule(NAMED_SCHEDULES[name]).next_fire_time(after)
    assert Schedule(name.upper()).next_fire_time(after) == Schedule(name).next_fire_time(after)


def test_names_of_days_and_months_are_known() -> None:
    assert Schedule("0 6 * JAN MON").next_fire_time(utc(2026, 5, 17)) == utc(2027, 1, 4, 6)


def test_the_moment_itself_is_over() -> None:
    assert Schedule("0 6 * * *").next_fire_time(utc(2026, 5, 17, 6)) == utc(2026, 5, 18, 6)
    assert fires("0 6 * * *", "UTC", utc(2026, 5, 17, 5, 59), utc(2026, 5, 17, 6)) == [utc(2026, 5, 17, 6)]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ZONES), st.sampled_from(["*/7 * * * *", "0 6 * * *", "0 0 29 2 *", "5 4 * * 1"]))
def test_the_last_fire_is_the_last_of_all(zone: str, cron: str) -> None:
    since, until = utc(2024, 2, 20), utc(2024, 3, 20, 11, 17)
    everything = fires(cron, zone, since, until)
    assert Schedule(cron, zone).last_fire_time(until, since) == (everything[-1] if everything else None)


@pytest.mark.parametrize(("zone", "year"), FIVE_YEARS.items())
def test_from_wherever_one_looks_around_a_change_the_fires_are_the_same(zone: str, year: int) -> None:
    schedule = Schedule("30 0-3,23 * * *", zone)
    for changed, _ in offsets_of(zone, utc(year, 1, 1), utc(year + 5, 1, 1))[1:]:
        everything = list(schedule.fire_times(changed - 9 * DAY, changed + 5 * DAY))
        near = [changed + n * 40 * MINUTE for n in range(-4, 5)]
        for moment in [
            *near,
            *(changed + n * DAY + 7 * MINUTE for n in (-2, -1, 1, 2, 3)),
            changed + 2 * DAY,
        ]:
            before = [each for each in everything if each <= moment]
            later = [each for each in everything if each > moment]
            assert schedule.next_fire_time(moment) == later[0], moment
            assert list(schedule.fire_times(moment, moment + DAY)) == [n for n in later if n <= moment + DAY]
            assert schedule.last_fire_time(moment, changed - 9 * DAY) == before[-1], moment
            assert schedule.last_fire_time(moment, before[-1]) is None


def test_what_is_near_is_found_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a schedule fires on other days: each poll asks a thousand."""
    steps, step = 0, CronSim.__next__

    def counted_step(cron: CronSim) -> dt.datetime:
        nonlocal steps
        steps += 1
        return step(cron)

    monkeypatch.setattr(CronSim, "__next__", counted_step)
    schedule, monday = Schedule("*/5 8-18 * * 1-5", "Europe/Berlin"), utc(2026, 5, 18, 6)
    assert schedule.next_fire_time(monday - HOUR) == monday
    assert list(schedule.fire_times(monday - MINUTE, monday)) == [monday]
    assert schedule.last_fire_time(monday - MINUTE, monday - 9 * DAY) == utc(2026, 5, 15, 16, 55)
    assert steps <= 6


@pytest.mark.parametrize("cron", ["", "x", "* * * *", "0 0 0 * * *", "61 * * * *", "@never", "0 0 31 2 *"])
def test_what_is_no_schedule_is_reported(cron: str) -> None:
    with pytest.raises(BadSchedule):
        Schedule(cron).check()


@pytest.mark.parametrize(
    ("cron", "text"),
    [
        ("0 25 * * *", "hour 25 is not in 0 to 23"),
        ("0 8-25 * * *", "hour 25 is not in 0 to 23"),
        ("*/0 * * * *", "minute */0 has the step 0; the smallest step is 1"),
        ("0 0 0 * *", "day-of-month 0 is not in 1 to 31"),
        ("0 0 31 2 *", "the month has no day 31"),
        ("0 0 * 13 *", "month 13 is not in 1 to 12"),
        ("0 0 * * 8", "day-of-week 8 is not in 0 to 7"),
        ("0 18-8 * * *", "hour 18-8 is not valid; hour takes numbers from 0 to 23"),
        ("x * * * *", "minute x is not valid; minute takes numbers from 0 to 59"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_its_range(cron: str, text: str) -> None:
    with pytest.raises(BadSchedule) as raised:
        Schedule(cron).check()
    assert str(raised.value) == text


def test_an_unknown_zone_is_reported() -> None:
    with pytest.raises(BadSchedule, match="Mars/Olympus"):
        Schedule("@daily", "Mars/Olympus").check()


def test_fires_are_computed_as_they_are_asked_for() -> None:
    assert len(list(islice(Schedule("* * * * *").fire_times(utc(2026, 1, 1), utc(2999, 1, 1)), 5))) == 5
