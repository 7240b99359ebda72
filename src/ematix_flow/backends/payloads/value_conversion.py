"""Converts a value of a payload to a value of a column, for all payload formats.

The rules are the same for all formats:

- a missing field and a null are null, which a column without nulls refuses;
- integers take whole numbers in their range, also as ``5.0`` or as the text ``"5"``, without loss;
- floats take any number and the texts ``NaN``, ``Infinity`` and ``-Infinity``; a number too large for the
  column is refused, not made infinite;
- numerics take numbers and texts of numbers exactly; digits beyond the scale are refused, not rounded;
- booleans take true and false only;
- text takes text, any other scalar as its JSON text, and nested values as JSON text;
- json and jsonb take any value as JSON text;
- timestamps take ISO 8601 text, and numbers as milliseconds since 1970 in UTC. Text without a zone is UTC;
  a Timestamp gets the UTC time. Digits below a microsecond are cut off;
- dates take ISO 8601 text (``2024-02-29``);
- bytes take bytes, and base64 text; UUIDs take their usual text, in any case.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import functools
import math
import re
import uuid
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from ematix_flow.backends.payloads.json_values import JsonNumber, NestedTooDeeply, json_text
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import INTEGER_BITS

_MAX_SHOWN = 60
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?"
    r"(?: ?(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?))?",
    re.ASCII,
)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", re.ASCII)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_FLOAT_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LONGEST_NUMBER = 1_000  # characters; no column can hold a longer number
_FLOAT32_LIMIT = 3.4028235677973366e38  # at and above it the nearest float is infinity
_WIDE = Context(prec=2 * _LONGEST_NUMBER)
_SCALARS = (str, int, float, Decimal)

Convert = Callable[[Any], Any]


class UnfitField(Exception):
    """A value that its column cannot hold; the text has the field, the value and the column's type."""


class MissingField(UnfitField):
    """No value for a column without nulls."""


def converter(column: ColumnSpec) -> Convert:
    """A function that converts a payload value for the column's Arrow type; it raises UnfitField."""
    convert = _KINDS[column.type.kind](column)
    name, nullable = column.name, column.nullable

    def converted(value: Any) -> Any:
        if value is None:
            if nullable:
                return None
            raise MissingField(f"field {name!r} is missing or null, and the column takes no nulls")
        return convert(value)

    return converted


def display_value(value: Any) -> str:
    """A value for an error text: short, on one line, printable."""
    if isinstance(value, JsonNumber):
        text = str(value)
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, (dict, list, tuple)):
        return "an object" if isinstance(value, dict) else "a list"
    elif isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    elif isinstance(value, str):
        text = repr(value)
    else:
        text = str(value)
    text = text.encode("unicode_escape", "backslashreplace").decode("ascii") if not text.isascii() else text
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _mismatch(column: ColumnSpec, value: Any) -> UnfitField:
    return UnfitField(f"field {column.name!r} is {display_value(value)}, which is not a valid {column.type}")


def _exact_number(column: ColumnSpec, value: Any) -> Decimal:
    """The value as a number with all its digits."""
    if isinstance(value, Decimal):
        return value
    if isinstance(value, bool) or not isinstance(value, _SCALARS):
        raise _mismatch(column, value)
    kind = type(value)
    text = repr(value) if kind is float else str(value)
    if len(text) > _LONGEST_NUMBER:
        raise UnfitField(
            f"field {column.name!r} is a number of {len(text)} digits, too long for {column.type}"
        )
    if kind is not int and not _NUMBER.fullmatch(text):
        raise _mismatch(column, value)
    try:
        return Decimal(text)
    except InvalidOperation:
        raise _mismatch(column, value) from None


def _integer(column: ColumnSpec) -> Convert:
    limit = 1 << (INTEGER_BITS[column.type.kind] - 1)

    def convert(value: Any) -> int:
        if type(value) is not int:
            number = _exact_number(column, value)
            if not number.is_finite() or number.adjusted() > 40:
                raise _out_of_range(column, value) if number.is_finite() else _mismatch(column, value)
            whole = int(number)
            if whole != number:
                raise _mismatch(column, value)
        else:
            whole = value
        if not -limit <= whole < limit:
            raise _out_of_range(column, value)
        return whole

    return convert


