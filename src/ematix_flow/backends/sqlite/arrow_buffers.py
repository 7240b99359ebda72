"""Arrow columns built from Python values through byte buffers.

``pa.array`` and ``to_numpy`` import pandas first, which costs a new Spark worker more time than a small load.
These functions do not, and are as fast.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_EXACT = 2**53  # integers up to here are exact as doubles
_MAX_BYTES = 2**31 - 1  # an Arrow string column's offsets have 32 bits
_NOTHING = type(None)


def infer_column(values: Sequence[Any]) -> pa.Array | None:
    """Values of one storage class (numbers count as one) as Arrow would infer; None when they are mixed."""
    import pyarrow as pa

    kinds = set(map(type, values))
    missing = _NOTHING in kinds
    kinds.discard(_NOTHING)
    if not kinds:
        return pa.nulls(len(values), pa.null())
    if kinds == {int}:
        return _fixed_width_array(
            pa.int64(), array("q", _fill_nulls(values, 0) if missing else values), values, missing
        )
    if kinds <= {int, float}:
        filled = _fill_nulls(values, 0.0) if missing else values
        if kinds == {float} or (max(filled) <= _EXACT and min(filled) >= -_EXACT):
            return _fixed_width_array(pa.float64(), array("d", filled), values, missing)
        return None
    if kinds == {str}:
        return _text_array(_fill_nulls(values, "") if missing else values, values, missing)
    if kinds == {bytes}:
        filled = _fill_nulls(values, b"") if missing else values
        return _variable_width_array(pa.binary(), b"".join(filled), map(len, filled), values, missing)
    return None


def decimal_column(unscaled: Any, wanted: pa.DataType, pattern: pa.Array) -> pa.Array:
    """Decimals from a numpy array of 64-bit whole numbers, null where ``pattern`` is."""
    import numpy as np
    import pyarrow as pa

    words = np.empty((len(unscaled), 2), dtype=np.int64)  # a 128-bit integer, the low half first
    words[:, 0] = unscaled
    words[:, 1] = words[:, 0] >> 63
    validity = pattern.buffers()[0] if pattern.null_count else None
    return pa.Array.from_buffers(wanted, len(unscaled), [validity, pa.py_buffer(words)])


def numpy_view(column: pa.Array, words: int = 1) -> Any:
    """A fixed-width column as numpy 64-bit integers or doubles; the value at a null is undefined."""
    import numpy as np
    import pyarrow.types as t

    kind = np.float64 if t.is_float64(column.type) else np.int64
    whole = np.frombuffer(column.buffers()[1], dtype=kind)
    return whole[words * column.offset : words * (column.offset + len(column)) : words]


def _fill_nulls(values: Sequence[Any], substitute: Any) -> list[Any]:
    return [substitute if value is None else value for value in values]


def _fixed_width_array(kind: pa.DataType, data: array[Any], values: Sequence[Any], missing: bool) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(data), [_validity_buffer(values, missing), pa.py_buffer(data)])


def _text_array(filled: Sequence[str], values: Sequence[Any], missing: bool) -> pa.Array | None:
    import pyarrow as pa

    joined = "".join(filled)
    data = joined.encode()
    # as many bytes as characters: ASCII, so no value needs encoding to know its length
    lengths = map(len, filled if len(data) == len(joined) else map(str.encode, filled))
    return _variable_width_array(pa.string(), data, lengths, values, missing)


def _variable_width_array(
    kind: pa.DataType, data: bytes, lengths: Iterable[int], values: Sequence[Any], missing: bool
) -> pa.Array | None:
    import numpy as np
    import pyarrow as pa

    if len(data) > _MAX_BYTES:
        return None
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(lengths, dtype=np.int32, count=len(values)), out=offsets[1:])
    buffers = [_validity_buffer(values, missing), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _validity_buffer(values: Sequence[Any], missing: bool) -> pa.Buffer | None:
    import numpy as np
    import pyarrow as pa

    if not missing:
        return None
    present = np.array([value is not None for value in values], dtype=np.bool_)
    return pa.py_buffer(np.packbits(present, bitorder="little"))
