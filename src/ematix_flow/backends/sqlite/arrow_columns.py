"""Conversion of whole columns between SQLite and Arrow.

It uses Arrow's own casts when they give the same result as `values.parse_value`, and converts value by value
otherwise, or to name a value in an error.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.arrow.batch_casts import row_rejection
from ematix_flow.backends.sqlite.arrow_buffers import decimal_column, infer_column, numpy_view
from ematix_flow.backends.sqlite.column_types import EXACT_DIGITS, is_exact_number
from ematix_flow.backends.sqlite.values import UnfitSQLiteValue, parse_value
from ematix_flow.spec.types import INTEGER_BITS, DataType

if TYPE_CHECKING:
    import pyarrow as pa

_ZONED = re.compile(r".{10,}[0-9](Z|[+-]\d\d:?\d\d)")
_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY = (dt.date.min - _EPOCH).days
_LAST_DAY = (dt.date.max - _EPOCH).days
_KINDS_TO_CHECK = (
    "float",
    "double",
    "date",
    "timestamp",
    "timestamp_tz",
    "uuid",
)  # have unstorable values
_DAY = 86_400_000_000  # in microseconds


# ------------------------------------------------------------------ from SQLite


def to_arrow(values: Sequence[Any], name: str, data_type: DataType, offset: int) -> pa.Array:
    """Stored values as an Arrow column of the type; RowRejected names the first that does not fit."""
    import pyarrow as pa

    found = infer_column(values)
    if found is not None:
        try:
            cast = _cast_column(found, data_type)
        except pa.ArrowInvalid:
            cast = None
        if cast is not None:
            return cast
    return pa.array(_parse_values(values, name, data_type, offset), type=data_type.arrow())


def _parse_values(values: Sequence[Any], name: str, data_type: DataType, offset: int) -> list[Any]:
    parsed = []
    for row, value in enumerate(values):
        try:
            parsed.append(parse_value(value, data_type))
        except UnfitSQLiteValue as misfit:
            raise row_rejection(name, offset + row, value, str(misfit)) from None
    return parsed


def _cast_column(array: pa.Array, data_type: DataType) -> pa.Array | None:
    """The whole column in one cast, or None when only `parse_value` can convert it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as t

    kind, wanted = data_type.kind, data_type.arrow()
    is_number = t.is_integer(array.type) or t.is_floating(array.type)
    if t.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if (kind in INTEGER_BITS or kind == "double") and is_number:
        return array.cast(wanted, safe=True)
    if kind == "boolean" and t.is_integer(array.type):
        least, most = pc.min_max(array).as_py().values()
        return array.cast(wanted) if least >= 0 and most <= 1 else None
    if kind == "numeric" and is_number:
        return _cast_exactly(array.cast(pa.float64(), safe=True), data_type)
    if kind == "bytes" and t.is_binary(array.type):
        return array
    if not t.is_string(array.type):
        return None
    if kind in ("text", "json", "jsonb"):
        return array
    if kind == "string":
        return array if pc.max(pc.utf8_length(array)).as_py() <= (data_type.length or 0) else None
    if kind == "date":
        return array.cast(wanted)
    return _cast_timestamps(array, wanted) if kind in ("timestamp", "timestamp_tz") else None


def _cast_timestamps(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Arrow parses text with a zone only as a type with a zone, and text without only as one without."""
    import pyarrow as pa

    first = next((text for text in array.slice(0, 100).to_pylist() if text is not None), "")
    read = array.cast(pa.timestamp("us", tz="UTC" if _ZONED.fullmatch(first) else None))
    return read if read.type == wanted else read.cast(pa.int64()).cast(wanted)


def _cast_exactly(array: pa.Array, data_type: DataType) -> pa.Array | None:
    """Doubles as decimals, if each is the nearest double of a decimal of this scale."""
    import numpy as np

    numbers = numpy_view(array)
    power = float(10 ** (data_type.scale or 0))
    limit = float(10 ** min(data_type.precision or 0, EXACT_DIGITS))
    with np.errstate(over="ignore", invalid="ignore"):
        unscaled = np.rint(numbers * power)
        exact = (unscaled / power == numbers) & (np.abs(unscaled) < limit)
    return decimal_column(unscaled.astype(np.int64), data_type.arrow(), array) if exact.all() else None


# ------------------------------------------------------------------ to SQLite


@dataclass(frozen=True)
class UnstorableValueCheck:
    """Refuses values that SQLite cannot store: NaN, and times outside the years 1 to 9999. Picklable."""

    columns: tuple[tuple[str, DataType], ...]

    def __call__(self, batch: pa.RecordBatch) -> None:
        for name, data_type in self.columns:
            if data_type.kind in _KINDS_TO_CHECK:
                from_arrow(batch.column(name), name, data_type, 0)


def from_arrow(array: pa.Array, name: str, data_type: DataType, offset: int) -> list[Any]:
    """An Arrow column in the form that SQLite stores; RowRejected for a value that it cannot store."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = data_type.kind
    if kind == "boolean":
        return _to_list(array.cast(pa.int8()))
    if kind in ("float", "double"):
        _refuse(array, pc.is_nan(array), name, offset, "cannot be kept: SQLite turns it into NULL")
        return _to_list(array)
    if kind == "numeric":
        return _to_numbers(array, data_type)
    if kind in ("date", "timestamp", "timestamp_tz"):
        return _to_iso_text(array, name, data_type, offset)
    if kind == "uuid":
        return _to_uuids(array, name, offset)
    return _to_list(array)


def _to_list(array: pa.Array) -> list[Any]:
    out: list[Any] = array.to_pylist()
    return out


def _to_numbers(array: pa.Array, data_type: DataType) -> list[Any]:
    if not len(array) or not is_exact_number(data_type):
        return [None if v is None else format(v, "f") for v in array.to_pylist()]
    unscaled = numpy_view(array, words=2)
    # both are exact as doubles, so the quotient is the double nearest to the decimal
    kept = unscaled if not data_type.scale else unscaled / float(10**data_type.scale)
    out: list[Any] = kept.tolist()
    if array.null_count:
        out = [None if null else v for v, null in zip(out, array.is_null().to_pylist(), strict=True)]
    return out


def _to_iso_text(array: pa.Array, name: str, data_type: DataType, offset: int) -> list[Any]:
    """ISO text of the years 1 to 9999, which sorts correctly as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if data_type.kind == "date":
        number, naive, first, last = array.cast(pa.int32()), array, _FIRST_DAY, _LAST_DAY
    else:
        number = array.cast(pa.int64())
        naive, first, last = number.cast(pa.timestamp("us")), _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1
    least, most = pc.min_max(number).as_py().values()
    if least is not None and (least < first or most > last):
        beyond = pc.or_(pc.less(number, first), pc.greater(number, last))
        _refuse(number, beyond, name, offset, "is outside the years 1 to 9999, which ISO text can order")
    text = _to_list(naive.cast(pa.string()))
    if data_type.kind == "timestamp_tz":
        return [None if v is None else v + "+00:00" for v in text]
    return text


def _to_uuids(array: pa.Array, name: str, offset: int) -> list[Any]:
    import pyarrow.compute as pc

    if pc.all(pc.match_substring_regex(array, _UUID)).as_py() in (True, None):
        return _to_list(array)
    return _parse_values(_to_list(array), name, DataType("uuid"), offset)


def _refuse(array: pa.Array, mask: pa.Array, name: str, offset: int, why: str) -> None:
    import pyarrow.compute as pc

    if pc.any(mask).as_py():
        row = pc.index(mask, True).as_py()
        raise row_rejection(name, offset + row, array[row].as_py(), why)
