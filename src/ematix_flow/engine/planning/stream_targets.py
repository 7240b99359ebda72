"""Plans the targets of a stream against the columns that it brings, and opens its sources.

`planning.stream_columns` finds the columns of the messages. If nothing declares them (no ``source_columns=``,
no registry, no existing table), they are inferred from the first messages, and the targets are planned then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ematix_flow.backends.base import LoadPlan, TablePlan
from ematix_flow.backends.messages.base import StreamSource
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.connection_payloads import payload_of
from ematix_flow.backends.sql.table_names import require_table_names
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.gates import plan_gate, refuse_lost_older_rows, refuse_shared_quarantine
from ematix_flow.engine.planning.stream_changes import plan_change_target, with_soft_delete_column
from ematix_flow.engine.planning.stream_columns import DECLARED, REGISTERED, computed_columns, existing_table
from ematix_flow.engine.planning.stream_drift import evolved_table, judge_new_columns
from ematix_flow.engine.planning.stream_guarantees import require_mode, stream_guarantee
from ematix_flow.engine.planning.stream_tables import (
    as_batch_pipeline,
    as_batch_target,
    new_table,
    require_columns,
    with_required_keys,
)
from ematix_flow.errors import SchemaMismatch, Unsupported, did_you_mean
from ematix_flow.graph.connections import resolve
from ematix_flow.plan.decisions import Decision
from ematix_flow.plan.drift import judge_drift
from ematix_flow.plan.matching_options import resolve_matching, with_deletion_marks
from ematix_flow.plan.stream_capabilities import (
    STREAM_VIEW,
    check_batch_limit,
    check_change_target,
    check_dead_letters,
    check_error_policy,
    check_quarantine,
    check_source_message_parts,
    check_target_message_parts,
)
from ematix_flow.plan.stream_definition import StreamTargetPlan
from ematix_flow.plan.window_columns import window_columns
from ematix_flow.spec.pipelines import connection_label
from ematix_flow.spec.streams import StreamSourceSpec, StreamSpec, StreamTargetSpec
from ematix_flow.spec.tables import AGE, MESSAGE, ColumnSpec, TableSpec
from ematix_flow.strategies.projection import build_projection, needs_projection

# ------------------------------------------------------------------ sources


def open_stream_source(connections: Connections, source: StreamSourceSpec) -> StreamSource:
    backend = connections.backend(source.connection)
    found = backend.stream_source()
    if found is None:
        raise Unsupported(
            f"connection {connection_label(source.connection)!r} ({backend.kind}) cannot be followed",
            next_step="a stream follows kafka, rabbitmq, pubsub, kinesis, object stores and Delta tables",
        )
    return found


def check_capabilities(spec: StreamSpec, connections: Connections) -> None:
    """Refuse what a source or a target cannot do. All connections are known now."""
    kinds = [connections.backend(source.connection).kind for source in spec.sources]
    check_source_message_parts(spec, kinds)
    check_batch_limit(spec, kinds)
    check_error_policy(spec, kinds)
    check_quarantine(spec, kinds)
    letters = spec.dead_letters.connection
    check_dead_letters(spec, kinds, None if letters is None else resolve(letters).kind)
    for target in spec.targets:
        kind = connections.backend(target.connection).kind
        check_target_message_parts(target, kind, spec.where)
        if spec.cdc is not None:
            check_change_target(target, kind, spec.where)


def source_payload(connections: Connections, source: StreamSourceSpec) -> PayloadSpec:
    """The payload format of a source's messages."""
    return payload_of(connections.backend(source.connection).connection, source.query)


def target_payload(connections: Connections, target: StreamTargetSpec) -> PayloadSpec:
    return payload_of(connections.backend(target.connection).connection, target.topic or target.queue or "")


# ------------------------------------------------------------------ targets


def plan_targets(
    spec: StreamSpec,
    connections: Connections,
    columns: tuple[ColumnSpec, ...],
    lookups: Mapping[str, str],
    columns_by: str,
) -> tuple[StreamTargetPlan, ...]:
    """Plan every target for these columns. Spark checks the SQL on no rows."""
    outgoing = with_soft_delete_column(spec.cdc, columns)
    # columns found in a table or in messages do not declare what a table should hold
    is_computed = spec.transform_sql is not None or spec.is_stateful
    are_declared = is_computed or columns_by in (DECLARED, REGISTERED)
    if spec.transform_sql is not None:
        outgoing = computed_columns(spec, connections, columns, lookups)
    if spec.window is not None:
        outgoing = window_columns(spec.window, outgoing, spec.where)
    planned = tuple(
        _plan_target(spec, target, connections, outgoing, are_declared)
        if spec.cdc is None
        else plan_change_target(spec, target, connections, outgoing, are_declared)
        for target in spec.targets
    )
    refuse_shared_quarantine(
        [(each.load.gate, connections.backend(each.target.connection)) for each in planned], spec.where
    )
    return planned


