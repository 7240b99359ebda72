"""Slots in this process's memory: for tests, and where nothing need outlive the process."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ematix_flow.state.slots.base import (
    ENDED,
    UNCLAIMED,
    UNSUCCESSFUL,
    Claim,
    Slot,
    SlotRecord,
    SlotStatus,
    SlotStore,
)
from ematix_flow.state.slots.scheduler_lease import SchedulerLease, next_lease
from ematix_flow.state.times import utc_now


class MemorySlotStore(SlotStore):
    """Slots in memory. ``known`` and ``leases`` are the initial content; each lease with its end time."""

    def __init__(
        self,
        clock: Callable[[], dt.datetime] = utc_now,
        known: Iterable[SlotRecord] = (),
        leases: Iterable[tuple[SchedulerLease, dt.datetime]] = (),
    ) -> None:
        self._clock = clock
        self._slots: dict[Slot, SlotRecord] = {record.slot: record for record in known}
        self._last_slots: dict[str, Slot] = {}  # of each pipeline
        for slot in self._slots:
            self._update_last_slot(slot)
        self._leases: dict[str, tuple[SchedulerLease, dt.datetime]] = {each[0].name: each for each in leases}
        self._lock = threading.Lock()

    def now(self) -> dt.datetime:
        return self._clock()

    def open(
        self,
        wanted: Iterable[Slot],
        status: SlotStatus = "waiting",
        reason: str | None = None,
        *,
        holder: str | None = None,
    ) -> int:
        with self._lock:
            new = [slot for slot in dict.fromkeys(wanted) if slot not in self._slots]
            for slot in new:
                self._slots[slot] = SlotRecord(slot, status, 0, 0, self._clock(), holder, reason=reason)
                self._update_last_slot(slot)
            return len(new)

    def _update_last_slot(self, slot: Slot) -> None:
        self._last_slots[slot.pipeline] = max(slot, self._last_slots.get(slot.pipeline, slot), key=_fire_time)

    def get(self, slot: Slot) -> SlotRecord | None:
        with self._lock:
            return self._slots.get(slot)

    def unfinished(self, pipelines: Sequence[str] | None = None) -> list[SlotRecord]:
        with self._lock:
            found = [record for record in self._slots.values() if record.status not in ENDED]
        wanted = None if pipelines is None else set(pipelines)
        return sorted(
            (record for record in found if wanted is None or record.slot.pipeline in wanted),
            key=lambda record: (record.slot.fire_time, record.slot.pipeline),
        )

    def newest(self, pipelines: Sequence[str]) -> dict[str, SlotRecord]:
        with self._lock:
            return {
                name: self._slots[self._last_slots[name]] for name in pipelines if name in self._last_slots
            }

    def latest(self, pipeline: str, until: dt.datetime) -> SlotRecord | None:
        with self._lock:
            found = [s for s in self._slots if s.pipeline == pipeline and s.fire_time <= until]
            return self._slots[max(found, key=_fire_time)] if found else None

    def unsuccessful(self, pipelines: Sequence[str], since: dt.datetime) -> list[SlotRecord]:
        with self._lock:
            bad = [record for record in self._slots.values() if record.status in UNSUCCESSFUL]
        found = (each for each in bad if each.slot.fire_time >= since and each.slot.pipeline in pipelines)
        return sorted(found, key=lambda record: (record.slot.fire_time, record.slot.pipeline))

    def between(self, since: dt.datetime, until: dt.datetime, limit: int) -> list[SlotRecord]:
        with self._lock:
            found = [each for each in self._slots.values() if since <= each.slot.fire_time < until]
        return sorted(found, key=fire_order, reverse=True)[:limit]

    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        with self._lock:
            now, known = self._clock(), self._slots.get(seen.slot)
            if known is None or known.fence != seen.fence or not known.is_due(now):
                return None
            claimed = replace(
                known,
                status="claimed",
                fence=known.fence + 1,
                deaths=known.deaths + (known.status == "claimed" and known.begun),
                begun=False,
                holder=holder,
                expires_at=now + dt.timedelta(seconds=seconds),
            )
            self._slots[seen.slot] = claimed
            return Claim(seen.slot, holder, claimed.fence, claimed.failures, claimed.deaths)

    def begin(self, claim: Claim, seconds: float, holder: str | None = None) -> bool:
        with self._lock:
            known = self._record_of_claim(claim)
            if known is None or known.begun:
                return False
            until = self._clock() + dt.timedelta(seconds=seconds)
            self._slots[claim.slot] = replace(
                known, begun=True, expires_at=until, holder=holder or known.holder
            )
            return True

    def renew(self, claim: Claim, seconds: float, reason: str | None = None) -> bool:
        with self._lock:
            known = self._record_of_claim(claim)
            if known is None:
                return False
            until = self._clock() + dt.timedelta(seconds=seconds)
            self._slots[claim.slot] = replace(known, expires_at=until, reason=reason or known.reason)
            return True

    def end(self, claim: Claim, status: SlotStatus, reason: str | None = None) -> bool:
        with self._lock:
            known = self._record_of_claim(claim)
            if known is None:
                return False
            self._slots[claim.slot] = replace(
                known, status=status, holder=None, expires_at=None, reason=reason
            )
            return True

    def retry_later(
        self, claim: Claim, seconds: float, reason: str | None = None, *, failed: bool = True
    ) -> bool:
        with self._lock:
            known = self._record_of_claim(claim)
            if known is None:
                return False
            until = self._clock() + dt.timedelta(seconds=seconds)
            self._slots[claim.slot] = replace(
                known,
                status="waiting",
                failures=known.failures + failed,
                not_before=until,
                holder=None,
                expires_at=None,
                reason=reason,
            )
            return True

    def end_wait(self, seen: SlotRecord) -> bool:
        with self._lock:
            known = self._slots.get(seen.slot)
            if known is None or known.status != "waiting" or known.fence != seen.fence:
                return False
            self._slots[seen.slot] = replace(known, not_before=self._clock())
            return True

    def reopen(self, slot: Slot) -> bool:
        with self._lock:
            known = self._slots.get(slot)
            if known is None or known.status not in ("gave_up", "skipped"):
                return False
            self._slots[slot] = replace(
                known, status="waiting", failures=0, deaths=0, not_before=self._clock(), reason=None
            )
            return True

    def end_unclaimed(self, seen: SlotRecord, status: SlotStatus, reason: str | None = None) -> bool:
        with self._lock:
            known = self._slots.get(seen.slot)
            if known is None or seen.status not in UNCLAIMED:
                return False
            if (known.status, known.fence) != (seen.status, seen.fence):
                return False
            self._slots[seen.slot] = replace(known, status=status, holder=None, reason=reason)
            return True

    def lease(self, name: str, holder: str, seconds: float) -> SchedulerLease | None:
        with self._lock:
            now = self._clock()
            until = now + dt.timedelta(seconds=seconds)
            lease = next_lease(name, holder, now, self._leases.get(name))
            if lease is not None:
                self._leases[name] = (lease, until)
            return lease

    def release(self, lease: SchedulerLease) -> None:
        with self._lock:
            current = self._leases.get(lease.name)
            if current is not None and current[0] == lease:
                self._leases[lease.name] = (lease, self._clock())

    def leases(self) -> dict[str, tuple[SchedulerLease, dt.datetime]]:
        """Return every lease that was ever taken, with its end time."""
        with self._lock:
            return dict(self._leases)

    def purge(self, before: dt.datetime, pipeline: str | None = None) -> int:
        newest = {record.slot for record in self.newest([slot.pipeline for slot in self._slots]).values()}
        with self._lock:
            unfinished = {
                slot.fire_time for slot, record in self._slots.items() if record.status not in ENDED
            }
            old = [
                slot
                for slot in self._slots
                if slot.fire_time < before
                and slot.fire_time not in unfinished
                and slot not in newest
                and pipeline in (None, slot.pipeline)
            ]
            for slot in old:
                del self._slots[slot]
        return len(old)

    def _record_of_claim(self, claim: Claim) -> SlotRecord | None:
        """Return the record while this claim is its newest.

        An expired claim that was not taken over still counts.
        """
        known = self._slots.get(claim.slot)
        return (
            known if known is not None and known.status == "claimed" and known.fence == claim.fence else None
        )


def fire_order(record: SlotRecord) -> tuple[dt.datetime, str]:
    return record.slot.fire_time, record.slot.pipeline


def _fire_time(slot: Slot) -> dt.datetime:
    return slot.fire_time
