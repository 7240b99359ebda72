"""Whole columns between SQLite and Arrow.

Arrow's own casts where they give the same answer as `values.parse`; value by value where they do not,
or where one value must be named in an error.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.conform import rejected
from ematix_flow.backends.sqlite.types import EXACT_DIGITS, is_exact_number
from ematix_flow.backends.sqlite.values import Misfit, parse
from ematix_flow.spec.types import INTEGER_BITS, DataType

if TYPE_CHECKING:
    import pyarrow as pa


def to_arrow(values: Sequence[Any], name: str, data_type: DataType, offset: int) -> pa.Array:
    """Stored values as an Arrow column of the type; RowRejected names the first that does not fit."""
    import pyarrow as pa

    try:
        fast = _cast_column(pa.array(values), data_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        fast = None
    if fast is not None:
        return fast
    parsed = []
    for row, value in enumerate(values):
        try:
            parsed.append(parse(value, data_type))
        except Misfit as misfit:
            raise rejected(name, offset + row, value, str(misfit)) from None
    return pa.array(parsed, type=data_type.arrow())


def _cast_column(found: pa.Array, data_type: DataType) -> pa.Array | None:
    """The whole column at once, or None when only `parse` knows."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as t

    kind, wanted = data_type.kind, data_type.arrow()
    if t.is_null(found.type):
        return pa.nulls(len(found), wanted)
    if kind in INTEGER_BITS and (t.is_integer(found.type) or t.is_floating(found.type)):
        return found.cast(wanted, safe=True)
    if kind == "double" and (t.is_integer(found.type) or t.is_floating(found.type)):
        return found.cast(wanted, safe=True)
    if kind == "boolean" and t.is_integer(found.type):
        return found.cast(wanted) if pc.all(pc.is_in(found, pa.array([0, 1, None]))).as_py() else None
    if kind in ("text", "json", "jsonb") and t.is_string(found.type):
        return found
    if kind == "string" and t.is_string(found.type):
        return found if (pc.max(pc.utf8_length(found)).as_py() or 0) <= (data_type.length or 0) else None
    if kind == "bytes" and t.is_binary(found.type):
        return found
    if kind == "date" and t.is_string(found.type):
        return found.cast(wanted)
    if kind in ("timestamp", "timestamp_tz") and t.is_string(found.type):
        return _cast_moments(found, wanted)
    if kind == "numeric" and (t.is_integer(found.type) or t.is_floating(found.type)):
        return _cast_numbers(found.cast(pa.float64(), safe=True), data_type)
    return None


def _cast_moments(found: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Arrow reads text with a zone only as a zoned type, and without only as a zoneless one."""
    import pyarrow as pa

    first = next((text for text in found.to_pylist()[:100] if text is not None), "")
    zoned = bool(re.search(r"[0-9](Z|[+-]\d\d:?\d\d)$", first)) and len(first) > 10
    read = found.cast(pa.timestamp("us", tz="UTC" if zoned else None))
    return read if read.type == wanted else read.cast(pa.int64()).cast(wanted)


def _cast_numbers(found: pa.Array, data_type: DataType) -> pa.Array | None:
    """Doubles as decimals, when each is the double nearest to a decimal of this scale."""
    import numpy as np
    import pyarrow as pa

    numbers = found.fill_null(0.0).to_numpy(zero_copy_only=False)
    power = float(10 ** (data_type.scale or 0))
    limit = float(10 ** min(data_type.precision or 0, EXACT_DIGITS))
    with np.errstate(over="ignore", invalid="ignore"):
        unscaled = np.rint(numbers * power)
        exact = (unscaled / power == numbers) & (np.abs(unscaled) < limit)
    if not exact.all():
        return None
    words = np.empty((len(numbers), 2), dtype=np.int64)  # a 128-bit integer, the low half first
    words[:, 0] = unscaled.astype(np.int64)
    words[:, 1] = words[:, 0] >> 63
    whole = pa.Array.from_buffers(data_type.arrow(), len(numbers), [None, pa.py_buffer(words)])
    return _with_nulls_of(whole, found)


def _with_nulls_of(values: pa.Array, pattern: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pattern.null_count:
        return values
    return pc.if_else(pattern.is_valid(), values, pa.scalar(None, type=values.type))


# ------------------------------------------------------------------ a column into SQLite


def from_arrow(array: pa.Array, name: str, data_type: DataType, offset: int) -> list[Any]:
    """An Arrow column of the type in the form SQLite keeps it; RowRejected for what it cannot keep."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = data_type.kind
    if kind == "boolean":
        return _values(array.cast(pa.int8()))
    if kind in ("float", "double"):
        _refuse(array, pc.is_nan(array), name, offset, "cannot be kept: SQLite turns it into NULL")
        return _values(array.cast(pa.float64()))
    if kind == "numeric":
        return _numbers(array, data_type)
    if kind in ("date", "timestamp", "timestamp_tz"):
        return _values(_iso_text(array, name, data_type, offset))
    if kind == "uuid":
        return _uuids(array, name, offset)
    return _values(array)


def _values(array: pa.Array) -> list[Any]:
    """Python values; through numpy, which is several times quicker than one scalar after another."""
    import numpy as np
    import pyarrow.types as t

    if not (t.is_integer(array.type) or t.is_floating(array.type)):
        out: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return out
    out = array.fill_null(0).to_numpy(zero_copy_only=False).tolist()
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            out[index] = None
    return out


def _numbers(array: pa.Array, data_type: DataType) -> list[Any]:
    import numpy as np
    import pyarrow as pa

    if not len(array) or not is_exact_number(data_type):
        return [None if v is None else format(v, "f") for v in array.to_pylist()]
    whole = np.frombuffer(array.buffers()[1], dtype=np.int64)
    unscaled = whole[2 * array.offset : 2 * (array.offset + len(array)) : 2]
    # both are exact as doubles, so that the quotient is the double nearest to the decimal
    numbers = unscaled if not data_type.scale else unscaled / float(10**data_type.scale)
    return _values(pa.array(numbers, mask=array.is_null().to_numpy(zero_copy_only=False)))


def _iso_text(array: pa.Array, name: str, data_type: DataType, offset: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    first, last = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
    if data_type.kind == "date":
        naive, number = array, array.cast(pa.int32())
        low, high = pa.scalar(first.date()), pa.scalar(last.date())
    else:
        number = array.cast(pa.int64())
        naive = number.cast(pa.timestamp("us"))
        low, high = pa.scalar(first, type=naive.type), pa.scalar(last, type=naive.type)
    beyond = pc.or_(pc.less(naive, low), pc.greater(naive, high))
    _refuse(number, beyond, name, offset, "lies outside the years 1 to 9999, which ISO text can order")
    text = naive.cast(pa.string())
    return pc.binary_join_element_wise(text, "+00:00", "") if data_type.kind == "timestamp_tz" else text


_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


def _uuids(array: pa.Array, name: str, offset: int) -> list[Any]:
    import pyarrow.compute as pc

    values = _values(array)
    if pc.all(pc.match_substring_regex(array, _UUID)).as_py() in (True, None):
        return values
    try:
        return [parse(value, DataType("uuid")) for value in values]
    except Misfit:
        for row, value in enumerate(values):
            try:
                parse(value, DataType("uuid"))
            except Misfit as misfit:
                raise rejected(name, offset + row, value, str(misfit)) from None
        raise


def _refuse(array: pa.Array, mask: pa.Array, name: str, offset: int, why: str) -> None:
    import pyarrow.compute as pc

    if pc.any(mask).as_py():
        row = pc.index(mask, True).as_py()
        raise rejected(name, offset + row, array[row].as_py(), why)