def _plan_target(
    spec: StreamSpec,
    target: StreamTargetSpec,
    connections: Connections,
    columns: tuple[ColumnSpec, ...],
    are_declared: bool,
) -> StreamTargetPlan:
    """``are_declared``: the columns are declared, not only found in a table or in messages."""
    backend = connections.backend(target.connection)
    guarantee = stream_guarantee(spec, target, connections, backend)
    if backend.message_target() is not None:
        if spec.expectations:
            raise Unsupported(
                f"expectations cannot be checked for {target.label}: what is sent to a broker cannot be "
                "taken back",
                where=spec.where,
                next_step="filter the rows in transform_sql=, or load them into a table",
            )
        return _plan_messages(spec, target, columns, guarantee)
    sink = connections.target(target.connection).with_partitions(target.partition_by).with_files(target.files)
    require_mode(target, backend)
    declared, adopted = target.table, False
    if declared is None and target.table_name is not None:
        declared = existing_table(target, connections)
        adopted = declared is not None and target.mode != "scd2"
    table = declared if declared is not None else new_table(target, columns)
    available = {column.name for column in columns}
    require_columns(target, table, available)
    grown, drift = None, tuple[str, ...]()
    if declared is not None and target.table is None:
        table = replace(table, columns=tuple(c for c in table.columns if c.name in available))
        grown, drift = evolved_table(spec, sink, table, columns) if are_declared else (None, ())
        table = grown or table
    if target.keys and target.table is None:
        table = with_required_keys(table, target.keys)
    table, matching = resolve_matching(as_batch_pipeline(spec), as_batch_target(target, table), table)
    require_table_names(table, backend.capabilities.max_identifier_bytes)
    live = sink.inspect(table)
    if target.mode == "merge":
        table = with_deletion_marks(table, live)
    changes = TablePlan()
    if not adopted:  # an existing table without a declaration is not changed
        changes, warnings = judge_drift(
            spec.on_drift, table, sink.plan_table(table, live, matching), spec.where
        )
        drift = (*drift, *warnings)
    elif grown is not None and declared is not None:
        changes, _ = judge_new_columns(spec.on_drift, sink, declared, table, matching, spec.where)
    planned_gate = plan_gate(
        spec.expectations,
        table,
        matching,
        sink,
        backend.kind,
        spec.where,
        max_identifier_bytes=backend.capabilities.max_identifier_bytes,
    )
    gate = planned_gate.gate
    stages_older = gate is not None and gate.quarantine is not None and _keeps_last(spec, target, connections)
    if gate is not None and stages_older:
        refuse_lost_older_rows(gate, table, matching, sink, backend.kind)
    load = LoadPlan(
        table,
        target.mode,
        matching,
        files=target.files,
        partition_by=target.partition_by,
        table_plan=changes,
        gate=gate,
        quarantine_plan=planned_gate.quarantine_plan,
        stages_older=stages_older,
    )
    projection = None
    if needs_projection(table, (), {}):
        added = tuple(column for column in load.staged.columns if column.name in (AGE, MESSAGE))
        incoming = (*columns, *added)
        projection = build_projection(
            source_sql=f"SELECT * FROM {STREAM_VIEW}",
            table=load.staged,
            source_columns=[c.name for c in incoming],
            source_types={c.name: c.type for c in incoming},
            pre=(),
            column_map={},
            dialect="spark",
            where=spec.where,
        )
    warnings = (*drift, *planned_gate.warnings, *sink.warnings())
    method = sink.commit_method(load)
    commit = Decision("commit", *method) if method is not None else None
    return StreamTargetPlan(target, load, guarantee, projection, warnings, commit)


def _keeps_last(spec: StreamSpec, target: StreamTargetSpec, connections: Connections) -> bool:
    """Whether only the last message of each key in a batch is loaded."""
    if target.mode != "merge" or spec.transform_sql is not None or spec.is_stateful:
        return False
    return all(open_stream_source(connections, source).kind_of_rows == "messages" for source in spec.sources)


def _plan_messages(
    spec: StreamSpec, target: StreamTargetSpec, columns: tuple[ColumnSpec, ...], guarantee: Decision
) -> StreamTargetPlan:
    names = [column.name for column in columns]
    for option in ("message_key_column", "headers_column", "partition_column"):
        wanted = getattr(target, option)
        if wanted is not None and wanted not in names:
            raise SchemaMismatch(
                f"{option}= names {wanted!r}, which no row has.{did_you_mean(wanted, names)}",
                where=spec.where,
            )
    table = TableSpec(None, target.destination or "messages", columns)
    return StreamTargetPlan(target, LoadPlan(table, target.mode), guarantee)
