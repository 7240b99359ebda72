"""Creates a declared table, or compares it with the live one, without a load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.backends.base import TablePlan
from ematix_flow.engine.live_connection import LiveConnection
from ematix_flow.plan.drift import is_creation, judge_drift
from ematix_flow.plan.matching_options import resolve_matching
from ematix_flow.run.context_setup import spark_starter
from ematix_flow.run.pipeline import open_connections
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.pipelines import ConnectionRef, DriftPolicy, Mode, PipelineSpec, TargetSpec
from ematix_flow.spec.tables import TableSpec


def ensure_table(
    spec: TableSpec,
    connection: LiveConnection | ConnectionRef,
    on_drift: DriftPolicy,
    mode: Mode,
    keys: Sequence[str],
    where: SourceLocation | None,
) -> dict[str, Any]:
    """Make the live table fit the declaration as far as ``on_drift`` allows, and return what was done.

    ``mode`` and ``keys`` are those of the pipeline that loads the table. The mode decides which columns the
    table has in addition to the declared ones.
    """
    if not isinstance(connection, LiveConnection):
        connection = LiveConnection(open_connections(spark_starter()), connection)
    target = TargetSpec(connection.reference, spec, mode, keys=tuple(keys))
    pipeline = PipelineSpec(f"ensure {spec.label}", "", (target,), where=where)
    table, matching = resolve_matching(pipeline, target, spec)
    sink = connection.target()
    found = sink.plan_table(table, sink.inspect(table), matching)
    changes, _ = judge_drift(on_drift, table, found, where)
    if changes.changes:
        sink.change_table(table, changes)
    return {"action": _action_taken(changes), "differences": [str(line) for line in _differences(found)]}


def _action_taken(plan: TablePlan) -> str:
    if any(change.action == "create_table" or change.action == "create_folder" for change in plan.changes):
        return "created"
    if any(not is_creation(change) for change in plan.changes):
        return "evolved"
    return "drift" if plan.differences or plan.declined else "unchanged"


def _differences(plan: TablePlan) -> list[object]:
    """How the live table differs from the declaration; empty when there was no table before."""
    if any(is_creation(change) for change in plan.changes):
        return []
    return [line for line in plan.diff if line.mark != "="] or list(plan.differences)
