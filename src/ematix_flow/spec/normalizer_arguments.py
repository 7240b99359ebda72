"""Checks the arguments of a normaliser when it is declared or read from JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.portable_regex import check_pattern, check_replacement, matches_empty_after_start
from ematix_flow.spec.time_format import ISO8601, read_format
from ematix_flow.spec.time_zones import is_time_zone, time_zone_hint
from ematix_flow.spec.types import DataType

Scalar = str | int | float | bool | Decimal | dt.date | dt.datetime
Value = Scalar | tuple[str, ...] | None
Args = Mapping[str, Value]

ON_FAILURE = ("null", "error", "default")
TRUTHY = ("true", "1", "yes", "y")
FALSY = ("false", "0", "no", "n")
TRUNCATIONS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")


def formats_of(
    marker: str, one: str | None, several: Iterable[str] | None, catalogue: tuple[str, ...]
) -> tuple[str, ...]:
    if one is not None and several is not None:
        raise DeclarationError(f"{marker}() takes format= or formats=, not both")
    if one is not None:
        return (one,)
    if several is None:
        return catalogue
    return (several,) if isinstance(several, str) else _as_tuple(marker, "formats", several)


def _as_tuple(marker: str, arg: str, given: object) -> tuple[Any, ...]:
    """The given list, tuple or set as a tuple."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DeclarationError(f"{marker}({arg}=…) takes a list, not {given!r}")
    return tuple(given)


def words_of(marker: str, arg: str, words: Iterable[str]) -> tuple[str, ...]:
    if isinstance(words, str):
        raise DeclarationError(f"{marker}({arg}=…) takes several words, as in {arg}=({words!r},)")
    words = _as_tuple(marker, arg, words)
    for word in words:
        if not isinstance(word, str):
            raise DeclarationError(f"{marker}({arg}=…) takes words, not {word!r}")
    return tuple(w.strip().lower() for w in words)


