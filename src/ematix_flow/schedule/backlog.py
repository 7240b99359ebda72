"""The backlog: how many slots are due and wait, and for how long the oldest has waited."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Backlog:
    """The number of due slots that wait, the fire time of the oldest, and how many seconds ago that was."""

    due_slots: int = 0
    oldest_due: dt.datetime | None = None
    behind_seconds: float = 0.0


NO_BACKLOG = Backlog()


def measure_backlog(due: Iterable[dt.datetime], now: dt.datetime) -> Backlog:
    """Measure the backlog of slots that are due, by their fire times.

    A slot with a fire time in the future (a clock was ahead) does not count.
    """
    fired = [at for at in due if at <= now]
    if not fired:
        return NO_BACKLOG
    oldest = min(fired)
    return Backlog(len(fired), oldest, (now - oldest).total_seconds())
