"""Applies the ``on_drift`` policy to the difference between a declared table and the live one.

``error`` (the default) stops and shows the difference, ``warn`` changes nothing and loads what can still be
loaded exactly, ``evolve`` makes the changes that lose nothing. A missing table is always created.
"""

from __future__ import annotations

from ematix_flow.backends.base import TableChange, TablePlan
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.tables import TableSpec

_CREATION = ("create_schema", "create_table", "create_folder")


def is_creation(change: TableChange) -> bool:
    """Whether the change creates something, instead of altering what exists."""
    return change.action in _CREATION


def judge_drift(
    policy: str, table: TableSpec, plan: TablePlan, where: SourceLocation | None
) -> tuple[TablePlan, tuple[str, ...]]:
    """The changes that the load will make, and warnings."""
    evolving = [change for change in plan.changes if not is_creation(change)]
    if not evolving and not plan.differences:
        return plan, ()
    if policy == "evolve" and not plan.differences:
        return plan, ()
    if policy == "warn":
        if plan.converts_to_scd2 and not plan.differences:
            return plan, (f"{table.label} becomes a table of versions: {_describe_diff(plan)}",)
        # without the change, a new column would never be loaded
        if not plan.blockers and not any(change.action == "add_column" for change in evolving):
            created = tuple(filter(is_creation, plan.changes))
            allowed = TablePlan(created, plan.differences, plan.diff, declined=tuple(evolving))
            return allowed, (f"{table.label} differs from its declaration: {_describe_diff(plan)}",)
    raise SchemaMismatch(
        f"{table.label} differs from its declaration:\n" + "\n".join(_diff_lines(plan)),
        where=table.where or where,
        state=f"{table.label} is unchanged",
        next_step=_next_step(policy, plan, bool(evolving)),
    )


def _diff_lines(plan: TablePlan) -> list[str]:
    """The lines of the diff; for a backend without a diff, its changes and differences."""
    if plan.diff:
        return [f"  {line}" for line in plan.diff]
    changes = [f"  + {change.subject}" for change in plan.changes if not is_creation(change)]
    return changes + [f"  ! {text}" for text in plan.differences]


def _describe_diff(plan: TablePlan) -> str:
    return "; ".join(line.strip() for line in _diff_lines(plan) if not line.strip().startswith("="))


def _next_step(policy: str, plan: TablePlan, can_evolve: bool) -> str:
    if plan.differences:
        rest = ", then on_drift='evolve' does the rest" if can_evolve and policy != "evolve" else ""
        return f"change the table by hand where it says !, or the declaration{rest}"
    if plan.converts_to_scd2:
        return "set on_drift='evolve': the rows become the first versions of their keys"
    return "set on_drift='evolve' and run it again: it loses nothing"
