"""Slots for a dry run: reads from a store and keeps changes in memory, to predict what would happen."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

from ematix_flow.state.slots.base import Claim, Slot, SlotRecord, SlotStatus, SlotStore
from ematix_flow.state.slots.memory import MemorySlotStore


class DryRunSlotStore(MemorySlotStore):
    """Reads from ``store`` as of one time and keeps changes here. It has its own leases."""

    def __init__(self, store: SlotStore) -> None:
        now = store.now()
        super().__init__(lambda: now)
        self._store = store

    def open(
        self,
        wanted: Iterable[Slot],
        status: SlotStatus = "waiting",
        reason: str | None = None,
        *,
        holder: str | None = None,
    ) -> int:
        listed = list(wanted)
        known = self._store.get_many(listed)
        new = [slot for slot in listed if slot not in known]
        return super().open(new, status, reason, holder=holder)

    def get(self, slot: Slot) -> SlotRecord | None:
        return super().get(slot) or self._store.get(slot)

    def get_many(self, wanted: Sequence[Slot]) -> dict[Slot, SlotRecord]:
        return {**self._store.get_many(wanted), **super().get_many(wanted)}

    def unfinished(self, pipelines: Sequence[str] | None = None) -> list[SlotRecord]:
        return _in_order(
            [*self._unchanged(self._store.unfinished(pipelines)), *super().unfinished(pipelines)]
        )

    def unsuccessful(self, pipelines: Sequence[str], since: dt.datetime) -> list[SlotRecord]:
        stored = self._store.unsuccessful(pipelines, since)
        return _in_order([*self._unchanged(stored), *super().unsuccessful(pipelines, since)])

    def newest(self, pipelines: Sequence[str]) -> dict[str, SlotRecord]:
        found = self._store.newest(pipelines)
        for name, record in super().newest(pipelines).items():
            if name not in found or record.slot.fire_time >= found[name].slot.fire_time:
                found[name] = record
        return found

    def latest(self, pipeline: str, until: dt.datetime) -> SlotRecord | None:
        stored, own = self._store.latest(pipeline, until), super().latest(pipeline, until)
        return (
            own
            if stored is None or (own is not None and own.slot.fire_time >= stored.slot.fire_time)
            else stored
        )

    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        self._fetch(seen.slot)
        return super().claim(seen, holder, seconds)

    def renew(self, claim: Claim, seconds: float, reason: str | None = None) -> bool:
        self._fetch(claim.slot)
        return super().renew(claim, seconds, reason)

    def end_wait(self, seen: SlotRecord) -> bool:
        self._fetch(seen.slot)
        return super().end_wait(seen)

    def reopen(self, slot: Slot) -> bool:
        self._fetch(slot)
        return super().reopen(slot)

    def end_unclaimed(self, seen: SlotRecord, status: SlotStatus, reason: str | None = None) -> bool:
        self._fetch(seen.slot)
        return super().end_unclaimed(seen, status, reason)

    def changed_records(self) -> list[SlotRecord]:
        """Return the records that are new or differ from the store."""
        return _in_order(self._slots.values())

    def _unchanged(self, records: Iterable[SlotRecord]) -> list[SlotRecord]:
        return [record for record in records if record.slot not in self._slots]

    def _fetch(self, slot: Slot) -> None:
        """Copy the record from the store before it is changed here."""
        record = self.get(slot)
        if record is not None:
            self._slots.setdefault(slot, record)
            self._update_last_slot(slot)


def _in_order(records: Iterable[SlotRecord]) -> list[SlotRecord]:
    return sorted(records, key=lambda record: (record.slot.fire_time, record.slot.pipeline))
