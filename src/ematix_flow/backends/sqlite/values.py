"""Conversion of single values from and to SQLite: exact, or refused.

`parse_value` converts a stored value to a canonical type, `to_stored` a canonical value to the stored form.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import uuid
from typing import Any

from ematix_flow.backends.sqlite.column_types import is_exact_number
from ematix_flow.spec.types import INTEGER_BITS, MAX_PRECISION, DataType

_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_NUMBER = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?\s*(Z|[+-]\d\d(?::?\d\d)?)?)?"
)
_WIDE = decimal.Context(prec=3 * MAX_PRECISION)  # wide enough for numbers that are too long
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


class UnfitSQLiteValue(ValueError):
    """Why a value does not fit; the message completes the sentence "'x' …"."""


def parse_value(value: Any, data_type: DataType) -> Any:
    """The canonical Python value of a stored value. Raises UnfitSQLiteValue."""
    if value is None:
        return None
    kind = data_type.kind
    if kind in INTEGER_BITS:
        return _parse_integer(value, data_type)
    if kind in ("float", "double"):
        return _parse_float(value, data_type)
    if kind == "numeric":
        return _parse_decimal(value, data_type)
    if kind == "boolean":
        return _parse_boolean(value)
    if kind == "date":
        return _parse_date(value)
    if kind in ("timestamp", "timestamp_tz"):
        moment = _parse_timestamp(value, data_type)
        return moment if kind == "timestamp_tz" else moment.replace(tzinfo=None)
    if kind == "uuid":
        return _parse_uuid(value)
    if kind == "bytes":
        return value.encode() if isinstance(value, str) else _parse_bytes(value)
    return _parse_text(value, data_type)


def _parse_integer(value: Any, data_type: DataType) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        raise UnfitSQLiteValue("is not a whole number")
    limit = 1 << (INTEGER_BITS[data_type.kind] - 1)
    if not -limit <= value < limit:
        raise UnfitSQLiteValue(f"is out of range of {data_type}")
    return value


def _parse_float(value: Any, data_type: DataType) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if not isinstance(value, int | float):
        raise UnfitSQLiteValue("is not a number")
    found = float(value)
    if isinstance(value, int) and int(found) != value:
        raise UnfitSQLiteValue(f"has more digits than {data_type} keeps")
    if data_type.kind == "float" and math.isfinite(found) and abs(found) > 3.4028235677973366e38:
        raise UnfitSQLiteValue(f"is out of range of {data_type}")
    return found


def _parse_decimal(value: Any, data_type: DataType) -> decimal.Decimal:
    """0.1 stays 0.1. A float that needs more than 15 digits is rounded to 15, as SQLite prints it."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        candidates = [value.strip()]
    elif isinstance(value, int):
        candidates = [str(value)]
    elif isinstance(value, float) and math.isfinite(value):
        candidates = [repr(value), format(value, ".15g")]
    else:
        raise UnfitSQLiteValue("is not a finite number")
    with decimal.localcontext(_WIDE):
        for text in candidates:
            number = decimal.Decimal(text)
            if number.adjusted() > MAX_PRECISION:
                break
            fitted = number.quantize(_unit(data_type))
            if fitted == number:
                if len(fitted.as_tuple().digits) > (data_type.precision or 0) and fitted:
                    raise UnfitSQLiteValue(f"is out of range of {data_type}")
                return fitted if fitted else abs(fitted)
    raise UnfitSQLiteValue(f"does not fit {data_type}")


def _unit(data_type: DataType) -> decimal.Decimal:
    return decimal.Decimal(1).scaleb(-(data_type.scale or 0))


def _parse_boolean(value: Any) -> bool:
    known = _TRUTH.get(value.strip().lower()) if isinstance(value, str) else None
    if known is None and isinstance(value, int | float) and value in (0, 1):
        known = bool(value)
    if known is None:
        raise UnfitSQLiteValue("is neither 0 nor 1, and the column is Boolean")
    return known


def _parse_date(value: Any) -> dt.date:
    moment = _parse_timestamp(value, DataType("date"))
    if moment.timetz() != dt.time(tzinfo=dt.timezone.utc):
        raise UnfitSQLiteValue("has a time of day, and the column is a Date")
    return moment.date()


def _parse_timestamp(value: Any, data_type: DataType) -> dt.datetime:
    """Parse ISO 8601 text; a time without a zone is UTC."""
    if not isinstance(value, str):
        kind = "binary" if isinstance(value, bytes) else "a number"
        raise UnfitSQLiteValue(
            f"is {kind}, not ISO text; for seconds since 1970 select datetime(column, 'unixepoch')"
        )
    match = _MOMENT.fullmatch(value.strip())
    if match is None:
        raise UnfitSQLiteValue(f"is not ISO 8601 text, as a {data_type} is kept in SQLite")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    if fraction and fraction[6:].strip("0"):
        raise UnfitSQLiteValue("has more than microseconds")
    try:
        moment = dt.datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "")[:6].ljust(6, "0")),
            tzinfo=_parse_zone(zone),
        )
        return moment.astimezone(dt.timezone.utc)
    except (ValueError, OverflowError) as error:
        raise UnfitSQLiteValue(f"is not of type {data_type}: {error}") from None


def _parse_zone(text: str | None) -> dt.timezone:
    if text is None or text == "Z":
        return dt.timezone.utc
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = dt.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return dt.timezone(-offset if text[0] == "-" else offset)


def _parse_uuid(value: Any) -> str:
    try:
        if isinstance(value, bytes) and len(value) == 16:
            return str(uuid.UUID(bytes=value))
        return str(uuid.UUID(value.strip() if isinstance(value, str) else ""))
    except ValueError:
        raise UnfitSQLiteValue("is not a UUID") from None


def _parse_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise UnfitSQLiteValue("is not binary")
    return value


def _parse_text(value: Any, data_type: DataType) -> str:
    if isinstance(value, bytes):
        raise UnfitSQLiteValue("is binary, not text; CAST it in the source SQL")
    text = value if isinstance(value, str) else repr(value)
    if data_type.kind == "string" and len(text) > (data_type.length or 0):
        raise UnfitSQLiteValue(f"is longer than the {data_type.length} characters of {data_type}")
    return text


def to_stored(value: Any, data_type: DataType) -> Any:
    """A canonical Python value in the form that SQLite stores."""
    if value is None:
        return None
    kind = data_type.kind
    if kind == "boolean":
        return int(value)
    if kind == "numeric":
        if is_exact_number(data_type):
            return int(value) if value == value.to_integral_value() else float(value)
        with decimal.localcontext(_WIDE):
            return format(value.quantize(_unit(data_type)), "f")
    if kind == "date":
        return value.isoformat()
    if kind == "timestamp":
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if kind == "timestamp_tz":
        aware = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
        return aware.astimezone(dt.timezone.utc).isoformat(" ", "microseconds")
    return value
