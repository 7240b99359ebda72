"""Column normalisers as declared values: what a marker is, which arguments it takes, and its JSON.

A normaliser is a name and its arguments; nothing here knows SQL. A column's normalisers run left to
right on the source's value. The factories below define what each one means, which is the same on every
engine; ``strategies/projection.py`` compiles them to SQL.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.normalizer_arguments import (
    ARGUMENT_CHECKS,
    FALSY,
    TRUTHY,
    Scalar,
    Value,
    default_moment,
    formats_of,
    words_of,
)
from ematix_flow.spec.normalizer_types import check_result_type
from ematix_flow.spec.time_format import DEFAULT_DATE_FORMATS, DEFAULT_TIMESTAMP_FORMATS
from ematix_flow.spec.types import DataType


@dataclass(frozen=True)
class Normalizer:
    """One marker: its ``name`` and its ``args`` in the order of the factory's parameters."""

    name: str
    args: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        check = ARGUMENT_CHECKS.get(self.name)
        if check is None:
            raise DeclarationError(
                f"there is no normaliser {self.name!r}.{did_you_mean(self.name, ARGUMENT_CHECKS)}"
            )
        try:
            check(dict(self.args))
        except KeyError as missing:
            raise DeclarationError(f"{self.name}() lacks its argument {missing.args[0]!r}") from None

    def __getitem__(self, arg: str) -> Any:  # the value's type depends on the marker and the argument
        return dict(self.args)[arg]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.args)})"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "args": {k: _encode(v) for k, v in self.args}}


def normalizer_from_json(value: Mapping[str, Any]) -> Normalizer:
    return Normalizer(value["name"], tuple((k, _decode(v)) for k, v in value["args"].items()))


def check_normalizers(normalizers: Sequence[Normalizer], column: str, declared: DataType) -> None:
    """Refuse normalisers that do not fit a column of this type."""
    for place, marker in enumerate(normalizers):
        if marker.name == "derive" and place > 0:
            raise DeclarationError(
                f"column {column!r}: derive() computes the value, so it must come first",
                next_step="move derive(…) before the other markers",
            )
    if normalizers and normalizers[-1].name == "to_timezone" and declared.kind == "timestamp_tz":
        raise DeclarationError(
            f"column {column!r}: to_timezone() gives the local time of a zone, which a TimestampTZ"
            " would read as UTC",
            next_step="declare the column as Timestamp, or leave out to_timezone(): a TimestampTZ is a"
            " point in time, the same in every zone",
        )
    check_result_type(normalizers, column, declared)


# --- text ------------------------------------------------------------------------------------------


def trim() -> Normalizer:
    """Remove ASCII whitespace at both ends: space, tab, newline, vertical tab, form feed, return."""
    return Normalizer("trim")


def lower() -> Normalizer:
    """Convert to lower case, character by character."""
    return Normalizer("lower")


def upper() -> Normalizer:
    """Convert to upper case, character by character."""
    return Normalizer("upper")


def empty_to_null() -> Normalizer:
    """Replace an empty text by NULL."""
    return Normalizer("empty_to_null")


def whitespace_to_null() -> Normalizer:
    """Trim the text, and replace it by NULL when nothing is left."""
    return Normalizer("whitespace_to_null")


def replace(old: str, new: str) -> Normalizer:
    """Replace every ``old`` by ``new``, both taken literally."""
    return Normalizer("replace", (("old", old), ("new", new)))


def regex_replace(pattern: str, replacement: str, flags: str = "g") -> Normalizer:
    r"""Replace matches of ``pattern``; ``\1`` … ``\9`` in the replacement are groups, ``\0`` is the match.

    ``flags``: ``g`` replaces every match instead of the first, ``i`` ignores ASCII case. The pattern is
    of the part of regular expressions that every engine reads the same way (`spec.portable_regex`).
    """
    return Normalizer("regex_replace", (("pattern", pattern), ("replacement", replacement), ("flags", flags)))


def truncate(n: int) -> Normalizer:
    """Keep the first ``n`` characters."""
    return Normalizer("truncate", (("n", n),))


def email_normalize() -> Normalizer:
    """Trim the text and convert it to lower case."""
    return Normalizer("email_normalize")


def phone_normalize() -> Normalizer:
    """Keep only digits and plus signs."""
    return Normalizer("phone_normalize")


# --- dates and times -------------------------------------------------------------------------------


