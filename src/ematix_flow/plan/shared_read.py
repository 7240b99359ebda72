"""Several targets with one read: the range that it covers, and its number of tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.backends.base import SourceQuery
from ematix_flow.errors import PlanError
from ematix_flow.plan.decisions import Decision
from ematix_flow.plan.load_paths import ONE_READ
from ematix_flow.plan.stages import CopyRows, SharedRead, Stage, TargetPlan, TransformRows
from ematix_flow.plan.tuning import tuned_value
from ematix_flow.spec.watermarks import SourceRange, Watermark


def share_read(
    sql: str, targets: Sequence[TargetPlan], ranges: Sequence[SourceRange | None], table: str | None
) -> tuple[tuple[TargetPlan, ...], SharedRead]:
    """The read that all targets share, and their plans with its number of tasks.

    ``ranges`` are the ranges of the targets, in the source's column names. ``table`` is the table that a
    database computes the rows into.
    """
    query = SourceQuery(sql, widest_range(ranges))
    path = targets[0].path.value
    if path == "same_db":
        return tuple(targets), SharedRead("table", query, 0, table)
    wanted = [tuned_value(target.tuning, "read tasks", 1) for target in targets]
    # each copying task writes to every target, so the target with the fewest writers decides
    tasks = min(wanted) if path == "copy" else max(wanted)
    shared = SharedRead("copy" if path == "copy" else "frame", query, tasks)
    return tuple(_with_tasks(target, tasks) for target in targets), shared


def widest_range(ranges: Sequence[SourceRange | None]) -> SourceRange | None:
    """From the lowest start of any target (None is the beginning) to the lowest end."""
    found = [one for one in ranges if one is not None]
    if not found:
        return None
    lows = [one.low for one in found if one.low is not None]
    highs = [one.high for one in found if one.high is not None]
    low = _lowest_mark(lows) if len(lows) == len(found) else None
    return SourceRange(found[0].column, low, _lowest_mark(highs) if highs else None)


def _lowest_mark(marks: Sequence[Watermark]) -> Watermark:
    lowest = marks[0]
    for mark in marks[1:]:
        try:
            below = _in_utc(mark) < _in_utc(lowest)  # a TypeError unless the types are of one family
        except TypeError:
            raise PlanError(
                f"the targets declare watermark column {mark.column!r} as {lowest.type} and as {mark.type}, "
                "and one read cannot start at both",
                next_step="declare it with the same type in every target",
            ) from None
        lowest = mark if below else lowest
    return lowest


def _in_utc(mark: Watermark) -> Any:
    """Times with and without a zone compare in UTC, because only one target may declare the zone."""
    value = mark.value
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=dt.timezone.utc)
    return value


def _with_tasks(target: TargetPlan, tasks: int) -> TargetPlan:
    def stage_with(stage: Stage) -> Stage:
        return replace(stage, tasks=tasks) if isinstance(stage, CopyRows | TransformRows) else stage

    def decision_with(decision: Decision) -> Decision:
        if decision.name != "read tasks" or decision.value == str(tasks):
            return decision
        return Decision(decision.name, str(tasks), ONE_READ)

    return replace(
        target,
        stages=tuple(stage_with(stage) for stage in target.stages),
        tuning=tuple(decision_with(decision) for decision in target.tuning),
    )
