"""Refuses a stream whose declaration changed so that its checkpoint and its state cannot continue.

Reads the checkpoint's folder only, so that a plan and a start can ask the same before anything is opened. The
types of columns are compared later, when the state itself is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ematix_flow.engine.streams.checkpoint import Checkpoint
from ematix_flow.engine.streams.declaration_record import (
    CHANGE_ORDER,
    DELETE_OPTIONS,
    DeclarationRecord,
    declared_record,
    operator_options,
    read_record,
)
from ematix_flow.engine.streams.state.state_file import StateFile
from ematix_flow.engine.streams.state.status import StateStatus
from ematix_flow.errors import EngineError, Unsupported
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.streams import StreamSpec

ANOTHER_STREAM = "give the stream another name= and target: it then reads the source from the beginning"
_UNCHANGED = "nothing was loaded; checkpoint, state and targets are unchanged"
_VERSIONS = ("scd2", "cdc_scd2")


def refuse_declared_changes(
    spec: StreamSpec, checkpoint: Checkpoint, kinds: Sequence[str] = ()
) -> DeclarationRecord | None:
    """Raise Unsupported for a change that a query which has loaded something cannot take.

    ``kinds`` are those of the sources' connections. Returns the record of the query's last run.
    """
    record = read_record(checkpoint.folder)
    if checkpoint.last_committed() is None:
        return record
    if not spec.is_stateful:
        _refuse_removed_operator(spec, record, checkpoint)
    elif record is not None and record.operator is None:
        _refuse_added_operator(spec)
    elif record is not None and record.operator is not None:
        _refuse_other_operator(spec, record.operator)
        _refuse_other_store(spec, record, checkpoint)
    if record is not None:
        now = declared_record(spec, kinds)
        _refuse_change_events(spec, record, now)
        _refuse_sources(spec, record, now)
        _refuse_versions(spec, record)
    return record


def _refuse_removed_operator(
    spec: StreamSpec, record: DeclarationRecord | None, checkpoint: Checkpoint
) -> None:
    had = record.operator if record is not None else None
    if (record.store if record is not None else None) == "in_memory":
        return  # the end of its last run has lost the state
    if had is None and not StateFile.exists(checkpoint.state_folder):
        return
    what = "join=" if had is not None and "join=" in had else "window="
    named = f"{what} ({had[what]})" if had is not None else "window= or join="
    waiting = "rows that wait for a partner" if what == "join=" else "rows of open windows"
    raise Unsupported(
        f"stream {spec.name!r} has run with {named} and is declared without: {waiting} would never be loaded",
        where=spec.where,
        state=_UNCHANGED,
        next_step=f"declare it as before, or {ANOTHER_STREAM}",
    )


def _refuse_added_operator(spec: StreamSpec) -> None:
    what, missing = ("join=", "partners") if spec.join is not None else ("window=", "rows")
    raise Unsupported(
        f"stream {spec.name!r} has run without {what}: the rows that it has read are in no state, and the "
        f"first results would miss {missing}",
        where=_operator_location(spec),
        state=_UNCHANGED,
        next_step=f"remove {what}, or {ANOTHER_STREAM}",
    )


def _refuse_other_operator(spec: StreamSpec, had: Mapping[str, Any]) -> None:
    now = operator_options(spec) or {}
    names = list(dict.fromkeys((*had, *now)))
    changed = [name for name in names if had.get(name) != now.get(name)]
    if not changed:
        return
    described = "; ".join(describe_change(name, had.get(name), now.get(name)) for name in changed)
    raise Unsupported(
        f"the state of stream {spec.name!r} cannot be continued: {described}",
        where=_operator_location(spec),
        state=_UNCHANGED,
        next_step=f"take the change back, or {ANOTHER_STREAM}",
    )


def describe_change(name: str, had: object, now: object) -> str:
    """As in ``duration_ms was 10000 and is 5000``."""
    named = name.removesuffix("=")
    if had is None:
        return f"{named} is new ({_as_text(now)})"
    if now is None:
        return f"{named} ({_as_text(had)}) is gone"
    return f"{named} was {_as_text(had)} and is {_as_text(now)}"


def _as_text(value: object) -> str:
    return f"({', '.join(map(str, value))})" if isinstance(value, list) else str(value)


def _refuse_other_store(spec: StreamSpec, record: DeclarationRecord, checkpoint: Checkpoint) -> None:
    now = spec.state_store.kind if spec.state_store is not None else "checkpoint"
    if now == "in_memory" and record.store != "in_memory":
        raise Unsupported(
            f"stream {spec.name!r} has a state on disk, and state_store= is now in memory, where it would "
            "begin with none",
            where=spec.where,
            state=_UNCHANGED,
            next_step=f"leave StateStore(kind='in_memory') out, or {ANOTHER_STREAM}",
        )
    if record.store != "in_memory" and record.state_id and not StateFile.exists(checkpoint.state_folder):
        raise Unsupported(
            f"the state of stream {spec.name!r} is gone from {checkpoint.state_folder}, and its checkpoint "
            f"is still there: {_lost_rows(spec)}",
            where=spec.where,
            state="nothing was loaded; checkpoint and targets are unchanged",
            next_step=f"bring the stream's folder back as a whole, or {ANOTHER_STREAM}",
        )


def refuse_lost_state(spec: StreamSpec, reason: str) -> None:
    """Refuse to continue a window or a join without its state, whose messages are already read."""
    if spec.is_stateful:
        raise Unsupported(
            f"{reason}: {_lost_rows(spec)}",
            where=_operator_location(spec),
            state="nothing was read, and the targets are unchanged",
            next_step=f"bring back the stream's folder with its checkpoint, or {ANOTHER_STREAM}",
        )


def check_state_file(file: StateFile, record: DeclarationRecord | None, status: StateStatus | None) -> None:
    """Refuse a state file that is not the one of the checkpoint, or an older copy of it."""
    last = file.last_version()
    if record is not None and record.state_id is not None and record.state_id != file.id():
        raise EngineError(
            f"the state {file.path} is not the one of the stream's checkpoint: another stream wrote it, or "
            "it is new",
            state="nothing was loaded, and the targets are unchanged",
            next_step=f"bring the stream's folder back as a whole, or {ANOTHER_STREAM}",
        )
    if status is None or status.store == "in_memory" or status.version is None:
        return
    if last is None or last < status.version:
        raise EngineError(
            f"the state {file.path} is older than the stream's checkpoint: it has come to version "
            f"{'none' if last is None else last}, and the stream to {status.version}",
            state="nothing was loaded, and the targets are unchanged",
            next_step=f"bring the stream's folder back as a whole, or {ANOTHER_STREAM}",
        )


def _lost_rows(spec: StreamSpec) -> str:
    """What the results would lack without the state."""
    if spec.join is None:
        return "the windows that were open would miss their first rows"
    return "the rows that wait for a partner would be lost"


def _refuse_change_events(spec: StreamSpec, had: DeclarationRecord, now: DeclarationRecord) -> None:
    if had.cdc is None and now.cdc is None:
        return
    if had.cdc is None or now.cdc is None:
        before, after = ("with cdc=", "without") if now.cdc is None else ("without cdc=", "with it")
        what = f"has run {before} and is declared {after}"
        why = "its table would have rows of two kinds, messages and rows that change events made"
    elif order := _changed_options(CHANGE_ORDER, had.cdc, now.cdc):
        what = f"cannot order the changes of a key: {order}"
        why = "positions of the new kind mean nothing next to those that the table has"
    elif deletes := _changed_options(DELETE_OPTIONS, had.cdc, now.cdc):
        what = f"cannot continue its table with other deletes: {deletes}"
        why = (
            "rows that are marked as deleted would stay in the table, with their mark even when the source "
            "has them again"
            if had.cdc["delete_mode"] == "soft"
            else "rows that were deleted so far are gone, and would have no mark"
        )
    else:
        return
    raise Unsupported(
        f"stream {spec.name!r} {what}; {why}",
        where=spec.where,
        state=_UNCHANGED,
        next_step=f"take the change back, or {ANOTHER_STREAM}",
    )


def _changed_options(names: Sequence[str], had: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The options that changed. Those that an earlier version has not recorded count as unchanged."""
    return "; ".join(
        describe_change(name, had[name], now[name])
        for name in names
        if name in had and had[name] != now[name]
    )


