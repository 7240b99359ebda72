"""Actions that no process takes: why each waits, and when it has waited too long to be carried out.

An action waits until a carrier that declares its pipeline takes it. A carrier that would take it and is busy
keeps it waiting. If none has done so for an hour, one that comes up does not carry it out: nobody expects it
any more. Neither a pause nor an action that a process has claimed expires.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.records import CARRIED_KINDS, ActionRecord
from ematix_flow.state.process_liveness import format_holder
from ematix_flow.state.times import format_utc

EXPIRES_AFTER = dt.timedelta(hours=1)  # without a carrier that declares its pipeline
_KEEPING_PERIOD = dt.timedelta(minutes=10)  # between two times that a busy carrier keeps an action waiting
FOREIGN_EXPIRES_AFTER = dt.timedelta(days=1)  # the same, before a carrier of another module ends it
_TAKEN_WITHIN = dt.timedelta(seconds=30)  # by a carrier that has room
EXPIRED = (
    f"it was not carried out: for more than {EXPIRES_AFTER // dt.timedelta(minutes=1)} minutes no scheduler "
    "or page ran that declares its pipeline; request it again"
)


def has_expired(action: ActionRecord, by: dt.datetime) -> bool:
    """Whether the action had waited too long at the time ``by`` at which a carrier came up."""
    return _is_untaken(action) and _waits_until(action) < by


def has_expired_for_any(action: ActionRecord, now: dt.datetime) -> bool:
    """Whether a carrier whose module does not declare its pipeline may end the action."""
    return has_expired(action, now) and action.requested_at + FOREIGN_EXPIRES_AFTER < now


def keep_waiting(actions: ActionStore, action: ActionRecord, now: dt.datetime) -> None:
    """Keep an action from expiring: this carrier declares its pipeline and will take it, but is busy."""
    if _is_untaken(action) and _waits_until(action) < now + EXPIRES_AFTER:
        actions.keep_waiting(action, (EXPIRES_AFTER + _KEEPING_PERIOD).total_seconds())


def describe_wait(action: ActionRecord, now: dt.datetime) -> str | None:
    """Return why nothing happens to the action; None if it has ended, is at work or was just requested."""
    if action.kind not in CARRIED_KINDS:
        return None
    what = f"the pipeline of run {action.subject[:8]}" if action.kind == "restart" else repr(action.subject)
    nobody = f"no running scheduler or page declares {what}, or all that do are busy"
    if action.status == "waiting" and now - action.requested_at > _TAKEN_WITHIN:
        if not _is_untaken(action):
            return f"it was handed back, and nobody has taken over: {nobody}"
        until = format_utc(_waits_until(action))
        return f"{nobody}; one that starts after {until} does not carry it out"
    if action.status == "claimed" and action.is_claimable(now):
        holder = format_holder(action.holder) if action.holder else "its process"
        return f"{holder} stopped its heartbeat, and nobody has taken over: {nobody}"
    return None


def action_json(action: ActionRecord, now: dt.datetime) -> dict[str, Any]:
    """Return the action for programs, with why it waits."""
    return {**action.to_json(), "why": describe_wait(action, now)}


def _waits_until(action: ActionRecord) -> dt.datetime:
    return action.expires_at or action.requested_at + EXPIRES_AFTER


def _is_untaken(action: ActionRecord) -> bool:
    return action.kind in CARRIED_KINDS and action.status == "waiting" and not action.fence
