"""Checks names of time zones, and suggests the one that the user probably meant."""

from __future__ import annotations

import zoneinfo

from ematix_flow.errors import closest_name

# common abbreviations of one half of the year; each means an offset, not a time zone
ABBREVIATIONS = {
    "cest": "Europe/Berlin",
    "mez": "Europe/Berlin",
    "mesz": "Europe/Berlin",
    "bst": "Europe/London",
    "west": "Europe/Lisbon",
    "eest": "Europe/Helsinki",
    "msk": "Europe/Moscow",
    "edt": "America/New_York",
    "cst": "America/Chicago",
    "cdt": "America/Chicago",
    "mdt": "America/Denver",
    "pst": "America/Los_Angeles",
    "pdt": "America/Los_Angeles",
    "brt": "America/Sao_Paulo",
    "ist": "Asia/Kolkata",
    "jst": "Asia/Tokyo",
    "kst": "Asia/Seoul",
    "sgt": "Asia/Singapore",
    "hkt": "Asia/Hong_Kong",
    "aest": "Australia/Sydney",
    "aedt": "Australia/Sydney",
    "z": "UTC",
    "utc+0": "UTC",
}


def is_time_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def time_zone_hint(name: str) -> str:
    """`` Did you mean 'Europe/Berlin'?``, or an empty text without a suggestion."""
    found = ABBREVIATIONS.get(name.strip().lower())
    if found is None:
        places = sorted(zone for zone in zoneinfo.available_timezones() if "/" in zone or zone == "UTC")
        cities = {zone.rpartition("/")[2].lower(): zone for zone in reversed(places)}
        found = cities.get(name.strip().lower().replace(" ", "_")) or closest_name(name, places)
    return f" Did you mean '{found}'?" if found else ""
