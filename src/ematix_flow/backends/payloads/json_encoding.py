"""Rows as JSON payloads: one object a row, every column a field, nulls spelt out.

Decimals are numbers with all their digits, times are ISO 8601 (moments in UTC with a Z), bytes are base64,
json columns are embedded as what they hold, and floats that JSON lacks are the texts ``NaN``, ``Infinity``
and ``-Infinity``. `json_payload` reads all of it back as it was.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from ematix_flow.backends.payloads.json_writing import finite_or_word
from ematix_flow.errors import RowRejected
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

_OPTIONS = orjson.OPT_UTC_Z


@dataclass(frozen=True)
class JsonEncoder:
    """Writes these columns of a batch, in this order."""

    columns: tuple[ColumnSpec, ...]

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa

        names = [column.name for column in self.columns]
        values = [_values(rows.column(column.name), column) for column in self.columns]
        if not values:
            return pa.array([b"{}"] * rows.num_rows, pa.binary())
        dumps = orjson.dumps
        written = [
            dumps(dict(zip(names, row, strict=True)), option=_OPTIONS) for row in zip(*values, strict=True)
        ]
        return pa.array(written, pa.binary())


def _values(array: pa.Array, column: ColumnSpec) -> list[Any]:
    """The column's values as orjson writes them."""
    kind = column.type.kind
    values: list[Any] = array.cast(column.type.arrow()).to_pylist()
    if kind in ("float", "double"):
        return _mapped(values, finite_or_word)
    if kind == "numeric":
        return _mapped(values, lambda value: orjson.Fragment(format(value, "f")))
    if kind == "bytes":
        return _mapped(values, lambda value: base64.b64encode(value).decode("ascii"))
    if kind in ("json", "jsonb"):
        return [None if v is None else _embedded(v, column, at) for at, v in enumerate(values)]
    return values


def _mapped(values: list[Any], write: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else write(value) for value in values]


def _embedded(text: str, column: ColumnSpec, at: int) -> orjson.Fragment:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RowRejected(
            f"row {at + 1}: column {column.name!r} is no valid JSON: {error}",
            state="nothing of this batch was sent",
            next_step="write valid JSON into the column, or declare it Text",
        ) from None
    return orjson.Fragment(text)