def default_moment(marker: str, value: dt.datetime | dt.date | str | None) -> dt.datetime | None:
    """The default of parse_timestamp as a UTC time."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            raise DeclarationError(f"{marker}(default={value!r}) is not an ISO 8601 timestamp") from None
    if not isinstance(value, dt.datetime) and isinstance(value, dt.date):
        value = dt.datetime(value.year, value.month, value.day)
    if not isinstance(value, dt.datetime):
        raise DeclarationError(f"{marker}(default={value!r}) is not a timestamp")
    return (
        value.replace(tzinfo=dt.timezone.utc) if value.tzinfo is None else value.astimezone(dt.timezone.utc)
    )


def _check_no_arguments(args: Args) -> None:
    if args:
        raise DeclarationError(f"this marker takes no argument, not {sorted(args)}")


def _require_text(marker: str, arg: str, value: Value) -> str:
    if not isinstance(value, str):
        raise DeclarationError(f"{marker}({arg}=…) must be a text, not {value!r}")
    if "\x00" in value:
        raise DeclarationError(f"{marker}({arg}=…) holds a NUL character")
    return value


def _require_int(marker: str, arg: str, value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DeclarationError(f"{marker}({arg}=…) must be a whole number, not {value!r}")
    return value


def _require_scalar(marker: str, value: Value) -> None:
    if isinstance(value, str):
        _require_text(marker, "value", value)
    elif not isinstance(value, (int, float, Decimal, dt.date)):
        raise DeclarationError(
            f"{marker}() takes a text, a number, a boolean, a date or a datetime, not {value!r}"
        )
    elif isinstance(value, (float, Decimal)) and not Decimal(value).is_finite():
        raise DeclarationError(f"{marker}() takes a finite number, not {value!r}")


def _check_failure(marker: str, args: Args, kinds: type | tuple[type, ...]) -> None:
    rule, value = args["on_failure"], args["default"]
    if rule not in ON_FAILURE:
        raise DeclarationError(
            f"{marker}(on_failure={rule!r}): the rules are {', '.join(ON_FAILURE)}."
            + did_you_mean(str(rule), ON_FAILURE)
        )
    if rule == "default" and value is None:
        raise DeclarationError(f"{marker}(on_failure='default') needs default=")
    if rule != "default" and value is not None:
        raise DeclarationError(f"{marker}(default=…) needs on_failure='default', not {rule!r}")
    if value is not None and (
        not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)
    ):
        raise DeclarationError(f"{marker}(default={value!r}) has the wrong type")


def _check_replace(args: Args) -> None:
    if not _require_text("replace", "old", args["old"]):
        raise DeclarationError("replace(old='') would replace nothing")
    _require_text("replace", "new", args["new"])


def _check_regex_replace(args: Args) -> None:
    groups = check_pattern(_require_text("regex_replace", "pattern", args["pattern"]))
    check_replacement(_require_text("regex_replace", "replacement", args["replacement"]), groups)
    flags = _require_text("regex_replace", "flags", args["flags"])
    if set(flags) - {"g", "i"} or len(set(flags)) != len(flags):
        raise DeclarationError(f"regex_replace(flags={flags!r}): the flags are 'g' and 'i'")
    if "g" in flags and matches_empty_after_start(str(args["pattern"])):
        raise DeclarationError(
            f"regex_replace({args['pattern']!r}) also matches the empty text; engines differ in how often",
            next_step="repeat with + instead of *, or begin the pattern with ^",
        )


def _check_truncate(args: Args) -> None:
    if _require_int("truncate", "n", args["n"]) < 0:
        raise DeclarationError(f"truncate({args['n']}): the length must not be negative")


def _check_formats(marker: str, args: Args) -> None:
    formats = args["formats"]
    if not isinstance(formats, tuple) or not formats:
        raise DeclarationError(f"{marker}() needs at least one format")
    for one in formats:
        if _require_text(marker, "format", one) != ISO8601:
            read_format(one)


def _check_parse_timestamp(args: Args) -> None:
    _check_formats("parse_timestamp", args)
    _check_failure("parse_timestamp", args, dt.datetime)


def _check_parse_date(args: Args) -> None:
    _check_formats("parse_date", args)
    _check_failure("parse_date", args, dt.date)
    if isinstance(args["default"], dt.datetime):
        raise DeclarationError("parse_date(default=…) takes a date, not a datetime")


def _check_to_timezone(args: Args) -> None:
    name = _require_text("to_timezone", "tz", args["tz"])
    if not is_time_zone(name):
        raise DeclarationError(
            f"to_timezone({name!r}): there is no such time zone.{time_zone_hint(name)}",
            next_step="use a name from the IANA database, such as Europe/Berlin",
        )


def _check_date_trunc(args: Args) -> None:
    unit = _require_text("date_trunc", "precision", args["precision"])
    if unit not in TRUNCATIONS:
        raise DeclarationError(f"date_trunc({unit!r}): unknown.{did_you_mean(unit, TRUNCATIONS)}")


def _check_parse_int(args: Args) -> None:
    _check_failure("parse_int", args, int)
    value = args["default"]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise DeclarationError(f"parse_int(default={value!r}) has more than 64 bits")


def _check_parse_numeric(args: Args) -> None:
    kind = DataType("numeric", precision=args["precision"], scale=args["scale"])  # type: ignore[arg-type]
    _check_failure("parse_numeric", args, (int, float, Decimal))
    value = args["default"]
    if isinstance(value, (int, float, Decimal)):
        number = Decimal(str(value))
        whole = (kind.precision or 0) - (kind.scale or 0)
        if not number.is_finite() or abs(number) >= Decimal(10) ** whole:
            raise DeclarationError(f"parse_numeric(default={value!r}) does not fit {kind}")


def _check_round(args: Args) -> None:
    if not -18 <= _require_int("round", "p", args["p"]) <= 18:
        raise DeclarationError(f"round({args['p']}): between -18 and 18 digits")


def _check_clamp(args: Args) -> None:
    low, high = args["low"], args["high"]
    if low is None and high is None:
        raise DeclarationError("clamp() needs a low or a high bound")
    for bound in (low, high):
        if bound is not None:
            _require_scalar("clamp", bound)
            if isinstance(bound, (bool, str)):
                raise DeclarationError(f"clamp() bounds numbers and dates, not {bound!r}")
    if low is not None and high is not None:
        try:
            crossed = low > high  # type: ignore[operator]  # a TypeError means that they cannot be compared
        except TypeError:
            raise DeclarationError(f"clamp({low!r}, {high!r}): the bounds cannot be compared") from None
        if crossed:
            raise DeclarationError(f"clamp({low!r}, {high!r}): the low bound is above the high one")


def _check_parse_bool(args: Args) -> None:
    truthy, falsy = args["truthy"], args["falsy"]
    if not isinstance(truthy, tuple) or not isinstance(falsy, tuple) or not (truthy or falsy):
        raise DeclarationError("parse_bool() needs words for true or for false")
    both = set(truthy) & set(falsy)
    if both:
        raise DeclarationError(f"parse_bool(): {sorted(both)} would be both true and false")
    _check_failure("parse_bool", args, bool)


def _check_sql(marker: str) -> Callable[[Args], None]:
    def check(args: Args) -> None:
        if not _require_text(marker, "expr", args["expr"]).strip():
            raise DeclarationError(f"{marker}() needs an expression")

    return check


ARGUMENT_CHECKS: dict[str, Callable[[Args], None]] = {
    **dict.fromkeys(
        (
            "trim",
            "lower",
            "upper",
            "empty_to_null",
            "whitespace_to_null",
            "email_normalize",
            "phone_normalize",
        ),
        _check_no_arguments,
    ),
    "replace": _check_replace,
    "regex_replace": _check_regex_replace,
    "truncate": _check_truncate,
    "parse_timestamp": _check_parse_timestamp,
    "parse_date": _check_parse_date,
    "to_timezone": _check_to_timezone,
    "date_trunc": _check_date_trunc,
    "parse_int": _check_parse_int,
    "parse_numeric": _check_parse_numeric,
    "round": _check_round,
    "clamp": _check_clamp,
    "parse_bool": _check_parse_bool,
    "default": lambda args: _require_scalar("default", args["value"]),
    "nullif": lambda args: _require_scalar("nullif", args["value"]),
    "sql": _check_sql("sql"),
    "derive": _check_sql("derive"),
}
