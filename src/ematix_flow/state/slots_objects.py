"""Slots in an object store: one document a slot, changed only as it was seen.

What a change means is `MemorySlots`' subject: here it is made to the document as it was read, and written
on the condition that nobody was faster. ``unended/<fires at>/<pipeline>`` marks what waits or is claimed,
and is there before the slot is; ``heads/<pipeline>/<newest first>`` the last fire of each, and comes after
it. So a crash in between leaves a slot that is opened again, and none that is lost.
"""

from __future__ import annotations

import datetime as dt
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from ematix_flow.errors import ConfigError
from ematix_flow.state.objects import (
    Document,
    ObjectStore,
    moment_of,
    name_part,
    newest_first,
    oldest_first,
    require_version,
    turned,
)
from ematix_flow.state.records import shown_text
from ematix_flow.state.slots import ENDED, UNSUCCESSFUL, Claim, Lease, Slot, SlotRecord, SlotStatus, SlotStore
from ematix_flow.state.slots_memory import MemorySlots

T = TypeVar("T")
_TRIES = 20
_PURGED_AT_ONCE = 500
_FORGOTTEN = "forgotten"  # of a document that is about to be removed
_MOMENTS = ("not_before", "expires_at")


class ObjectSlots(SlotStore):
    """``clock`` is for tests; without one the server's own counts."""

    def __init__(
        self, store: ObjectStore, clock: Callable[[], dt.datetime] | None = None, *, looking: bool = False
    ) -> None:
        self.location, self._store = store.location, store
        self._clock = clock or store.now
        require_version(store, looking=looking)

    def close(self) -> None:
        self._store.close()

    # ------------------------------------------------------------------ questions

    def now(self) -> dt.datetime:
        return self._clock()

    def get(self, slot: Slot) -> SlotRecord | None:
        found = self._store.read(_key(slot))
        return None if found is None else _record(found.value)

    def unended(self, pipelines: Sequence[str] | None = None) -> list[SlotRecord]:
        """A mark that a crash left of a slot that had ended stays until the slot is forgotten."""
        parts = None if pipelines is None else {name_part(name) for name in pipelines}
        marks = self._store.names("unended/")
        found = self._marked(mark for mark in marks if parts is None or mark.rpartition("/")[2] in parts)
        return sorted(found, key=lambda record: (record.slot.at, record.slot.pipeline))

    def _marked(self, marks: Iterable[str]) -> Iterator[SlotRecord]:
        """Those of the slots with these marks that have not ended."""
        names = (mark.split("/")[1:] for mark in marks)
        keys = (f"slots/{part}/{turned(at)}" for at, part in names)
        found = (_record(document.value) for document in self._store.read_all(keys) if document is not None)
        return (record for record in found if record.status not in ENDED)

    def newest(self, pipelines: Sequence[str]) -> dict[str, SlotRecord]:
        keys = [_key(Slot(name, at)) for name, at in self.last_fires(pipelines).items()]
        found = [_record(document.value) for document in self._store.read_all(keys) if document is not None]
        return {record.slot.pipeline: record for record in found}

    def last_fires(self, pipelines: Sequence[str]) -> dict[str, dt.datetime]:
        """From names alone, which are few: each pipeline has one, or two for a moment."""
        wanted = {name_part(name): name for name in pipelines}
        found: dict[str, dt.datetime] = {}
        for key in self._store.names("heads/"):
            _, part, at = key.split("/")
            if part in wanted:  # the newest is the first of its pipeline
                found.setdefault(wanted[part], moment_of(at))
        return found

    def latest(self, pipeline: str, until: dt.datetime) -> SlotRecord | None:
        prefix = f"slots/{name_part(pipeline)}/"
        earliest = newest_first(until + dt.timedelta(microseconds=1))
        for key in self._store.names(prefix, after=f"{prefix}{earliest}"):
            found = self._store.read(key)
            if found is not None:
                return _record(found.value)
        return None

    def unsuccessful(self, pipelines: Sequence[str], since: dt.datetime) -> list[SlotRecord]:
        keys: list[str] = []
        for pipeline in pipelines:
            prefix = f"slots/{name_part(pipeline)}/"
            last = f"{prefix}{newest_first(since)}"
            keys += itertools.takewhile(partial(operator.ge, last), self._store.names(prefix))
        found = (_record(document.value) for document in self._store.read_all(keys) if document is not None)
        return sorted(
            (record for record in found if record.status in UNSUCCESSFUL),
            key=lambda record: (record.slot.at, record.slot.pipeline),
        )

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
                self._store.mark(_unended(slot))
            record = SlotRecord(slot, status, 0, 0, self.now(), holder, reason=reason)
            new += self._store.create(_key(slot), _document(record))
            self._move_head(slot)
        return new

    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        return self._change(seen.slot, lambda slots: slots.claim(seen, holder, seconds))

    def claim_all(self, seen: Sequence[SlotRecord], holder: str, seconds: float) -> list[Claim]:
        by_key = {_key(record.slot): record for record in seen}
        found = self._store.together(lambda key: self.claim(by_key[key], holder, seconds), list(by_key))
        return [claim for claim in found if claim is not None]

    def begin(self, claim: Claim, seconds: float, holder: str | None = None) -> bool:
        return bool(self._change(claim.slot, lambda slots: slots.begin(claim, seconds, holder)))

    def renew(self, claim: Claim, seconds: float, reason: str | None = None) -> bool:
        why = None if reason is None else shown_text(reason)
        return bool(self._change(claim.slot, lambda slots: slots.renew(claim, seconds, why)))

    def end(self, claim: Claim, status: SlotStatus, reason: str | None = None) -> bool:
        return bool(self.end_all({claim: reason}, status))

    def end_all(self, reasons: Mapping[Claim, str | None], status: SlotStatus) -> set[Slot]:
        by_key = {_key(claim.slot): claim for claim in reasons}

        def end(key: str) -> bool:
            claim, reason = by_key[key], reasons[by_key[key]]
            why = None if reason is None else shown_text(reason)
            return bool(self._change(claim.slot, lambda slots: slots.end(claim, status, why)))

        keys = list(by_key)
        answers = self._store.together(end, keys) if keys else iter(())
        ended = [key for key, is_ended in zip(keys, answers, strict=True) if is_ended]
        if ended:
            self._store.remove([_unended(by_key[key].slot) for key in ended])
            for document in self._store.read_all(ended):
                now = None if document is None else _record(document.value)
                if now is not None and now.status not in ENDED:  # reopened meanwhile, and its mark is gone
                    self._store.mark(_unended(now.slot))
        return {by_key[key].slot for key in ended}

    def wait(self, claim: Claim, seconds: float, reason: str | None = None, *, failed: bool = True) -> bool:
        why = None if reason is None else shown_text(reason)
        return bool(self._change(claim.slot, lambda slots: slots.wait(claim, seconds, why, failed=failed)))

    def hasten(self, seen: SlotRecord) -> bool:
        return bool(self._change(seen.slot, lambda slots: slots.hasten(seen)))

    def reopen(self, slot: Slot) -> bool:
        known = self.get(slot)
        if known is None or known.status not in ("gave_up", "skipped"):
            return False
        self._store.mark(_unended(slot))
        return bool(self._change(slot, lambda slots: slots.reopen(slot)))

    def purge(self, before: dt.datetime, pipeline: str | None = None) -> int:
        end = f"unended/{oldest_first(before)}"
        marks = itertools.takewhile(partial(operator.gt, end), self._store.names("unended/"))
        awaited = {record.slot.at for record in self._marked(marks)}
        done = 0
        heads = "heads/" if pipeline is None else f"heads/{name_part(pipeline)}/"
        for head in list(self._store.names(heads)):
            _, part, newest = head.split("/")
            prefix = f"slots/{part}/"
            start = max(newest, newest_first(before))
            old = self._store.names(prefix, after=f"{prefix}{start}")
            while keys := list(itertools.islice(old, _PURGED_AT_ONCE)):
                found = [each for each in self._store.read_all(keys) if each is not None]
                free = [each for each in found if _record(each.value).slot.at not in awaited]
                gone = [_record(each.value).slot for each in free if self._may_be_removed(each)]
                self._store.remove([name for slot in gone for name in (_unended(slot), _key(slot))])
                done += len(gone)
        return done

    def _may_be_removed(self, found: Document) -> bool:
        """Whether it has ended and nobody can reopen it any more, so that it may be removed."""
        record = _record(found.value)
        if record.status not in UNSUCCESSFUL:
            return record.status in ENDED
        return self._store.replace(_key(record.slot), {**found.value, _FORGOTTEN: True}, found.tag)

    def _move_head(self, slot: Slot) -> None:
        folder, mine = f"heads/{name_part(slot.pipeline)}/", newest_first(slot.at)
        known = [key.rpartition("/")[2] for key in self._store.names(folder)]
        if not known or mine < min(known):
            self._store.mark(f"{folder}{mine}")
            self._store.remove([f"{folder}{older}" for older in known])

    def _change(self, slot: Slot, change: Callable[[MemorySlots], T]) -> T | None:
        """What the change says when it was made to the slot as it is, and was written."""
        for _ in range(_TRIES):
            found = self._store.read(_key(slot))
            if found is None or _FORGOTTEN in found.value:
                return None
            before = _record(found.value)
            one = MemorySlots(self._clock, [before])
            said = change(one)
            after = one.get(slot)
            if after is None or after == before:
                return said
            if self._store.replace(_key(slot), _document(after), found.tag):
                return said
        raise self._crowded(f"the slot {slot.at.isoformat()} of {slot.pipeline}")

    # ------------------------------------------------------------------ leases

    def lease(self, name: str, holder: str, seconds: float) -> Lease | None:
        return self._change_lease(name, lambda one: one.lease(name, holder, seconds))

    def release(self, lease: Lease) -> None:
        self._change_lease(lease.name, lambda one: one.release(lease))

    def _change_lease(self, name: str, change: Callable[[MemorySlots], T]) -> T | None:
        key = f"leases/{name_part(name)}"
        for _ in range(_TRIES):
            found = self._store.read(key)
            before = None if found is None else _lease(found.value)
            one = MemorySlots(self._clock, leases=[] if before is None else [before])
            said = change(one)
            after = one.leases().get(name)
            if after is None or after == before:
                return said
            lease, until = after
            value = {"name": name, "holder": lease.holder, "fence": lease.fence, "until": until.isoformat()}
            written = (
                self._store.create(key, value)
                if found is None
                else self._store.replace(key, value, found.tag)
            )
            if written:
                return said
        raise self._crowded(f"the lease {name!r}")

    def _crowded(self, what: str) -> ConfigError:
        return ConfigError(
            f"others kept changing {what} in {self.location}", next_step="run it again; it may have passed"
        )


