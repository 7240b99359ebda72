"""Decodes and encodes raw payloads: the bytes of a message are one column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.payloads.base import META_COLUMNS, BadMessage, DecodedBatch
from ematix_flow.backends.payloads.row_assembly import build_batch
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

VALUE_COLUMN = "value"
_RAW_KINDS = ("bytes", "text", "string")


def raw_column(columns: Sequence[ColumnSpec]) -> ColumnSpec | None:
    """The column that holds the payload; None when there is none."""
    own = [c for c in columns if c.name not in META_COLUMNS]
    named = next((c for c in own if c.name == VALUE_COLUMN), None)
    chosen = own[0] if len(own) == 1 else named
    if len(own) > 1:
        others = ", ".join(repr(c.name) for c in own if c is not chosen)
        raise SchemaMismatch(
            f"a raw payload is one column of bytes, so there is no value for {others}",
            next_step='declare one column of Bytes or Text, or give  payload_format="json"',
        )
    if chosen is not None and chosen.type.kind not in _RAW_KINDS:
        raise SchemaMismatch(
            f"column {chosen.name!r} is {chosen.type}, and a raw payload is Bytes or Text",
            next_step="declare it Bytes or Text",
        )
    return chosen


@dataclass(frozen=True)
class RawDecoder:
    """The unchanged payload; as text it must be UTF-8. An empty payload is a value, only null is none."""

    column: ColumnSpec | None

    def read(self, values: pa.Array) -> DecodedBatch:
        import pyarrow as pa
        import pyarrow.compute as pc

        has_payload = pc.is_valid(values)
        indexes = pc.indices_nonzero(has_payload).cast(pa.int64())
        empty = values.null_count
        present = values.drop_null() if empty else values
        bad: list[BadMessage] = []
        if self.column is None:
            return DecodedBatch(build_batch((), (), len(present)), indexes, (), empty)
        array = present
        if self.column.type.kind != "bytes":
            array, bad = _as_text(present, indexes, self.column)
            if bad:
                good = pc.is_valid(array)
                array, indexes = array.filter(good), indexes.filter(good)
        return DecodedBatch(build_batch((self.column,), (array,), len(array)), indexes, tuple(bad), empty)


def _as_text(values: pa.Array, indexes: pa.Array, column: ColumnSpec) -> tuple[pa.Array, list[BadMessage]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    longest = column.type.length if not column.normalizers else None
    try:
        whole = values.cast(pa.string())
        if longest is None or not len(whole) or pc.max(pc.utf8_length(whole)).as_py() <= longest:
            return whole, []
    except pa.ArrowInvalid:
        pass  # some payload is not UTF-8: the loop below finds it
    texts: list[str | None] = []
    bad: list[BadMessage] = []
    for index, value in zip(indexes.to_pylist(), values.to_pylist(), strict=True):
        texts.append(None)
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            bad.append(BadMessage(index, f"the payload is not valid UTF-8 (byte {error.start})"))
            continue
        if longest is not None and len(text) > longest:
            reason = f"the payload has {len(text)} characters, more than {column.type} holds"
            bad.append(BadMessage(index, reason))
        else:
            texts[-1] = text
    return pa.array(texts, pa.string()), bad


@dataclass(frozen=True)
class RawEncoder:
    """The column's bytes, or its text as UTF-8; a null is a message without a payload."""

    column: ColumnSpec

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa

        return rows.column(self.column.name).cast(pa.binary())
