"""Builds Arrow columns from rows of field values; rows with a value that does not fit are returned apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.payloads.base import BadMessage
from ematix_flow.backends.payloads.value_conversion import (
    MissingField,
    UnfitField,
    converter,
    display_value,
    plain_types,
)
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

DecodedRows = Sequence[Mapping[str, Any]]


def assemble_rows(
    columns: Sequence[ColumnSpec], rows: DecodedRows, indexes: Sequence[int]
) -> tuple[pa.RecordBatch, list[int], list[BadMessage]]:
    """The good rows, their indexes, and the bad rows with a reason. ``indexes`` has one index per row."""
    bad: dict[int, str] = {}
    arrays = [array_of_values(c, [row.get(c.name) for row in rows], bad, rows) for c in columns]
    good = [at for at in range(len(rows)) if at not in bad] if bad else None
    if good is not None:
        arrays = [array.take(_index_array(good)) for array in arrays]
    batch = build_batch(columns, arrays, len(rows) - len(bad))
    good_indexes = list(indexes) if good is None else [indexes[at] for at in good]
    return batch, good_indexes, [BadMessage(indexes[at], reason) for at, reason in sorted(bad.items())]


def empty_batch(columns: Sequence[ColumnSpec]) -> pa.RecordBatch:
    return build_batch(columns, [_array([], c) for c in columns], 0)


def array_of_values(
    column: ColumnSpec, values: list[Any], bad: dict[int, str], rows: DecodedRows = ()
) -> pa.Array:
    """An array with a null instead of each bad value, whose reason goes into ``bad``.

    ``rows`` are the values' rows, for hints in the reasons.
    """
    import pyarrow as pa

    found = set(map(type, values))
    if found <= plain_types(column.type.kind) and (column.nullable or type(None) not in found):
        try:
            return _array(values, column)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            pass  # some value is out of range: the loop below finds it
    convert = converter(column)
    out: list[Any] = [None] * len(values)
    for at, value in enumerate(values):
        try:
            out[at] = convert(value)
        except MissingField as missing:
            bad.setdefault(at, f"{missing}{_case_hint(column.name, rows[at]) if rows else ''}")
        except UnfitField as unfit:
            bad.setdefault(at, str(unfit))
    return _array(out, column)


def _case_hint(name: str, row: Mapping[str, Any]) -> str:
    """A hint at the field whose name differs only in case."""
    if name in row:
        return ""
    meant = next((field for field in row if field.casefold() == name.casefold()), None)
    return f"; the payload has {display_value(meant)}: names are case-sensitive" if meant is not None else ""


def _array(values: list[Any], column: ColumnSpec) -> pa.Array:
    import pyarrow as pa

    if column.type.kind == "float":  # through double, like the block reader
        return pa.array(values, pa.float64()).cast(pa.float32())
    return pa.array(values, column.type.arrow())


def build_batch(columns: Sequence[ColumnSpec], arrays: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
    """The columns as one batch; a batch without columns keeps its number of rows."""
    import pyarrow as pa

    schema = pa.schema([(c.name, c.type.arrow()) for c in columns])
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema)


def _index_array(indexes: Sequence[int]) -> pa.Array:
    import pyarrow as pa

    return pa.array(indexes, pa.int64())