def _out_of_range(column: ColumnSpec, value: Any) -> UnfitField:
    return UnfitField(f"field {column.name!r} is {display_value(value)}, out of the range of {column.type}")


def _float(column: ColumnSpec) -> Convert:
    single = column.type.kind == "float"

    def convert(value: Any) -> float:
        kind = type(value)
        number: float
        if kind is float:
            number = value
        elif kind is JsonNumber and len(value) < 40 and value[-1] not in "yN":
            number = float(value)
            if math.isinf(number):
                raise _out_of_range(column, value)
        elif isinstance(value, str) and value in _FLOAT_WORDS:
            return _FLOAT_WORDS[value]
        elif isinstance(value, Decimal) and not value.is_finite():
            return float(value)
        else:
            number = float(_exact_number(column, value))
            if math.isinf(number):
                raise _out_of_range(column, value)
        if single and math.isfinite(number) and abs(number) >= _FLOAT32_LIMIT:
            raise _out_of_range(column, value)
        return number

    return convert


def _numeric(column: ColumnSpec) -> Convert:
    precision, scale = column.type.precision or 0, column.type.scale or 0
    unit = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        number = _exact_number(column, value)
        if not number.is_finite():
            raise _mismatch(column, value)
        if number and number.adjusted() >= precision - scale:
            raise _out_of_range(column, value)
        fitting = number.quantize(unit, context=_WIDE)
        if fitting != number:
            raise UnfitField(
                f"field {column.name!r} is {display_value(value)}, which has more digits after the point"
                f" than {column.type} holds"
            )
        return fitting

    return convert


def _boolean(column: ColumnSpec) -> Convert:
    def convert(value: Any) -> bool:
        if value is True or value is False:
            return bool(value)
        raise _mismatch(column, value)

    return convert


def _text(column: ColumnSpec) -> Convert:
    # a normalizer may still shorten the text
    longest = column.type.length if column.type.kind == "string" and not column.normalizers else None

    def convert(value: Any) -> str:
        text = _require_encodable(column, value) if type(value) is str else _as_json_text(column, value)
        if longest is not None and len(text) > longest:
            raise UnfitField(
                f"field {column.name!r} has {len(text)} characters, more than {column.type} holds"
            )
        return text

    return convert


def _as_json_text(column: ColumnSpec, value: Any) -> str:
    """A value that is not text, as JSON text, without quotes around scalars."""
    if isinstance(value, JsonNumber):
        return str(value)
    text = _json(column)(value)
    return str(text[1:-1]) if text.startswith('"') else str(text)


