"""Rules for workflows after the last event: each ended as its jobs did, and no success fired one twice."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator

from ematix_flow.run.last_runs import last_ends
from ematix_flow.schedule.workflows import WorkflowSlots, slot_name
from ematix_flow.spec.workflows import WorkflowSpec
from ematix_flow.state.slots.base import ENDED, Slot, SlotRecord
from tests.simulation.declared import REGISTRY
from tests.simulation.simulated_control import Simulation


def broken_workflows(world: Simulation) -> Iterator[str]:
    for spec in REGISTRY.workflows.values():
        yield from _jobs(world, spec)
        if spec.triggered_by is not None:
            yield from _trigger(world, spec)
    workflows = WorkflowSlots(
        list(REGISTRY.workflows.values()),
        lambda names: last_ends(world.history, names, REGISTRY),  # type: ignore[arg-type]
    )
    newest, ends = workflows.firings(world.real), workflows.last_ends(world.real)
    for name, firing in newest.items():
        if not workflows.waits_for(name, firing, ends):
            yield f"{name} was not fired for what has ended well"


def slots_of(world: Simulation, pipeline: str) -> list[SlotRecord]:
    """The oldest first."""
    found = [world.real.get(slot) for slot in world.books.opened if slot.pipeline == pipeline]
    return sorted((record for record in found if record), key=lambda record: record.slot.fire_time)


def _jobs(world: Simulation, spec: WorkflowSpec) -> Iterator[str]:
    for record in slots_of(world, slot_name(spec.name)):
        if record.status == "skipped":  # its schedule let it be
            continue
        jobs = [world.real.get(Slot(job, record.slot.fire_time)) for job in spec.jobs]
        if not all(job is not None and job.status in ENDED for job in jobs):
            yield f"{record} without all of its jobs: {jobs}"
        well = all(job is not None and job.status == "succeeded" for job in jobs)
        own = {Slot(job, record.slot.fire_time) for job in spec.jobs}
        cut_short = any(own & slots for slots in world.cut_short)
        if (record.status == "succeeded") is not well and not (well and cut_short):
            yield f"{record}, and its jobs: {jobs}"


def _trigger(world: Simulation, spec: WorkflowSpec) -> Iterator[str]:
    """Every firing used at least one end that no other had, every end is real, and each has its slot."""
    rows = slots_of(world, slot_name(spec.name) + ":firings")
    fired, seen = set[dt.datetime](), set[tuple[str, str]]()
    for row in rows:
        told = json.loads(row.reason or "")
        fired.add(dt.datetime.fromisoformat(told["at"]))
        used = {(upstream, end) for upstream, ends in told["used"].items() for end in ends}
        if not used - seen:
            yield f"{spec.name} fired at {told['at']} for nothing new"
        seen |= used
    for upstream, end in seen:
        if upstream in REGISTRY.pipelines and end not in world.history.good_ends(upstream):
            yield f"{spec.name} fired for {end} of {upstream}, which did not end well"
    if {record.slot.fire_time for record in slots_of(world, slot_name(spec.name))} != fired:
        yield f"{spec.name} has other slots than firings"
    if [round(row.slot.fire_time.timestamp()) for row in rows] != list(range(1, len(rows) + 1)):
        yield f"the firings of {spec.name} are not numbered one by one"
