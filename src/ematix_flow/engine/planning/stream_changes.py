"""Plans a target that change events (``cdc=``) are applied to: its key, its companion table, its columns."""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.backends.base import TablePlan
from ematix_flow.backends.payloads.base import META_COLUMNS, PayloadSpec
from ematix_flow.errors import SchemaMismatch, Unsupported, did_you_mean
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec
from ematix_flow.spec.tables import ColumnSpec, TableSpec
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


def require_key_columns(cdc: CDC, target: StreamTargetSpec, columns: tuple[ColumnSpec, ...]) -> None:
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


def as_change_target(cdc: CDC, table: TableSpec, matching: Matching) -> tuple[TableSpec, Matching]:
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
    return replace(table, keeps="changes"), replace(matching, changes=changes)


def companion_changes(table: TableSpec, plan: TablePlan) -> TablePlan:
    """Of the plan, only what creates the companion of an existing table."""
    companion = table.companion()
    assert companion is not None
    changes = tuple(
        change
        for change in plan.changes
        if change.action == "create_schema" or change.subject.startswith(companion.label)
    )
    return TablePlan(changes)
