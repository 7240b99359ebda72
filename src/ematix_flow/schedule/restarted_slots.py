"""Records in a slot that a restart of its run has loaded it.

The restart runs outside the slot's claim. So the slot is ended without one, and only if no run holds it: a
run that does finds in the ledger that the slot is loaded, and ends it itself.
"""

from __future__ import annotations

from ematix_flow import fault_points
from ematix_flow.graph.registry import Registry
from ematix_flow.schedule.workflows import end_again, job_slots, slot_name
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import UNCLAIMED, Slot, SlotRecord, SlotStore

_MAX_TRIES = 5  # for a slot that others change at the same time


def end_restarted_slot(store: SlotStore, registry: Registry, failed: RunRecord, restart_id: str) -> bool:
    """Record that the slot of the ``failed`` run has succeeded by its restart; True if it has.

    Workflows that had ended because of the slot end again with it. Doing it twice changes nothing more.
    """
    if failed.slot is None:
        return False
    slot = Slot(failed.pipeline, failed.slot)
    record = _end_unclaimed(store, slot, f"restarted by run {restart_id[:8]}")
    if record is None or record.status != "succeeded":
        return False
    fault_points.point("restart.slot_ended")
    _reopen_workflows(store, registry, slot)
    return True


def _end_unclaimed(store: SlotStore, slot: Slot, reason: str) -> SlotRecord | None:
    """End the slot as succeeded unless a run holds it, and return it as it is then."""
    record = store.get(slot)
    for _ in range(_MAX_TRIES):
        if record is None or record.status not in UNCLAIMED:
            break
        store.end_unclaimed(record, "succeeded", reason)
        record = store.get(slot)
    return record


def _reopen_workflows(store: SlotStore, registry: Registry, slot: Slot) -> None:
    """Let the workflows end again that had ended without this job. None of their other jobs runs again."""
    for spec in registry.workflows.values():
        if slot.pipeline in spec.jobs:
            own = store.get(Slot(slot_name(spec.name), slot.fire_time))
            if own is not None and own.status in ("claimed", "gave_up"):
                known = store.get_many(job_slots(spec, own))
                if len(known) == len(spec.jobs):  # else an unknown job would be opened, and run
                    end_again(store, own.slot)
