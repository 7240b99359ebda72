"""The backlog: slots that are due and wait to be run, and how far behind that leaves them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from ematix_flow.state.slots.base import SlotRecord


@dataclass(frozen=True)
class Backlog:
    """How many slots are due and wait, when the oldest of them fired, and how many seconds ago that was."""

    due_slots: int = 0
    oldest_due: dt.datetime | None = None
    behind_seconds: float = 0.0


NO_BACKLOG = Backlog()


def measure_backlog(due: Iterable[SlotRecord], now: dt.datetime) -> Backlog:
    """Of slots that are due now. One that a clock ahead of time has opened is not behind."""
    fired = [record.slot.fire_time for record in due if record.slot.fire_time <= now]
    if not fired:
        return NO_BACKLOG
    oldest = min(fired)
    return Backlog(len(fired), oldest, (now - oldest).total_seconds())