def _refuse_sources(spec: StreamSpec, had: DeclarationRecord, now: DeclarationRecord) -> None:
    """Positions are stored in the order of the sources, and each kind of source has its own."""
    if had.kinds and now.kinds and len(had.kinds) == len(now.kinds) and had.kinds != now.kinds:
        read, declared = next(pair for pair in zip(had.kinds, now.kinds, strict=True) if pair[0] != pair[1])
        raise Unsupported(
            f"stream {spec.name!r} has read {read} and is declared with a source of {declared}: "
            "a position in one means nothing in the other",
            where=spec.where,
            state=_UNCHANGED,
            next_step=f"declare the source as before, or {ANOTHER_STREAM}",
        )
    moved = [
        query
        for place, query in enumerate(now.sources)
        if query in had.sources and place < len(had.sources) and had.sources[place] != query
    ]
    if len(had.sources) == len(now.sources) and moved:
        raise Unsupported(
            f"stream {spec.name!r} has its sources in another order ({', '.join(now.sources)}): it is not "
            "known which position belongs to which source",
            where=spec.where,
            state=_UNCHANGED,
            next_step=f"declare them in this order:  {', '.join(had.sources)}",
        )


def _refuse_versions(spec: StreamSpec, had: DeclarationRecord) -> None:
    for target in spec.targets:
        loaded = had.targets.get(target.label)
        if loaded is not None and loaded.mode in _VERSIONS and target.mode not in _VERSIONS:
            raise Unsupported(
                f"mode= of {target.label} was 'scd2' and is {target.mode!r}: its table has versions of rows, "
                "which this mode does not close",
                where=spec.where,
                state=_UNCHANGED,
                next_step=f"take the change back, or {ANOTHER_STREAM}",
            )


def _operator_location(spec: StreamSpec) -> SourceLocation | None:
    operator = spec.join or spec.window
    return (operator.where if operator is not None else None) or spec.where
