"""Decodes messages into rows inside Spark's tasks; counts and finds those that cannot be decoded.

A batch is decoded each time it is read. Decoders are deterministic, so nothing is cached in between. A
message that cannot be decoded never stops a task: the stream's error policy decides what happens to it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow import errors, fault_points
from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import RowCheck, StagedPart, Staging
from ematix_flow.backends.messages.base import MESSAGE_DDL, PARTITION, POSITION, TIMESTAMP, TOPIC
from ematix_flow.backends.payloads.base import BadMessage, DecodedBatch, Decoder
from ematix_flow.engine.execution import spark_tasks
from ematix_flow.engine.spark.column_types import schema_ddl
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.engine.streams.message_names import ARRIVAL, ORIGIN, with_message_names
from ematix_flow.engine.streams.small_batches import Messages
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import ColumnSpec, TableSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

REASON = internal_name("reason")
ORDER = (internal_name("partition"), internal_name("position"), internal_name("at"))
LETTER_DDL = f"{MESSAGE_DDL}, reason string, stage string, {ARRIVAL} string"


@dataclass(frozen=True)
class MessageCounts:
    """How many messages of a batch were read, bad and empty."""

    read: int = 0
    bad: int = 0
    empty: int = 0
    example: str | None = None  # describes the first bad message

    def __add__(self, other: MessageCounts) -> MessageCounts:
        return MessageCounts(
            self.read + other.read,
            self.bad + other.bad,
            self.empty + other.empty,
            self.example or other.example,
        )


@dataclass(frozen=True)
class SourceDecoders:
    """A decoder for each source. Each message carries the number of its source. Picklable.

    With ``names_messages`` each decoded row has a column for the message that it comes from.
    """

    decoders: tuple[Decoder, ...]
    names_messages: bool = False

    def decode(self, messages: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, DecodedBatch]]:
        """The messages of each source together with their decoded rows."""
        for decoder, own in self.split(messages):
            decoded = decoder.decode(own)
            yield own, with_message_names(own, decoded) if self.names_messages else decoded

    def split(self, messages: pa.RecordBatch) -> Iterator[tuple[Decoder, pa.RecordBatch]]:
        """The messages of each source and the decoder for them."""
        if len(self.decoders) == 1:
            yield self.decoders[0], messages
            return
        import pyarrow.compute as pc

        origins = messages.column(messages.schema.get_field_index(ORIGIN))
        for number, decoder in enumerate(self.decoders):
            own = messages.filter(pc.equal(origins, number))
            if own.num_rows:
                yield decoder, own


@dataclass(frozen=True)
class RowValidator:
    """Checks rows against the table's columns and against what the target can store. Picklable."""

    table: TableSpec
    check: RowCheck | None = None

    def conform_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows cast for staging. Raises RowRejected for a row that does not fit."""
        fitting = cast_batch(rows, self.table)
        if self.check is not None:
            self.check(fitting)
        return fitting


def stage_messages(
    messages: IncomingBatch | Messages,
    decoders: SourceDecoders,
    staging: Staging,
    validator: RowValidator,
    *,
    lenient: bool,
) -> tuple[tuple[StagedPart, ...], MessageCounts]:
    """Decode and stage in one task, so that the rows never enter Java. A small batch is staged in the driver.

    With ``lenient`` a rejected row counts as bad; otherwise it stops the batch.
    """
    task = _stage_task(decoders, staging, validator, lenient)
    answers = [json.loads(answer) for answer in spark_tasks.run_tasks(messages, task)]
    for answer in answers:
        if "error" in answer:
            raise spark_tasks.decode_error(answer)
    counts = MessageCounts()
    for answer in answers:
        counts += MessageCounts(**answer["counts"])
    return tuple(StagedPart(**answer["part"]) for answer in answers), counts


def _stage_task(
    decoders: SourceDecoders, staging: Staging, validator: RowValidator, lenient: bool
) -> spark_tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [MessageCounts()]
        try:
            rows = _decode_rows(batches, decoders, validator, lenient, found)
            part = staging.write(uuid.uuid4().hex, rows)
            fault_points.point("task.staged")
            answer: dict[str, Any] = {"part": vars(part), "counts": vars(found[0])}
        except errors.FlowError as error:
            answer = spark_tasks.encode_outcome(error)
        yield spark_tasks.text_batch(json.dumps(answer))

    return task


def decode_in_driver(
    messages: Messages, decoders: SourceDecoders, validator: RowValidator, *, lenient: bool
) -> tuple[list[pa.RecordBatch], MessageCounts]:
    """Decode a small batch in this process."""
    found = [MessageCounts()]
    rows = list(_decode_rows(messages, decoders, validator, lenient, found))
    return rows, found[0]


def _decode_rows(
    batches: Iterable[pa.RecordBatch],
    decoders: SourceDecoders,
    validator: RowValidator,
    lenient: bool,
    counts: list[MessageCounts],
) -> Iterator[pa.RecordBatch]:
    seen = 0
    for batch in batches:
        for own, read in decoders.decode(batch):
            decoded = without_rejected_rows(read, validator) if lenient else read
            counts[0] += count_messages(own, decoded)
            if decoded.rows.num_rows:
                yield cast_batch(decoded.rows, validator.table, seen)
                seen += decoded.rows.num_rows


def without_rejected_rows(decoded: DecodedBatch, validator: RowValidator) -> DecodedBatch:
    """Move the rows that do not fit to the bad messages, each with its reason."""
    import pyarrow as pa

    refused = dict(_find_rejected_rows(decoded.rows, validator, 0))
    if not refused:
        return decoded
    kept = pa.array([n for n in range(decoded.rows.num_rows) if n not in refused], pa.int64())
    bad = [BadMessage(decoded.indexes[n].as_py(), reason, "write") for n, reason in refused.items()]
    return DecodedBatch(
        decoded.rows.take(kept), decoded.indexes.take(kept), (*decoded.bad, *bad), decoded.empty_count
    )


def _find_rejected_rows(
    rows: pa.RecordBatch, validator: RowValidator, first: int
) -> Iterator[tuple[int, str]]:
    """The rows that do not fit, found by bisection."""
    if not rows.num_rows:
        return
    try:
        validator.conform_rows(rows)
    except errors.RowRejected as error:
        if rows.num_rows == 1:
            yield first, error.what
            return
        middle = rows.num_rows // 2
        yield from _find_rejected_rows(rows.slice(0, middle), validator, first)
        yield from _find_rejected_rows(rows.slice(middle), validator, first + middle)


def count_messages(messages: pa.RecordBatch, decoded: DecodedBatch) -> MessageCounts:
    example = None
    if decoded.bad:
        first = decoded.bad[0]
        example = f"{describe_message(messages, first.index)}: {first.reason}"
    return MessageCounts(messages.num_rows, len(decoded.bad), decoded.empty_count, example)


def unreadable_error(counts: MessageCounts) -> errors.UnreadableMessages:
    """The error of a stream whose policy is to stop at bad messages."""
    return errors.UnreadableMessages(
        f"{counts.bad:,} of {counts.read:,} messages cannot be read; the first is {counts.example}",
        state="the batch is not loaded; it comes again with the next start",
        next_step="transform_on_error='dlq' puts such messages aside, 'drop' leaves them out",
    )


def describe_message(messages: pa.RecordBatch, index: int) -> str:
    """Topic, partition and offset of a message, for a person."""
    one = messages.slice(index, 1).to_pylist()[0]
    words = [str(one[TOPIC])] if one.get(TOPIC) else []
    if one.get(PARTITION) is not None:
        words.append(f"partition {one[PARTITION]}")
    if one.get(POSITION) is not None:
        words.append(f"offset {one[POSITION]}")
    return " ".join(words) or "a message"


# ------------------------------------------------------------------ as a frame, for SQL to compute on


def decode_frame(
    messages: IncomingBatch,
    decoders: SourceDecoders,
    columns: Sequence[ColumnSpec],
    *,
    ordered: bool = False,
    strict: bool = False,
    source_column: str | None = None,
) -> DataFrame:
    """One row for each message: its columns, and `REASON` if it cannot be decoded.

    ``source_column`` names a column for the number of the message's source. ``ordered`` adds the columns that
    tell which of two messages came last. With ``strict`` the first bad message fails the task.
    """
    ddl = f"{schema_ddl(TableSpec(None, 'source', tuple(columns)))}, {REASON} string"
    if ordered:
        ddl += f", {ORDER[0]} string, {ORDER[1]} string, {ORDER[2]} timestamp"
    if source_column is not None:
        ddl += f", {source_column} int"
    return messages.map(_decode_task(decoders, tuple(columns), ordered, strict, source_column), ddl)


def _decode_task(
    decoders: SourceDecoders,
    columns: tuple[ColumnSpec, ...],
    ordered: bool,
    strict: bool,
    source_column: str | None,
) -> spark_tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for own, decoded in decoders.decode(batch):
                if strict and decoded.bad:
                    raise unreadable_error(count_messages(own, decoded))
                rows = rows_with_reasons(own, decoded, columns, ordered)
                yield from rows if source_column is None else _with_source(own, rows, source_column)

    return task


def rows_with_reasons(
    messages: pa.RecordBatch, decoded: DecodedBatch, columns: tuple[ColumnSpec, ...], ordered: bool
) -> Iterator[pa.RecordBatch]:
    """The decoded rows, and a row of nulls with `REASON` for each message that cannot be decoded."""
    import pyarrow as pa

    table = TableSpec(None, "source", tuple(ColumnSpec(c.name, c.type, nullable=True) for c in columns))
    good = decoded.rows.num_rows
    if good:
        arrays = [*cast_batch(decoded.rows, table).columns, pa.nulls(good, pa.string())]
        if ordered:
            arrays += [column.take(decoded.indexes) for column in _order_columns(messages)]
        yield pa.RecordBatch.from_arrays(arrays, names=_column_names(columns, ordered))
    if decoded.bad:
        bad = len(decoded.bad)
        arrays = [pa.nulls(bad, c.type.arrow()) for c in columns]
        arrays.append(pa.array([one.reason for one in decoded.bad], pa.string()))
        if ordered:
            where = pa.array([one.index for one in decoded.bad], pa.int64())
            arrays += [column.take(where) for column in _order_columns(messages)]
        yield pa.RecordBatch.from_arrays(arrays, names=_column_names(columns, ordered))


def _with_source(
    messages: pa.RecordBatch, rows: Iterable[pa.RecordBatch], name: str
) -> Iterator[pa.RecordBatch]:
    """The rows with the number of their source. All messages are of one source."""
    import pyarrow as pa

    number = messages.column(ORIGIN)[0].as_py()
    for batch in rows:
        numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
        yield pa.RecordBatch.from_arrays([*batch.columns, numbers], names=[*batch.schema.names, name])


def _order_columns(messages: pa.RecordBatch) -> list[pa.Array]:
    """The columns that tell which of two messages came later: partition, position, time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    moments = messages.column(TIMESTAMP)
    if ARRIVAL in messages.schema.names:
        return [pa.nulls(messages.num_rows, pa.string()), messages.column(ARRIVAL), moments]
    places = pc.binary_join_element_wise(
        messages.column(TOPIC), messages.column(PARTITION), "/", null_handling="replace", null_replacement=""
    )
    return [places, messages.column(POSITION), moments]


