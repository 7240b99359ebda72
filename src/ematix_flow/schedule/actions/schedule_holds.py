"""Pauses: which schedules are paused, which of their fires wait, and how a pause is described."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping

from ematix_flow.schedule.due_slots import ScheduleEntry, due_slots
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.records import ActionKind, ActionRecord, Hold, HoldKind
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.times import format_utc

_LATE = dt.timedelta(minutes=1)  # as far back a poll of ``flow run-due`` sees by default
_EFFECTS: Mapping[ActionKind, str] = {
    "pause": "{} waits at its next safe point until it is resumed",
    "resume": "{} goes on",
    "pause_schedule": "no slot of {} starts until its schedule is resumed",
    "resume_schedule": "the schedule of {} fires again, and what was due by its catchup",
}


def hold_effect(action: ActionRecord) -> str:
    """Describe what a pause or a resume has changed."""
    return _EFFECTS[action.kind].format(action.subject)


def is_hold_action(action: ActionRecord) -> bool:
    """Whether the action is a pause or a resume."""
    return action.kind in _EFFECTS


def has_taken_effect(action: ActionRecord, actions: ActionStore) -> bool:
    """Whether a pause or a resume whose end is not recorded has changed what it was to change."""
    kind: HoldKind = "schedule" if action.kind.endswith("_schedule") else "run"
    hold = actions.find_hold(kind, action.subject)
    if action.kind.startswith("pause"):
        return hold is not None
    return hold is None or hold.since > action.requested_at


def paused_schedules(actions: ActionStore) -> Collection[str]:
    """Return the pipelines whose schedules are paused."""
    return frozenset(hold.name for hold in actions.holds() if hold.kind == "schedule")


def waiting_fires(spec: PipelineSpec, newest: dt.datetime, now: dt.datetime) -> tuple[Slot, ...]:
    """Return the slots that a paused schedule would run if it were resumed now, by its catch-up rule.

    ``newest`` is the fire time of the newest slot that was opened.
    """
    if spec.schedule is None:
        return ()
    entry = ScheduleEntry(spec.name, Schedule(spec.schedule, spec.timezone or "UTC"), spec.catchup)
    return due_slots(entry, newest, now, _LATE).to_run


def describe_hold(hold: Hold) -> str:
    """Describe a pause: ``paused by ada since 2026-03-29 12:00 UTC (the warehouse moves)``."""
    why = f" ({hold.reason})" if hold.reason else ""
    return f"paused by {hold.by} since {format_utc(hold.since)}{why}"
