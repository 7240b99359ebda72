"""Encodes rows as JSON payloads: one object per row, one field per column, with explicit nulls.

Decimals are numbers with all their digits, timestamps are ISO 8601 (with a time zone as UTC with a Z), bytes
are base64, json columns are embedded as JSON, and floats that JSON lacks are the texts ``NaN``, ``Infinity``
and ``-Infinity``. `json_decoding` reads the same values back.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from ematix_flow.backends.payloads.json_values import finite_or_word
from ematix_flow.errors import RowRejected
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class JsonEncoder:
    """Writes these columns of a batch, in this order."""

    columns: tuple[ColumnSpec, ...]

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa

        names = [column.name for column in self.columns]
        values = [_json_values(rows.column(column.name), column) for column in self.columns]
        if not values:
            return pa.array([b"{}"] * rows.num_rows, pa.binary())
        dumps = orjson.dumps
        written = [dumps(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)]
        return pa.array(written, pa.binary())


def _json_values(array: pa.Array, column: ColumnSpec) -> list[Any]:
    """The column's values in a form that orjson writes."""
    import pyarrow as pa

    kind = column.type.kind
    array = array.cast(column.type.arrow())
    if kind in ("timestamp", "timestamp_tz"):
        times = _format_times(array.cast(pa.timestamp("us")), "Z" if kind == "timestamp_tz" else "")
        return list(times.to_pylist())
    if kind == "numeric":  # Arrow writes all digits, some with an exponent, which JSON allows
        return _map_values(array.cast(pa.string()).to_pylist(), orjson.Fragment)
    values: list[Any] = array.to_pylist()
    if kind in ("float", "double"):
        return _map_values(values, finite_or_word)
    if kind == "bytes":
        return _map_values(values, lambda value: base64.b64encode(value).decode("ascii"))
    if kind in ("json", "jsonb"):
        return [None if v is None else _embed_json(v, column, at) for at, v in enumerate(values)]
    return values


def _format_times(array: pa.Array, zone: str) -> pa.Array:
    """ISO 8601 texts of a whole column of UTC times; one by one takes ten times as long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.replace_substring(array.cast(pa.string()), " ", "T")
    return pc.binary_join_element_wise(pc.replace_substring_regex(text, r"\.0+$", ""), zone, "")


def _map_values(values: list[Any], write: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else write(value) for value in values]


def _embed_json(text: str, column: ColumnSpec, at: int) -> orjson.Fragment:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RowRejected(
            f"row {at + 1}: column {column.name!r} is not valid JSON: {error}",
            state="nothing of this batch was sent",
            next_step="write valid JSON into the column, or declare it Text",
        ) from None
    return orjson.Fragment(text)
