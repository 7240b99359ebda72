"""New columns of a stream that its table lacks: added, left out, or an error, by ``on_drift=``.

This applies only to a table that ematix-flow created and no declaration describes. Other tables are loaded as
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ematix_flow.backends.base import BatchTarget, LiveTable, TablePlan
from ematix_flow.backends.sql.type_widening import widens
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import BATCH_ID, LOADED_AT, ColumnSpec, TableSpec
from ematix_flow.strategies.matching import Matching

LOAD_COLUMNS = (LOADED_AT, BATCH_ID)
_EVOLVING_ACTIONS = ("add_column", "widen_column", "rebuild_table")


def has_load_columns(live: LiveTable | None) -> bool:
    """Whether a table has the load columns, which every load writes."""
    return live is not None and {column.name for column in live.columns}.issuperset(LOAD_COLUMNS)


def new_or_wider_columns(known: Sequence[ColumnSpec], columns: Sequence[ColumnSpec]) -> list[ColumnSpec]:
    """The columns that are not known, or that are wider than the known ones."""
    there = {column.name: column.type for column in known}
    return [
        c
        for c in columns
        if c.name not in there or (c.type != there[c.name] and widens(there[c.name], c.type))
    ]


def evolve_table(table: TableSpec, live: LiveTable, columns: Sequence[ColumnSpec]) -> TableSpec:
    """The table with the stream's new columns, which are nullable, and wider types."""
    more = {c.name: c for c in new_or_wider_columns(table.columns, columns)}
    kept = [replace(c, type=more[c.name].type) if c.name in more else c for c in table.columns]
    known_names = {*table.column_names, *(c.name for c in live.columns)}
    new = [
        replace(c, nullable=True, primary_key=False, normalizers=())
        for c in more.values()
        if c.name not in known_names
    ]
    return replace(table, columns=(*kept, *new))


def judge_new_columns(
    policy: str,
    sink: BatchTarget,
    table: TableSpec,
    grown: TableSpec,
    matching: Matching,
    where: SourceLocation | None,
) -> tuple[TablePlan, tuple[str, ...]]:
    """The changes from the live table to ``grown``, or a warning that they are not made.

    Raises SchemaMismatch if the policy is to stop, or if the table cannot be changed this way.
    """
    before = {c.name: c.type for c in table.columns}
    changed_names = [c.name for c in grown.columns if c.type != before.get(c.name)]
    found = sink.plan_table(grown, sink.inspect(grown), matching)
    changes = tuple(change for change in found.changes if change.action in _EVOLVING_ACTIONS)
    refused = [
        text for text in found.differences if any(f"column {name!r}" in text for name in changed_names)
    ]
    if not changes and not refused:
        return TablePlan(), ()
    lines = [str(line) for line in found.diff if line.subject in changed_names]
    description = "; ".join(lines or [*(f"+ {change.subject}" for change in changes), *refused])
    if policy == "evolve" and not refused:
        others = tuple(change for change in found.changes if change not in changes)
        return TablePlan(changes, found.differences, found.diff, declined=others), ()
    if policy == "warn":
        warning = f"the stream has columns or types that {table.label} does not have; they are left out"
        return TablePlan(), (f"{warning}: {description}",)
    raise SchemaMismatch(
        f"the stream has columns or types that {table.label} does not have: {description}",
        where=where,
        state=f"{table.label} is unchanged, and nothing of this batch is loaded",
        next_step=(
            "change the table by hand where it says !"
            if refused
            else "on_drift='evolve' changes the table, and 'warn' leaves these fields out"
        ),
    )


def evolved_table(
    spec: StreamSpec, sink: BatchTarget, table: TableSpec, columns: Sequence[ColumnSpec]
) -> tuple[TableSpec | None, tuple[str, ...]]:
    """The table with the stream's new columns, if the policy adds them, and warnings."""
    live = sink.inspect(table)
    assert live is not None
    there = {column.name for column in live.columns}
    if not has_load_columns(live):
        left = [column.name for column in columns if column.name not in there]
        warning = f"{table.label} has no column {', '.join(left)}: what the stream brings there is left out"
        return None, ((warning,) if left else ())
    grown = evolve_table(table, live, columns)
    if grown == table:
        return None, ()
    if spec.on_drift == "warn":
        return None, judge_new_columns("warn", sink, table, grown, Matching(), spec.where)[1]
    return grown, ()
