"""Clears slots: those that were given up or skipped wait again, and so do their workflows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ematix_flow.graph.registry import Registry
from ematix_flow.schedule.due_slots import is_missed
from ematix_flow.schedule.stopped_slots import end_stops_of_slots
from ematix_flow.schedule.workflows import end_again, slot_name
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.slots.base import UNSUCCESSFUL, Slot, SlotRecord, SlotStore

RECENT_PERIOD = dt.timedelta(days=7)  # older clearable slots of this period are mentioned
_LOOKBACK = 50


def clearable_slots(
    store: SlotStore, pipelines: Sequence[str], since: dt.datetime | None
) -> list[SlotRecord]:
    """Return unsuccessful slots: the last of each pipeline, or all that fired ``since``; oldest first.

    Missed fires that the catch-up policy ignores are left out.
    """
    if since is not None:
        found = store.unsuccessful(pipelines, since)
    else:
        newest = store.newest(pipelines)
        found = [
            last for name in pipelines if (last := _last_not_missed(store, newest.get(name))) is not None
        ]
    bad = [record for record in found if record.status in UNSUCCESSFUL and not is_missed(record)]
    place = {name: number for number, name in enumerate(pipelines)}
    return sorted(bad, key=lambda record: (record.slot.fire_time, place[record.slot.pipeline]))


def older_clearable_slots(
    store: SlotStore, pipelines: Sequence[str], found: Sequence[SlotRecord]
) -> list[SlotRecord]:
    """Return other slots of the last days that could be cleared, without those in ``found``."""
    slots = {record.slot for record in found}
    recent = clearable_slots(store, pipelines, store.now() - RECENT_PERIOD)
    return [record for record in recent if record.slot not in slots]


def clear_slots(
    store: SlotStore,
    registry: Registry,
    wanted: Sequence[SlotRecord],
    run_log: RunLog,
    actions: ActionStore,
) -> list[SlotRecord]:
    """Reopen the slots and return those that wait again. Earlier stops of their runs are over."""
    end_stops_of_slots(actions, run_log, store, [record.slot for record in wanted])
    return reopen_slots(store, registry, wanted)


def reopen_slots(store: SlotStore, registry: Registry, wanted: Sequence[SlotRecord]) -> list[SlotRecord]:
    """Reopen the slots and return those that wait again.

    A slot that was cleared or run meanwhile is left out.
    """
    done = [record for record in wanted if store.reopen(record.slot)]
    jobs = {record.slot for record in done}
    for workflow in registry.workflows.values():
        for at in {slot.fire_time for slot in jobs if slot.pipeline in workflow.jobs}:
            end_again(store, Slot(slot_name(workflow.name), at))
    return done


def _last_not_missed(store: SlotStore, record: SlotRecord | None) -> SlotRecord | None:
    """Return the newest slot of the pipeline that was not missed."""
    for _ in range(_LOOKBACK):
        if record is None or not is_missed(record):
            return record
        record = store.latest(record.slot.pipeline, record.slot.fire_time - dt.timedelta(microseconds=1))
    return None
