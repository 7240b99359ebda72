"""Casts of Arrow batches to a declared table, inside the task that reads them.

The rules are the same for every source and target: no value is cut, wrapped or silently nulled. A value that
does not fit stops the load with an error that names the column, the row and the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_flow.backends.arrow.exact_casts import cast_exactly
from ematix_flow.backends.arrow.json_text import to_json_text
from ematix_flow.errors import RowRejected
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_SHOWN = 80


def cast_batch(batch: pa.RecordBatch, table: TableSpec, offset: int = 0) -> pa.RecordBatch:
    """The batch with exactly the declared columns, in order and of their types.

    ``offset`` is how many rows came before, so that an error can count from the start of the split.
    """
    import pyarrow as pa

    arrays = [_cast_column(batch.column(c.name), c, offset) for c in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.arrow_schema())


def _cast_column(array: pa.Array, column: ColumnSpec, offset: int) -> pa.Array:
    if not column.nullable and array.null_count:
        _reject(column, array, array.is_null(), offset, "is null, and the column takes no nulls")
    out = _cast_array(array, column, offset)
    if not column.nullable and out.null_count:
        _reject(column, array, out.is_null(), offset, "is null, and the column takes no nulls")
    if column.type.kind == "string":
        _check_length(out, column, offset)
    return out


def _cast_array(array: pa.Array, column: ColumnSpec, offset: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.types as t

    wanted = column.type.arrow()
    if array.type == wanted:
        return array
    if t.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        if column.type.kind == "boolean" and t.is_integer(array.type):
            return _to_boolean(array, column, offset)
        if t.is_nested(array.type) and wanted == pa.string():
            return to_json_text(array)
        if t.is_timestamp(array.type) and t.is_timestamp(wanted):
            return _to_timestamp(array, wanted)
        if t.is_timestamp(array.type) and t.is_date(wanted):
            return _to_date(array, column, offset)
        if t.is_decimal(wanted) and (t.is_integer(array.type) or t.is_floating(array.type)):
            return _to_decimal(array, column.type)
        if t.is_float32(wanted) and t.is_float64(array.type):
            return _to_float(array, wanted)
        return cast_exactly(array, wanted)
    except (
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        pa.ArrowTypeError,
        ValueError,
        ArithmeticError,
    ) as error:
        _reject_uncastable(array, column, offset, error)
        raise  # unreachable: the line above raises


def _to_float(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Extra digits are lost, as in any database; a finite number must not become infinity."""
    import pyarrow.compute as pc

    cast = array.cast(wanted)
    if pc.any(pc.and_(pc.is_finite(array), pc.is_inf(cast))).as_py():
        raise ArithmeticError("beyond the largest of its numbers")
    return cast


def _to_timestamp(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Times without a zone are UTC. The cast refuses nanoseconds other than zero."""
    import pyarrow as pa

    if (array.type.tz is None) == (wanted.tz is None):
        return array.cast(wanted, safe=True)
    return array.cast(pa.timestamp("us", tz=array.type.tz), safe=True).cast(pa.int64()).cast(wanted)


def _to_date(array: pa.Array, column: ColumnSpec, offset: int) -> pa.Array:
    """The day of a time at midnight (UTC when it has a zone). Arrow's own cast would drop the time of day."""
    import pyarrow as pa
    import pyarrow.compute as pc

    naive = array.cast(pa.timestamp(array.type.unit))
    days = naive.cast(pa.date32())
    later = pc.not_equal(days.cast(pa.timestamp("s")), naive)
    if pc.any(later).as_py():
        _reject(
            column,
            array,
            later.fill_null(False),
            offset,
            f"has a time of day, and the column is {column.type}",
        )
    return days


def _to_decimal(array: pa.Array, data_type: DataType) -> pa.Array:
    """Convert through text, so that 0.1 stays 0.1. Digits beyond the scale are refused, not rounded."""
    import decimal

    import pyarrow as pa

    values: list[Any] = [None if v is None else decimal.Decimal(repr(v)) for v in array.to_pylist()]
    return pa.array(values, type=data_type.arrow())


def _to_boolean(array: pa.Array, column: ColumnSpec, offset: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    other = pc.invert(pc.is_in(array, value_set=pa.array([0, 1, None], type=array.type)))
    if pc.any(other).as_py():
        _reject(column, array, other, offset, "is neither 0 nor 1, and the column is Boolean")
    return array.cast(pa.bool_())


def _check_length(array: pa.Array, column: ColumnSpec, offset: int) -> None:
    import pyarrow.compute as pc

    lengths, limit = pc.utf8_length(array), column.type.length or 0
    longest = pc.max(lengths).as_py()  # a comparison with a number would first import pandas
    if longest is not None and longest > limit:
        why = f"is longer than the {limit} characters of {column.type}"
        _reject(column, array, pc.greater(lengths, limit), offset, why)


def _reject(column: ColumnSpec, array: pa.Array, mask: pa.Array, offset: int, why: str) -> None:
    import pyarrow.compute as pc

    index = pc.index(mask, True).as_py()
    raise row_rejection(column.name, offset + index, array[index].as_py(), why)


def _reject_uncastable(array: pa.Array, column: ColumnSpec, offset: int, error: Exception) -> None:
    """Find the first value that does not cast. The batch is bounded, so this loop is too."""
    for index in range(len(array)):
        one = array.slice(index, 1)
        try:
            if one.null_count == 0:
                _try_cast(one, column)
        except Exception:
            why = f"does not fit {column.type}"
            raise row_rejection(column.name, offset + index, one[0].as_py(), why) from error
    raise RowRejected(
        f"column {column.name!r} of type {array.type} cannot be read as {column.type}: {error}"
    ) from error


def _try_cast(one: pa.Array, column: ColumnSpec) -> None:
    import pyarrow.types as t

    wanted = column.type.arrow()
    if t.is_decimal(wanted) and (t.is_integer(one.type) or t.is_floating(one.type)):
        _to_decimal(one, column.type)
    elif t.is_timestamp(one.type) and t.is_timestamp(wanted):
        _to_timestamp(one, wanted)
    elif t.is_float32(wanted) and t.is_float64(one.type):
        _to_float(one, wanted)
    else:
        one.cast(wanted, safe=True)


def row_rejection(column: str, row: int, value: object, why: str) -> RowRejected:
    shown = repr(value)
    shown = shown if len(shown) <= _MAX_SHOWN else shown[: _MAX_SHOWN - 1] + "…"
    return RowRejected(
        f"column {column!r}, row {row + 1:,} of what was read: {shown} {why}",
        next_step="correct it in the source, filter it in the SQL, or change the column's type or markers",
    )
