"""Checks that the result of a column's normalisers fits the column's declared type.

A text is never converted to a number or a time implicitly: a parsing normaliser says how.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.types import DataType

_TEXT = frozenset({"text", "string"})
_NUMBERS = frozenset({"small_int", "integer", "big_int", "float", "double", "numeric"})
_TIMES = frozenset({"date", "timestamp", "timestamp_tz"})

# the result of each normaliser; others keep the type of their input, or have an unknown result (sql, derive)
RESULT_KINDS = {
    **dict.fromkeys(
        (
            "trim",
            "lower",
            "upper",
            "empty_to_null",
            "whitespace_to_null",
            "replace",
            "regex_replace",
            "truncate",
            "email_normalize",
            "phone_normalize",
        ),
        "text",
    ),
    **dict.fromkeys(("parse_timestamp", "parse_date", "to_timezone", "date_trunc"), "a time"),
    **dict.fromkeys(("parse_int", "parse_numeric", "round"), "a number"),
    "parse_bool": "true or false",
}
UNTYPED_NORMALIZERS = frozenset({"sql", "derive"})
# the column types that can hold each result
_COLUMN_KINDS_FOR = {
    "text": _TEXT | {"json", "jsonb", "uuid", "bytes"},
    "a time": _TEXT | _TIMES,
    "a number": _TEXT | _NUMBERS,
    "true or false": _TEXT | _NUMBERS | {"boolean"},
}
_PARSERS = {
    **dict.fromkeys(("small_int", "integer", "big_int"), "parse_int()"),
    **dict.fromkeys(("float", "double", "numeric"), "parse_numeric(precision, scale)"),
    "boolean": "parse_bool()",
    "date": "parse_date()",
    "timestamp": "parse_timestamp()",
    "timestamp_tz": "parse_timestamp()",
}


class TypedMarker(Protocol):
    @property
    def name(self) -> str: ...

    def __getitem__(self, arg: str) -> object: ...


def check_result_type(normalizers: Sequence[TypedMarker], column: str, declared: DataType) -> None:
    """Raise DeclarationError if the column cannot hold the result of its normalisers."""
    for place in range(len(normalizers) - 1, -1, -1):
        marker = normalizers[place]
        if marker.name in UNTYPED_NORMALIZERS:
            return
        if marker.name in ("default", "nullif"):
            _check_constant(marker, column, declared)
        given = RESULT_KINDS.get(marker.name)
        if given is None:
            continue
        if declared.kind not in _COLUMN_KINDS_FOR[given]:
            raise _type_mismatch_error(marker, given, column, declared)
        return


def _type_mismatch_error(
    marker: TypedMarker, given: str, column: str, declared: DataType
) -> DeclarationError:
    parser = _PARSERS.get(declared.kind)
    step = f"leave {marker.name}() out, or declare the column with a type that holds {given}"
    if given == "text" and parser is not None:
        step = f"write {parser} after it, which reads the text; or leave {marker.name}() out"
    return DeclarationError(
        f"column {column!r}: {marker.name}() returns {given}, and the column is {declared}", next_step=step
    )


def _check_constant(marker: TypedMarker, column: str, declared: DataType) -> None:
    """Check a constant that replaces a value of the column or is compared with one."""
    value = marker["value"]
    if isinstance(value, str):
        wrong = declared.kind in _NUMBERS or declared.kind == "boolean"
    elif isinstance(value, bool):
        wrong = declared.kind in _TIMES | {"uuid", "bytes"}
    elif isinstance(value, (int, float, Decimal)):
        wrong = declared.kind in _TIMES | {"boolean", "uuid", "bytes"}
    else:
        wrong = isinstance(value, dt.date) and declared.kind in _NUMBERS | {"boolean", "uuid", "bytes"}
    if wrong:
        raise DeclarationError(
            f"column {column!r}: {marker.name}({value!r}) does not fit a column of type {declared}",
            next_step=f"write a value of {declared}, or put a parsing marker after it",
        )
