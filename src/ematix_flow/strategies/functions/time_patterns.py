"""Regular expressions that recognise a date or time in a format and rewrite it as ISO text.

A format becomes a few `TimePattern`s, which check only the shape. `VALID_DATE` and `VALID_MOMENT` then match
only ISO texts that exist on the calendar, leap years included. So the cast after them cannot fail, and no
engine needs a cast that may fail (``TRY_CAST``). All texts are trimmed and in lower case.

Matching is cheap on every engine. Extracting groups is expensive in Postgres, the more so with more groups
and stricter patterns. So the pattern of a shape has no groups. A second, loose pattern extracts the groups
from a text that is known to have the shape, and takes adjacent fields that are in ISO order as one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ematix_flow.spec.time_format import ISO8601, FormatElement, read_format

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


@dataclass(frozen=True)
class _Field:
    """How a field looks, and a loose pattern with a group for each of the names it gives."""

    shape: str
    capture: str
    names: tuple[str, ...] = ()


def _digits(shape: str) -> _Field:
    return _Field(shape, "([0-9]+)")


_TWO, _ONE_OR_TWO = _Field("[0-9]{2}", "([0-9]{2})"), _digits("[0-9]{1,2}")
_FIELDS = {
    "year": _Field("[0-9]{4}", "([0-9]{4})"),
    "short_year": _TWO,
    "month_name": _Field(f"(?:{'|'.join(MONTHS)})(?:{_MONTH_ENDINGS})?", "([a-z]{3})[a-z]*"),
    "half_day_hour": _digits("(?:0?[1-9]|1[0-2])"),
    "half_day": _Field("[ap][.]?m[.]?", "([ap])[.]?m[.]?"),
    "fraction": _digits("[0-9]{1,6}"),
    "long_fraction": _Field("[0-9]{7,9}", "([0-9]{6})[0-9]+", ("fraction",)),
    "iso_date": _Field("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}", "([0-9-]+)"),
    "iso_minutes": _Field("[0-9]{1,2}:[0-9]{1,2}", "([0-9:]+)"),
    "iso_seconds": _Field("[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}", "([0-9:]+)"),
    "iso_fraction": _Field("[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(?:[.][0-9]{1,6})?", "([0-9:.]+)"),
    "zulu": _Field("z", "z", ()),
    "zulu_or_none": _Field(" ?z?", " ?z?", ()),
    "t_or_space": _Field("[t ]", "[t ]", ()),
    "maybe_space": _Field(" ?", " ?", ()),
    "hours": _Field("[+-][0-9]{2}", "([+-][0-9]+)", ("offset_hours",)),
    "minutes": _Field(
        "[+-][0-9]{2}:?[0-9]{2}", "([+-][0-9]{2}):?([0-9]+)", ("offset_hours", "offset_minutes")
    ),
}
_WITHOUT_GROUP = frozenset({"zulu", "zulu_or_none", "t_or_space", "maybe_space"})
# runs of elements that are ISO text already, the longer before what it begins with
_RUNS = (
    (("year", "-", "month", "-", "day"), "iso_date"),
    (("hour", ":", "minute", ":", "second"), "iso_seconds"),
)


@dataclass(frozen=True)
class TimePattern:
    """``shape`` recognises a whole text; ``capture`` holds the fields of ``groups``, in their order."""

    shape: str
    capture: str
    groups: tuple[str, ...]

    def group(self, field: str) -> int | None:
        return self.groups.index(field) + 1 if field in self.groups else None


@lru_cache(maxsize=256)
def patterns_of(form: str) -> tuple[TimePattern, ...]:
    """The patterns of a format; several where a zone or a fraction may be written in several ways."""
    if form == ISO8601:
        return _iso_patterns()
    elements = read_format(form)
    fields = [e.field for e in elements]
    zones = ("zulu", "hours", "minutes") if "offset" in fields else ("",)
    fractions = ("fraction", "long_fraction") if "fraction" in fields else ("",)
    return tuple(
        _pattern([_choose_variant(e, zone, fraction) for e in elements])
        for fraction in fractions
        for zone in zones
    )


def _iso_patterns() -> tuple[TimePattern, ...]:
    date, between = FormatElement("iso_date"), FormatElement("t_or_space")
    zones = [[FormatElement("zulu_or_none")]] + [
        [FormatElement("maybe_space"), FormatElement(z)] for z in ("hours", "minutes")
    ]
    clocks = [
        [FormatElement("iso_fraction")],
        [FormatElement("iso_minutes")],
        [FormatElement("iso_seconds"), FormatElement("", "."), FormatElement("long_fraction")],
    ]
    moments = [_pattern([date, between, *clock, *zone]) for clock in clocks for zone in zones]
    return (moments[0], _pattern([date]), *moments[1:])


def _choose_variant(element: FormatElement, zone: str, fraction: str) -> FormatElement:
    choice = {"offset": zone, "fraction": fraction}.get(element.field)
    return FormatElement(choice) if choice else element


def _pattern(elements: list[FormatElement]) -> TimePattern:
    shape = capture = ""
    groups: list[str] = []
    for element in _with_runs(elements):
        if not element.field:
            literal = _literal(element.text)
            shape, capture = shape + literal, capture + literal
            continue
        field = _FIELDS.get(element.field) or (_TWO if element.fixed else _ONE_OR_TWO)
        shape, capture = shape + field.shape, capture + field.capture
        if element.field not in _WITHOUT_GROUP:
            groups += field.names or (element.field,)
    return TimePattern(f"^{shape}$", f"^{capture}$", tuple(groups))


def _with_runs(elements: list[FormatElement]) -> list[FormatElement]:
    """Runs of fields in ISO order as one field each."""
    out: list[FormatElement] = []
    place = 0
    while place < len(elements):
        for run, name in _RUNS:
            window = elements[place : place + len(run)]
            if tuple(e.field or e.text for e in window) == run and not any(
                e.fixed and e.field for e in window
            ):
                out.append(FormatElement(name))
                place += len(run)
                break
        else:
            out.append(elements[place])
            place += 1
    return out


def _literal(text: str) -> str:
    """The text between two fields. A space matches one or more spaces."""
    out = ""
    for char in text.lower():
        if char == " ":
            out += " +"
        else:
            out += char if char.isalnum() or ord(char) > 127 else f"\\{char}"
    return out
