"""Slots in an object store: one document a slot, changed by conditional writes.

`MemorySlotStore` decides what a change does. This module applies it to the document that it read, and writes
the result on the condition that no other process has changed the document.
``unended/<fires at>/<pipeline>`` marks a slot that waits or is claimed, and is written before the slot.
``heads/<pipeline>/<newest first>`` marks the last fire of each pipeline, and is written after the slot.
So a crash between these writes leaves a slot that is opened again; no slot is lost.
"""

from __future__ import annotations

import datetime as dt
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from ematix_flow.errors import ConfigError
from ematix_flow.state.object_store import (
    ObjectStore,
    StoredDocument,
    key_part,
    newest_first_from_oldest_first,
    newest_first_key,
    oldest_first_key,
    require_version,
    time_of_newest_first_key,
)
from ematix_flow.state.runlog.records import bounded_text
from ematix_flow.state.slots.base import ENDED, UNSUCCESSFUL, Claim, Slot, SlotRecord, SlotStatus, SlotStore
from ematix_flow.state.slots.memory import MemorySlotStore, fire_order
from ematix_flow.state.slots.scheduler_lease import SchedulerLease

T = TypeVar("T")
_MAX_TRIES = 20
_PURGE_PORTION = 500
_BEING_REMOVED = "forgotten"  # of a document that is about to be removed
_MOMENTS = ("not_before", "expires_at")


