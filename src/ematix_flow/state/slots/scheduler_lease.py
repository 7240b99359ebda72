"""The lease of the scheduler that polls for due slots: when it is free, and who gets it next."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

MAX_LEASE = dt.timedelta(minutes=10)  # schedulers take leases of one minute


@dataclass(frozen=True)
class SchedulerLease:
    """The right to poll for due slots, so that only one scheduler does. Correctness does not depend on it."""

    name: str
    holder: str
    fence: int


def is_running(ends_at: Any, now: dt.datetime) -> Any:
    """Whether a lease with this end still counts. For a SQLAlchemy column, the condition of a statement.

    One that ends later than ``MAX_LEASE`` from now was taken while a clock was ahead, and counts as ended.
    """
    return (ends_at > now) & (ends_at <= now + MAX_LEASE)


def next_lease(
    name: str, holder: str, now: dt.datetime, current: tuple[SchedulerLease, dt.datetime] | None
) -> SchedulerLease | None:
    """The lease that the holder gets now; None while another holder has it. ``current`` is the last one, and
    its end.

    A holder that renews its lease in time keeps the fence; otherwise the fence grows.
    """
    if current is None:
        return SchedulerLease(name, holder, 1)
    lease, ends_at = current
    if lease.holder != holder:
        return None if is_running(ends_at, now) else SchedulerLease(name, holder, lease.fence + 1)
    return lease if ends_at > now else SchedulerLease(name, holder, lease.fence + 1)
