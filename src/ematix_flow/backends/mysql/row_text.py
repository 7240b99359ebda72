"""Arrow batches as the text that ``LOAD DATA`` reads: tabs, newlines, backslashes, ``\\N`` for null.

Arrow's own kernels convert columns to text and join them into one buffer per batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_flow.backends.arrow.batch_casts import row_rejection

if TYPE_CHECKING:
    import pyarrow as pa

_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"))
_UUID = "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
_HEX = b"0123456789ABCDEF"


def encode_rows(batch: pa.RecordBatch, tail: str) -> pa.Buffer:
    """All rows, each with ``tail`` as an extra last column; ``tail`` needs no escaping."""
    import pyarrow as pa
    import pyarrow.compute as pc

    last = f"{tail}\n".encode()
    tails = repeat_text(last, batch.num_rows)
    columns = [_escape(to_text(column)) for column in batch.columns]
    options = pc.JoinOptions(null_handling="replace", null_replacement="\\N")
    joined = pc.call_function("binary_join_element_wise", [*columns, tails, text_scalar("\t")], options)
    assert joined.type == pa.string()
    _, offsets, content = joined.buffers()
    end = memoryview(offsets).cast("i")[joined.offset + len(joined)]
    start = memoryview(offsets).cast("i")[joined.offset]
    return content.slice(start, end - start)


def to_text(column: pa.Array) -> pa.Array:
    """The column as text that MySQL parses to the same value; bytes as hex."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as t

    kind = column.type
    if t.is_string(kind):
        return column
    if t.is_binary(kind):
        return _to_hex(column)
    if t.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.string())
    if t.is_floating(kind):  # through a double: the shortest digits of the largest float overflow it
        text = column.cast(pa.float64()).cast(pa.string())
        return pc.if_else(
            pc.equal(text, text_scalar("-0")), text_scalar("-0e0"), text
        )  # MySQL reads -0 as an integer
    if t.is_timestamp(kind) and kind.tz is not None:
        return column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    return column.cast(pa.string())


def require_storable(batch: pa.RecordBatch, kinds: dict[str, str], offset: int) -> None:
    """Refuse values that MySQL cannot store: NaN, infinity, and texts that are not a UUID."""
    import pyarrow.compute as pc
    import pyarrow.types as t

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if t.is_floating(column.type):
            wrong, why = pc.invert(pc.is_finite(column)), "is a number that MySQL cannot store"
        elif kinds.get(name) == "uuid":
            wrong = pc.invert(pc.match_substring_regex(column, pattern=_UUID))
            why = "is not a UUID"
        else:
            continue
        index = pc.index(wrong, _true_scalar()).as_py()
        if index >= 0:
            raise row_rejection(name, offset + index, column[index].as_py(), why)


def _escape(column: pa.Array) -> pa.Array:
    """Escape only when needed: searching is much cheaper, and special characters are rare."""
    import numpy as np
    import pyarrow.compute as pc

    content = column.buffers()[2]
    if content is None or content.size == 0:
        return column
    octets = np.frombuffer(content, np.uint8)
    if octets.min() >= ord(" ") and not (octets == ord("\\")).any():
        return column
    for plain, escaped in _ESCAPES:
        if (octets == ord(plain)).any():
            column = pc.replace_substring(column, pattern=plain, replacement=escaped)
    return column


def _to_hex(column: pa.Array) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if column.offset:
        column = pa.concat_arrays([column])
    valid, offsets, content = column.buffers()
    digits = np.frombuffer(_HEX, np.uint8)
    octets = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    pairs = np.empty(2 * len(octets), np.uint8)
    pairs[0::2], pairs[1::2] = digits[octets >> 4], digits[octets & 15]
    bounds = np.frombuffer(offsets, np.int32)[: len(column) + 1] * np.int32(2)
    return pa.Array.from_buffers(
        pa.string(), len(column), [valid, pa.py_buffer(bounds), pa.py_buffer(pairs)], column.null_count
    )


# from bytes: pa.scalar and pa.array import pandas on their first call


def repeat_text(text: bytes, count: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(text * count)])


def text_scalar(text: str) -> Any:
    return repeat_text(text.encode(), 1)[0]


def _true_scalar() -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\x01")])[0]
