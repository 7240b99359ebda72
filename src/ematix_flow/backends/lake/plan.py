"""Adjusts the plan of a table for a lake, which has no keys and sets partitions only at creation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ematix_flow.backends.base import DiffLine, LiveTable, TablePlan
from ematix_flow.spec.tables import BATCH_ID, LOADED_AT, TableSpec


def allow_null_load_columns(wanted: TableSpec, live: LiveTable) -> TableSpec:
    """Make load columns nullable where other programs wrote rows without them."""
    nullable = {c.name: c.nullable for c in live.columns}
    columns = tuple(
        replace(c, nullable=nullable.get(c.name, True)) if c.name in (LOADED_AT, BATCH_ID) else c
        for c in wanted.columns
    )
    return replace(wanted, columns=columns)


def without_keys(plan: TablePlan) -> TablePlan:
    """The plan without keys: a lake does not enforce them, each load does."""
    lines = tuple(x for x in plan.diff if not x.subject.startswith(("primary key (", "unique (")))
    return replace(plan, diff=lines)


def with_partitions(
    plan: TablePlan, table: TableSpec, declared: Sequence[str], there: Sequence[str] | None
) -> TablePlan:
    """The plan with the difference in partitions. ``there`` is None for a table that does not exist yet."""
    if there is None:
        return replace(plan, diff=(*plan.diff, DiffLine("+", _partitions_text(declared))))
    if set(there) == set(declared):
        return plan
    problem = (
        f"{table.label} is {_partitions_text(there)}, and partition_by= says ({', '.join(declared)}): "
        "remove partition_by= or make it the same; to change the partitions, load another table"
    )
    line = DiffLine("!", "partitions", _partitions_text(there), _partitions_text(declared))
    return replace(
        plan,
        differences=(*plan.differences, problem),
        diff=(*plan.diff, line),
        blockers=(*plan.blockers, problem),
    )


def _partitions_text(names: Sequence[str]) -> str:
    return f"partitioned by ({', '.join(names)})" if names else "not partitioned"
