"""Reads many JSON payloads at once with Arrow's reader: the fast path of `json_decoding`.

It works only if every payload of the block is one plain JSON object with values of the columns' types.
Otherwise it gives up, and the payloads are read one by one. Both ways always give the same result.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLE_ROWS = 20
_DEEP = 500  # opening brackets in one payload; the slow path counts levels differently
_NUMBERS = ("small_int", "integer", "big_int")
_FLOATS = ("float", "double")
_TEXTS = ("text", "string")
_MOMENTS = ("timestamp", "timestamp_tz")
# the end of an object that is not followed by a comma, a closing bracket or the end of the text
_SECOND_VALUE = r"\}\s*[^\s,\]}]"
_CLOCK = r"^[1-8]\d{3}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?"
_ZONE = r"(Z|[+-](0\d|1[0-4]):[0-5]\d)$"
_FINE_DIGITS = r"(\.\d{6})\d{1,3}(Z|[+-]|$)"
_DAY = r"^[1-8]\d{3}-\d\d-\d\d$"
_UUID = r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
_WHOLE = r"^-?\d{1,18}$"
_MILLIS = 200_000_000_000_000  # years 1 to 8307


class _BlockUnreadable(Exception):
    """The block must be read payload by payload."""


def read_block(values: pa.Array, columns: Sequence[ColumnSpec]) -> list[pa.Array] | None:
    """One array per column, or None. ``values`` are binary, none of them null or empty."""
    import pyarrow as pa

    if not columns or any(c.type.kind in ("json", "jsonb") for c in columns):
        return None
    try:
        _require_plain_lines(values)
        table = _read_table(values, columns)
        return [_convert_column(table.column(c.name), c) for c in columns]
    except (_BlockUnreadable, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _require_plain_lines(values: pa.Array) -> None:
    """Require one object on one line, in UTF-8, from each payload, so that rows can be counted.

    The reader of Arrow 26 crashes the process when the first value of a file is ``null``, so it must get
    objects only.
    """
    import pyarrow.compute as pc

    text = values.cast("string")  # raises when it is not UTF-8
    if not pc.all(pc.starts_with(text, "{")).as_py() or not pc.all(pc.ends_with(text, "}")).as_py():
        raise _BlockUnreadable
    for pattern in (_SECOND_VALUE, "\n"):  # a pattern is faster here than a plain text
        if pc.any(pc.match_substring_regex(text, pattern)).as_py():
            raise _BlockUnreadable
    if pc.max(pc.binary_length(values)).as_py() > _DEEP:
        opened = pc.add(pc.count_substring(text, "{"), pc.count_substring(text, "["))
        if pc.max(opened).as_py() > _DEEP:
            raise _BlockUnreadable


def _read_table(values: pa.Array, columns: Sequence[ColumnSpec]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj

    sample = _sample(values)
    schema = pa.schema([(c.name, _read_type(c, sample.get(c.name))) for c in columns])
    lines = pc.binary_join_element_wise(values, b"\n", b"")
    data = lines.buffers()[2]
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(values):
        raise _BlockUnreadable
    return table


def _sample(values: pa.Array) -> Mapping[str, Any]:
    """The first value of each field among the first payloads."""
    found: dict[str, Any] = {}
    for value in values.slice(0, _SAMPLE_ROWS).to_pylist():
        try:
            payload = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise _BlockUnreadable from None
        if not isinstance(payload, dict):
            raise _BlockUnreadable
        for name, field in payload.items():
            if field is not None:
                found.setdefault(name, field)
    return found


def _read_type(column: ColumnSpec, sample: Any) -> pa.DataType:
    """The type to read a field with: that of its JSON values, converted to the column's type later."""
    import pyarrow as pa

    kind = column.type.kind
    if kind in _NUMBERS:
        return pa.string() if isinstance(sample, str) else pa.int64()
    if kind in _FLOATS:
        return pa.float64()
    if kind in _MOMENTS:
        return pa.int64() if isinstance(sample, int) else pa.string()
    return column.type.arrow() if kind in ("numeric", "boolean") else pa.string()


def _convert_column(read: pa.ChunkedArray, column: ColumnSpec) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    array = read.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    if array.null_count and not column.nullable:
        raise _BlockUnreadable
    kind, wanted = column.type.kind, column.type.arrow()
    if kind in _NUMBERS:
        if array.type == pa.string():
            _require_match(array, _WHOLE)
        return array.cast(wanted)
    if kind in _FLOATS:
        array = array.cast(wanted, safe=False)
        if pc.any(pc.is_inf(array)).as_py():
            raise _BlockUnreadable
        return array
    if kind in _MOMENTS:
        return _parse_timestamps(array, wanted)
    if kind == "date":
        return _require_match(array, _DAY).cast(wanted)
    if kind == "uuid":
        return pc.utf8_lower(_require_match(array, _UUID))
    if kind == "bytes":
        return pa.array([None if v is None else _decode_base64(v) for v in array.to_pylist()], wanted)
    if kind == "numeric":
        array.validate(full=True)  # the reader ignores the precision when it adds digits to fill the scale
    if kind == "string" and not column.normalizers:
        longest = pc.max(pc.utf8_length(array)).as_py()
        if longest is not None and column.type.length is not None and longest > column.type.length:
            raise _BlockUnreadable
    return array


def _parse_timestamps(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.type == pa.int64():
        if pc.any(pc.greater(pc.abs(array), _MILLIS)).as_py():
            raise _BlockUnreadable
        return pc.multiply(array, 1000).cast(wanted)
    if pc.any(pc.match_substring_regex(array, _FINE_DIGITS)).as_py():
        array = pc.replace_substring_regex(array, _FINE_DIGITS, r"\1\2")
    if pc.all(pc.match_substring_regex(array, _CLOCK + _ZONE)).as_py():  # also when there are only nulls
        return array.cast(pa.timestamp("us", tz="UTC")).cast(wanted)
    return _require_match(array, _CLOCK + "$").cast(pa.timestamp("us")).cast(wanted)


def _require_match(array: pa.Array, pattern: str) -> pa.Array:
    """The array, if every value matches."""
    import pyarrow.compute as pc

    if pc.all(pc.match_substring_regex(array, pattern)).as_py() is False:
        raise _BlockUnreadable
    return array


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # wrong padding, or a character that is not ASCII
        raise _BlockUnreadable from None
