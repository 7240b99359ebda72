"""Plans a target that change events (``cdc=``) are applied to: its key, its companion table, its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ematix_flow.backends.base import LiveTable, LoadPlan, TableChange, TablePlan
from ematix_flow.backends.payloads.base import META_COLUMNS, PayloadSpec
from ematix_flow.backends.sql.table_names import require_table_names
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.stream_columns import existing_table, with_added_columns
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
from ematix_flow.plan.drift import judge_drift
from ematix_flow.plan.matching_options import resolve_matching
from ematix_flow.plan.stream_definition import StreamTargetPlan
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec
from ematix_flow.spec.tables import ColumnSpec, TableContents, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import ChangeOptions, Matching

_MARKS = ("timestamp_tz", "timestamp", "boolean")


def check_change_sources(spec: StreamSpec, payloads: tuple[PayloadSpec | None, ...]) -> None:
    """Refuse sources whose messages are no envelopes."""
    if spec.cdc is None:
        return
    for source, payload in zip(spec.sources, payloads, strict=True):
        if payload is None or payload.format == "raw_bytes":
            what = "rows with columns" if payload is None else "raw bytes"
            raise Unsupported(
                f"cdc= reads change events from messages, and {source.label} brings {what}",
                where=spec.where,
                next_step="follow a topic with JSON or Avro messages, or leave cdc= out",
            )


def with_soft_delete_column(cdc: CDC | None, columns: tuple[ColumnSpec, ...]) -> tuple[ColumnSpec, ...]:
    """The columns of the changes, and the one that marks deleted rows."""
    soft = cdc.soft_delete_column if cdc is not None else None
    if soft is None or any(column.name == soft for column in columns):
        return columns
    return (*columns, ColumnSpec(soft, DataType("timestamp_tz"), nullable=True))


def plan_change_target(
    spec: StreamSpec,
    target: StreamTargetSpec,
    connections: Connections,
    columns: tuple[ColumnSpec, ...],
    are_declared: bool,
) -> StreamTargetPlan:
    """``are_declared``: ``source_columns=`` or a registry declares the columns."""
    cdc = spec.cdc
    assert cdc is not None
    backend = connections.backend(target.connection)
    guarantee = stream_guarantee(spec, target, connections, backend)
    sink = connections.target(target.connection).with_partitions(target.partition_by).with_files(target.files)
    require_mode(target, backend)
    _require_key_columns(cdc, target, columns)
    available = {column.name for column in columns}
    existing = existing_table(target, connections) if target.table is None and target.table_name else None
    table = target.table or existing or new_table(target, columns)
    require_columns(target, table, available)
    grown, drift, added = None, tuple[str, ...](), frozenset[str]()
    if existing is not None:
        table = replace(table, columns=tuple(c for c in table.columns if c.name in available))
        if are_declared and not cdc.adds_columns:
            grown, drift = evolved_table(spec, sink, table, columns)
            table = grown or table
    if cdc.adds_columns:
        live = sink.inspect(table)
        table = with_added_columns(table, live, target.mode, available)
        declared = set(table.column_names)
        table = _with_new_columns(table, live, columns)
        added = frozenset(table.column_names) - declared
    if target.keys and target.table is None:
        table = with_required_keys(table, target.keys)
    table, matching = resolve_matching(as_batch_pipeline(spec), as_batch_target(target, table), table)
    table, matching = _as_change_target(cdc, target, table, matching)
    require_table_names(table, backend.capabilities.max_identifier_bytes)
    found = sink.plan_table(table, sink.inspect(table), matching)
    if found.converts_to_scd2:
        raise SchemaMismatch(
            f"{table.label} has rows without the times of their changes, from which versions cannot go on",
            where=table.where or spec.where,
            state=f"{table.label} is unchanged",
            next_step="let a stream with another name= load the versions into another table",
        )
    if grown is not None and existing is not None:
        changes, _ = judge_new_columns(spec.on_drift, sink, existing, table, matching, spec.where)
        changes = replace(changes, changes=(*_companion_changes(table, found), *changes.changes))
    else:
        adopted = existing is not None and target.mode != "scd2"
        changes, warnings = _judge_changes(spec, table, found, added, adopted=adopted)
        drift = (*drift, *warnings)
    load = LoadPlan(
        table,
        "cdc_scd2" if target.mode == "scd2" else "cdc",
        matching,
        files=target.files,
        partition_by=target.partition_by,
        table_plan=changes,
    )
    return StreamTargetPlan(target, load, guarantee, None, (*drift, *sink.warnings()))


def _with_new_columns(table: TableSpec, live: LiveTable | None, new: Sequence[ColumnSpec]) -> TableSpec:
    there = {*table.column_names, *(column.name for column in (live.columns if live else ()))}
    added = [ColumnSpec(c.name, c.type, nullable=True) for c in new if c.name not in there]
    return replace(table, columns=(*table.columns, *added))


def _judge_changes(
    spec: StreamSpec, table: TableSpec, found: TablePlan, added: frozenset[str], *, adopted: bool
) -> tuple[TablePlan, tuple[str, ...]]:
    """The changes that the load makes, and warnings. Columns for new fields are ``added`` in any case; an
    ``adopted`` table, which no declaration describes, is not changed otherwise.
    """
    subjects = {f"{table.label}.{name}" for name in added}
    adding = tuple(change for change in found.changes if change.subject in subjects)
    rest = replace(
        found,
        changes=tuple(change for change in found.changes if change not in adding),
        diff=tuple(line for line in found.diff if line.subject not in added),
    )
    if adopted:
        wanted = (*_companion_changes(table, rest), *adding)
        declined = tuple(change for change in found.changes if change not in wanted)
        return TablePlan(wanted, found.differences, found.diff, declined=declined), ()
    judged, warnings = judge_drift(spec.on_drift, table, rest, spec.where)
    return replace(judged, changes=(*judged.changes, *adding)), warnings


def _require_key_columns(cdc: CDC, target: StreamTargetSpec, columns: tuple[ColumnSpec, ...]) -> None:
    """Refuse a key that the changes do not have, with its path."""
    names = [column.name for column in columns]
    for key in target.keys:
        if key not in names:
            path = next((path for path in cdc.key_paths if path[-1] == key), (*cdc.paths.after, key))
            raise SchemaMismatch(
                f"no change has {'.'.join(path)!r}, which is the key of {target.destination}."
                f"{did_you_mean(key, names)}",
                state="nothing was loaded",
                next_step="name the key with keys= or CDC(key_field=…)",
            )


def _as_change_target(
    cdc: CDC, target: StreamTargetSpec, table: TableSpec, matching: Matching
) -> tuple[TableSpec, Matching]:
    """The table with its companion, and how changes are applied to it."""
    for column in table.columns:
        if column.normalizers:
            raise Unsupported(
                f"column {column.name!r} of {table.label} has normalisers, which cdc= does not apply",
                next_step="declare the column without normalize=",
            )
        if column.name in META_COLUMNS:
            raise Unsupported(
                f"{table.label} has a column {column.name!r}, and cdc= does not fill columns of messages",
                next_step="leave the column out",
            )
    soft = cdc.soft_delete_column
    if soft is not None:
        if soft not in table.column_names:
            raise SchemaMismatch(
                f"soft_delete_column= names {soft!r}, which is not a column of {table.label}."
                f"{did_you_mean(soft, table.column_names)}",
                next_step="add the column to the table",
            )
        mark = table.column(soft)
        if mark.type.kind not in _MARKS or (not mark.nullable and mark.type.kind != "boolean"):
            raise SchemaMismatch(
                f"column {soft!r} of {table.label} is {mark.type}{'' if mark.nullable else ' not null'}: "
                "soft_delete_column= takes a nullable time, or a Boolean"
            )
    changes = ChangeOptions(soft)
    keeps: TableContents = "change_versions" if target.mode == "scd2" else "changes"
    return replace(table, keeps=keeps), replace(matching, changes=changes)


def _companion_changes(table: TableSpec, plan: TablePlan) -> tuple[TableChange, ...]:
    """Of the plan, only what creates the companion of an existing table."""
    companion = table.companion()
    assert companion is not None
    return tuple(
        change
        for change in plan.changes
        if change.action == "create_schema" or change.subject.startswith(companion.label)
    )
