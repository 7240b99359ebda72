"""``cdc=`` of a stream: what goes together with it, and its form in a TOML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.api.option_checks import resolve_keys
from ematix_flow.api.stream_declaration import StreamOptions
from ematix_flow.config.toml_table import TomlTable
from ematix_flow.errors import DeclarationError
from ematix_flow.plan.stream_capabilities import check_change_target
from ematix_flow.spec.cdc import CDC, CDC_OPTIONS
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.streams import StreamMode, StreamTargetSpec

_UNUSED_OPTIONS = {
    "transform_sql": "changes are applied as the source made them",
    "window": "changes are applied as the source made them",
    "join": "changes are applied as the source made them",
    "lookups": "changes are applied as the source made them",
    "udfs": "changes are applied as the source made them",
    "aggregate_udfs": "changes are applied as the source made them",
}
_UNUSED_TARGET_OPTIONS = {
    "update_columns": "a change writes the columns that it names",
    "compare_columns": "a change is applied even if the row stays equal",
    "event_timestamp_column": "the positions in the source's log order the changes",
}


def for_change_events(
    options: StreamOptions,
    targets: tuple[StreamTargetSpec, ...],
    kinds: Sequence[str | None],
    where: SourceLocation | None,
) -> tuple[StreamTargetSpec, ...]:
    """The targets as ``cdc=`` loads them: by key. Refuses what does not go together with it."""
    cdc = options.cdc
    if cdc is None:
        return targets
    if not isinstance(cdc, CDC):
        raise DeclarationError(f"cdc= takes CDC(…), not {cdc!r}", where=where)
    for option, reason in _UNUSED_OPTIONS.items():
        if getattr(options, option):
            raise DeclarationError(f"{option}= has no effect with cdc=: {reason}", where=where)
    found = []
    for target, kind in zip(targets, kinds, strict=True):
        check_change_target(target, kind, where)
        keeps_versions = target.mode == "scd2"
        for option, reason in _UNUSED_TARGET_OPTIONS.items():
            if getattr(target, option) and not (keeps_versions and option == "compare_columns"):
                raise DeclarationError(f"{option}= has no effect with cdc=: {reason}", where=where)
        if keeps_versions and cdc.delete_mode == "soft":
            raise DeclarationError(
                "delete_mode='soft' marks rows, and mode='scd2' ends the version of a deleted row instead",
                where=where,
                next_step="leave delete_mode= and soft_delete_column= out",
            )
        if keeps_versions and cdc.envelope == "custom" and cdc.ts_field is None:
            raise DeclarationError(
                "mode='scd2' needs the time of each change, and a custom envelope does not say where it is",
                where=where,
                next_step="name the field with CDC(ts_field=…)",
            )
        mode: StreamMode = "scd2" if keeps_versions else "merge"
        found.append(replace(target, mode=mode, keys=_keys(cdc, target, where)))
    if len({target.keys for target in found}) > 1:
        raise DeclarationError("with cdc= all targets have the same keys=", where=where)
    soft = cdc.soft_delete_column
    if soft is not None and soft in found[0].keys:
        raise DeclarationError(f"soft_delete_column= {soft!r} is part of the key", where=where)
    return tuple(found)


def _keys(cdc: CDC, target: StreamTargetSpec, where: SourceLocation | None) -> tuple[str, ...]:
    """keys=, or what the declared table says, or key_field=."""
    table = target.table
    if target.keys or table is None or not (table.primary_key or table.merge_keys or table.natural_keys):
        return target.keys or cdc.key_columns
    return resolve_keys(table, (), "merge", where)


def read_cdc(top: TomlTable) -> CDC | None:
    """``[cdc]`` or ``[transform.cdc]`` of a file."""
    transform = top.table("transform")
    found = [each for each in (top.table("cdc"), transform and transform.table("cdc")) if each is not None]
    if len(found) == 2:
        raise found[1].error("[cdc] is given twice: keep one of them")
    if not found:
        return None
    (table,) = found
    table.refuse_unknown(CDC_OPTIONS)
    try:
        return CDC(**table.values, where=table.where())
    except DeclarationError as error:
        named = [key for key in table.values if f"{key}=" in error.what]
        error.where = table.where(*named[:1])
        raise


def cdc_to_toml(cdc: CDC) -> dict[str, Any]:
    """The options that differ from the defaults, and the envelope."""
    default = CDC().to_json()
    found = cdc.to_json()
    paths = found["key_field"]
    if paths is not None and len(paths) == 1:
        found["key_field"] = paths[0]
    return {name: value for name, value in found.items() if name == "envelope" or value != default[name]}
