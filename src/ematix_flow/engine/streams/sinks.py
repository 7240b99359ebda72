"""The sinks of a stream: a table, loaded by staging and a transaction, or a broker, by confirmed messages.

Staging does all work that can be discarded; only `commit` changes the target. A sink recognises a batch that
it already committed by its key, and changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow import errors, fault_points
from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import (
    STREAM_BATCHES_KEPT,
    BatchTarget,
    Load,
    LoadResult,
    StagedPart,
    StagedRows,
    Staging,
    TablePlan,
)
from ematix_flow.backends.messages.base import BatchToken, MessageTarget, Sender, outgoing_schema
from ematix_flow.backends.payloads.base import Encoder
from ematix_flow.engine.execution import spark_tasks
from ematix_flow.engine.execution.progress import watch_progress
from ematix_flow.engine.streams.decoding import (
    MessageCounts,
    RowValidator,
    SourceDecoders,
    decode_in_driver,
    stage_messages,
)
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.engine.streams.small_batches import Messages
from ematix_flow.plan.stream_definition import StreamTargetPlan
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.spec.tables import TableSpec
from ematix_flow.state.file_locks import hold_file_lock
from ematix_flow.state.state_root import state_root
from ematix_flow.state.times import utc_now

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


_log = logging.getLogger(__name__)
_SENDER_SECONDS = 3_600.0  # brokers close idle connections
_TIDY_AFTER = 1_000  # batches between two clean-ups of the ledger
NO_MESSAGES: Mapping[str, str] = {}


@dataclass(frozen=True)
class BatchName:
    """Identifies a batch of a query in ledgers, with the positions that it ends at."""

    pipeline: str
    query: str
    number: int
    position: str | None
    started_at: str | None = None  # the positions that the batch begins at
    kind: str = "stream"  # or "dlq": dead letters that are replayed
    tick: int = 0  # numbers the loads without new messages that follow the batch

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.query}:{self._label}"

    @property
    def run_id(self) -> uuid.UUID:
        """The run id of the batch's rows and ledger entry. A replayed batch has the same id."""
        return uuid.uuid5(uuid.UUID(self.query), self._label)

    @property
    def _label(self) -> str:
        return f"{self.number}.{self.tick}" if self.tick else str(self.number)


class StreamSink(ABC):
    """One target of a running stream."""

    plan: StreamTargetPlan
    keeps_newest_replay_only = False  # `has_replay` no longer finds a replay when another one has come

    @property
    def label(self) -> str:
        return self.plan.target.label

    @abstractmethod
    def stage_rows(self, batch: BatchName, rows: DataFrame) -> None: ...

    @abstractmethod
    def stage_messages(
        self, batch: BatchName, messages: IncomingBatch | Messages, decoders: SourceDecoders, *, lenient: bool
    ) -> MessageCounts:
        """Decode and stage in the same tasks. With ``lenient`` a rejected row counts as bad."""

    @abstractmethod
    def row_validator(self) -> RowValidator:
        """The check that rows must pass before they are staged."""

    @abstractmethod
    def rehearse(self, batch: BatchName, *, enforced: bool = True) -> None:
        """Let the target check the staged rows without changing anything.

        Without ``enforced`` no expectation fails them: they are only a part of the batch.
        """

    @abstractmethod
    def commit(self, batch: BatchName, dead_letters: Mapping[str, str] = NO_MESSAGES) -> LoadResult:
        """Load the staged rows, without those of messages that are dead letters.

        ``dead_letters`` has the rule that each of them fails. Raises MessagesFail for further ones.
        """

    @abstractmethod
    def has_replay(self, batch: BatchName) -> bool:
        """Whether the target has the rows of this replay of dead letters."""

    def discard(self) -> None:
        """Discard the staged rows."""
        return

    def close(self) -> None:
        """Close what stays open between two batches."""
        return


