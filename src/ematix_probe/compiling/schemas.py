"""Compares the columns of a source with those that ``schema_match`` asks for. It needs no SQL."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_probe.assertions import SchemaMatch
from ematix_probe.column_types import types_agree
from ematix_probe.sources.base import ColumnInfo


def schema_differences(assertion: SchemaMatch, columns: Mapping[str, ColumnInfo]) -> list[str]:
    """What differs, in words; nothing when the schema matches."""
    wanted = dict(assertion.columns)
    problems = []
    missing = [name for name in wanted if name not in columns]
    if missing:
        problems.append(f"missing: {', '.join(missing)}")
    extra = [name for name in columns if name not in wanted]
    if extra and not assertion.allow_extra:
        problems.append(f"not listed: {', '.join(extra)}")
    different = [
        f"{name} is {_shown(columns[name])}, not {kind}"
        for name, kind in wanted.items()
        if kind is not None and name in columns and not types_agree(kind, columns[name].type)
    ]
    if different:
        problems.append(f"other types: {', '.join(different)}")
    if assertion.ordered:
        found_order = [name for name in columns if name in wanted]
        wanted_order = [name for name in wanted if name in columns]
        if found_order != wanted_order:
            problems.append(f"other order: {', '.join(found_order)}")
    return problems


def _shown(column: ColumnInfo) -> str:
    native = column.native
    return f"{column.type} ({native})" if native and native.lower() != column.type else column.type
