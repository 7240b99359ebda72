"""Nested values as JSON text: exact, and the same for every source.

Decimals keep their digits, times are ISO 8601 (with a zone: in UTC, with a Z), bytes are base64, maps are
objects, and the numbers that JSON lacks are the texts ``NaN``, ``Infinity`` and ``-Infinity``.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def to_json_text(array: pa.Array) -> pa.Array:
    """Each value as JSON text; nulls stay null."""
    import pyarrow as pa

    write = _writer(array.type)
    return pa.array([None if v is None else write(v) for v in array.to_pylist()], pa.string())


JsonTextWriter = Callable[[Any], str]


def _writer(of: pa.DataType) -> JsonTextWriter:
    import pyarrow.types as t

    if t.is_struct(of):
        fields = [(json.dumps(f.name, ensure_ascii=False), f.name, _null_or(f.type)) for f in of]
        return lambda value: (
            "{" + ", ".join(f"{key}: {write(value[name])}" for key, name, write in fields) + "}"
        )
    if t.is_map(of):
        name, item = _key_writer(of.key_type), _null_or(of.item_type)
        return lambda value: "{" + ", ".join(f"{name(k)}: {item(v)}" for k, v in value) + "}"
    if t.is_list(of) or t.is_large_list(of) or t.is_fixed_size_list(of):
        each = _null_or(of.value_type)
        return lambda value: "[" + ", ".join(map(each, value)) + "]"
    if t.is_decimal(of):
        return lambda value: format(value, "f")
    if t.is_floating(of):
        return _float_text
    return _scalar_text


def _null_or(of: pa.DataType) -> JsonTextWriter:
    write = _writer(of)
    return lambda value: "null" if value is None else write(value)


def _key_writer(of: pa.DataType) -> JsonTextWriter:
    """A writer of object keys: text as it is, anything else as its JSON in quotes."""
    import pyarrow.types as t

    if t.is_string(of) or t.is_large_string(of):
        return _scalar_text
    write = _writer(of)

    def name(value: Any) -> str:
        text = write(value)
        return text if text.startswith('"') else json.dumps(text, ensure_ascii=False)

    return name


def _float_text(value: float) -> str:
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return repr(value)


def _scalar_text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return f'"{value.isoformat()}"'
        return f'"{value.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat()}Z"'
    if isinstance(value, dt.date | dt.time):
        return f'"{value.isoformat()}"'
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode("ascii")}"'
    return json.dumps(value, default=str, ensure_ascii=False)