def _column_names(columns: Sequence[ColumnSpec], ordered: bool) -> list[str]:
    return [*(c.name for c in columns), REASON, *(ORDER if ordered else ())]


def readable_payloads(frame: DataFrame) -> DataFrame:
    """The payloads that are JSON objects with at least one field."""
    return frame.select("value").mapInArrow(_readable_task, "value binary")


def _readable_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import orjson
    import pyarrow as pa

    for batch in batches:
        kept = []
        for value in batch.column(0).to_pylist():
            try:
                found = orjson.loads(value) if value else None
            except orjson.JSONDecodeError:
                continue
            if isinstance(found, dict) and found:
                kept.append(value)
        yield pa.RecordBatch.from_arrays([pa.array(kept, pa.binary())], names=["value"])


# ------------------------------------------------------------------ what could not be read


def find_bad_messages(
    messages: IncomingBatch, decoders: SourceDecoders, validator: RowValidator | None = None
) -> DataFrame:
    """The unchanged messages that cannot be decoded, each with its reason.

    With a validator, also the messages whose rows it rejects.
    """
    return messages.map(_bad_task(decoders, validator), LETTER_DDL)


def _bad_task(decoders: SourceDecoders, validator: RowValidator | None) -> spark_tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for own, read in decoders.decode(batch):
                decoded = read if validator is None else without_rejected_rows(read, validator)
                if decoded.bad:
                    where = pa.array([one.index for one in decoded.bad], pa.int64())
                    names = [n.split()[0] for n in MESSAGE_DDL.split(", ")]
                    arrays = [own.column(name).take(where) for name in names]
                    arrays.append(pa.array([one.reason for one in decoded.bad], pa.string()))
                    arrays.append(pa.array([one.stage for one in decoded.bad], pa.string()))
                    spooled = ARRIVAL in own.schema.names
                    arrays.append(
                        own.column(ARRIVAL).take(where) if spooled else pa.nulls(len(where), pa.string())
                    )
                    yield pa.RecordBatch.from_arrays(arrays, names=[*names, "reason", "stage", ARRIVAL])

    return task


def visit_rows(frame: DataFrame, take: Callable[[Sequence[Mapping[str, Any]]], None], size: int = 500) -> int:
    """Pass a frame's rows to ``take`` in small chunks. Returns the number of rows."""
    total, waiting = 0, []
    for row in frame.toLocalIterator():
        waiting.append(row.asDict())
        if len(waiting) >= size:
            take(waiting)
            total, waiting = total + len(waiting), []
    if waiting:
        take(waiting)
    return total + len(waiting)
