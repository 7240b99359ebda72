"""Casts of arrays where Arrow's own cast is not exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def cast_exactly(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Arrow's cast, except from a decimal to a floating-point number: that one makes 0.09999999999999999 of
    0.1, so it goes through text."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_decimal(array.type) and t.is_floating(wanted):
        array = array.cast(pa.string())
    return array.cast(wanted, safe=True)
