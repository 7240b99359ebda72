"""Messages made into rows inside Spark's tasks, and those that cannot be: counted, and found again.

Each batch is decoded as often as it is read; a decoder answers the same each time, so nothing is kept in
between. A message that cannot be read never stops a task: what becomes of it is the stream's policy.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow import errors, faults
from ematix_flow.backends.base import StagedPart, Staging
from ematix_flow.backends.conform import conform
from ematix_flow.backends.payloads.base import Decoded, Decoder
from ematix_flow.backends.streams import MESSAGE_DDL, PARTITION, POSITION, TIMESTAMP, TOPIC
from ematix_flow.engine import tasks
from ematix_flow.plan.spark_types import schema_ddl
from ematix_flow.spec.tables import ColumnSpec, TableSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ORIGIN = "origin"  # which of several sources a message is of
REASON = "_ematix_reason"
ORDER = ("_ematix_partition", "_ematix_position", "_ematix_at")
LETTER_DDL = f"{MESSAGE_DDL}, reason string"


@dataclass(frozen=True)
class Counts:
    """What became of a batch's messages."""

    read: int = 0
    bad: int = 0
    empty: int = 0
    example: str | None = None  # the first bad one, in words

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            self.bad + other.bad,
            self.empty + other.empty,
            self.example or other.example,
        )


@dataclass(frozen=True)
class ByOrigin:
    """The decoders of several sources; messages say by number which is theirs. Picklable."""

    decoders: tuple[Decoder, ...]

    def decode(self, messages: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, Decoded]]:
        """Each source's messages of the batch with what they decode to."""
        if len(self.decoders) == 1:
            yield messages, self.decoders[0].decode(messages)
            return
        import pyarrow.compute as pc

        origins = messages.column(messages.schema.get_field_index(ORIGIN))
        for number, decoder in enumerate(self.decoders):
            own = messages.filter(pc.equal(origins, number))
            if own.num_rows:
                yield own, decoder.decode(own)


def stage_messages(
    frame: DataFrame, decoders: ByOrigin, staging: Staging, table: TableSpec
) -> tuple[tuple[StagedPart, ...], Counts]:
    """Decode and write in the same task: the rows never enter Java."""
    answers = frame.mapInArrow(_stage_task(decoders, staging, table), tasks.ANSWER).collect()
    told = [json.loads(row["answer"]) for row in answers]
    for answer in told:
        if "error" in answer:
            raise tasks.error_of(answer)
    counts = Counts()
    for answer in told:
        counts += Counts(**answer["counts"])
    return tuple(StagedPart(**answer["part"]) for answer in told), counts


def _stage_task(decoders: ByOrigin, staging: Staging, table: TableSpec) -> tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [Counts()]
        try:
            part = staging.write(uuid.uuid4().hex, _rows(batches, decoders, table, found))
            faults.point("task.staged")
            told: dict[str, Any] = {"part": vars(part), "counts": vars(found[0])}
        except errors.FlowError as error:
            told = tasks.told(error)
        yield tasks.one_text(json.dumps(told))

    return task


def _rows(
    batches: Iterable[pa.RecordBatch], decoders: ByOrigin, table: TableSpec, found: list[Counts]
) -> Iterator[pa.RecordBatch]:
    seen = 0
    for batch in batches:
        for own, decoded in decoders.decode(batch):
            found[0] += counts_of(own, decoded)
            if decoded.rows.num_rows:
                yield conform(decoded.rows, table, seen)
                seen += decoded.rows.num_rows


def counts_of(messages: pa.RecordBatch, decoded: Decoded) -> Counts:
    example = None
    if decoded.bad:
        first = decoded.bad[0]
        example = f"{described(messages, first.index)}: {first.reason}"
    return Counts(messages.num_rows, len(decoded.bad), decoded.empty, example)


def unreadable(counts: Counts) -> errors.SourceFailed:
    """What a stream stops with that neither drops nor puts aside."""
    return errors.SourceFailed(
        f"{counts.bad:,} of {counts.read:,} messages cannot be read; the first is {counts.example}",
        state="the batch is not loaded; it comes again with the next start",
        next_step="transform_on_error='dlq' puts such messages aside, 'drop' leaves them out",
    )


