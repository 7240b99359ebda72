"""The plan of a table: shown to the user, and compared again before a load makes its changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ematix_flow.backends.base import DiffLine, Load, TableChange, TablePlan
from ematix_flow.backends.sql.alterations import CannotAlter
from ematix_flow.backends.sql.create_table import unique_groups
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.matching import Matching


def plan_from_diff(diff: TableDiff, alterations: Callable[[], list[TableChange]]) -> TablePlan:
    changes: list[TableChange] = []
    if diff.has_changes:
        try:
            changes = alterations()
        except CannotAlter as error:
            difference = f"{diff.wanted.label} cannot be changed without losing something: {error}"
            diff.refuse("table", difference)
    return TablePlan(
        tuple(changes),
        tuple(diff.differences),
        tuple(diff.lines),
        tuple(diff.blockers),
        diff.converts_to_scd2,
    )


def new_table_lines(dialect: SqlDialect, table: TableSpec) -> tuple[DiffLine, ...]:
    """The lines of a table that does not exist yet: everything is added."""
    lines = [
        DiffLine("+", c.name, now=dialect.display_type(c.type) + ("" if c.nullable else " NOT NULL"))
        for c in table.columns
    ]
    keys = [("primary key", table.primary_key)] if table.primary_key else []
    keys += [("unique", group) for group in unique_groups(table)]
    return (*lines, *[DiffLine("+", f"{kind} ({', '.join(names)})") for kind, names in keys])


def join_plans(
    first: TablePlan, second: TablePlan, companion: str, *, before_fill: str | None = None
) -> TablePlan:
    """The plans of a table and of its companion as one; their schema is created once.

    The companion's changes come last, or before the last fill of the table that ``before_fill`` names:
    when each change commits by itself, that fill marks the conversion as complete.
    """
    known = {change.sql for change in first.changes}
    extra = tuple(change for change in second.changes if change.sql not in known)
    lines = tuple(DiffLine(x.mark, f"{companion}: {x.subject}", x.was, x.now) for x in second.diff)
    place = len(first.changes)
    for number, change in enumerate(first.changes):
        if change.action == "fill" and change.subject == before_fill:
            place = number
    return TablePlan(
        (*first.changes[:place], *extra, *first.changes[place:]),
        first.differences + second.differences,
        first.diff + lines,
        first.blockers + second.blockers,
        first.converts_to_scd2,
    )


def matching_by_key(table: TableSpec) -> Matching:
    """The default matching: by the key, comparing all other columns."""
    keys = table.merge_keys or table.primary_key
    return Matching(keys=keys, compare=tuple(n for n in table.column_names if n not in keys))


def remaining_changes(load: Load, plan: TablePlan) -> Sequence[TableChange]:
    """The planned changes that no other process has made since the plan."""
    agreed, declined = (
        {(change.action, change.subject) for change in changes}
        for changes in (load.plan.table_plan.changes, load.plan.table_plan.declined)
    )
    other = [c for c in plan.changes if (c.action, c.subject) not in agreed | declined]
    refused = [text for text in plan.differences if text not in load.plan.table_plan.differences]
    if other or refused:
        changed = refused or [f"{c.action.replace('_', ' ')} {c.subject}" for c in other]
        raise SchemaMismatch(
            f"{load.table.label} was changed by another process after this run was planned: "
            + "; ".join(changed),
            where=load.table.where,
            state=f"{load.table.label} is unchanged",
            next_step="run it again",
        )
    return [c for c in plan.changes if (c.action, c.subject) in agreed]