def _require_encodable(column: ColumnSpec, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnfitField(
            f"field {column.name!r} holds half of a surrogate pair, which is not valid text"
        ) from None
    return value


def _json(column: ColumnSpec) -> Convert:
    def convert(value: Any) -> str:
        try:
            return json_text(value)
        except NestedTooDeeply:
            raise UnfitField(f"field {column.name!r} is nested too deeply") from None
        except UnicodeEncodeError:
            raise UnfitField(
                f"field {column.name!r} holds half of a surrogate pair, which is not valid text"
            ) from None
        except (TypeError, ValueError) as error:
            raise UnfitField(f"field {column.name!r} cannot be written as JSON: {error}") from None

    return convert


def parse_timestamp(text: str) -> dt.datetime | None:
    """The time of an ISO 8601 text in UTC, or None; a text without a zone is UTC."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, _, sign, zone_hours, zone_minutes = found.groups()
    if hour is None and (found[8] or sign):
        return None
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    away = dt.timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
    if away >= dt.timedelta(hours=19) or int(zone_minutes or 0) > 59:
        return None
    try:
        clock = (int(hour or 0), int(minute or 0), int(second or 0), micros)
        local = dt.datetime(int(year), int(month), int(day), *clock, tzinfo=dt.timezone.utc)
        return local + away if sign == "-" else local - away
    except (ValueError, OverflowError):
        return None


def has_zone(text: str) -> bool:
    """Whether it is a full ISO 8601 timestamp with a zone."""
    found = _MOMENT.fullmatch(text)
    return bool(found and found[6] and (found[8] or found[9]) and parse_timestamp(text))


def _timestamp(column: ColumnSpec) -> Convert:
    with_zone = column.type.kind == "timestamp_tz"

    def convert(value: Any) -> dt.datetime:
        found: dt.datetime | None
        if isinstance(value, dt.datetime):
            found = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
            found = _in_utc(found)
        elif isinstance(value, dt.date):
            found = dt.datetime(value.year, value.month, value.day, tzinfo=dt.timezone.utc)
        elif type(value) is str:
            found = parse_timestamp(value)
        else:
            found = _from_epoch(column, value)
        if found is None:
            raise _mismatch(column, value)
        return found if with_zone else found.replace(tzinfo=None)

    return convert


def _in_utc(value: dt.datetime) -> dt.datetime | None:
    try:
        return value.astimezone(dt.timezone.utc)
    except (OverflowError, ValueError):
        return None


def _from_epoch(column: ColumnSpec, value: Any) -> dt.datetime:
    number = _exact_number(column, value)
    try:
        if not number.is_finite() or number.adjusted() > 20:
            raise OverflowError
        return _EPOCH + dt.timedelta(microseconds=math.floor(_WIDE.multiply(number, Decimal(1000))))
    except (OverflowError, InvalidOperation):
        raise _out_of_range(column, value) from None


def _date(column: ColumnSpec) -> Convert:
    def convert(value: Any) -> dt.date:
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return value
        found = _DATE.fullmatch(value) if type(value) is str else None
        try:
            if found:
                return dt.date(int(found[1]), int(found[2]), int(found[3]))
        except ValueError:
            pass  # a 30 February: refused below, like any other text
        raise _mismatch(column, value)

    return convert


def _uuid(column: ColumnSpec) -> Convert:
    def convert(value: Any) -> str:
        if isinstance(value, uuid.UUID):
            return str(value)
        if type(value) is str and _UUID.fullmatch(value):
            return value.lower()
        if isinstance(value, bytes) and len(value) == 16:
            return str(uuid.UUID(bytes=value))
        raise _mismatch(column, value)

    return convert


def _bytes(column: ColumnSpec) -> Convert:
    def convert(value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        try:
            if type(value) is str:
                return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass  # no base64: refused below, like any other text
        raise UnfitField(
            f"field {column.name!r} is {display_value(value)}, which is not base64 text for {column.type}"
        )

    return convert


_KINDS: dict[str, Callable[[ColumnSpec], Convert]] = {
    **dict.fromkeys(INTEGER_BITS, _integer),
    "float": _float,
    "double": _float,
    "numeric": _numeric,
    "boolean": _boolean,
    "text": _text,
    "string": _text,
    "json": _json,
    "jsonb": _json,
    "timestamp": _timestamp,
    "timestamp_tz": _timestamp,
    "date": _date,
    "uuid": _uuid,
    "bytes": _bytes,
}


@functools.cache
def plain_types(kind: str) -> frozenset[type]:
    """Python types that Arrow converts for a column of this kind exactly as `converter` does.

    Arrow raises for a value out of range, and then the values are converted one by one.
    """
    none = type(None)
    by_kind: dict[str, tuple[type, ...]] = {
        **dict.fromkeys(INTEGER_BITS, (int,)),
        "double": (float,),
        "numeric": (int,),
        "boolean": (bool,),
        "text": (str,),
        "date": (dt.date,),
        "timestamp": (dt.datetime,),
        "timestamp_tz": (dt.datetime,),
        "bytes": (bytes,),
    }
    return frozenset({none, *by_kind[kind]}) if kind in by_kind else frozenset()
