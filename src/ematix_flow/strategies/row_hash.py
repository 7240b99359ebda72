"""``row_hash``: SHA-256 of a row's values in one exact text form, the same on every backend.

Each value that is not null gives one piece, in the order of the columns' names (by code point):
``<bytes of name>:<name><tag><bytes of value>:<value>``, both in UTF-8, lengths in decimal. A null gives
no piece, so a column that is added and still null changes no hash. The tag names the family of the
type, so a widened column keeps its hashes. The values, as text:

====  ==========================  =====================================================================
tag   types                       text
====  ==========================  =====================================================================
i     SmallInt, Integer, BigInt   decimal digits
n     Numeric                     decimal digits without trailing zeros after the point: ``1.5``, ``100``
f     Float, Double               significant digits, ``e``, exponent: ``15e0`` is 1.5; ``0``; ``NaN``
b     Boolean                     ``true`` or ``false``
t     Text, String                as it is
d     Date                        ``2026-01-31``
s     Timestamp                   ``2026-01-31T12:00:00.000000``
z     TimestampTZ                 the same, in UTC
j     JSON, JSONB                 the database's own normal form where it has one
u     UUID                        lower case, with hyphens
x     Bytes                       lower-case hex
====  ==========================  =====================================================================
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from ematix_flow.spec.types import DataType

TAGS = {
    "small_int": "i",
    "integer": "i",
    "big_int": "i",
    "numeric": "n",
    "float": "f",
    "double": "f",
    "boolean": "b",
    "text": "t",
    "string": "t",
    "date": "d",
    "timestamp": "s",
    "timestamp_tz": "z",
    "json": "j",
    "jsonb": "j",
    "uuid": "u",
    "bytes": "x",
}

Columns = Sequence[tuple[str, DataType, exp.Expr]]


def row_hash(values: Mapping[str, Any], types: Mapping[str, DataType]) -> bytes:
    """The reference implementation over Python values. Databases return the same bytes."""
    pieces = []
    for name in sorted(values):
        text = canonical_text(values[name], types[name])
        if text is not None:
            pieces.append(f"{column_prefix(name, types[name])}{len(text.encode())}:{text}")
    return hashlib.sha256("".join(pieces).encode()).digest()


def column_prefix(name: str, data_type: DataType) -> str:
    """The constant start of a column's piece."""
    return f"{len(name.encode())}:{name}{TAGS[data_type.kind]}"


def canonical_text(value: Any, data_type: DataType) -> str | None:
    """One value in the text form that is hashed; None for null."""
    if value is None:
        return None
    tag = TAGS[data_type.kind]
    if tag == "b":
        return "true" if value else "false"
    if tag == "n":
        return _digits(decimal.Decimal(value))
    if tag == "f":
        return _significant(float(value))
    if tag == "x":
        return bytes(value).hex()
    if tag == "d":
        return str(value.isoformat()[:10])
    if tag in "sz":
        moment = value.astimezone(dt.timezone.utc) if value.tzinfo else value
        return str(moment.replace(tzinfo=None).isoformat(timespec="microseconds"))
    if tag == "j":
        return canonical_json(value)
    return str(uuid.UUID(str(value))) if tag == "u" else str(value)


def canonical_json(text: Any) -> str:
    """As PostgreSQL's jsonb and MySQL write it: shorter keys first, then by bytes; ``", "`` and ``": "``."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            by_size = sorted(value, key=lambda k: (len(k.encode()), k.encode()))
            return {k: ordered(value[k]) for k in by_size}
        return [ordered(v) for v in value] if isinstance(value, list) else value

    parsed = json.loads(text, parse_float=decimal.Decimal) if isinstance(text, str) else text
    return json.dumps(ordered(parsed), ensure_ascii=False, default=_json_number)


def _json_number(value: decimal.Decimal) -> float:
    return float(value)


def _digits(number: decimal.Decimal) -> str:
    text = format(number, "f")
    trimmed = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if trimmed in ("-0", "") else trimmed


def _significant(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "0"
    sign, digits, exponent = decimal.Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    point = exponent + len(text) - 1
    return f"{'-' if sign else ''}{text.rstrip('0')}e{point}"


def row_hash_sql(
    columns: Columns,
    *,
    text: Callable[[exp.Expr, DataType], exp.Expr],
    size: Callable[[exp.Expr], exp.Expr],
    concat: Callable[[list[exp.Expr]], exp.Expr],
    sha256: Callable[[exp.Expr], exp.Expr],
) -> exp.Expr:
    """The hash in SQL, built from a dialect's functions: text of a value, size in bytes, SHA-256."""
    pieces: list[exp.Expr] = []
    for name, data_type, value in sorted(columns, key=lambda item: item[0]):
        shown = text(value.copy(), data_type)
        piece = concat(
            [
                exp.Literal.string(column_prefix(name, data_type)),
                size(shown.copy()),
                exp.Literal.string(":"),
                shown,
            ]
        )
        is_null = exp.Is(this=value.copy(), expression=exp.Null())
        pieces.append(exp.Case(ifs=[exp.If(this=is_null, true=exp.Literal.string(""))], default=piece))
    return sha256(concat(pieces) if len(pieces) > 1 else pieces[0] if pieces else exp.Literal.string(""))
