"""Converts Arrow columns to text cells and batches to lines of CSV and JSON, column by column, without a row
loop.

Every value has one exact text that any reader can read: decimals in plain digits, floats in their shortest
form, times in ISO 8601 (UTC with a Z), bytes in base64.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.objectstore.layout.file_layout import CsvDialect
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS = ("small_int", "integer", "big_int", "numeric")
_FLOATS = ("float", "double")
_TEXTS = ("text", "string", "json", "jsonb", "uuid")
# where other readers expect another text than Arrow's; -0 would be a whole number, which has no sign at zero
_FLOAT_WORDS = (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity"), ("-0", "-0.0"))
_MAX_ROWS, _MAX_BYTES = 65_536, 32 * 1024 * 1024  # of one piece; its text must stay below 2 GB
# the characters of numbers, times and booleans: such cells need no quotes in most dialects
_PLAIN = frozenset("0123456789+-.:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def csv_header(columns: Sequence[ColumnSpec], dialect: CsvDialect) -> bytes:
    """The first line of a file."""
    import pyarrow as pa

    cells = _quote_cells(pa.array([c.name for c in columns], pa.string()), dialect)
    return (dialect.delimiter.join(cells.to_pylist()) + "\n").encode()


def csv_lines(
    batch: pa.RecordBatch, columns: Sequence[ColumnSpec], dialect: CsvDialect
) -> Iterator[memoryview]:
    """The batch as bytes to append to a file. ``columns`` are the columns of the batch, in order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for piece in _split_batch(batch):
        pieces: list[pa.Array | pa.Scalar] = []
        for number, column in enumerate(columns):
            text = text_of_values(piece.column(number), column)
            if column.type.kind in (*_TEXTS, "bytes") or not _is_plain(dialect):
                text = _quote_cells(text, dialect)
            if pieces:
                pieces.append(pa.scalar(dialect.delimiter))
            pieces.append(text.fill_null(dialect.null))
        yield _character_bytes(pc.binary_join_element_wise(*pieces, pa.scalar("\n"), ""))


def json_lines(batch: pa.RecordBatch, columns: Sequence[ColumnSpec]) -> Iterator[memoryview]:
    """The batch as bytes to append to a file: one object per line, with explicit nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for piece in _split_batch(batch):
        pieces: list[pa.Array | pa.Scalar] = []
        for number, column in enumerate(columns):
            key = json.dumps(column.name, ensure_ascii=False)
            pieces.append(pa.scalar(f"{',' if pieces else '{'}{key}:"))
            pieces.append(_json_values(piece.column(number), column).fill_null("null"))
        yield _character_bytes(pc.binary_join_element_wise(*pieces, pa.scalar("}\n"), ""))


def text_of_values(array: pa.Array, column: ColumnSpec) -> pa.Array:
    """The values as text; nulls stay null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type.kind
    if kind == "bytes":
        encoded = (None if v is None else base64.b64encode(v).decode("ascii") for v in array.to_pylist())
        return pa.array(encoded, pa.string())
    if kind in ("timestamp", "timestamp_tz"):
        # Arrow writes a time with a zone thirty times slower than one without
        text = pc.replace_substring(array.cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
        return pc.binary_join_element_wise(text, "Z", "") if kind == "timestamp_tz" else text
    text = array.cast(pa.string())
    if kind == "numeric":
        return _replace_cells(text, pc.match_substring(text, "E"), array, lambda value: format(value, "f"))
    if kind in _FLOATS:
        for arrow_word, word in _FLOAT_WORDS:
            text = pc.if_else(pc.equal(text, arrow_word), word, text)
    return text


def _json_values(array: pa.Array, column: ColumnSpec) -> pa.Array:
    """Numbers and booleans bare, everything else as JSON strings."""
    import pyarrow.compute as pc

    kind = column.type.kind
    text = text_of_values(array, column)
    if kind in _NUMBERS or kind == "boolean":
        return text
    if kind in _FLOATS:
        odd = pc.match_substring_regex(text, "[NI]")  # JSON has no such numbers; readers accept the words
        return pc.if_else(odd, pc.binary_join_element_wise('"', text, '"', ""), text)
    if kind in _TEXTS:
        special = pc.match_substring_regex(text, r'["\\\x00-\x1f]')
        text = _replace_cells(text, special, text, lambda value: json.dumps(value, ensure_ascii=False)[1:-1])
    return pc.binary_join_element_wise('"', text, '"', "")


def _quote_cells(text: pa.Array, dialect: CsvDialect) -> pa.Array:
    """Quote the cells that a reader would otherwise misread."""
    import pyarrow.compute as pc

    quote, escape = dialect.quote, dialect.escape
    special = re.escape(dialect.delimiter + quote + escape).replace(r"\ ", " ")
    needed = pc.match_substring_regex(text, rf"[{special}\r\n]|^\s|\s$|^$")
    for null in {dialect.null, dialect.null_unescaped}:
        needed = pc.or_(needed, pc.equal(text, null))
    if not pc.any(needed).as_py():
        return text
    inner = text
    if escape != quote:
        inner = pc.replace_substring(inner, escape, escape + escape)
    inner = pc.replace_substring(inner, quote, escape + quote)
    return pc.if_else(needed, pc.binary_join_element_wise(quote, inner, quote, ""), text)


def _is_plain(dialect: CsvDialect) -> bool:
    """Whether no number, time or boolean can be mistaken for a delimiter, a quote or a null."""
    marks = {dialect.delimiter, dialect.quote, dialect.escape}
    return not marks & _PLAIN and (not dialect.null or not set(dialect.null) <= _PLAIN)


def _replace_cells(
    text: pa.Array, mask: pa.Array, values: pa.Array, render: Callable[[Any], str]
) -> pa.Array:
    """The text column, with the few cells of the mask rendered again from their values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = mask.fill_null(False)
    if not pc.any(mask).as_py():
        return text
    rendered = pa.array([render(value) for value in values.filter(mask).to_pylist()], pa.string())
    return pc.replace_with_mask(text, mask, rendered)


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    fitting = max(1, batch.num_rows * _MAX_BYTES // max(1, batch.nbytes))
    step = min(_MAX_ROWS, fitting)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _character_bytes(lines: pa.Array) -> memoryview:
    """The characters of a text column as one buffer, without a copy."""
    import pyarrow as pa

    _, ends, characters = lines.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, ends], offset=lines.offset)
    return memoryview(characters)[offsets[0].as_py() : offsets[len(lines)].as_py()]
