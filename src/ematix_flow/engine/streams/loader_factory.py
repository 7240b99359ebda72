"""Builds the loader of a target group: plans its targets, opens its sinks, chooses the decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.backends.messages.base import SparkStreamSource, StreamSource
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.engine.planning.stream_columns import REGISTERED, computed_columns
from ematix_flow.engine.planning.stream_targets import plan_targets, target_payload
from ematix_flow.engine.spark.column_types import columns_of_frame
from ematix_flow.engine.streams.batch_loader import BatchLoader
from ematix_flow.engine.streams.change_staging import change_decoders
from ematix_flow.engine.streams.column_inference import infer_columns, sample_values
from ematix_flow.engine.streams.declaration_record import declared_record, read_record, write_record
from ematix_flow.engine.streams.declared_changes import check_state_file
from ematix_flow.engine.streams.decoding import SourceDecoders
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.engine.streams.joins.join_operator import JoinOperator
from ematix_flow.engine.streams.joins.source_columns import infer_source_columns, keep_source_columns
from ematix_flow.engine.streams.kept_targets import refuse_target_changes
from ematix_flow.engine.streams.new_fields import find_new_columns
from ematix_flow.engine.streams.open_stream import OpenStream
from ematix_flow.engine.streams.registry_schemas import KnownSchemas
from ematix_flow.engine.streams.sinks import MessageSink, StreamSink, TableSink
from ematix_flow.engine.streams.state.stateful_operator import StatefulOperator
from ematix_flow.engine.streams.state.status import read_status
from ematix_flow.engine.streams.windows.window_operator import WindowOperator
from ematix_flow.plan.stream_definition import StreamPlan, StreamTargetPlan
from ematix_flow.spec.streams import StreamTargetSpec
from ematix_flow.spec.tables import AGE, MESSAGE, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.engine.streams.state.mirror import StateMirror


class LoaderFactory:
    """Builds loaders for these targets. ``plan`` is replaced when a registry brings a newer schema.

    ``last_position`` returns a target's position in its ledger. ``sweep`` removes staging of crashed runs.
    """

    def __init__(
        self,
        stream: OpenStream,
        plan: StreamPlan,
        targets: tuple[StreamTargetSpec, ...],
        last_position: Callable[[StreamTargetSpec], str | None],
        *,
        sweep: bool,
        state_folder: Path,
    ) -> None:
        self.stream, self.plan, self.targets = stream, plan, targets
        self._last_position, self._sweep, self._state_folder = last_position, sweep, state_folder
        self.mirror: StateMirror | None = None  # of the state, if its store is a database
        self._adds_columns = stream.spec.cdc is not None and stream.spec.cdc.adds_columns
        self.planned_targets: tuple[StreamTargetPlan, ...] = ()

    def build(self, incoming: DataFrame) -> BatchLoader:
        """The loader for these messages, which are read only if the columns are not known yet."""
        return self.from_known_columns() or self._from_messages(incoming)

    def from_known_columns(self) -> BatchLoader | None:
        """The loader of the plan; None if its columns must be inferred from messages."""
        if self.plan.columns is None:
            return None
        return self._from_plan(self._with_targets(self.plan))

    def _with_targets(self, plan: StreamPlan) -> StreamPlan:
        """The plan with the targets of this group."""
        if plan.targets:
            return self._checked(plan)
        stream = self.stream
        assert plan.columns is not None
        own = replace(stream.spec, targets=self.targets)
        views = stream.lookups.views(self)
        targets = plan_targets(own, stream.connections, plan.columns, views, plan.columns_by)
        return self._checked(replace(plan, targets=targets))

    def _checked(self, plan: StreamPlan) -> StreamPlan:
        """The plan, if the stream can continue with its targets."""
        stream = self.stream
        refuse_target_changes(
            stream.spec, stream.connections, plan.targets, stream.known_targets, self._last_position
        )
        self.planned_targets = plan.targets
        return plan

    def renew(self, loader: BatchLoader, incoming: IncomingBatch) -> BatchLoader:
        """A new loader if the batch has messages of a newer registered schema, or changes with new fields."""
        if self._adds_columns and loader.sinks and loader.decoders is not None:
            new = tuple(filter(self._fits, find_new_columns(incoming, loader.decoders)))
            return self._with_new_columns(loader, new) if new else loader
        if loader.schemas is None or not loader.schemas.has_new_fields(incoming):
            return loader
        stream = self.stream
        stream.note("the schema registry has a newer schema, and messages of it: planning again")
        plan = self._with_targets(stream.plan_without_targets())
        stream.note(str(plan))
        with loader.operator.file.kept_in_memory() if loader.operator is not None else nullcontext():
            loader.close()
            renewed = self._from_plan(plan, loader.schemas)
        self.plan = replace(plan, targets=())
        return renewed

    def _fits(self, column: ColumnSpec) -> bool:
        """Whether every target takes a column of this name; if not, its field is left out with a warning."""
        backends = [self.stream.connections.backend(target.connection) for target in self.targets]
        limits = [backend.capabilities.max_identifier_bytes for backend in backends]
        return all(limit is None or len(column.name.encode()) <= limit for limit in limits)

    def _with_new_columns(self, loader: BatchLoader, new: tuple[ColumnSpec, ...]) -> BatchLoader:
        assert loader.plan.columns is not None
        names = ", ".join(f"{column.name} {column.type}" for column in new)
        self.stream.note(f"changes have fields that the table does not have, and it gets columns: {names}")
        plan = self._with_targets(replace(loader.plan, columns=(*loader.plan.columns, *new), targets=()))
        loader.close()
        renewed = self._from_plan(plan)
        self.plan = replace(plan, targets=())
        return renewed

    def _from_messages(self, incoming: DataFrame) -> BatchLoader:
        """A loader with columns inferred from these messages."""
        stream, payloads = self.stream, self.plan.payloads
        if stream.spec.join is not None:
            return self._from_plan(self._with_targets(infer_source_columns(stream, self.plan, incoming)))
        pinned = stream.folder.pinned_columns()
        if pinned is None:
            if payloads[0] is None:
                found = columns_of_frame(incoming)
                pinned = tuple(ColumnSpec(c.name, c.type or DataType("text"), nullable=True) for c in found)
            else:
                pinned = infer_columns(payloads[0], sample_values(incoming, payloads[0]), stream.spec.cdc)
                if pinned is None:
                    return self._for_unreadable(payloads)
            stream.folder.pin_columns(pinned)
        columns = pinned if payloads[0] is None else stream.with_meta_columns(pinned)
        plan = self._with_targets(
            replace(self.plan, columns=columns, columns_by="found in the first messages")
        )
        stream.note(str(plan))
        return self._from_plan(plan)

    def _for_unreadable(self, payloads: Sequence[PayloadSpec | None]) -> BatchLoader:
        """A loader that rejects every message. The next batch tries to infer columns again."""
        column = ColumnSpec("value", DataType("text"), nullable=True)
        plan = replace(self.plan, columns=(column,), targets=())
        return BatchLoader(
            plan,
            (),
            self._build_decoders(payloads, plan),
            self.stream.connections,
            self.stream.dead_letters,
            dict,
            self.stream.note,
        )

    def _from_plan(self, plan: StreamPlan, judged: KnownSchemas | None = None) -> BatchLoader:
        """``judged`` are the known schemas of the previous plan."""
        stream = self.stream
        if stream.spec.join is not None:
            keep_source_columns(stream, plan)
        schemas = _known_schemas(plan, judged)
        sinks = [self._open_sink(target) for target in plan.targets if target.target in self.targets]
        assert plan.columns is not None
        computed = stream.spec.transform_sql is not None or stream.spec.is_stateful
        is_single_table = not computed and len(sinks) == 1 and isinstance(sinks[0], TableSink)
        # a single table without SQL decides which columns must not be null
        columns = (
            tuple(column for column in sinks[0].plan.load.staged.columns if column.name not in (AGE, MESSAGE))
            if is_single_table and sinks[0].plan.projection is None and stream.spec.cdc is None
            else plan.columns
        )
        columns = _as_declared(columns, stream.spec.columns)
        plan = replace(plan, columns=columns)
        decoders = None if None in plan.payloads else self._build_decoders(plan.payloads, plan)
        if decoders is not None and any(sink.plan.load.names_messages for sink in sinks):
            decoders = replace(decoders, names_messages=True)
        operator = self._open_operator(plan)
        if operator is not None:
            self._check_state(operator)
            operator.mirror = self.mirror
        return BatchLoader(
            plan,
            sinks,
            decoders,
            stream.connections,
            stream.dead_letters,
            partial(stream.lookups.views, self),
            stream.note,
            schemas,
            operator,
        )

    def _open_operator(self, plan: StreamPlan) -> StatefulOperator | None:
        stream, columns = self.stream, plan.columns
        if stream.spec.join is not None:
            return JoinOperator(stream.spec, plan.joined_columns, self._state_folder)
        if stream.spec.window is None or columns is None:
            return None
        if stream.spec.transform_sql is not None:
            columns = computed_columns(stream.spec, stream.connections, columns, stream.lookups.views(self))
        return WindowOperator(stream.spec, columns, self._state_folder)

    def _check_state(self, operator: StatefulOperator) -> None:
        """Refuse a state that is not the one of the checkpoint, and record which one it is."""
        checkpoint, file = self._state_folder.parent, operator.file
        if file.path is None:
            return
        record = read_record(checkpoint) or declared_record(self.stream.spec)
        try:
            check_state_file(file, record, read_status(self._state_folder))
        except BaseException:
            operator.close()
            raise
        write_record(checkpoint, replace(record, state_id=file.id()))

    def _build_decoders(self, payloads: Sequence[PayloadSpec | None], plan: StreamPlan) -> SourceDecoders:
        assert plan.columns is not None
        if self.stream.spec.cdc is not None:
            return change_decoders(self.stream.spec, payloads, plan.columns)
        columns = plan.source_columns or (plan.columns,) * len(payloads)
        return _build_decoders(payloads, columns, self.stream.sources)

    def _open_sink(self, plan: StreamTargetPlan) -> StreamSink:
        stream, target = self.stream, plan.target
        messages = stream.connections.backend(target.connection).message_target()
        if messages is None:
            sink = TableSink(plan, stream.connections.target(target.connection))
            for left in sink.prepare(stream.spec.name, sweep=self._sweep):
                stream.note(f"removed staging that an interrupted run had left: {left}")
            return sink
        from ematix_flow.backends.payloads.codecs import encoder_for

        place = target.topic or target.queue or ""
        messages.check_destination(place)
        options = {"partition_key_prefix": target.partition_key_prefix} if target.partition_key_prefix else {}
        value_columns = [
            c for c in plan.table.columns if c.name not in (target.headers_column, target.partition_column)
        ]
        encoder = encoder_for(target_payload(stream.connections, target), value_columns)
        once = plan.guarantee.value == "exactly_once"
        return MessageSink(plan, messages, messages.sender(place, options), encoder, once)


def _known_schemas(plan: StreamPlan, judged: KnownSchemas | None) -> KnownSchemas | None:
    """The schemas that a plan was made with, if its columns come from a registry."""
    if plan.columns_by != REGISTERED or plan.payloads[0] is None or plan.columns is None:
        return None
    return KnownSchemas(plan.payloads[0], plan.columns, judged)


def _as_declared(columns: Sequence[ColumnSpec], declared: TableSpec | None) -> tuple[ColumnSpec, ...]:
    """The columns with the types and nullability of ``source_columns=``, which may be stricter than the
    table.
    """
    declared_columns = {c.name: c for c in declared.columns} if declared is not None else {}
    return tuple(
        replace(declared_columns[c.name], nullable=c.nullable and declared_columns[c.name].nullable)
        if c.name in declared_columns
        else c
        for c in columns
    )


def _build_decoders(
    payloads: Sequence[PayloadSpec | None],
    columns: Sequence[Sequence[ColumnSpec] | None],
    sources: Sequence[StreamSource],
) -> SourceDecoders:
    """``columns`` are those of each source."""
    from ematix_flow.backends.payloads.codecs import decoder_for

    return SourceDecoders(
        tuple(
            decoder_for(payload, own, numeric_positions=isinstance(source, SparkStreamSource))
            for payload, own, source in zip(payloads, columns, sources, strict=True)
            if payload is not None and own is not None
        )
    )