class ObjectSlotStore(SlotStore):
    """Slots in an object store. ``clock`` is for tests; the default is the server's clock."""

    def __init__(
        self, store: ObjectStore, clock: Callable[[], dt.datetime] | None = None, *, read_only: bool = False
    ) -> None:
        self.location, self._store = store.location, store
        self._clock = clock or store.now
        require_version(store, read_only=read_only)

    def close(self) -> None:
        self._store.close()

    # ------------------------------------------------------------------ questions

    def now(self) -> dt.datetime:
        return self._clock()

    def get(self, slot: Slot) -> SlotRecord | None:
        found = self._store.read(_slot_key(slot))
        return None if found is None else _record(found.value)

    def unfinished(self, pipelines: Sequence[str] | None = None) -> list[SlotRecord]:
        """A mark of an ended slot that a crash left behind stays until the slot is purged."""
        parts = None if pipelines is None else {key_part(name) for name in pipelines}
        marks = self._store.names("unended/")
        found = self._unfinished_records(
            mark for mark in marks if parts is None or mark.rpartition("/")[2] in parts
        )
        return sorted(found, key=lambda record: (record.slot.fire_time, record.slot.pipeline))

    def _unfinished_records(self, marks: Iterable[str]) -> Iterator[SlotRecord]:
        """Yield the slots with these marks that have not ended."""
        names = (mark.split("/")[1:] for mark in marks)
        keys = (f"slots/{part}/{newest_first_from_oldest_first(at)}" for at, part in names)
        found = (_record(document.value) for document in self._store.read_all(keys) if document is not None)
        return (record for record in found if record.status not in ENDED)

    def newest(self, pipelines: Sequence[str]) -> dict[str, SlotRecord]:
        keys = [_slot_key(Slot(name, at)) for name, at in self.last_fires(pipelines).items()]
        found = [_record(document.value) for document in self._store.read_all(keys) if document is not None]
        return {record.slot.pipeline: record for record in found}

    def last_fires(self, pipelines: Sequence[str]) -> dict[str, dt.datetime]:
        """Read only names, which are few: each pipeline has one, or briefly two."""
        wanted = {key_part(name): name for name in pipelines}
        found: dict[str, dt.datetime] = {}
        for key in self._store.names("heads/"):
            _, part, at = key.split("/")
            if part in wanted:  # the newest is the first of its pipeline
                found.setdefault(wanted[part], time_of_newest_first_key(at))
        return found

    def latest(self, pipeline: str, until: dt.datetime) -> SlotRecord | None:
        prefix = f"slots/{key_part(pipeline)}/"
        earliest = newest_first_key(until + dt.timedelta(microseconds=1))
        for key in self._store.names(prefix, after=f"{prefix}{earliest}"):
            found = self._store.read(key)
            if found is not None:
                return _record(found.value)
        return None

    def unsuccessful(self, pipelines: Sequence[str], since: dt.datetime) -> list[SlotRecord]:
        keys: list[str] = []
        for pipeline in pipelines:
            prefix = f"slots/{key_part(pipeline)}/"
            last = f"{prefix}{newest_first_key(since)}"
            keys += itertools.takewhile(partial(operator.ge, last), self._store.names(prefix))
        found = (_record(document.value) for document in self._store.read_all(keys) if document is not None)
        return sorted(
            (record for record in found if record.status in UNSUCCESSFUL),
            key=lambda record: (record.slot.fire_time, record.slot.pipeline),
        )

    def between(self, since: dt.datetime, until: dt.datetime, limit: int) -> list[SlotRecord]:
        begin, end = newest_first_key(until), newest_first_key(since)
        names: list[tuple[str, str]] = []
        for part in dict.fromkeys(key.split("/")[1] for key in self._store.names("heads/")):
            prefix = f"slots/{part}/"
            keys = self._store.names(prefix, after=f"{prefix}{begin}")
            of_slots = itertools.takewhile(partial(operator.ge, f"{prefix}{end}"), keys)
            names += [(key.rpartition("/")[2], key) for key in itertools.islice(of_slots, limit)]
        names.sort()
        found = self._store.read_all(key for _, key in names[:limit])
        records = [_record(document.value) for document in found if document is not None]
        return sorted(records, key=fire_order, reverse=True)

    # ------------------------------------------------------------------ slots

    def open(
        self,
        wanted: Iterable[Slot],
        status: SlotStatus = "waiting",
        reason: str | None = None,
        *,
        holder: str | None = None,
    ) -> int:
        new = 0
        for slot in dict.fromkeys(wanted):
            if status not in ENDED:
                self._store.mark(_unfinished_mark(slot))
            record = SlotRecord(slot, status, 0, 0, self.now(), holder, reason=reason)
            new += self._store.create(_slot_key(slot), _document(record))
            self._move_head(slot)
        return new

    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        return self._change(seen.slot, lambda slots: slots.claim(seen, holder, seconds))

    def claim_all(self, seen: Sequence[SlotRecord], holder: str, seconds: float) -> list[Claim]:
        by_key = {_slot_key(record.slot): record for record in seen}
        found = self._store.map_parallel(lambda key: self.claim(by_key[key], holder, seconds), list(by_key))
        return [claim for claim in found if claim is not None]

    def begin(self, claim: Claim, seconds: float, holder: str | None = None) -> bool:
        return bool(self._change(claim.slot, lambda slots: slots.begin(claim, seconds, holder)))

    def renew(self, claim: Claim, seconds: float, reason: str | None = None) -> bool:
        why = None if reason is None else bounded_text(reason)
        return bool(self._change(claim.slot, lambda slots: slots.renew(claim, seconds, why)))

    def end(self, claim: Claim, status: SlotStatus, reason: str | None = None) -> bool:
        return bool(self.end_all({claim: reason}, status))

    def end_all(self, reasons: Mapping[Claim, str | None], status: SlotStatus) -> set[Slot]:
        by_key = {_slot_key(claim.slot): claim for claim in reasons}

        def end(key: str) -> bool:
            claim, reason = by_key[key], reasons[by_key[key]]
            why = None if reason is None else bounded_text(reason)
            return bool(self._change(claim.slot, lambda slots: slots.end(claim, status, why)))

        keys = list(by_key)
        answers = self._store.map_parallel(end, keys) if keys else iter(())
        ended = {by_key[key].slot for key, is_ended in zip(keys, answers, strict=True) if is_ended}
        self._remove_unfinished_marks(ended)
        return ended

    def _remove_unfinished_marks(self, ended: Collection[Slot]) -> None:
        if not ended:
            return
        self._store.remove([_unfinished_mark(slot) for slot in ended])
        for document in self._store.read_all(_slot_key(slot) for slot in ended):
            now = None if document is None else _record(document.value)
            if now is not None and now.status not in ENDED:  # reopened meanwhile, and its mark was removed
                self._store.mark(_unfinished_mark(now.slot))

    def retry_later(
        self, claim: Claim, seconds: float, reason: str | None = None, *, failed: bool = True
    ) -> bool:
        why = None if reason is None else bounded_text(reason)
        return bool(
            self._change(claim.slot, lambda slots: slots.retry_later(claim, seconds, why, failed=failed))
        )

    def end_wait(self, seen: SlotRecord) -> bool:
        return bool(self._change(seen.slot, lambda slots: slots.end_wait(seen)))

    def reopen(self, slot: Slot) -> bool:
        known = self.get(slot)
        if known is None or known.status not in ("gave_up", "skipped"):
            return False
        self._store.mark(_unfinished_mark(slot))
        return bool(self._change(slot, lambda slots: slots.reopen(slot)))

    def end_unclaimed(self, seen: SlotRecord, status: SlotStatus, reason: str | None = None) -> bool:
        why = None if reason is None else bounded_text(reason)
        if not self._change(seen.slot, lambda slots: slots.end_unclaimed(seen, status, why)):
            return False
        self._remove_unfinished_marks([seen.slot])
        return True

    def purge(self, before: dt.datetime, pipeline: str | None = None) -> int:
        end = f"unended/{oldest_first_key(before)}"
        marks = itertools.takewhile(partial(operator.gt, end), self._store.names("unended/"))
        awaited = {record.slot.fire_time for record in self._unfinished_records(marks)}
        done = 0
        heads = "heads/" if pipeline is None else f"heads/{key_part(pipeline)}/"
        for head in list(self._store.names(heads)):
            _, part, newest = head.split("/")
            prefix = f"slots/{part}/"
            start = max(newest, newest_first_key(before))
            old = self._store.names(prefix, after=f"{prefix}{start}")
            while keys := list(itertools.islice(old, _PURGE_PORTION)):
                found = [each for each in self._store.read_all(keys) if each is not None]
                free = [each for each in found if _record(each.value).slot.fire_time not in awaited]
                gone = [_record(each.value).slot for each in free if self._may_be_removed(each)]
                self._store.remove(
                    [name for slot in gone for name in (_unfinished_mark(slot), _slot_key(slot))]
                )
                done += len(gone)
        return done

    def _may_be_removed(self, found: StoredDocument) -> bool:
        """Whether the slot has ended and can no longer be reopened, so that it may be removed."""
        record = _record(found.value)
        if record.status not in UNSUCCESSFUL:
            return record.status in ENDED
        return self._store.replace(_slot_key(record.slot), {**found.value, _BEING_REMOVED: True}, found.tag)

    def _move_head(self, slot: Slot) -> None:
        folder, own = f"heads/{key_part(slot.pipeline)}/", newest_first_key(slot.fire_time)
        known = [key.rpartition("/")[2] for key in self._store.names(folder)]
        if not known or own < min(known):
            self._store.mark(f"{folder}{own}")
            self._store.remove([f"{folder}{older}" for older in known])

    def _change(self, slot: Slot, change: Callable[[MemorySlotStore], T]) -> T | None:
        """Apply a change to the current slot, write it, and return the answer of the change."""
        for _ in range(_MAX_TRIES):
            found = self._store.read(_slot_key(slot))
            if found is None or _BEING_REMOVED in found.value:
                return None
            before = _record(found.value)
            one = MemorySlotStore(self._clock, [before])
            answer = change(one)
            after = one.get(slot)
            if after is None or after == before:
                return answer
            if self._store.replace(_slot_key(slot), _document(after), found.tag):
                return answer
        raise self._too_many_conflicts(f"the slot {slot.fire_time.isoformat()} of {slot.pipeline}")

    # ------------------------------------------------------------------ leases

    def lease(self, name: str, holder: str, seconds: float) -> SchedulerLease | None:
        return self._change_lease(name, lambda one: one.lease(name, holder, seconds))

    def release(self, lease: SchedulerLease) -> None:
        self._change_lease(lease.name, lambda one: one.release(lease))

    def _change_lease(self, name: str, change: Callable[[MemorySlotStore], T]) -> T | None:
        key = f"leases/{key_part(name)}"
        for _ in range(_MAX_TRIES):
            found = self._store.read(key)
            before = None if found is None else _lease(found.value)
            one = MemorySlotStore(self._clock, leases=[] if before is None else [before])
            answer = change(one)
            after = one.leases().get(name)
            if after is None or after == before:
                return answer
            lease, until = after
            value = {"name": name, "holder": lease.holder, "fence": lease.fence, "until": until.isoformat()}
            written = (
                self._store.create(key, value)
                if found is None
                else self._store.replace(key, value, found.tag)
            )
            if written:
                return answer
        raise self._too_many_conflicts(f"the lease {name!r}")

    def _too_many_conflicts(self, what: str) -> ConfigError:
        return ConfigError(
            f"others kept changing {what} in {self.location}", next_step="run it again; it may have passed"
        )


