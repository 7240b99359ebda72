"""Refuses targets that a running stream would begin in the middle, or match by other rules than before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ematix_flow.engine.connections import Connections
from ematix_flow.engine.streams.declaration_record import (
    DeclarationRecord,
    LoadedTarget,
    read_record,
)
from ematix_flow.engine.streams.declared_changes import ANOTHER_STREAM
from ematix_flow.engine.streams.stream_folder import StreamFolder
from ematix_flow.errors import TargetFailed, Unsupported
from ematix_flow.plan.stream_definition import StreamTargetPlan
from ematix_flow.spec.streams import StreamSpec, StreamTargetSpec

_UNCHANGED = "nothing was loaded; checkpoint and targets are unchanged"


def loaded_targets(plans: Sequence[StreamTargetPlan]) -> dict[str, LoadedTarget]:
    """What a record keeps of the targets that a batch was loaded into."""
    return {plan.target.label: LoadedTarget(plan.load.mode, tuple(plan.load.matching.keys)) for plan in plans}


@dataclass(frozen=True)
class KnownTargets:
    """What the queries of a stream knew of its targets when the stream was opened."""

    loaded: Mapping[str, LoadedTarget] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()  # also those that failed before they were loaded

    def is_new(self, label: str) -> bool:
        """Whether other targets are loaded, and this one was not there yet."""
        return bool(self.loaded) and label not in self.loaded and label not in self.declared

    def with_records(self, records: Iterable[DeclarationRecord]) -> KnownTargets:
        """Also the targets in these records, which replace what is known of the same targets."""
        loaded, declared = dict(self.loaded), set(self.declared)
        for record in records:
            loaded.update(record.targets)
            declared.update(record.declared)
        return KnownTargets(loaded, frozenset(declared))

    def new_among(self, targets: Sequence[StreamTargetSpec]) -> list[str]:
        return [target.label for target in targets if self.is_new(target.label)]


def known_targets(folder: StreamFolder) -> KnownTargets:
    """The targets in the records of all queries of a stream."""
    checkpoints = sorted(folder.checkpoint("all").parent.glob("[!.]*"))
    records = [read_record(checkpoint) for checkpoint in checkpoints]
    return KnownTargets().with_records(record for record in records if record is not None)


def refuse_target_changes(
    spec: StreamSpec,
    connections: Connections,
    plans: Sequence[StreamTargetPlan],
    known: KnownTargets,
    last_position: Callable[[StreamTargetSpec], str | None],
) -> None:
    """``last_position`` returns a target's position in its ledger."""
    for plan in plans:
        before = known.loaded.get(plan.target.label)
        _refuse_created_table(spec, plan, known, last_position)
        if before is not None:
            _refuse_other_matching(spec, connections, plan, before)
        elif spec.continue_on_target_failure and known.is_new(plan.target.label):
            _refuse_renamed_target(spec, plan.target, known.loaded)


def _refuse_renamed_target(spec: StreamSpec, target: StreamTargetSpec, loaded: Collection[str]) -> None:
    """The position of a target that fails alone is stored by the name of the target."""
    declared = {each.label for each in spec.targets}
    renamed = [
        label
        for label in loaded
        if label not in declared and label.partition(":")[2] == target.destination and target.destination
    ]
    if renamed:
        raise Unsupported(
            f"{target.label} is new in stream {spec.name!r}, and {renamed[0]}, which it has loaded, is no "
            "longer declared: with continue_on_target_failure=True a target's position is stored by its name",
            where=spec.where,
            state=_UNCHANGED,
            next_step=f"keep the connection's name {renamed[0].partition(':')[0]!r}, or {ANOTHER_STREAM}",
        )


def _refuse_created_table(
    spec: StreamSpec,
    plan: StreamTargetPlan,
    known: KnownTargets,
    last_position: Callable[[StreamTargetSpec], str | None],
) -> None:
    """Refuse a plan that creates a table in the middle of the stream, or the positions of a loaded one."""
    new = [change.subject for change in plan.load.table_plan.changes if change.action == "create_table"]
    positions = plan.table.companion() if plan.table.keeps_changes else None
    created = next((each for each in (plan.table, positions) if each is not None and each.label in new), None)
    if created is None:
        return
    if plan.target.label in known.loaded or last_position(plan.target) is not None:
        raise TargetFailed(
            f"{created.label} is gone, and this stream has loaded it before: it would begin in the middle",
            state="nothing was loaded",
            next_step="bring the table back, or load everything that the source still has by another "
            "name= of the stream",
        )
    if created is plan.table and known.is_new(plan.target.label):
        raise Unsupported(
            f"{plan.target.label} is a new target of stream {spec.name!r}, which has loaded "
            f"{', '.join(sorted(known.loaded))}: its table would begin in the middle",
            where=spec.where,
            state=_UNCHANGED,
            next_step="create the table, if it is to have the rows from now on; or load it by a stream with "
            "another name=, which reads the source from the beginning",
        )


def _refuse_other_matching(
    spec: StreamSpec, connections: Connections, plan: StreamTargetPlan, before: LoadedTarget
) -> None:
    target, mode, keys = plan.target, plan.load.mode, tuple(plan.load.matching.keys)
    if before.mode == "append" and mode == "merge":
        what = f"mode= of {target.label} was 'append' and is 'merge'"
        why = f"several of its rows may have one key ({', '.join(keys)}), and each of them would be updated"
    elif before.mode == mode and mode in ("merge", "cdc", "cdc_scd2") and set(before.keys) != set(keys):
        what = f"keys= of {target.label} were {_names(before.keys)} and are {_names(keys)}"
        why = f"several of its rows may have one key ({', '.join(keys)}), and each of them would be updated"
    else:
        return
    if mode == "merge" and _is_unique(connections, plan, keys):
        return
    unique = f"; or make ({', '.join(keys)}) unique in the table" if mode == "merge" else ""
    raise Unsupported(
        f"{what}: {why}",
        where=spec.where,
        state=_UNCHANGED,
        next_step=f"take the change back{unique}; or {ANOTHER_STREAM}",
    )


def _is_unique(connections: Connections, plan: StreamTargetPlan, keys: tuple[str, ...]) -> bool:
    """Whether the table itself has at most one row for each key."""
    live = connections.target(plan.target.connection).inspect(plan.table)
    if live is None:
        return True
    constraints = [live.primary_key, *live.unique]
    return any(each and set(each) <= set(keys) for each in constraints)


def _names(keys: tuple[str, ...]) -> str:
    return f"({', '.join(keys)})"
