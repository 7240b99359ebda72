"""Stops slots between two attempts: a slot that waits for its next attempt is given up by a person.

A stop that comes when the next attempt has begun is obeyed by that attempt: it asks for the stops of the
attempt before it. A stop is over when its slot is cleared: the attempts after that are not what was stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ematix_flow import fault_points
from ematix_flow.errors import UsageError
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.records import ActionRecord
from ematix_flow.state.process_liveness import run_is_dead
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.next_attempts import has_next_attempt
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.runlog.slot_attempts import is_restart
from ematix_flow.state.slots.base import UNSUCCESSFUL, Slot, SlotRecord, SlotStore
from ematix_flow.state.times import format_utc

_MAX_STOPS = 1_000  # that have not ended at once


def stoppable_slots(store: SlotStore, pipelines: Sequence[str]) -> list[SlotRecord]:
    """Return the slots of these pipelines that wait for a further attempt, oldest first."""
    return [record for record in store.unfinished(pipelines) if _waits_for_next_attempt(record)]


def slot_between_attempts(store: SlotStore, run: RunRecord) -> SlotRecord | None:
    """Return the slot of a run that waits for its next attempt; None if it does not, or is not the run's."""
    record = slot_of_run(store, run)
    return record if record is not None and _waits_for_next_attempt(record) else None


def slot_of_run(store: SlotStore, run: RunRecord) -> SlotRecord | None:
    """Return the slot that a run is an attempt at; None if it is no attempt, as a restart."""
    return None if run.slot is None or is_restart(run) else store.get(Slot(run.pipeline, run.slot))


def stop_slot(store: SlotStore, seen: SlotRecord, by: str) -> bool:
    """Give up a slot that waits for its next attempt. False if that has begun, or the slot has ended."""
    last = f"; the last message: {seen.reason}" if seen.reason else ""
    return store.end_unclaimed(seen, "gave_up", f"stopped by {by} before its next attempt{last}")


def stop_waiting_slot(action: ActionRecord, actions: ActionStore, slots: SlotStore) -> None:
    """Carry out the stop of a pipeline by its name: give up its oldest slot that waits.

    It is of no run: none of the attempts at the slot has been recorded, or that was too many runs ago.
    """
    for slot in stoppable_slots(slots, [action.subject]):
        if stop_slot(slots, slot, action.requested_by):
            actions.end(action, "done", _given_up(slot.slot))
            return
    actions.end(action, "failed", "none of its slots waits any more for its next attempt")


def settle_stop(action: ActionRecord, run: RunRecord, actions: ActionStore, slots: SlotStore) -> bool:
    """End the stop of a run that has ended or whose process is gone, and with it the wait of its slot.

    False: an attempt obeys it. While a claim of a dead run lasts, that is the next one.
    """
    slot = slot_of_run(slots, run)
    if slot is not None and _waits_for_next_attempt(slot):
        if not stop_slot(slots, slot, action.requested_by):
            return False
        fault_points.point("action.effected")
        outcome = _given_up(slot.slot)
    elif has_next_attempt(run) or (slot is not None and slot.status == "claimed"):
        return False
    else:
        outcome = f"the run has ended: it is {run.status}"
        if run_is_dead(run):
            outcome = f"its process {run.pid} is gone"
        if slot is not None and slot.status == "gave_up" and slot.reason:
            outcome += f", and its slot was given up: {slot.reason}"
    return actions.end(action, "done", outcome, (run.run_id,))


def end_stops_of_slots(
    actions: ActionStore, run_log: RunLog, store: SlotStore, slots: Iterable[Slot]
) -> None:
    """End the stops that were requested before these slots ended, but whose end was not recorded.

    Otherwise such a stop would give up a slot that is cleared after it.
    """
    stops = actions.list(kind="stop", unfinished=True, limit=_MAX_STOPS)
    if not stops:
        return
    known = store.get_many(list(slots))  # only now: a slot that was cleared meanwhile may have a newer stop
    for stop in stops:
        try:
            run = run_log.get(stop.subject)
        except UsageError:  # it was purged
            continue
        record = None if run.slot is None else known.get(Slot(run.pipeline, run.slot))
        if record is not None and record.status in UNSUCCESSFUL:
            ended = "given up" if record.status == "gave_up" else "skipped"
            outcome = f"the slot of {format_utc(record.slot.fire_time)} was {ended}, and then cleared"
            actions.end(stop, "done", outcome, (run.run_id,))


def _given_up(slot: Slot) -> str:
    return f"the slot of {format_utc(slot.fire_time)} is given up: no further attempt starts"


def _waits_for_next_attempt(record: SlotRecord) -> bool:
    return record.status == "waiting" and record.fence > 0
