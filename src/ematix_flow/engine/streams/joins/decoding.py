"""Decodes the messages of both sources of a join into one frame: columns ``l0``… of the left, ``r0``… of the
right source. Those of the other source are null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ematix_flow.engine.execution import spark_tasks
from ematix_flow.engine.spark.column_types import to_spark
from ematix_flow.engine.streams.decoding import (
    REASON,
    SourceDecoders,
    count_messages,
    rows_with_reasons,
    unreadable_error,
)
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.engine.streams.message_names import ORIGIN
from ematix_flow.engine.streams.state.stateful_operator import SOURCE
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

LETTERS = ("l", "r")  # of the left and of the right source


def side_columns(letter: str, columns: Sequence[ColumnSpec]) -> list[str]:
    """The names of a side's columns in the frame and in the state."""
    return [f"{letter}{n}" for n in range(len(columns))]


def decode_sides(
    messages: IncomingBatch,
    decoders: SourceDecoders,
    numbers: tuple[int, int],
    sides: Sequence[Sequence[ColumnSpec]],
    *,
    strict: bool,
) -> DataFrame:
    """One row for each message: the columns of its side, `REASON` if it cannot be decoded, and `SOURCE`.

    ``numbers`` are those of the left and of the right source. With ``strict`` the first bad message fails the
    task.
    """
    named = [
        f"{name} {to_spark(column.type)}"
        for letter, columns in zip(LETTERS, sides, strict=True)
        for name, column in zip(side_columns(letter, columns), columns, strict=True)
    ]
    ddl = ", ".join([*named, f"{REASON} string", f"{SOURCE} int"])
    plain = (tuple(sides[0]), tuple(sides[1]))
    return messages.map(_decode_task(decoders, numbers, plain, strict), ddl)


def _decode_task(
    decoders: SourceDecoders,
    numbers: tuple[int, int],
    sides: tuple[tuple[ColumnSpec, ...], tuple[ColumnSpec, ...]],
    strict: bool,
) -> spark_tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for own, decoded in decoders.decode(batch):
                if strict and decoded.bad:
                    raise unreadable_error(count_messages(own, decoded))
                number = own.column(own.schema.get_field_index(ORIGIN))[0].as_py()
                place = numbers.index(number)
                for rows in rows_with_reasons(own, decoded, sides[place], False):
                    yield _as_joined_frame(rows, number, place, sides)

    return task


def _as_joined_frame(
    rows: pa.RecordBatch,
    number: int,
    place: int,
    sides: tuple[tuple[ColumnSpec, ...], tuple[ColumnSpec, ...]],
) -> pa.RecordBatch:
    """The rows of one side with nulls for the other side."""
    import pyarrow as pa

    count = rows.num_rows
    own, reasons = rows.columns[:-1], rows.columns[-1]
    others = [pa.nulls(count, column.type.arrow()) for column in sides[1 - place]]
    arrays = [*(own if place == 0 else others), *(others if place == 0 else own), reasons]
    arrays.append(pa.repeat(pa.scalar(number, pa.int32()), count))
    names = [*side_columns("l", sides[0]), *side_columns("r", sides[1]), REASON, SOURCE]
    return pa.RecordBatch.from_arrays(arrays, names=names)