def _key(slot: Slot) -> str:
    return f"slots/{name_part(slot.pipeline)}/{newest_first(slot.at)}"


def _unended(slot: Slot) -> str:
    return f"unended/{oldest_first(slot.at)}/{name_part(slot.pipeline)}"


def _document(record: SlotRecord) -> dict[str, Any]:
    values = {each.name: getattr(record, each.name) for each in fields(record) if each.name != "slot"}
    moments = {name: None if values[name] is None else values[name].isoformat() for name in _MOMENTS}
    return {"pipeline": record.slot.pipeline, "at": record.slot.at.isoformat(), **values, **moments}


def _record(document: dict[str, Any]) -> SlotRecord:
    """Names that this version does not know are left out."""
    values = {each.name: document[each.name] for each in fields(SlotRecord) if each.name in document}
    for name in _MOMENTS:
        if values[name] is not None:
            values[name] = dt.datetime.fromisoformat(values[name])
    slot = Slot(document["pipeline"], dt.datetime.fromisoformat(document["at"]))
    return SlotRecord(slot=slot, **values)


def _lease(document: dict[str, Any]) -> tuple[Lease, dt.datetime]:
    lease = Lease(document["name"], document["holder"], document["fence"])
    return lease, dt.datetime.fromisoformat(document["until"])