def _slot_key(slot: Slot) -> str:
    return f"slots/{key_part(slot.pipeline)}/{newest_first_key(slot.fire_time)}"


def _unfinished_mark(slot: Slot) -> str:
    return f"unended/{oldest_first_key(slot.fire_time)}/{key_part(slot.pipeline)}"


def _document(record: SlotRecord) -> dict[str, Any]:
    values = {each.name: getattr(record, each.name) for each in fields(record) if each.name != "slot"}
    moments = {name: None if values[name] is None else values[name].isoformat() for name in _MOMENTS}
    return {"pipeline": record.slot.pipeline, "at": record.slot.fire_time.isoformat(), **values, **moments}


def _record(document: dict[str, Any]) -> SlotRecord:
    """Return the record of a document; unknown names are ignored."""
    values = {each.name: document[each.name] for each in fields(SlotRecord) if each.name in document}
    for name in _MOMENTS:
        if values[name] is not None:
            values[name] = dt.datetime.fromisoformat(values[name])
    slot = Slot(document["pipeline"], dt.datetime.fromisoformat(document["at"]))
    return SlotRecord(slot=slot, **values)


def _lease(document: dict[str, Any]) -> tuple[SchedulerLease, dt.datetime]:
    lease = SchedulerLease(document["name"], document["holder"], document["fence"])
    return lease, dt.datetime.fromisoformat(document["until"])
