"""Resolves the declared options of merge and scd2: keys, compared columns, extra columns of the table."""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.backends.base import LiveTable
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec
from ematix_flow.spec.tables import (
    BATCH_ID,
    DELETED_AT,
    EVENT_AT,
    IS_CURRENT,
    IS_DELETE,
    LOADED_AT,
    ROW_HASH,
    VALID_FROM,
    VALID_TO,
    TableContents,
    TableSpec,
)
from ematix_flow.spec.transforms import Limit, SamplePct
from ematix_flow.strategies.matching import Matching

_VERSION = (VALID_FROM, VALID_TO, IS_CURRENT, ROW_HASH, LOADED_AT, BATCH_ID)
_RESERVED = {
    "versions": _VERSION,
    "events": (*_VERSION, EVENT_AT, IS_DELETE),
    "soft_deletes": (DELETED_AT,),
}


def resolve_matching(spec: PipelineSpec, target: TargetSpec, table: TableSpec) -> tuple[TableSpec, Matching]:
    """The table with its extra columns, and the options with all defaults."""
    if target.mode not in ("merge", "scd2"):
        return replace(table, merge_keys=()), Matching()  # keys are unique only in modes that match by key
    _refuse_partial_snapshot(spec, target)
    keys = target.keys
    stored = replace(table, keeps=_what_table_keeps(target), merge_keys=keys)
    for name in _RESERVED.get(stored.keeps, ()):
        if name in table.column_names:
            raise DeclarationError(
                f"{table.label} declares {name!r}, which mode={target.mode!r} keeps there itself",
                next_step="give the column another name, with column_map= or AS in the source SQL",
            )
    event = target.event_timestamp_column
    if event is not None and table.column(event).type.kind not in ("timestamp", "timestamp_tz", "date"):
        raise DeclarationError(
            f"event_timestamp_column {event!r} is {table.column(event).type}: it must be a time or a date"
        )
    if event is not None and event in keys:
        raise DeclarationError(
            f"event_timestamp_column {event!r} is part of the key, so that nothing changes"
        )
    values = tuple(n for n in table.column_names if n not in keys)
    update = values if target.update_columns is None else target.update_columns
    _refuse_keys("update_columns", update, keys)
    if target.compare_columns is not None:
        compare = target.compare_columns
        _refuse_keys("compare_columns", compare, keys)
    elif target.mode == "scd2":
        compare = tuple(n for n in values if n != event)
    else:
        compare = update
    return stored, Matching(
        keys=keys,
        compare=compare,
        update=update,
        order=event or spec.source.watermark_column,
        event=event,
        deletes=target.handle_deletes,
        ttl_seconds=target.ttl_seconds,
    )


def with_deletion_marks(table: TableSpec, live: LiveTable | None) -> TableSpec:
    """The table with deletion marks if the live one has them, so that a merge clears the mark of a returned
    row.
    """
    marked = live is not None and any(c.name == DELETED_AT for c in live.columns)
    if marked and table.keeps == "rows" and DELETED_AT not in table.column_names:
        return replace(table, keeps="soft_deletes")
    return table


def _what_table_keeps(target: TargetSpec) -> TableContents:
    if target.mode == "scd2":
        return "events" if target.event_timestamp_column is not None else "versions"
    return "soft_deletes" if target.handle_deletes == "soft" else "rows"


def _refuse_partial_snapshot(spec: PipelineSpec, target: TargetSpec) -> None:
    """Refuse ``handle_deletes=`` for a load that reads only a part of the source."""
    if target.handle_deletes is None:
        return
    partial = None
    if spec.source.incremental:
        partial = "incremental=True reads only what is new"
    for transform in spec.transforms_pre:
        if isinstance(transform, Limit | SamplePct):
            partial = f"{transform.name}() keeps only a part of the rows"
    if partial is not None:
        raise DeclarationError(
            f"handle_deletes={target.handle_deletes!r} takes rows that the source lacks for deleted, "
            f"which needs the whole source: {partial}",
            next_step="leave handle_deletes= out, or read the whole source",
        )
    if target.mode == "scd2" and target.handle_deletes == "hard":
        raise DeclarationError(
            "handle_deletes='hard' would delete history; mode='scd2' closes the version instead",
            next_step="declare handle_deletes='soft'",
        )


def _refuse_keys(option: str, names: tuple[str, ...], keys: tuple[str, ...]) -> None:
    for name in names:
        if name in keys:
            raise DeclarationError(
                f"{option}= names {name!r}, which is part of the key: matched rows never differ in it"
            )
