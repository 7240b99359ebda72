"""Requests actions: checks each, stores it, and does at once what needs no process.

An action that is done at once is stored before it is done and ended after it, so that a crash in between
leaves a waiting action: the same request again completes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow import fault_points
from ematix_flow.backends.state_stores.dead_letters import open_stream_dead_letters
from ematix_flow.errors import FlowError
from ematix_flow.graph.registry import Registry
from ematix_flow.schedule.actions.arguments import check_arguments, letter_selection, require_action_kind
from ematix_flow.schedule.actions.checks import ActionChecks, slots_to_clear
from ematix_flow.schedule.actions.schedule_holds import hold_effect
from ematix_flow.schedule.actions.untaken_actions import EXPIRED, has_expired
from ematix_flow.schedule.clearing import clear_slots
from ematix_flow.schedule.stopped_slots import settle_stop, stop_waiting_slot
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.records import CARRIED_KINDS, ActionKind, ActionRecord, stored_arguments
from ematix_flow.state.process_liveness import run_is_dead
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.slots.base import SlotStore
from ematix_flow.state.times import format_utc

STOP: ActionKind = "stop"


@dataclass(frozen=True)
class ActionReceipt:
    """The action that a request made; not ``is_new`` if the same one has not ended yet."""

    action: ActionRecord
    is_new: bool


def request_action(
    kind: str,
    subject: str,
    arguments: Mapping[str, Any],
    *,
    by: str,
    via: str,
    registry: Registry,
    run_log: RunLog,
    slots: SlotStore,
    actions: ActionStore,
) -> ActionReceipt:
    """Request an action. Raises UsageError if it is not possible now; then nothing is stored.

    A carrier or the run itself does it later, or it is done when this returns. `ActionRecord.status` tells.
    """
    checked_kind = require_action_kind(kind)
    checked = check_arguments(checked_kind, arguments)
    if checked_kind in CARRIED_KINDS or checked_kind == STOP:
        subject = ActionChecks(registry, run_log, slots, actions).check(checked_kind, subject, checked)
        _end_expired(actions, checked_kind, subject, checked)
        action, is_new = actions.request(checked_kind, subject, checked, by=by, via=via)
        if checked_kind == STOP:
            action = _stop_between_attempts(action, registry, run_log, slots, actions)
        return ActionReceipt(action, is_new)
    if not actions.list(limit=1, subject=subject, kind=checked_kind, unfinished=True):
        # one that has not ended was interrupted: its pause may be in effect, which the check would refuse
        subject = ActionChecks(registry, run_log, slots, actions).check(checked_kind, subject, checked)
    action, is_new = actions.request(checked_kind, subject, checked, by=by, via=via)
    fault_points.point("action.requested")
    try:
        outcome = _EFFECTS[checked_kind](_Effect(action, registry, run_log, slots, actions))
    except FlowError as error:
        actions.end(action, "failed", error.what)
        raise
    fault_points.point("action.effected")
    actions.end(action, "done", outcome)
    return ActionReceipt(actions.get(action.action_id), is_new)


def _end_expired(actions: ActionStore, kind: ActionKind, subject: str, arguments: Mapping[str, Any]) -> None:
    """End an older request for the same that nobody has carried out, so that a new one can be made."""
    for known in actions.list(subject=subject, kind=kind, unfinished=True):
        if known.arguments == stored_arguments(arguments) and has_expired(known, actions.now()):
            actions.end(known, "failed", EXPIRED)


def _stop_between_attempts(
    action: ActionRecord, registry: Registry, run_log: RunLog, slots: SlotStore, actions: ActionStore
) -> ActionRecord:
    """End the wait of a slot for its next attempt. A run at work obeys the stop itself."""
    fault_points.point("action.requested")
    if action.subject in registry.pipelines:
        stop_waiting_slot(action, actions, slots)
    else:
        record = run_log.get(action.subject)
        if record.status != "running" or run_is_dead(record):
            settle_stop(action, record, actions, slots)
    return actions.get(action.action_id)  # a carrier may have ended it meanwhile


def find_refusal(
    kind: str,
    subject: str,
    arguments: Mapping[str, Any],
    *,
    registry: Registry,
    run_log: RunLog,
    slots: SlotStore,
    actions: ActionStore,
) -> FlowError | None:
    """Return the error with which a request would be refused now; None if it would be accepted."""
    try:
        checked_kind = require_action_kind(kind)
        checked = check_arguments(checked_kind, arguments)
        ActionChecks(registry, run_log, slots, actions).check(checked_kind, subject, checked)
    except FlowError as error:
        return error
    return None


# ------------------------------------------------------------------ what is done at once


@dataclass(frozen=True)
class _Effect:
    """An action that is done at once, and what it changes. Doing it twice changes nothing more."""

    action: ActionRecord
    registry: Registry
    run_log: RunLog
    slots: SlotStore
    actions: ActionStore

    def pause(self) -> str:
        name = self.action.subject
        self.actions.hold(
            "run", name, by=self.action.requested_by, reason=self.action.arguments.get("reason")
        )
        return hold_effect(self.action)

    def resume(self) -> str:
        self.actions.release("run", self.action.subject)
        return hold_effect(self.action)

    def pause_schedule(self) -> str:
        name, reason = self.action.subject, self.action.arguments.get("reason")
        self.actions.hold("schedule", name, by=self.action.requested_by, reason=reason)
        return hold_effect(self.action)

    def resume_schedule(self) -> str:
        self.actions.release("schedule", self.action.subject)
        return hold_effect(self.action)

    def clear(self) -> str:
        name = self.action.subject
        found = slots_to_clear(self.slots, name, self.action.arguments)
        cleared = clear_slots(self.slots, self.registry, found, self.run_log, self.actions)
        times = ", ".join(format_utc(record.slot.fire_time) for record in cleared[:5])
        more = f" and {len(cleared) - 5:,} more" if len(cleared) > 5 else ""
        return (
            f"{_count(len(cleared), 'slot')} of {name} will run again: {times}{more}"
            if cleared
            else (f"no slot of {name} was left to clear")
        )

    def park_letters(self) -> str:
        return self._change_letters("parked")

    def purge_letters(self) -> str:
        return self._change_letters("purged")

    def _change_letters(self, what: str) -> str:
        name, selection = self.action.subject, letter_selection(self.action.arguments)
        with open_stream_dead_letters(self.registry.stream(name).spec, env=os.environ) as letters:
            change = letters.park if what == "parked" else letters.purge
            return f"{_count(change(name, selection), 'dead letter')} of {name} {what}"


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


_EFFECTS: Mapping[ActionKind, Callable[[_Effect], str]] = {
    "pause": _Effect.pause,
    "resume": _Effect.resume,
    "pause_schedule": _Effect.pause_schedule,
    "resume_schedule": _Effect.resume_schedule,
    "clear": _Effect.clear,
    "park_letters": _Effect.park_letters,
    "purge_letters": _Effect.purge_letters,
}
