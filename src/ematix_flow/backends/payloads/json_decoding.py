"""Decodes JSON payloads: one object per message, one field per column.

`value_conversion` has the rules for values. In addition:

- a field without a column is ignored, and the last of several fields with one name wins;
- a payload is bad if it is not an object, not valid UTF-8, truncated, or nested deeper than Python's limit
  (some hundred levels); so is half a surrogate pair in a text that a column needs;
- ``NaN`` and ``Infinity`` are accepted for Float and Double columns, and for text as these words;
- no payload, or an empty one, is a tombstone: it gives no row.

Arrow reads payloads in blocks (`json_block`). A block that cannot be read as a whole is read in small blocks,
and such a block, if needed, payload by payload, so that one bad message among many costs little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import orjson

from ematix_flow.backends.payloads.base import BadMessage, DecodedBatch
from ematix_flow.backends.payloads.json_block import read_block
from ematix_flow.backends.payloads.json_values import JsonNumber
from ematix_flow.backends.payloads.row_assembly import assemble_rows, build_batch, empty_batch
from ematix_flow.backends.payloads.value_conversion import display_value
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 4 * 1024 * 1024
_SMALL_ROWS = 1_000
_LONG_NUMBER = re.compile(rb"[0-9](?:[0-9.]{15}[0-9.eE]*|[eE][+-]?[0-9]{3})")
_WHOLE_DIGITS = 19  # orjson reads whole numbers of so many digits exactly, negative ones of one less
_NEGATIVE_ZERO = re.compile(rb"-0(?![.0-9eE])")  # as an int it would lose its sign
_EXACT = json.JSONDecoder(parse_float=JsonNumber, parse_constant=JsonNumber)
_AS_WRITTEN = json.JSONDecoder(parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=JsonNumber)


class NotJsonObject(Exception):
    """A payload that is not a JSON object; the text says what it is."""


@dataclass(frozen=True)
class JsonDecoder:
    """Reads payloads into these columns, in this order."""

    columns: tuple[ColumnSpec, ...]

    def read(self, values: pa.Array) -> DecodedBatch:
        """``values`` are binary, one per message."""
        import pyarrow as pa
        import pyarrow.compute as pc

        has_payload = pc.fill_null(pc.greater(pc.binary_length(values), 0), False)
        empty = len(values) - pc.sum(has_payload).as_py() if len(values) else 0
        indexes = pc.indices_nonzero(has_payload).cast(pa.int64())
        present = values.filter(has_payload) if empty else values
        batches: list[pa.RecordBatch] = []
        row_indexes: list[pa.Array] = []
        bad: list[BadMessage] = []
        for start, count in _blocks(present):
            self._read_block(
                present.slice(start, count), indexes.slice(start, count), batches, row_indexes, bad
            )
        rows = pa.concat_batches(batches) if batches else empty_batch(self.columns)
        return DecodedBatch(rows, _concat_indexes(row_indexes), tuple(bad), empty)

    def _read_block(
        self,
        values: pa.Array,
        indexes: pa.Array,
        batches: list[pa.RecordBatch],
        row_indexes: list[pa.Array],
        bad: list[BadMessage],
    ) -> None:
        import pyarrow as pa

        arrays = read_block(values, self.columns)
        if arrays is not None:
            batches.append(build_batch(self.columns, arrays, len(values)))
            row_indexes.append(indexes)
        elif len(values) > _SMALL_ROWS:
            for start in range(0, len(values), _SMALL_ROWS):
                part = values.slice(start, _SMALL_ROWS), indexes.slice(start, _SMALL_ROWS)
                self._read_block(*part, batches, row_indexes, bad)
        else:
            batch, good_indexes, unreadable = self.read_rows(values.to_pylist(), indexes.to_pylist())
            batches.append(batch)
            row_indexes.append(pa.array(good_indexes, pa.int64()))
            bad.extend(unreadable)

    def read_rows(
        self, values: Sequence[bytes], indexes: Sequence[int]
    ) -> tuple[pa.RecordBatch, list[int], list[BadMessage]]:
        """Read the payloads one by one."""
        texts = tuple(c.name for c in self.columns if c.type.kind in ("text", "string"))
        rows: list[dict[str, Any]] = []
        good_indexes: list[int] = []
        bad: list[BadMessage] = []
        for index, value in zip(indexes, values, strict=True):
            try:
                rows.append(parse_fields(value, texts))
                good_indexes.append(index)
            except NotJsonObject as error:
                bad.append(BadMessage(index, str(error)))
        batch, good_indexes, unfit = assemble_rows(self.columns, rows, good_indexes)
        return batch, good_indexes, sorted([*bad, *unfit], key=lambda each: each.index)


def parse_fields(value: bytes, texts: Sequence[str] = ()) -> dict[str, Any]:
    """The object's fields; a number is an int, an exact double, or a JsonNumber."""
    payload: Any
    if has_negative_zero(value):
        return parse_exact_fields(value)
    if has_inexact_number(value):
        payload = parse_exact_fields(value, _EXACT)
    else:
        try:
            payload = orjson.loads(value)
        except ValueError:
            payload = parse_exact_fields(value, _EXACT)  # it accepts more, and gives the reason
        if not isinstance(payload, dict):
            _raise_not_object(payload)
    for name in texts:
        field = payload.get(name)
        if type(field) is float or field == 0:  # a text column gets 1.50 and -0 as written
            return parse_exact_fields(value)
    return payload  # type: ignore[no-any-return]


def has_negative_zero(value: bytes) -> bool:
    """Whether a whole number of the payload, or of several ones, may lose its sign."""
    return _NEGATIVE_ZERO.search(value) is not None


def has_inexact_number(value: bytes) -> bool:
    """Whether a double may not hold a number of the payload exactly, or at all, and orjson would use one."""
    for found in _LONG_NUMBER.finditer(value):
        is_negative = value[found.start() - 1 : found.start()] == b"-"
        if not found[0].isdigit() or len(found[0]) > _WHOLE_DIGITS - is_negative:
            return True
    return False


def parse_exact_fields(value: bytes, decoder: json.JSONDecoder = _AS_WRITTEN) -> dict[str, Any]:
    """The object's fields, with numbers as `JsonNumber` or, by the decoder, int; raises NotJsonObject."""
    try:
        payload = decoder.decode(value.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise NotJsonObject(f"the payload is not valid UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise NotJsonObject(f"the payload is not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotJsonObject("the payload is nested too deeply") from None
    except ValueError:  # an int with more digits than Python converts
        return parse_exact_fields(value)
    if not isinstance(payload, dict):
        _raise_not_object(payload)
    return payload


def _raise_not_object(payload: Any) -> NoReturn:
    what = "null" if payload is None else display_value(payload)
    raise NotJsonObject(f"the payload is {what}, not a JSON object")


def _blocks(values: pa.Array) -> list[tuple[int, int]]:
    """The start and length of blocks of about the same size in bytes."""
    rows = len(values)
    if not rows:
        return []
    import pyarrow.compute as pc

    size = pc.sum(pc.binary_length(values)).as_py()
    step = max(1, rows * _BLOCK_BYTES // max(size, _BLOCK_BYTES))
    return [(start, min(step, rows - start)) for start in range(0, rows, step)]


def _concat_indexes(row_indexes: Sequence[pa.Array]) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(row_indexes) if row_indexes else pa.array([], pa.int64())