def described(messages: pa.RecordBatch, index: int) -> str:
    """Where a message stands, in words."""
    one = messages.slice(index, 1).to_pylist()[0]
    words = [str(one[TOPIC])] if one.get(TOPIC) else []
    if one.get(PARTITION) is not None:
        words.append(f"partition {one[PARTITION]}")
    if one.get(POSITION) is not None:
        words.append(f"offset {one[POSITION]}")
    return " ".join(words) or "a message"


# ------------------------------------------------------------------ as a frame, for SQL to compute on


def decoded_frame(
    frame: DataFrame,
    decoders: ByOrigin,
    columns: Sequence[ColumnSpec],
    *,
    ordered: bool = False,
    strict: bool = False,
) -> DataFrame:
    """A row a message: its columns, and `REASON` where it could not be read.

    ``ordered`` adds where each one stands, for who must know which of two came last. With ``strict`` the
    first that cannot be read stops everything.
    """
    ddl = f"{schema_ddl(TableSpec(None, 'source', tuple(columns)))}, {REASON} string"
    if ordered:
        ddl += f", {ORDER[0]} string, {ORDER[1]} string, {ORDER[2]} timestamp"
    return frame.mapInArrow(_decode_task(decoders, tuple(columns), ordered, strict), ddl)


def _decode_task(
    decoders: ByOrigin, columns: tuple[ColumnSpec, ...], ordered: bool, strict: bool
) -> tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for own, decoded in decoders.decode(batch):
                if strict and decoded.bad:
                    raise unreadable(counts_of(own, decoded))
                yield from _with_reasons(own, decoded, columns, ordered)

    return task


def _with_reasons(
    messages: pa.RecordBatch, decoded: Decoded, columns: tuple[ColumnSpec, ...], ordered: bool
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    table = TableSpec(None, "source", tuple(ColumnSpec(c.name, c.type, nullable=True) for c in columns))
    good = decoded.rows.num_rows
    if good:
        arrays = [*conform(decoded.rows, table).columns, pa.nulls(good, pa.string())]
        if ordered:
            arrays += [messages.column(name).take(decoded.taken) for name in (PARTITION, POSITION, TIMESTAMP)]
        yield pa.RecordBatch.from_arrays(arrays, names=_names(columns, ordered))
    if decoded.bad:
        bad = len(decoded.bad)
        arrays = [pa.nulls(bad, c.type.arrow()) for c in columns]
        arrays.append(pa.array([one.reason for one in decoded.bad], pa.string()))
        if ordered:
            where = pa.array([one.index for one in decoded.bad], pa.int64())
            arrays += [messages.column(name).take(where) for name in (PARTITION, POSITION, TIMESTAMP)]
        yield pa.RecordBatch.from_arrays(arrays, names=_names(columns, ordered))


def _names(columns: Sequence[ColumnSpec], ordered: bool) -> list[str]:
    return [*(c.name for c in columns), REASON, *(ORDER if ordered else ())]


# ------------------------------------------------------------------ what could not be read


def bad_messages(frame: DataFrame, decoders: ByOrigin) -> DataFrame:
    """Only the messages that cannot be read, as they came, each with its reason."""
    return frame.mapInArrow(_bad_task(decoders), LETTER_DDL)


def _bad_task(decoders: ByOrigin) -> tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for own, decoded in decoders.decode(batch):
                if decoded.bad:
                    where = pa.array([one.index for one in decoded.bad], pa.int64())
                    names = [n.split()[0] for n in MESSAGE_DDL.split(", ")]
                    arrays = [own.column(name).take(where) for name in names]
                    arrays.append(pa.array([one.reason for one in decoded.bad], pa.string()))
                    yield pa.RecordBatch.from_arrays(arrays, names=[*names, "reason"])

    return task


def each_row(frame: DataFrame, take: Callable[[Sequence[Mapping[str, Any]]], None], size: int = 500) -> int:
    """Bring a frame's rows to the driver a few at a time; how many there were."""
    total, waiting = 0, []
    for row in frame.toLocalIterator():
        waiting.append(row.asDict())
        if len(waiting) >= size:
            take(waiting)
            total, waiting = total + len(waiting), []
    if waiting:
        take(waiting)
    return total + len(waiting)
