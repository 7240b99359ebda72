"""An open stream: its connections, sources and lookups, and its plan. Runs nothing."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from ematix_flow.backends.messages.base import (
    ReadRequest,
    ReceivedFileSource,
    SparkStreamSource,
    StreamSource,
)
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.stream_changes import check_change_sources
from ematix_flow.engine.planning.stream_columns import (
    known_columns,
    known_source_columns,
    with_joined_meta_columns,
    with_meta_columns,
)
from ematix_flow.engine.planning.stream_targets import (
    check_capabilities,
    open_stream_source,
    plan_targets,
    source_payload,
)
from ematix_flow.engine.spark.column_types import columns_of_frame
from ematix_flow.engine.streams.batch_gate import BatchGate
from ematix_flow.engine.streams.batch_report import BatchReport, DeadLetters
from ematix_flow.engine.streams.kept_targets import known_targets
from ematix_flow.engine.streams.lag import ReportLag, StreamLag
from ematix_flow.engine.streams.lookups import Lookups
from ematix_flow.engine.streams.sinks import lock_on_this_machine
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.errors import FlowError, Unsupported
from ematix_flow.plan.join_columns import join_columns
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.spec.streams import StreamSourceSpec, StreamSpec, StreamTargetSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

_log = logging.getLogger(__name__)


class StreamStopping(Exception):
    """Raised in place of a new batch while the stream stops."""


class OpenStream:
    """A declared stream with its open connections. ``stop`` is set to end it between two batches."""

    def __init__(
        self,
        spec: StreamSpec,
        connections: Connections,
        folder: StreamFolder,
        *,
        once: bool = False,
        letters: DeadLetters | None = None,
        report: Callable[[BatchReport], None] = lambda _: None,
        note: Callable[[str], None] = _log.info,
        alive: Callable[[], None] = lambda: None,
        failing: Callable[[str, FlowError | None], None] = lambda target, error: None,
        stop: threading.Event | None = None,
        lag: ReportLag = lambda lag, unit: None,
        gate: BatchGate | None = None,
    ) -> None:
        """``failing`` is called with the error of a target that fails alone, and with None when it recovers.

        ``lag`` is called with the lag while no batch comes.
        """
        self.spec, self.connections, self.folder, self.once = spec, connections, folder, once
        self.dead_letters, self.report, self.note, self.heartbeat = letters, report, note, alive
        self.report_failing, self.report_lag, self.group_lags = failing, lag, StreamLag()
        self.stop, self.gate = stop or threading.Event(), gate or BatchGate()
        for connection in spec.connections:
            connections.backend(connection)  # before Spark starts, so that it gets the jars of all of them
        self.sources: list[StreamSource] = [
            open_stream_source(connections, source) for source in spec.sources
        ]
        self.lookups = Lookups(spec, connections, note)
        self.known_targets = known_targets(folder)  # before this process loads any

    @property
    def source_kinds(self) -> list[str]:
        """The kinds of the sources' connections."""
        return [self.connections.backend(source.connection).kind for source in self.spec.sources]

    # -------------------------------------------------------------- the plan

    def plan(self) -> StreamPlan:
        """The plan, as far as it is known before the first message. Changes nothing."""
        try:
            return self._plan()
        except FlowError as error:
            raise error.with_location(self.spec.where) from error.__cause__

    def plan_without_targets(self) -> StreamPlan:
        """The plan of the columns only; each target group plans its own targets."""
        return self._plan(with_targets=False)

    def _plan(self, with_targets: bool = True) -> StreamPlan:
        """Build the plan. Targets that may fail alone are planned later, each by itself."""
        spec = self.spec
        check_capabilities(spec, self.connections)
        for source, declared in zip(self.sources, spec.sources, strict=True):
            source.check(self.reading_of(declared))
        payloads = tuple(
            source_payload(self.connections, declared) if source.kind_of_rows == "messages" else None
            for source, declared in zip(self.sources, spec.sources, strict=True)
        )
        if len(payloads) > 1 and not all(
            isinstance(source, SparkStreamSource) and source.kind_of_rows == "messages"
            for source in self.sources
        ):
            raise Unsupported(
                "a stream of several sources follows Kafka topics only",
                where=spec.where,
                next_step="declare a stream for each of the others",
            )
        if spec.state_store is not None and spec.state_store.kind == "postgres":
            self._require_positions()
        check_change_sources(spec, payloads)
        if spec.join is not None:
            return self._plan_join(payloads, with_targets)
        columns, said_by = known_columns(spec, self.connections, payloads, self.folder.pinned_columns())
        if columns is None and payloads[0] is None:
            columns, said_by = self._columns_of_source()
        if columns is not None and payloads[0] is not None:
            columns = self.with_meta_columns(columns)
        return self._with_targets(StreamPlan(spec, columns, said_by, payloads), with_targets)

    def _plan_join(self, payloads: tuple[PayloadSpec | None, ...], with_targets: bool) -> StreamPlan:
        spec = self.spec
        pinned = [self.folder.pinned_columns(number) for number in range(len(spec.sources))]
        found, said_by = known_source_columns(spec, payloads, pinned)
        plan = self.with_source_columns(StreamPlan(spec, None, said_by, payloads), found)
        return self._with_targets(plan, with_targets)

    def with_source_columns(
        self, plan: StreamPlan, found: Sequence[tuple[ColumnSpec, ...] | None]
    ) -> StreamPlan:
        """The plan of a join whose sources have these columns, as far as they are known."""
        columns = tuple(
            None if own is None else with_joined_meta_columns(self.spec, number, own)
            for number, own in enumerate(found)
        )
        plan = replace(plan, source_columns=columns)
        if None in columns:
            return plan
        assert self.spec.join is not None
        joined = join_columns(self.spec.join, plan.joined_columns, self.spec.where)
        return replace(plan, columns=joined)

    def _with_targets(self, plan: StreamPlan, with_targets: bool) -> StreamPlan:
        if plan.columns is None or not with_targets:
            return plan
        with self.lookups.empty_views() as views:
            targets = plan_targets(self.spec, self.connections, plan.columns, views, plan.columns_by)
        return replace(plan, targets=targets)

    def _require_positions(self) -> None:
        """Refuse a state in a database if the messages themselves are on this machine only."""
        for source, declared in zip(self.sources, self.spec.sources, strict=True):
            if not isinstance(source, SparkStreamSource):
                raise Unsupported(
                    "StateStore(kind='postgres') needs a source that is read again by position: Kafka or "
                    f"Delta. Messages of {declared.label} are kept in the stream's folder until they are "
                    "loaded, so another machine could not continue",
                    where=self.spec.where,
                    next_step="leave state_store= out, and keep the stream's folder on a disk that outlives "
                    "the machine",
                )

    def with_meta_columns(self, columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
        numbered = all(isinstance(source, SparkStreamSource) for source in self.sources)
        return with_meta_columns(self.spec, columns, numbered)

    def _columns_of_source(self) -> tuple[tuple[ColumnSpec, ...] | None, str]:
        """The columns of a source of files or tables."""
        source, reading = self.sources[0], self.reading_of(self.spec.sources[0])
        if isinstance(source, ReceivedFileSource):
            return source.describe(self.connections.spark(), reading), "found in the files"
        assert isinstance(source, SparkStreamSource)
        with self.connections.spark_errors(f"the source of {self.spec.name!r}"):
            found = columns_of_frame(source.streaming_frame(self.connections.spark(), reading))
        columns = tuple(ColumnSpec(c.name, c.type or DataType("text"), nullable=True) for c in found)
        return columns, "those of the source"

    def reading_of(self, source: StreamSourceSpec, resume: str | None = None) -> ReadRequest:
        connection = self.connections.backend(source.connection).connection
        most = self.spec.max_rows_per_batch  # of all sources together
        return ReadRequest(
            query=source.query,
            starting=source.starting or getattr(connection, "auto_offset_reset", "") or "earliest",
            resume=resume,
            max_rows=None if most is None else max(1, most // len(self.spec.sources)),
            fail_on_data_loss=self.spec.fail_on_data_loss,
            options=dict(source.options),
            files=source.files,
            pipeline=self.spec.name,
        )

    def lock_target(self, target: StreamTargetSpec, run_id: uuid.UUID) -> AbstractContextManager[object]:
        if self.connections.backend(target.connection).message_target() is not None:
            return lock_on_this_machine(self.spec.name, target.label, run_id)
        return self.connections.target(target.connection).lock(self.spec.name, target.label, run_id)
