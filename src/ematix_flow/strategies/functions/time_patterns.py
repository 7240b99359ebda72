"""Regular expressions that recognise a date or time in a format and rewrite it as ISO text.

A format becomes a few `TimePattern`s, which look at the shape alone. `VALID_DATE` and `VALID_MOMENT`
then take only ISO texts that exist on the calendar, leap years included, so that the cast behind them
cannot fail and no engine needs a cast that tries. All texts are trimmed and in lower case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ematix_flow.spec.time_format import ISO8601, Element, read_format

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_ENDINGS = "uary|ruary|ch|il|e|y|ust|t|tember|ober|ember"

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:"
    "(?:0?[13578]|1[02])-(?:0?[1-9]|[12][0-9]|3[01])"
    "|(?:0?[469]|11)-(?:0?[1-9]|[12][0-9]|30)"
    "|0?2-(?:0?[1-9]|1[0-9]|2[0-8])"
    f")|{_LEAP_YEAR}-0?2-29)"
)
_CLOCK = "(?:[01]?[0-9]|2[0-3]):[0-5]?[0-9]:[0-5]?[0-9](?:[.][0-9]{1,6})?"
_ZONE = "[+-](?:0[0-9]|1[0-4]):[0-5][0-9]"
VALID_DATE = f"^{_DATE}$"
VALID_MOMENT = f"^{_DATE} {_CLOCK}{_ZONE}$"

_OFFSETS = {
    "utc": ("", ()),
    "zulu": ("z", ()),
    "hours": ("([+-][0-9]{2})", ("offset_hours",)),
    "minutes": ("([+-][0-9]{2}):?([0-9]{2})", ("offset_hours", "offset_minutes")),
}
_FIELDS = {
    "year": "([0-9]{4})",
    "short_year": "([0-9]{2})",
    "month_name": f"({'|'.join(MONTHS)})(?:{_MONTH_ENDINGS})?",
    "half_day_hour": "(0?[1-9]|1[0-2])",
    "half_day": "([ap])[.]?m[.]?",
    "fraction": "([0-9]{1,6})[0-9]{0,3}",
    "seconds": "([0-9]{2}(?:[.][0-9]{1,6})?)[0-9]{0,3}",  # with their fraction
}


@dataclass(frozen=True)
class TimePattern:
    """``pattern`` recognises a whole text; ``groups`` says which field each of its groups holds."""

    pattern: str
    groups: tuple[str, ...]

    def group(self, field: str) -> int | None:
        return self.groups.index(field) + 1 if field in self.groups else None


@lru_cache(maxsize=256)
def patterns_of(form: str) -> tuple[TimePattern, ...]:
    """The patterns of a format; several where its zone may be written in several ways."""
    if form == ISO8601:
        date = [Element("year"), Element("", "-"), Element("month"), Element("", "-"), Element("day")]
        clock = [Element("", "T"), Element("hour"), Element("", ":"), Element("minute", fixed=True)]
        to_minutes = [*date, *clock]
        to_seconds = [*to_minutes, Element("", ":"), Element("seconds")]
        moments = [
            (form, offset) for form in (to_seconds, to_minutes) for offset in ("utc", "hours", "minutes")
        ]
        return (_pattern(date, "utc"), *(_pattern(form, offset, iso=True) for form, offset in moments))
    elements = read_format(form)
    if any(e.field == "offset" for e in elements):
        return tuple(_pattern(elements, offset) for offset in ("zulu", "hours", "minutes"))
    return (_pattern(elements, "utc"),)


def _pattern(elements: list[Element] | tuple[Element, ...], offset: str, iso: bool = False) -> TimePattern:
    """``iso``: the T may be a space, and a zone may follow."""
    zone, zone_groups = _OFFSETS[offset]
    pattern, groups = "", list[str]()
    for element in elements:
        if not element.field:
            pattern += "[t ]" if iso and element.text == "T" else _literal(element.text)
        elif element.field == "offset":
            pattern += zone
            groups += zone_groups
        else:
            pattern += _FIELDS.get(element.field, "([0-9]{2})" if element.fixed else "([0-9]{1,2})")
            groups.append(element.field)
    if iso:
        pattern += " ?z?" if offset == "utc" else f" ?{zone}"
        groups += zone_groups
    return TimePattern(f"^{pattern}$", tuple(groups))


def _literal(text: str) -> str:
    """The text between two fields. A space stands for one or more."""
    out = ""
    for char in text.lower():
        if char == " ":
            out += " +"
        else:
            out += char if char.isalnum() or ord(char) > 127 else f"\\{char}"
    return out
