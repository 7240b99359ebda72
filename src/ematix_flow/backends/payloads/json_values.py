"""Writes values of any type as JSON text, with all digits.

Decimals and `JsonNumber` are written as numbers; timestamps are ISO 8601, with a time zone as UTC with a Z;
bytes are base64; numbers that JSON lacks are the texts ``NaN``, ``Infinity`` and ``-Infinity``.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any

import orjson

_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME
_PLAIN = (str, int, bool, type(None))


class JsonNumber(str):
    """A JSON number as it was written."""

    __slots__ = ()


class NestedTooDeeply(ValueError):
    """More levels than readers support."""


def json_text(value: Any) -> str:
    """The value as JSON. NestedTooDeeply, UnicodeEncodeError or ValueError when that is not possible."""
    return json_bytes(value).decode()


def json_bytes(value: Any) -> bytes:
    try:
        return orjson.dumps(_as_writable(value), option=_OPTIONS)
    except RecursionError:
        raise NestedTooDeeply("nested too deeply") from None
    except orjson.JSONEncodeError as error:
        words = str(error)
        if "ecursion" in words:
            raise NestedTooDeeply("nested too deeply") from None
        if "surrogate" in words or "UTF-8" in words:
            raise UnicodeEncodeError("utf-8", "", 0, 1, "surrogates not allowed") from None
        raise


def finite_or_word(value: float) -> float | str:
    """The number, or its name as text when JSON has no such number."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _as_writable(value: Any) -> Any:
    """The same value, made of types that orjson writes."""
    kind = type(value)
    if kind in _PLAIN:
        return value if kind is not int or -(1 << 63) <= value < 1 << 64 else orjson.Fragment(str(value))
    if kind is float:
        return finite_or_word(value)
    if isinstance(value, JsonNumber):
        return finite_or_word(float(value)) if value[-1] in "yN" else orjson.Fragment(str(value))
    if isinstance(value, dict):
        return {_key_text(key): _as_writable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_writable(each) for each in value]
    if isinstance(value, Decimal):
        return orjson.Fragment(format(value, "f")) if value.is_finite() else finite_or_word(float(value))
    if isinstance(value, dt.datetime):
        return iso_text(value)
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{kind.__name__} has no JSON text")


def _key_text(key: Any) -> str:
    return str(key) if isinstance(key, str) else json_text(key).strip('"')


def iso_text(value: dt.datetime) -> str:
    """ISO 8601; a time with a zone as UTC with a Z, a time without a zone unchanged."""
    if value.tzinfo is None:
        return value.isoformat()
    return f"{value.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat()}Z"