def parse_timestamp(
    format: str | None = None,
    *,
    formats: Iterable[str] | None = None,
    on_failure: str = "null",
    default: dt.datetime | dt.date | str | None = None,
) -> Normalizer:
    """Parse a point in time from text in one of the formats; text without a zone is UTC.

    Without ``format`` or ``formats`` the formats of ``DEFAULT_TIMESTAMP_FORMATS`` are tried in their
    order. A value that already is a timestamp passes through.
    """
    return Normalizer(
        "parse_timestamp",
        (
            ("formats", formats_of("parse_timestamp", format, formats, DEFAULT_TIMESTAMP_FORMATS)),
            ("on_failure", on_failure),
            ("default", default_moment("parse_timestamp", default)),
        ),
    )


def parse_date(
    format: str | None = None,
    *,
    formats: Iterable[str] | None = None,
    on_failure: str = "null",
    default: dt.date | str | None = None,
) -> Normalizer:
    """Parse a date from text in one of the formats, by default ``DEFAULT_DATE_FORMATS``; cut off a time."""
    if isinstance(default, str):
        try:
            default = dt.date.fromisoformat(default)
        except ValueError:
            raise DeclarationError(f"parse_date(default={default!r}) is not a date") from None
    return Normalizer(
        "parse_date",
        (
            ("formats", formats_of("parse_date", format, formats, DEFAULT_DATE_FORMATS)),
            ("on_failure", on_failure),
            ("default", default),
        ),
    )


def to_timezone(tz: str) -> Normalizer:
    """Convert to the local time of a zone, a Timestamp without zone. A value without zone is UTC."""
    return Normalizer("to_timezone", (("tz", tz),))


def date_trunc(precision: str) -> Normalizer:
    """Round down to the second, minute, hour, day, week (Monday), month, quarter or year, in UTC."""
    return Normalizer("date_trunc", (("precision", precision),))


# --- numbers and booleans --------------------------------------------------------------------------


def parse_int(on_failure: str = "null", default: int | None = None) -> Normalizer:
    """Parse a 64-bit integer from digits with an optional sign and surrounding whitespace."""
    return Normalizer("parse_int", (("on_failure", on_failure), ("default", default)))


def parse_numeric(
    precision: int,
    scale: int,
    on_failure: str = "null",
    default: Decimal | float | str | None = None,
) -> Normalizer:
    """Parse a decimal, rounded half away from zero to ``scale`` digits. A too large number is a failure."""
    if isinstance(default, str):
        try:
            default = Decimal(default)
        except InvalidOperation:
            raise DeclarationError(f"parse_numeric(default={default!r}) is not a number") from None
    return Normalizer(
        "parse_numeric",
        (("precision", precision), ("scale", scale), ("on_failure", on_failure), ("default", default)),
    )


def round(p: int = 0) -> Normalizer:
    """Round half away from zero to ``p`` digits after the point."""
    return Normalizer("round", (("p", p),))


def clamp(low: Scalar | None = None, high: Scalar | None = None) -> Normalizer:
    """Limit the value to ``low`` and ``high``; either may be None. NULL stays NULL."""
    return Normalizer("clamp", (("low", low), ("high", high)))


def parse_bool(
    truthy: Iterable[str] = TRUTHY,
    falsy: Iterable[str] = FALSY,
    on_failure: str = "null",
    default: bool | None = None,
) -> Normalizer:
    """Parse a boolean from words, ignoring case and surrounding whitespace. Other words are failures."""
    return Normalizer(
        "parse_bool",
        (
            ("truthy", words_of("parse_bool", "truthy", truthy)),
            ("falsy", words_of("parse_bool", "falsy", falsy)),
            ("on_failure", on_failure),
            ("default", default),
        ),
    )


# --- nulls and SQL ---------------------------------------------------------------------------------


def default(value: Scalar) -> Normalizer:
    """Replace NULL by ``value``."""
    return Normalizer("default", (("value", value),))


def not_null_or(value: Scalar) -> Normalizer:
    """Another name of `default`."""
    return default(value)


def nullif(value: Scalar) -> Normalizer:
    """Replace ``value`` by NULL."""
    return Normalizer("nullif", (("value", value),))


def sql(expr: str) -> Normalizer:
    """Apply an expression in the source's SQL dialect, in which ``col`` is the current value."""
    return Normalizer("sql", (("expr", expr),))


def derive(expr: str) -> Normalizer:
    """Compute the value by an SQL expression over the source's columns. The source may lack this column."""
    return Normalizer("derive", (("expr", expr),))


# --- JSON ------------------------------------------------------------------------------------------


def _encode(value: Value) -> Any:
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, dt.datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, dt.date):
        return {"date": value.isoformat()}
    return list(value) if isinstance(value, tuple) else value


def _decode(value: Any) -> Value:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        ((kind, text),) = value.items()
        if kind == "decimal":
            return Decimal(text)
        return dt.datetime.fromisoformat(text) if kind == "datetime" else dt.date.fromisoformat(text)
    return value  # type: ignore[no-any-return]  # JSON's own scalars