class TableSink(StreamSink):
    """A table of a database, a lake, or files."""

    def __init__(self, plan: StreamTargetPlan, target: BatchTarget) -> None:
        self.plan = plan
        self.target = target.with_partitions(plan.target.partition_by).with_files(plan.target.files)
        self._load_plan = plan.load
        self._staging: Staging | None = None
        self._parts: tuple[StagedPart, ...] = ()
        self._load: Load | None = None
        self._commits = 0

    @property
    def table(self) -> TableSpec:
        return self.plan.table

    def prepare(self, pipeline: str, *, sweep: bool) -> list[str]:
        """Create the control tables. With ``sweep`` also drop the staging of crashed runs."""
        self.target.change_table(self.table, TablePlan())
        return self.target.sweep_staging(pipeline, self.label) if sweep else []

    def stage_rows(self, batch: BatchName, rows: DataFrame) -> None:
        staging = self._open_staging(batch)
        with watch_progress(lambda _: None) as folder:
            self._parts = spark_tasks.stage_frame(rows, staging, self._load_plan.staged, folder)
        fault_points.point("staging.loaded")

    def stage_messages(
        self, batch: BatchName, messages: IncomingBatch | Messages, decoders: SourceDecoders, *, lenient: bool
    ) -> MessageCounts:
        staging = self._open_staging(batch)
        self._parts, counts = stage_messages(
            messages, decoders, staging, self.row_validator(), lenient=lenient
        )
        fault_points.point("staging.loaded")
        return counts

    def stage_batches(self, batch: BatchName, rows: Sequence[pa.RecordBatch]) -> None:
        """Stage rows of this process."""
        staging, staged = self._open_staging(batch), self._load_plan.staged
        self._parts = (staging.write(uuid.uuid4().hex, (cast_batch(part, staged) for part in rows)),)
        fault_points.point("task.staged")
        fault_points.point("staging.loaded")

    def expect_no_truncates(self) -> None:
        """The staged changes have no truncate, so that the load need not look at the whole table."""
        assert self._load is not None
        plan = self._load.plan
        assert plan.matching.changes is not None
        changes = replace(plan.matching.changes, truncates=False)
        matching = replace(plan.matching, changes=changes)
        self._load = replace(self._load, plan=replace(plan, matching=matching))

    def row_validator(self) -> RowValidator:
        staged = self._load_plan.staged
        return RowValidator(staged, self.target.row_check(staged))

    def rehearse(self, batch: BatchName, *, enforced: bool = True) -> None:
        assert self._load is not None and self._staging is not None
        plan = self._load.plan
        if plan.gate is not None and not enforced:
            plan = replace(plan, gate=replace(plan.gate, enforced=False))
        if any(part.rows for part in self._parts):
            load = replace(self._load, plan=plan, dry_run=True)
            self.target.apply(load, StagedRows(self._staging, self._parts))

    def _open_staging(self, batch: BatchName) -> Staging:
        self.discard()
        self._load = self._build_load(batch)
        self._staging = self.target.create_staging(self._load, self._load_plan.staged.arrow_schema())
        fault_points.point("staging.created")
        return self._staging

    def _build_load(self, batch: BatchName) -> Load:
        return Load(
            pipeline=batch.pipeline,
            target=self.label,
            plan=self._load_plan,
            run_id=batch.run_id,
            loaded_at=utc_now(),
            batch_key=batch.key,
            positions=(batch.started_at, batch.position) if batch.position is not None else None,
        )

    def commit(self, batch: BatchName, dead_letters: Mapping[str, str] = NO_MESSAGES) -> LoadResult:
        assert self._load is not None and self._staging is not None
        if not any(part.rows for part in self._parts):
            self.discard()
            return LoadResult()
        load = replace(self._load, dead_letters=dead_letters)
        applied = self.target.apply(load, StagedRows(self._staging, self._parts))
        if not applied.duplicate:  # which may return before it changes a table
            self._load_plan = replace(self._load_plan, table_plan=TablePlan(), quarantine_plan=TablePlan())
        self._commits += 1
        if self._commits % _TIDY_AFTER == 0:
            self._trim_ledger(batch.pipeline)
        self.discard()
        return applied

    def has_replay(self, batch: BatchName) -> bool:
        return bool(self.target.ledger(batch.pipeline, self.label, run_id=str(batch.run_id), limit=1))

    def _trim_ledger(self, pipeline: str) -> None:
        """Delete old ledger entries. The newest stay, because they hold the stream's position."""
        try:
            self.target.forget_batches(pipeline, self.label, utc_now() - STREAM_BATCHES_KEPT)
        except errors.FlowError as error:  # the batch itself is committed
            _log.warning("old entries of the ledger of %s stay: %s", self.label, error.what)

    def discard(self) -> None:
        if self._staging is not None:
            staging, self._staging = self._staging, None
            self._parts, self._load = (), None
            self.target.drop_staging(staging)
            fault_points.point("staging.dropped")


