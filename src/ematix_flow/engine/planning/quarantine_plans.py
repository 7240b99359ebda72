"""Finds the quarantine tables of pipelines and streams, and plans the replay of their rows.

A replay loads rows that were read before: nothing here asks the source of a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ematix_flow.backends.base import LoadPlan
from ematix_flow.backends.gated_target import GatedTarget
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.planning.gates import plan_gate, plan_quarantine
from ematix_flow.errors import Unsupported
from ematix_flow.plan.drift import judge_drift
from ematix_flow.plan.matching_options import resolve_matching, with_deletion_marks
from ematix_flow.spec.expectations import Expectation, Gate, named_quarantine, quarantine_table
from ematix_flow.spec.pipelines import ConnectionRef, PipelineSpec, TargetSpec
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec
from ematix_flow.spec.tables import TableSpec


@dataclass(frozen=True)
class QuarantinePlace:
    """The quarantine table of one target. Of ``table`` only the name is certain: it may not exist."""

    pipeline: str
    label: str  # of the target
    connection: ConnectionRef
    table: TableSpec


def quarantine_places(spec: PipelineSpec | StreamSpec, table: str | None = None) -> list[QuarantinePlace]:
    """The quarantine table of each target with a table. ``table`` is its name, if not as declared."""
    places = []
    for target in spec.targets:
        name = _table_name(target)
        if name is not None:
            found = named_quarantine(*name, table or spec.expectations.quarantine)
            places.append(QuarantinePlace(spec.name, target.label, target.connection, found))
    return places


def _table_name(target: TargetSpec | StreamTargetSpec) -> tuple[str | None, str] | None:
    if target.table is not None:
        return target.table.schema, target.table.name
    return target.table_name if isinstance(target, StreamTargetSpec) else None


def target_of(place: QuarantinePlace, connections: Connections) -> GatedTarget:
    """The target with the quarantine table."""
    sink = connections.target(place.connection)
    if not isinstance(sink, GatedTarget):
        kind = connections.backend(place.connection).kind
        raise Unsupported(f"a target of kind {kind!r} has no quarantine table", state="nothing was touched")
    return sink


def plan_replay(spec: PipelineSpec, place: QuarantinePlace, connections: Connections) -> LoadPlan:
    """Plan the load of quarantined rows into a target of a pipeline, with its gate and its mode."""
    (target,) = [each for each in spec.targets if each.label == place.label]
    assert target.table is not None
    sink = connections.target(target.connection).with_partitions(target.partition_by).with_files(target.files)
    table, matching = resolve_matching(spec, target, target.table)
    live = sink.inspect(table)
    if target.mode == "merge":
        table = with_deletion_marks(table, live)
    changes, _ = judge_drift(spec.on_drift, table, sink.plan_table(table, live, matching), spec.where)
    backend = connections.backend(target.connection)
    gate = plan_gate(
        spec.expectations,
        table,
        matching,
        sink,
        backend.kind,
        spec.where,
        max_identifier_bytes=backend.capabilities.max_identifier_bytes,
    ).gate
    plan = LoadPlan(
        table,
        target.mode,
        matching,
        partition_by=target.partition_by,
        files=target.files,
        table_plan=changes,
        gate=gate,
    )
    return as_replay(plan, place, connections)


def as_replay(plan: LoadPlan, place: QuarantinePlace, connections: Connections) -> LoadPlan:
    """The plan for rows that are added to those that are loaded: nothing is taken for deleted or replaced."""
    sink = connections.target(place.connection)
    quarantine = quarantine_table(plan.table, place.table.label)
    changes = plan_quarantine(quarantine, sink, plan.gate.where if plan.gate is not None else None)
    gate = plan.gate or Gate(())
    gate = replace(gate, rules=rules_of_replay(gate.rules), quarantine=quarantine, to_dead_letters=False)
    return replace(
        plan,
        mode="append" if plan.mode == "truncate" else plan.mode,
        range=None,
        matching=replace(plan.matching, deletes=None),
        gate=gate,
        quarantine_plan=changes,
        stages_older=False,
    )


def rules_of_replay(rules: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    """The rules that a row passes or fails by itself.

    Rules about a load as a whole, and the share of it that may fail, say nothing about the few replayed rows.
    """
    found = []
    for rule in rules:
        if not rule.assertion.by_row:
            continue
        options = rule.assertion.options
        if options.tolerate:
            if rule.action == "fail":  # the load accepts some such rows
                rule = replace(rule, action="warn")
            rule = replace(rule, assertion=replace(rule.assertion, options=replace(options, tolerate=0.0)))
        found.append(rule)
    return tuple(found)
