"""Arrow batches as VALUES of INSERT statements, for servers that forbid LOAD DATA LOCAL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ematix_flow.backends.mysql.row_text import repeat_text, text_scalar, to_text

if TYPE_CHECKING:
    import pyarrow as pa

_STATEMENT_BYTES = 1 << 20  # a quarter of the smallest default packet size


def insert_values(batch: pa.RecordBatch, number: int) -> Iterator[bytes]:
    """``(…),(…)`` lists of at most about a megabyte; the last value of each row is ``number``."""
    import pyarrow.compute as pc

    options = pc.JoinOptions(null_handling="replace", null_replacement="NULL")
    columns = [_sql_constants(column) for column in batch.columns]
    tails = repeat_text(f"{number})".encode(), batch.num_rows)
    rows = pc.call_function("binary_join_element_wise", [*columns, tails, text_scalar(",")], options)
    pieces: list[bytes] = []
    size = 0
    for row in rows:
        text = b"(" + row.as_buffer().to_pybytes()
        if pieces and size + len(text) > _STATEMENT_BYTES:
            yield b",".join(pieces)
            pieces, size = [], 0
        pieces.append(text)
        size += len(text) + 1
    if pieces:
        yield b",".join(pieces)


def _sql_constants(column: pa.Array) -> pa.Array:
    """Each value as a SQL constant; null stays null."""
    import pyarrow.compute as pc
    import pyarrow.types as t

    text = to_text(column)
    kind = column.type
    if t.is_integer(kind) or t.is_boolean(kind) or t.is_floating(kind):
        return text  # a decimal needs quotes to be exact: 1E-8 without them is a DOUBLE
    if t.is_string(kind):
        text = pc.replace_substring(text, pattern="\\", replacement="\\\\")
        text = pc.replace_substring(text, pattern="'", replacement="''")
    opening = text_scalar("x'" if t.is_binary(kind) else "'")
    options = pc.JoinOptions(null_handling="emit_null")
    return pc.call_function(
        "binary_join_element_wise", [opening, text, text_scalar("'"), text_scalar("")], options
    )
