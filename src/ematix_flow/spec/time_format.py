"""Parses formats of dates and timestamps into elements.

Two spellings are understood: the template patterns of SQL (``YYYY-MM-DD HH24:MI:SS``) and those of
``strptime`` (``%Y-%m-%d %H:%M:%S``). ``ISO8601`` accepts all of ISO 8601's usual forms: a date,
then, after a ``T`` or a space, hours and minutes, seconds, a fraction, ``Z`` or an offset. Month
names are English. Two-digit years are 1970 to 2069.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ematix_flow.errors import DeclarationError

ISO8601 = "ISO8601"

# Tried in this order. With slashes the month comes first, unless the year does; with dots the day.
DEFAULT_TIMESTAMP_FORMATS: tuple[str, ...] = (
    ISO8601,
    "YYYY/MM/DD HH24:MI:SS",
    "YYYY/MM/DD",
    "MM/DD/YYYY HH24:MI:SS",
    "MM/DD/YYYY HH12:MI:SS AM",
    "MM/DD/YYYY",
    "DD.MM.YYYY HH24:MI:SS",
    "DD.MM.YYYY",
    "YYYYMMDD",
)
DEFAULT_DATE_FORMATS: tuple[str, ...] = (ISO8601, "YYYY/MM/DD", "MM/DD/YYYY", "DD.MM.YYYY", "YYYYMMDD")

# A longer token comes before a token that it begins with.
_TEMPLATE = {
    "YYYY": "year",
    "YY": "short_year",
    "MONTH": "month_name",
    "MON": "month_name",
    "MM": "month",
    "MI": "minute",
    "MS": "fraction",
    "DD": "day",
    "HH24": "hour",
    "HH12": "half_day_hour",
    "HH": "half_day_hour",
    "SS": "second",
    "US": "fraction",
    "AM": "half_day",
    "PM": "half_day",
    "TZH:TZM": "offset",
    "OF": "offset",
}
_STRPTIME = {
    "Y": "year",
    "y": "short_year",
    "m": "month",
    "b": "month_name",
    "B": "month_name",
    "d": "day",
    "H": "hour",
    "I": "half_day_hour",
    "M": "minute",
    "S": "second",
    "f": "fraction",
    "p": "half_day",
    "z": "offset",
}
_STRPTIME_SHORT = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "D": "%m/%d/%y", "R": "%H:%M"}
_TEMPLATE_TOKEN = re.compile("FM|" + "|".join(re.escape(t) for t in _TEMPLATE) + '|T|"[^"]*"|[^A-Za-z0-9"]')

_DIGITS = frozenset(
    {"year", "short_year", "month", "day", "hour", "half_day_hour", "minute", "second", "fraction"}
)
_MOST_FIELDS = 9  # groups of a regular expression that a replacement can name; an offset takes two


@dataclass(frozen=True)
class FormatElement:
    """A field of a format, or with ``field`` empty a literal ``text``.

    ``fixed``: the field has all its digits, because digits are next to it; else a leading zero may
    be left out.
    """

    field: str
    text: str = ""
    fixed: bool = False


@lru_cache(maxsize=256)
def read_format(form: str) -> tuple[FormatElement, ...]:
    """The elements of a format. Raises DeclarationError if it cannot produce a date."""
    elements = _read_strptime(form) if "%" in form else _read_template(form)
    fields = [e.field for e in elements if e.field]
    twice = sorted({f for f in fields if fields.count(f) > 1})
    if twice:
        raise DeclarationError(f"the format {form!r} names its {twice[0].replace('_', ' ')} twice")
    for part, names in (
        ("year", {"year", "short_year"}),
        ("month", {"month", "month_name"}),
        ("day", {"day"}),
    ):
        if len(names & set(fields)) != 1:
            raise DeclarationError(f"the format {form!r} needs one {part}", next_step=_HELP)
    if ("half_day_hour" in fields) != ("half_day" in fields):
        raise DeclarationError(f"the format {form!r} needs both the 12-hour clock (HH12) and AM, or neither")
    if {"hour", "half_day_hour"} <= set(fields):
        raise DeclarationError(f"the format {form!r} names the hour twice")
    for fine, coarse in (
        ("fraction", {"second"}),
        ("second", {"minute"}),
        ("minute", {"hour", "half_day_hour"}),
        ("offset", {"hour", "half_day_hour"}),
    ):
        if fine in fields and not coarse & set(fields):
            raise DeclarationError(f"the format {form!r} has a {fine} without its {'/'.join(sorted(coarse))}")
    if len(fields) + ("offset" in fields) > _MOST_FIELDS:
        raise DeclarationError(f"the format {form!r} has more fields than engines can extract from a text")
    return _with_widths(elements)


_HELP = "tokens: " + " ".join(_TEMPLATE) + ", or those of strptime, or ISO8601"


def _read_template(form: str) -> list[FormatElement]:
    out: list[FormatElement] = []
    position = 0
    while position < len(form):
        # a token in any case, as in Postgres; "T" alone is the letter between date and time
        found = _TEMPLATE_TOKEN.match(form, position) or _TEMPLATE_TOKEN.match(form.upper(), position)
        if found is None:
            raise DeclarationError(
                f"the format {form!r} contains {form[position:]!r}, which is not a token", next_step=_HELP
            )
        text = found[0]
        position = found.end()
        if text in _TEMPLATE:
            out.append(FormatElement(_TEMPLATE[text]))
        elif text.startswith('"'):
            out.append(FormatElement("", form[found.start() + 1 : found.end() - 1]))
        elif text != "FM":
            out.append(FormatElement("", text))
    return out


def _read_strptime(form: str) -> list[FormatElement]:
    for short, long in _STRPTIME_SHORT.items():
        form = form.replace(f"%{short}", long)
    out: list[FormatElement] = []
    position = 0
    while position < len(form):
        char = form[position]
        position += 1
        if char != "%":
            out.append(FormatElement("", char))
            continue
        token = form[position : position + 1]
        position += 1
        if token == "%":
            out.append(FormatElement("", "%"))
        elif token in _STRPTIME:
            out.append(FormatElement(_STRPTIME[token]))
        else:
            raise DeclarationError(
                f"the format {form!r} contains %{token}, which is not supported", next_step=_HELP
            )
    return out


def _with_widths(elements: list[FormatElement]) -> tuple[FormatElement, ...]:
    def is_digits(place: int) -> bool:
        if not 0 <= place < len(elements):
            return False
        element = elements[place]
        return element.field in _DIGITS if element.field else element.text[:1].isdigit()

    return tuple(
        FormatElement(e.field, e.text, fixed=is_digits(i - 1) or is_digits(i + 1))
        for i, e in enumerate(elements)
    )
