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
from ematix_flow.backends.base import RowCheck, StagedPart, Staging
from ematix_flow.backends.conform import conform
from ematix_flow.backends.payloads.base import Bad, Decoded, Decoder
from ematix_flow.backends.streams import MESSAGE_DDL, PARTITION, POSITION, TIMESTAMP, TOPIC
from ematix_flow.engine import tasks
from ematix_flow.engine.streams.few import Messages
from ematix_flow.engine.streams.incoming import Incoming
from ematix_flow.plan.spark_types import schema_ddl
from ematix_flow.spec.naming import own_name
from ematix_flow.spec.tables import ColumnSpec, TableSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ORIGIN = "origin"  # which of several sources a message is of
ARRIVAL = "arrival"  # in which order messages came that have no positions; sorts as a text
REASON = own_name("reason")
ORDER = (own_name("partition"), own_name("position"), own_name("at"))
LETTER_DDL = f"{MESSAGE_DDL}, reason string, stage string, {ARRIVAL} string"


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


@dataclass(frozen=True)
class Judge:
    """What a row has to fit: the table's columns, and what its target can hold at all. Picklable."""

    table: TableSpec
    check: RowCheck | None = None

    def fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as they are staged; RowRejected for one that does not fit."""
        fitting = conform(rows, self.table)
        if self.check is not None:
            self.check(fitting)
        return fitting


def stage_messages(
    messages: Incoming | Messages, decoders: ByOrigin, staging: Staging, judge: Judge, *, lenient: bool
) -> tuple[tuple[StagedPart, ...], Counts]:
    """Decode and write in the same task: the rows never enter Java. A few are the driver's own task.

    ``lenient``: a row that the judge refuses counts as bad; otherwise it stops the batch.
    """
    task = _stage_task(decoders, staging, judge, lenient)
    told = [json.loads(answer) for answer in tasks.answers(messages, task)]
    for answer in told:
        if "error" in answer:
            raise tasks.error_of(answer)
    counts = Counts()
    for answer in told:
        counts += Counts(**answer["counts"])
    return tuple(StagedPart(**answer["part"]) for answer in told), counts


def _stage_task(decoders: ByOrigin, staging: Staging, judge: Judge, lenient: bool) -> tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [Counts()]
        try:
            rows = _rows(batches, decoders, judge, lenient, found)
            part = staging.write(uuid.uuid4().hex, rows)
            faults.point("task.staged")
            told: dict[str, Any] = {"part": vars(part), "counts": vars(found[0])}
        except errors.FlowError as error:
            told = tasks.told(error)
        yield tasks.one_text(json.dumps(told))

    return task


def decoded_here(
    messages: Messages, decoders: ByOrigin, judge: Judge, *, lenient: bool
) -> tuple[list[pa.RecordBatch], Counts]:
    """What a few messages hold, in this process."""
    found = [Counts()]
    rows = list(_rows(messages, decoders, judge, lenient, found))
    return rows, found[0]


def _rows(
    batches: Iterable[pa.RecordBatch],
    decoders: ByOrigin,
    judge: Judge,
    lenient: bool,
    found: list[Counts],
) -> Iterator[pa.RecordBatch]:
    seen = 0
    for batch in batches:
        for own, read in decoders.decode(batch):
            decoded = fitting(read, judge) if lenient else read
            found[0] += counts_of(own, decoded)
            if decoded.rows.num_rows:
                yield conform(decoded.rows, judge.table, seen)
                seen += decoded.rows.num_rows


def fitting(decoded: Decoded, judge: Judge) -> Decoded:
    """Without the rows that the judge refuses, which are bad then, each with its reason."""
    import pyarrow as pa

    refused = dict(_refused(decoded.rows, judge, 0))
    if not refused:
        return decoded
    kept = pa.array([n for n in range(decoded.rows.num_rows) if n not in refused], pa.int64())
    bad = [Bad(decoded.taken[n].as_py(), reason, "write") for n, reason in refused.items()]
    return Decoded(decoded.rows.take(kept), decoded.taken.take(kept), (*decoded.bad, *bad), decoded.empty)


def _refused(rows: pa.RecordBatch, judge: Judge, first: int) -> Iterator[tuple[int, str]]:
    """The rows that do not fit, found by halves."""
    if not rows.num_rows:
        return
    try:
        judge.fitted(rows)
    except errors.RowRejected as error:
        if rows.num_rows == 1:
            yield first, error.what
            return
        middle = rows.num_rows // 2
        yield from _refused(rows.slice(0, middle), judge, first)
        yield from _refused(rows.slice(middle), judge, first + middle)


def counts_of(messages: pa.RecordBatch, decoded: Decoded) -> Counts:
    example = None
    if decoded.bad:
        first = decoded.bad[0]
        example = f"{described(messages, first.index)}: {first.reason}"
    return Counts(messages.num_rows, len(decoded.bad), decoded.empty, example)


def unreadable(counts: Counts) -> errors.UnreadableMessages:
    """What a stream stops with that neither drops nor puts aside."""
    return errors.UnreadableMessages(
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
    messages: Incoming,
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
    return messages.map(_decode_task(decoders, tuple(columns), ordered, strict), ddl)


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
            arrays += [column.take(decoded.taken) for column in _order(messages)]
        yield pa.RecordBatch.from_arrays(arrays, names=_names(columns, ordered))
    if decoded.bad:
        bad = len(decoded.bad)
        arrays = [pa.nulls(bad, c.type.arrow()) for c in columns]
        arrays.append(pa.array([one.reason for one in decoded.bad], pa.string()))
        if ordered:
            where = pa.array([one.index for one in decoded.bad], pa.int64())
            arrays += [column.take(where) for column in _order(messages)]
        yield pa.RecordBatch.from_arrays(arrays, names=_names(columns, ordered))


def _order(messages: pa.RecordBatch) -> list[pa.Array]:
    """What says which of two messages came later: place, position there, and the time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    moments = messages.column(TIMESTAMP)
    if ARRIVAL in messages.schema.names:
        return [pa.nulls(messages.num_rows, pa.string()), messages.column(ARRIVAL), moments]
    places = pc.binary_join_element_wise(
        messages.column(TOPIC), messages.column(PARTITION), "/", null_handling="replace", null_replacement=""
    )
    return [places, messages.column(POSITION), moments]


def _names(columns: Sequence[ColumnSpec], ordered: bool) -> list[str]:
    return [*(c.name for c in columns), REASON, *(ORDER if ordered else ())]


def readable(frame: DataFrame) -> DataFrame:
    """The payloads that are JSON objects with something in them: what columns are found in."""
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


def bad_messages(messages: Incoming, decoders: ByOrigin, judge: Judge | None = None) -> DataFrame:
    """Only the messages that cannot be read, as they came, each with its reason.

    With a judge also those whose rows it refuses.
    """
    return messages.map(_bad_task(decoders, judge), LETTER_DDL)


def _bad_task(decoders: ByOrigin, judge: Judge | None) -> tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for own, read in decoders.decode(batch):
                decoded = read if judge is None else fitting(read, judge)
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