class MessageSink(StreamSink):
    """A broker. Without transactions a replayed batch is sent again."""

    def __init__(
        self, plan: StreamTargetPlan, target: MessageTarget, sender: Sender, encoder: Encoder, once: bool
    ) -> None:
        self.plan, self.target, self.sender, self.encoder, self.once = plan, target, sender, encoder, once
        self.keeps_newest_replay_only = once
        self._rows: DataFrame | Messages | None = None
        self._kept: Sender | None = None  # the sender of this process, while batches are small
        self._used = 0.0

    def stage_rows(self, batch: BatchName, rows: DataFrame) -> None:
        self._rows = rows

    def stage_messages(
        self, batch: BatchName, messages: IncomingBatch | Messages, decoders: SourceDecoders, *, lenient: bool
    ) -> MessageCounts:
        """Decode a small batch here. A large batch is decoded as a frame when it is sent."""
        assert isinstance(messages, Sequence)
        self._rows, counts = decode_in_driver(messages, decoders, self.row_validator(), lenient=lenient)
        return counts

    def row_validator(self) -> RowValidator:
        return RowValidator(self.plan.table, _SendCheck(self.plan, self.sender, self.encoder))

    def rehearse(self, batch: BatchName, *, enforced: bool = True) -> None:
        assert self._rows is not None
        for text in spark_tasks.run_tasks(self._rows, _check_task(self.row_validator())):
            spark_tasks.raise_task_error(text)

    def commit(self, batch: BatchName, dead_letters: Mapping[str, str] = NO_MESSAGES) -> LoadResult:
        assert self._rows is not None
        token = BatchToken(batch.pipeline, self.label, batch.key, batch.position) if self.once else None
        rows, self._rows = self._rows, None
        idle = time.monotonic() - self._used
        sender, self._kept = self._kept if idle < _SENDER_SECONDS else None, None
        if isinstance(rows, Sequence):
            sender = sender or self.sender.keep_open()
        else:
            sender = self.sender
            rows = rows if token is None else rows.coalesce(1)  # one transaction
        sent = read = 0
        for text in spark_tasks.run_tasks(rows, _send_task(self.plan, sender, self.encoder, token)):
            answer = json.loads(text)
            if "error" in answer:
                raise spark_tasks.decode_error(answer)
            sent, read = sent + answer["sent"], read + answer["rows"]
        if sender is not self.sender:
            self._kept, self._used = sender, time.monotonic()
        fault_points.point("stream.sent")
        is_duplicate = token is not None and read > 0 and sent == 0
        return LoadResult(RowCounts(read=read, inserted=sent), duplicate=is_duplicate)

    def has_replay(self, batch: BatchName) -> bool:
        last = self.target.last_token(batch.pipeline, self.label, replays=True) if self.once else None
        return last is not None and last[0] == batch.key

    def close(self) -> None:
        self._kept = None


@contextmanager
def lock_on_this_machine(pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
    """Lock a broker's target with a file, because brokers have no locks. Works on this machine only."""
    with hold_file_lock(state_root(os.environ) / "locks", pipeline, target, str(run_id)):
        yield


def _send_task(
    plan: StreamTargetPlan, sender: Sender, encoder: Encoder, token: BatchToken | None
) -> spark_tasks.ArrowFunction:
    table, target = plan.table, plan.target
    names = (target.message_key_column, target.headers_column, target.partition_column)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [0]
        try:
            sent = sender.send(_encode_messages(batches, table, encoder, names, rows), token)
            answer: dict[str, Any] = {"sent": sent, "rows": rows[0]}
        except errors.FlowError as error:
            answer = spark_tasks.encode_outcome(error)
        yield spark_tasks.text_batch(json.dumps(answer))

    return task


@dataclass(frozen=True)
class _SendCheck:
    """Rejects rows that cannot be encoded as a message, or whose message the broker would not accept."""

    plan: StreamTargetPlan
    sender: Sender
    encoder: Encoder

    def __call__(self, rows: pa.RecordBatch) -> None:
        target = self.plan.target
        names = (target.message_key_column, target.headers_column, target.partition_column)
        for messages in _encode_messages([rows], self.plan.table, self.encoder, names, [0]):
            self.sender.check(messages)


def _check_task(validator: RowValidator) -> spark_tasks.ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        answer: dict[str, Any] = {}
        try:
            for batch in batches:
                validator.conform_rows(batch)
        except errors.FlowError as error:
            answer = spark_tasks.encode_outcome(error)
        yield spark_tasks.text_batch(json.dumps(answer))

    return task


def _encode_messages(
    batches: Iterable[pa.RecordBatch],
    table: TableSpec,
    encoder: Encoder,
    names: tuple[str | None, str | None, str | None],
    rows: list[int],
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    key, headers, partition = names
    # columns that only route a message are not part of it
    value_columns = [column.name for column in table.columns if column.name not in (headers, partition)]
    for batch in batches:
        fitting = cast_batch(batch, table, rows[0])
        rows[0] += batch.num_rows
        empty = batch.num_rows

        def column(
            name: str | None, wanted: pa.DataType, fitting: Any = fitting, empty: int = empty
        ) -> pa.Array:
            return pa.nulls(empty, wanted) if name is None else _cast_array(fitting.column(name), wanted)

        values = encoder.encode(fitting.select(value_columns))
        schema = outgoing_schema()
        yield pa.RecordBatch.from_arrays(
            [
                values,
                column(key, pa.binary()),
                column(partition, pa.int32()),
                column(headers, pa.string()),
            ],
            schema=schema,
        )


def _cast_array(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if array.type == wanted:
        return array
    return array.cast(wanted) if wanted != pa.binary() else array.cast(pa.string()).cast(pa.binary())
