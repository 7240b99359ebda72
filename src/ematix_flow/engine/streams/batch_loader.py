"""One batch of a stream, from what Spark brought to the commit in every target.

The loader stages all rows, writes messages that cannot be decoded to the dead letters, commits each target in
the declared order, and then reports the positions to the sources. A replayed batch takes the same way again;
a target that already holds it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ematix_flow import fault_points
from ematix_flow.backends.gated_target import MessagesFail
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.stream_columns import run_transform_sql
from ematix_flow.engine.streams.bad_message_search import find_rejected_messages, is_row_error
from ematix_flow.engine.streams.batch_frames import (
    CountMessages,
    count_rows,
    refuse_nulls,
)
from ematix_flow.engine.streams.batch_report import BatchReport, DeadLetters, RejectedMessage
from ematix_flow.engine.streams.change_staging import stage_changes
from ematix_flow.engine.streams.decoding import (
    REASON,
    MessageCounts,
    SourceDecoders,
    decode_frame,
    find_bad_messages,
    unreadable_error,
    visit_rows,
)
from ematix_flow.engine.streams.failing_messages import find_known_failing, visit_failing_messages
from ematix_flow.engine.streams.incoming_batch import IncomingBatch, driver_batch
from ematix_flow.engine.streams.joins.decoding import decode_sides
from ematix_flow.engine.streams.registry_schemas import KnownSchemas
from ematix_flow.engine.streams.sink_rows import keeps_last_of_key, rows_for_sink, run_sql_by_source
from ematix_flow.engine.streams.sinks import NO_MESSAGES, BatchName, StreamSink, TableSink
from ematix_flow.engine.streams.small_batches import Messages
from ematix_flow.engine.streams.state.stateful_operator import SOURCE, StatefulOperator
from ematix_flow.errors import FlowError, RowRejected
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import MESSAGE, ColumnSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TakeRows = Callable[[Sequence[Mapping[str, Any]]], None]

_LETTERS_AT_ONCE = 1_000
_MAX_TRIES = 5  # of one batch: a target may reject a row that it accepted in the try before


class BatchLoader:
    """Loads batches of one query into its sinks. Used by one thread at a time."""

    def __init__(
        self,
        plan: StreamPlan,
        sinks: Sequence[StreamSink],
        decoders: SourceDecoders | None,
        connections: Connections,
        letters: DeadLetters | None,
        lookups: Callable[[], Mapping[str, str]],
        note: Callable[[str], None],
        schemas: KnownSchemas | None = None,
        operator: StatefulOperator | None = None,
    ) -> None:
        """``schemas`` are the registry's schemas that the plan was made with, if it uses a registry."""
        self.plan, self.sinks, self.decoders, self.schemas = plan, sinks, decoders, schemas
        self.connections, self.dead_letters, self.lookups, self.note = connections, letters, lookups, note
        self.operator = operator
        self._may_repeat = True  # the next batch may be one that was begun before
        self.before_commit: Callable[[], None] = lambda: None  # called before each try of a commit

    @property
    def spec(self) -> StreamSpec:
        return self.plan.stream

    def load(self, batch: BatchName, incoming: IncomingBatch, report: BatchReport) -> None:
        """``incoming`` holds messages, or rows with columns if the loader has no decoders."""
        if not self.sinks:
            with self.connections.spark_errors(f"batch {batch.number} of {self.spec.name!r}"):
                self._reject_all(batch, incoming, report)
            return
        try:
            with self.connections.spark_errors(f"batch {batch.number} of {self.spec.name!r}"):
                incoming, seen, counted = self._stage(batch, incoming, report)
                if counted:
                    self._count_and_reject(batch, incoming, seen, report)
                elif self.spec.on_error == "dlq":  # a batch that is sent to a broker is decoded only once
                    self._reject_unreadable(batch, incoming, MessageCounts(), report)
            fault_points.point("stream.staged")
            if self.operator is not None:
                self._report_late_rows(batch, report)
            seen, left_out = self._commit(batch, incoming, seen, report)
            if not counted:
                counts = seen()  # counted while they were sent
                report.rows_read += counts.read + left_out
                report.dropped += counts.bad if self.spec.on_error == "drop" else 0
        finally:
            for sink in self.sinks:
                sink.discard()

    def load_tick(self, batch: BatchName, report: BatchReport) -> None:
        """Load the rows of a tick, which has no new messages."""
        assert self.operator is not None
        spark = self.connections.spark().newSession()
        try:
            with self.connections.spark_errors(f"the state of {self.spec.name!r}"):
                rows = self.operator.load_tick(spark, batch.number, batch.tick)
                if rows is not None:
                    self._stage_results(batch, rows)
                    fault_points.point("stream.staged")
                    self._commit_all(batch, report)
            self.operator.finish_tick(batch.number, batch.tick)
            report.state = self.operator.report()
        finally:
            for sink in self.sinks:
                sink.discard()

    def close(self) -> None:
        """Close the sinks and the state."""
        for sink in self.sinks:
            sink.close()
        if self.operator is not None:
            self.operator.close()

    def _report_late_rows(self, batch: BatchName, report: BatchReport) -> None:
        """Count the late rows, and store them as dead letters if the stream says so."""
        assert self.operator is not None
        report.late, report.state = self.operator.counts.late, self.operator.report()
        if not report.late or self.operator.late_data != "dlq":
            return
        assert self.dead_letters is not None
        reason = self.operator.late_reason
        letters: list[RejectedMessage] = []
        for n, row in enumerate(self.operator.late_rows()):
            message = {"value": row.encode(), "position": f"{batch.number}-{n}"}
            letters.append(RejectedMessage("late_data", reason, message))
            if len(letters) == _LETTERS_AT_ONCE:
                self.dead_letters.add(letters, batch.key)
                letters = []
        self.dead_letters.add(letters, batch.key)
        report.dead_letters["late_data"] = report.late
        fault_points.point("stream.dead_letters")

    def _commit(
        self, batch: BatchName, incoming: IncomingBatch, seen: CountMessages, report: BatchReport
    ) -> tuple[CountMessages, int]:
        """Commit to every target. A row that one target rejects is left out of all targets and counted."""
        left_out = 0
        failing = self._known_failing(batch, incoming)  # messages that are dead letters: their rows fail
        for tries_left in reversed(range(_MAX_TRIES)):
            try:
                self._commit_all(batch, report, failing)
                break
            except MessagesFail as error:
                if not tries_left:
                    raise
                failing.update(error.rules)
                with self.connections.spark_errors(f"batch {batch.number} of {self.spec.name!r}"):
                    self._put_aside(batch, partial(visit_failing_messages, incoming, error.rules), report)
                continue
            except RowRejected as error:
                if self.spec.on_error == "fail" or self.decoders is None or not tries_left:
                    raise
                if self.operator is not None:  # the row is an aggregate: no single message is the cause
                    raise
                refused = error
            with self.connections.spark_errors(f"batch {batch.number} of {self.spec.name!r}"):
                incoming, found = self._isolate_rejected(batch, incoming, report, refused)
                seen, left_out = self._stage_again(batch, incoming), left_out + found
        self._may_repeat = False
        return seen, left_out

    def _known_failing(self, batch: BatchName, incoming: IncomingBatch) -> dict[str, str]:
        """The messages that an earlier try of this batch stored before it ended, with the rules they failed.

        They stay out of the batch, also if their rows pass now.
        """
        may_repeat, self._may_repeat = self._may_repeat, True
        if not may_repeat or self.decoders is None or not self.decoders.names_messages:
            return {}
        assert self.dead_letters is not None
        letters = self.dead_letters.failing_in(batch.key, self.sinks[0].label)
        if not letters:
            return {}
        gates = [sink.plan.load.gate for sink in self.sinks]
        rules = [rule.label for gate in gates if gate is not None for rule in gate.rules]
        with self.connections.spark_errors(f"batch {batch.number} of {self.spec.name!r}"):
            return find_known_failing(incoming, letters, rules, self.spec.sources[0].query)

    def _commit_all(
        self, batch: BatchName, report: BatchReport, dead_letters: Mapping[str, str] = NO_MESSAGES
    ) -> None:
        if len(self.sinks) > 1 and (self.spec.on_error != "fail" or self.spec.expectations):
            # a row that a later target rejects, or a batch that fails there, must not reach an earlier one
            for sink in self.sinks[1:]:
                with report.time_phase("rehearse"), self.connections.spark_errors(f"sending to {sink.label}"):
                    sink.rehearse(batch)
        self.before_commit()
        for sink in self.sinks:
            with report.time_phase("apply"), self.connections.spark_errors(f"sending to {sink.label}"):
                applied = sink.commit(batch, dead_letters)
            if not applied.duplicate or sink.label not in report.rows_written:
                report.rows_written[sink.label] = applied.rows.written
            if applied.expectations:
                report.expectations[sink.label] = applied.expectations
            fault_points.point("stream.target_committed")

    def _count_and_reject(
        self, batch: BatchName, incoming: IncomingBatch, seen: CountMessages, report: BatchReport
    ) -> None:
        """Count the messages, and drop or store those that cannot be read."""
        counts = seen()
        report.rows_read += counts.read
        report.empty = counts.empty
        if counts.bad:
            self._reject_unreadable(batch, incoming, counts, report)

    def _stage(
        self, batch: BatchName, incoming: IncomingBatch, report: BatchReport
    ) -> tuple[IncomingBatch, CountMessages, bool]:
        """Stage the batch.

        Returns the staged batch, its counts, and whether the counts are known before the commit.
        """
        tables = any(isinstance(sink, TableSink) for sink in self.sinks)
        with report.time_phase("stage"):
            try:
                with self.connections.spark_errors(f"batch {batch.number} of {self.spec.name!r}"):
                    if self._is_direct():
                        small_batch = incoming.small_batch()
                        if small_batch is not None:
                            return incoming, self._stage_directly(batch, small_batch), True
                    return incoming, self._stage_all(batch, incoming), tables
            except FlowError as error:
                if self.spec.on_error == "fail" or not is_row_error(error):
                    raise
                incoming, left_out = self._isolate_rejected(batch, incoming, report, error)
                report.rows_read += left_out
                return incoming, self._stage_again(batch, incoming), tables

    def _stage_again(self, batch: BatchName, incoming: IncomingBatch) -> CountMessages:
        """Stage the rest of a batch after some of its messages were taken out."""
        small_batch = incoming.small_batch() if self._is_direct() else None
        return (
            self._stage_directly(batch, small_batch)
            if small_batch is not None
            else self._stage_all(batch, incoming)
        )

    def _stage_directly(self, batch: BatchName, messages: IncomingBatch | Messages) -> CountMessages:
        assert self.decoders is not None
        lenient = self.spec.on_error != "fail"
        counts = self.sinks[0].stage_messages(batch, messages, self.decoders, lenient=lenient)
        return lambda: counts

    def _stage_all(self, batch: BatchName, incoming: IncomingBatch, rehearsal: bool = False) -> CountMessages:
        if self.decoders is None:
            rows, seen = count_rows(refuse_nulls(incoming.frame, self.spec.columns))
            self._stage_frames(batch, rows, rehearsal)
            return seen
        if self._is_direct() and isinstance(self.sinks[0], TableSink):
            return self._stage_directly(batch, incoming)
        from pyspark.sql import functions as F

        assert self.plan.columns is not None
        if self.spec.cdc is not None:
            columns = self.plan.columns
            return stage_changes(self.spec, batch, incoming, self.decoders, columns, self.sinks)
        decoded, seen = count_rows(self._decode(incoming), REASON)
        self._stage_frames(batch, decoded.where(F.col(REASON).isNull()).drop(REASON), rehearsal)
        return seen

    def _decode(self, incoming: IncomingBatch) -> DataFrame:
        """One row for each message, with `REASON` if it cannot be decoded."""
        assert self.decoders is not None and self.plan.columns is not None
        strict = self.spec.on_error == "fail"
        if self.spec.join is not None:
            numbers = self.spec.joined_sources
            return decode_sides(incoming, self.decoders, numbers, self.plan.joined_columns, strict=strict)
        columns = self.plan.columns
        if self.decoders.names_messages:
            columns = (*columns, ColumnSpec(MESSAGE, DataType("text")))
        return decode_frame(
            incoming,
            self.decoders,
            columns,
            ordered=self._needs_order(),
            strict=strict,
            source_column=SOURCE if self.operator is not None and len(self.spec.sources) > 1 else None,
        )

    def _needs_order(self) -> bool:
        """Whether a sink keeps the last message of each key, and SQL has not computed other rows."""
        computed = self.spec.transform_sql is not None or self.operator is not None
        return not computed and any(keeps_last_of_key(sink) for sink in self.sinks)

    def _is_direct(self) -> bool:
        """Whether a decoded message is already the row of the only target: no SQL, no projection."""
        return (
            self.decoders is not None
            and len(self.sinks) == 1
            and self.spec.transform_sql is None
            and self.operator is None
            and self.spec.cdc is None
            and self.sinks[0].plan.projection is None
            and not keeps_last_of_key(self.sinks[0])
        )

    def _skips_rejected_rows(self, incoming: IncomingBatch) -> bool:
        """Whether staging itself leaves out rows that the target rejects."""
        return self._is_direct() and (
            isinstance(self.sinks[0], TableSink) or incoming.small_batch() is not None
        )

    def _stage_frames(self, batch: BatchName, rows: DataFrame, rehearsal: bool) -> None:
        """Stage the rows in every sink: run the SQL, keep the last row of each key, project.

        A window takes the rows, and its closed windows are staged. A join takes them, and the SQL runs over
        the joined rows. A ``rehearsal`` does not change the state.
        """
        if self.spec.transform_sql is not None and self.spec.join is None:
            rows = run_sql_by_source(self.spec, rows, self.lookups())
        if self.operator is not None:
            if rehearsal:
                self.operator.check_rows(rows)
                return
            rows = self.operator.load_batch(batch.number, rows)
            self.operator.publish()
        self._stage_results(batch, rows)

    def _stage_results(self, batch: BatchName, rows: DataFrame) -> None:
        """Stage the rows of the stream, or of its state."""
        if self.spec.join is not None and self.spec.transform_sql is not None:
            rows = run_transform_sql(self.spec, rows, self.lookups())
        self._stage_in_sinks(batch, rows)

    def _stage_in_sinks(self, batch: BatchName, rows: DataFrame) -> None:
        for sink in self.sinks:
            sink.stage_rows(batch, rows_for_sink(sink, rows))

    # -------------------------------------------------------------- what cannot be loaded

    def _reject_all(self, batch: BatchName, incoming: IncomingBatch, report: BatchReport) -> None:
        """Reject every message with a payload: no column could be inferred. Empty messages are not errors."""
        assert self.decoders is not None
        found = find_bad_messages(incoming, self.decoders)
        examples = found.limit(1).collect()
        report.rows_read = incoming.frame.count()
        if examples:
            first = f"{examples[0]['topic']} offset {examples[0]['position']}: {examples[0]['reason']}"
            self._reject_unreadable(
                batch, incoming, MessageCounts(report.rows_read, found.count(), 0, first), report
            )

    def _reject_unreadable(
        self, batch: BatchName, incoming: IncomingBatch, counts: MessageCounts, report: BatchReport
    ) -> None:
        if self.spec.on_error == "fail":
            raise unreadable_error(counts)
        if self.spec.on_error == "drop":
            report.dropped += counts.bad
            return
        assert self.decoders is not None
        validator = self.sinks[0].row_validator() if self._skips_rejected_rows(incoming) else None
        bad = find_bad_messages(incoming, self.decoders, validator)
        self._put_aside(batch, partial(visit_rows, bad), report)

    def _put_aside(self, batch: BatchName, visit: Callable[[TakeRows], object], report: BatchReport) -> None:
        """Store the messages that ``visit`` passes on as dead letters. Each has its stage and reason."""
        assert self.dead_letters is not None
        letters = self.dead_letters

        def put_aside(rows: Sequence[Mapping[str, Any]]) -> None:
            letters.add([self._rejected_message(row["stage"], row["reason"], row) for row in rows], batch.key)
            for row in rows:
                report.dead_letters[row["stage"]] = report.dead_letters.get(row["stage"], 0) + 1

        with report.time_phase("dead letters"):
            visit(put_aside)
        fault_points.point("stream.dead_letters")

    def _rejected_message(self, stage: str, reason: str, message: Mapping[str, Any]) -> RejectedMessage:
        """The rejected message. It names the target only if the targets of the stream move separately."""
        alone = (
            stage in ("write", "expectation")
            and self.spec.continue_on_target_failure
            and len(self.sinks) == 1
        )
        return RejectedMessage(stage, reason, message, self.sinks[0].label if alone else None)

    def _isolate_rejected(
        self, batch: BatchName, incoming: IncomingBatch, report: BatchReport, error: FlowError
    ) -> tuple[IncomingBatch, int]:
        """Find the rows that the SQL or a target rejects, drop or store them, and return the rest."""
        if self.decoders is None:
            raise error
        self.note(f"batch {batch.number} cannot be loaded, searching for the bad messages: {error.what}")
        lenient, spark = self._skips_rejected_rows(incoming), incoming.frame.sparkSession
        found, rest = find_rejected_messages(
            incoming, lambda share: self._rehearse(batch, share, lenient, spark), error
        )
        if self.spec.on_error == "dlq":
            assert self.dead_letters is not None
            self.dead_letters.add(
                [self._rejected_message(e.stage, e.reason, e.message) for e in found], batch.key
            )
            fault_points.point("stream.dead_letters")
            for letter in found:
                report.dead_letters[letter.stage] = report.dead_letters.get(letter.stage, 0) + 1
        else:
            report.dropped += len(found)
        return rest, len(found)

    def _rehearse(
        self, batch: BatchName, messages: Messages | DataFrame, lenient: bool, spark: SparkSession
    ) -> None:
        """Stage these messages, let every target check them, and discard everything."""
        assert self.decoders is not None
        with self.connections.spark_errors(f"a batch of {self.spec.name!r}"):
            try:
                if isinstance(messages, Sequence):
                    self._stage_in_driver(batch, messages, lenient, spark)
                else:
                    self._stage_all(batch, IncomingBatch(messages), rehearsal=True)
                for sink in self.sinks if self.operator is None else ():
                    sink.rehearse(batch, enforced=False)
            finally:
                for sink in self.sinks:
                    sink.discard()

    def _stage_in_driver(
        self, batch: BatchName, messages: Messages, lenient: bool, spark: SparkSession
    ) -> None:
        """Stage in this process if Spark has nothing to compute."""
        assert self.decoders is not None
        computed = (
            self.spec.cdc is not None
            or self.spec.transform_sql is not None
            or any(sink.plan.projection is not None or keeps_last_of_key(sink) for sink in self.sinks)
        )
        if computed or self.operator is not None:
            self._stage_all(batch, driver_batch(spark, messages), rehearsal=True)
            return
        for sink in self.sinks:
            sink.stage_messages(batch, messages, self.decoders, lenient=lenient)
