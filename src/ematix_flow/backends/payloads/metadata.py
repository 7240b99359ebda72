"""Columns from message metadata: key, topic, partition, position, time and headers.

A column whose name is one of `META_COLUMNS` is filled from the metadata. ``_event_ts`` is the payload's field
of that name if it exists and is not null, otherwise the message's time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.messages.base import HEADERS, KEY, PARTITION, POSITION, TIMESTAMP, TOPIC, VALUE
from ematix_flow.backends.payloads.base import META_COLUMNS, BadMessage, DecodedBatch, PayloadDecoder
from ematix_flow.backends.payloads.row_assembly import build_batch
from ematix_flow.backends.payloads.value_conversion import UnfitField, converter
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import INTEGER_BITS, DataType

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_TS = "_event_ts"
_MESSAGE_FIELDS = {
    "_key": KEY,
    "_topic": TOPIC,
    "_partition": PARTITION,
    "_offset": POSITION,
    EVENT_TS: TIMESTAMP,
    "_headers": HEADERS,
}


def meta_columns(
    names: Iterable[str] = META_COLUMNS, *, numeric_positions: bool = False
) -> tuple[ColumnSpec, ...]:
    """The default types of these columns; with ``numeric_positions``, as Kafka has them."""
    kinds = {
        "_key": "bytes",
        "_topic": "text",
        "_partition": "integer" if numeric_positions else "text",
        "_offset": "big_int" if numeric_positions else "text",
        EVENT_TS: "timestamp_tz",
        "_headers": "json",
    }
    return tuple(ColumnSpec(name, DataType(kinds[name]), nullable=True) for name in names)


def payload_columns(columns: Sequence[ColumnSpec]) -> tuple[ColumnSpec, ...]:
    """The columns that come from the payload."""
    return tuple(
        replace(c, nullable=True) if c.name == EVENT_TS else c
        for c in columns
        if c.name not in META_COLUMNS or c.name == EVENT_TS
    )


@dataclass(frozen=True)
class MessageDecoder:
    """Reads payloads with ``inner``, and adds metadata columns, in the order of ``columns``."""

    inner: PayloadDecoder
    columns: tuple[ColumnSpec, ...]
    numeric_positions: bool = False

    def decode(self, messages: pa.RecordBatch) -> DecodedBatch:

        decoded = self.inner.read(messages.column(VALUE))
        meta = [c for c in self.columns if c.name in META_COLUMNS]
        if not meta:
            return decoded
        bad: dict[int, str] = {}
        arrays: list[pa.Array] = []
        of_payload = set(decoded.rows.schema.names)
        for column in self.columns:
            payload_values = decoded.rows.column(column.name) if column.name in of_payload else None
            if column.name not in META_COLUMNS:
                arrays.append(payload_values)
                continue
            values = messages.column(_MESSAGE_FIELDS[column.name])
            if len(decoded.indexes) != messages.num_rows:
                values = values.take(decoded.indexes)
            array, reasons = self._fill_column(column, values, payload_values)
            arrays.append(array)
            bad = {**reasons, **bad}  # the first column that does not fit gives the reason
        return self._drop_bad_rows(decoded, arrays, bad)

    def _fill_column(
        self, column: ColumnSpec, values: pa.Array, payload_values: pa.Array | None
    ) -> tuple[pa.Array, dict[int, str]]:
        """The column, and the reason for each row whose required value is missing."""
        import pyarrow.compute as pc

        bad: dict[int, str] = {}
        array = _convert_column(values, column, self.numeric_positions, bad)
        if payload_values is not None:
            for at in [at for at in bad if payload_values[at].is_valid]:
                del bad[at]  # the payload has a value, so the metadata is not needed
            array = pc.coalesce(payload_values, array)
        if not column.nullable and array.null_count:
            for at in pc.indices_nonzero(pc.is_null(array)).to_pylist():
                bad.setdefault(
                    at, f"the message has no {_MESSAGE_FIELDS[column.name]}, and {column.name} takes no nulls"
                )
        return array, bad

    def _drop_bad_rows(
        self, decoded: DecodedBatch, arrays: Sequence[pa.Array], bad: dict[int, str]
    ) -> DecodedBatch:
        """The remaining rows, with the reasons for the dropped ones."""
        import pyarrow as pa

        if not bad:
            rows = build_batch(self.columns, arrays, len(decoded.indexes))
            return replace(decoded, rows=rows)
        good = pa.array([at for at in range(len(decoded.indexes)) if at not in bad], pa.int64())
        rows = build_batch(self.columns, [array.take(good) for array in arrays], len(good))
        more = [BadMessage(decoded.indexes[at].as_py(), reason) for at, reason in bad.items()]
        reasons = sorted([*decoded.bad, *more], key=lambda each: each.index)
        return DecodedBatch(rows, decoded.indexes.take(good), tuple(reasons), decoded.empty_count)


def _convert_column(
    array: pa.Array, column: ColumnSpec, numeric_positions: bool, bad: dict[int, str]
) -> pa.Array:
    """The metadata in the column's type; a null and a reason where it does not fit."""
    import pyarrow as pa

    kind, wanted = column.type.kind, column.type.arrow()
    is_json = kind in ("json", "jsonb") and column.name != "_headers"  # headers are JSON already
    if array.type == wanted and kind not in ("uuid", "string") and not is_json:
        return array
    if kind == "timestamp" and column.name == EVENT_TS:
        return array.cast(wanted)
    if numeric_positions and kind in INTEGER_BITS and column.name in ("_partition", "_offset"):
        try:
            return array.cast(wanted)
        except pa.ArrowInvalid:
            pass  # one is not a number: the loop below finds it
    elif kind == "text" or (kind == "bytes" and pa.types.is_string(array.type)):
        try:
            return array.cast(wanted)
        except pa.ArrowInvalid:
            pass  # a key is not UTF-8: the loop below finds it
    return _convert_values(array, column, bad)


def _convert_values(array: pa.Array, column: ColumnSpec, bad: dict[int, str]) -> pa.Array:
    import pyarrow as pa

    convert: Callable[[Any], Any] = converter(replace(column, nullable=True))
    out: list[Any] = []
    for at, value in enumerate(array.to_pylist()):
        try:
            out.append(convert(_as_field(value, column)))
        except (UnfitField, UnicodeDecodeError) as error:
            utf8 = isinstance(error, UnicodeDecodeError)
            bad.setdefault(
                at, f"the {_MESSAGE_FIELDS[column.name]} is not valid UTF-8" if utf8 else str(error)
            )
            out.append(None)
    return pa.array(out, column.type.arrow())


def _as_field(value: Any, column: ColumnSpec) -> Any:
    """Bytes as text, and JSON text as its value for a JSON column."""
    if isinstance(value, bytes) and column.type.kind != "bytes":
        value = value.decode()
    if isinstance(value, str) and column.type.kind in ("json", "jsonb"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
