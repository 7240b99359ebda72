"""Actions in an object store: one document an action or hold, changed by conditional writes.

`MemoryActionStore` decides what a change does. This module applies it to the document that it read, and
writes the result on the condition that no other process has changed the document.

- ``actions/<id>`` is the action. ``requests/<key>`` names the action that was requested last under a key. It
  is written by condition, so that of two requests for the same at once one is made.
- ``open-actions/<kind>/<id>`` marks an action that has not ended, ``action-times/<newest first>-<id>`` each.
- ``holds/<kind>/<name>`` is what is paused.

The mark of the time is written first, so that `purge` finds what a crash leaves; that of an open action
last. A crash before ``requests/<key>`` is written leaves an action that was not requested and is not listed.
After that, the action is carried out when it is requested again, which writes the missing mark.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ematix_flow.errors import ConfigError
from ematix_flow.state.actions.base import ActionStore, no_such_action
from ematix_flow.state.actions.memory import MemoryActionStore, is_purgeable, new_action, new_hold
from ematix_flow.state.actions.records import (
    UNFINISHED,
    ActionFilter,
    ActionKind,
    ActionRecord,
    ActionStatus,
    Hold,
    HoldKind,
    request_key,
    stored_text,
)
from ematix_flow.state.id_prefixes import find_by_prefix
from ematix_flow.state.object_store import (
    ObjectStore,
    key_part,
    newest_first_key,
    require_version,
)

T = TypeVar("T")
_MAX_TRIES = 20
_PURGE_PORTION = 500
_INVERTED = str.maketrans("0123456789abcdef", "fedcba9876543210")


class ObjectActionStore(ActionStore):
    """Actions in an object store. ``clock`` is for tests; the default is the server's clock."""

    def __init__(
        self, store: ObjectStore, clock: Callable[[], dt.datetime] | None = None, *, read_only: bool = False
    ) -> None:
        self.location, self._store = store.location, store
        self._clock = clock or store.now
        require_version(store, read_only=read_only)

    def close(self) -> None:
        self._store.close()

    def now(self) -> dt.datetime:
        return self._clock()

    # ------------------------------------------------------------------ requests

    def request(
        self, kind: ActionKind, subject: str, arguments: Mapping[str, Any], *, by: str, via: str
    ) -> tuple[ActionRecord, bool]:
        record = new_action(kind, subject, arguments, by, via, self.now())
        request = f"requests/{request_key(kind, subject, record.arguments)}"
        self._store.mark(_time_mark(record))
        self._store.create(_action_key(record.action_id), record.to_json())
        for _ in range(_MAX_TRIES):
            found = self._store.read(request)
            known = None if found is None else self._read(found.value["action_id"])
            if known is not None and known.status in UNFINISHED:
                self._remove_action(record)
                self._store.mark_all(_marks(known))  # the process that requested it may have died before that
                return known, False
            value = {"action_id": record.action_id}
            if (
                self._store.create(request, value)
                if found is None
                else self._store.replace(request, value, found.tag)
            ):
                self._store.mark(_open_mark(record))
                return record, True
        self._remove_action(record)
        raise self._too_many_conflicts(f"the request to {kind} {subject}")

    def get(self, action_id: str) -> ActionRecord:
        if not action_id:
            raise no_such_action(action_id)
        exact = self._read(action_id)
        if exact is not None:
            return exact
        keys = itertools.islice(self._store.names(_action_key(action_id)), 3)
        records = self._read_all(key.partition("/")[2] for key in keys)
        found = find_by_prefix("actions", action_id, {record.action_id: record for record in records})
        if found is None:
            raise no_such_action(action_id)
        return found

    def list(
        self,
        *,
        limit: int = 50,
        before: tuple[dt.datetime, str] | None = None,
        subject: str | None = None,
        kind: ActionKind | None = None,
        unfinished: bool = False,
    ) -> tuple[ActionRecord, ...]:
        if unfinished:
            records: Iterator[ActionRecord] = iter(sorted(self._open_actions(kind), key=_time_mark))
        else:
            records = self._requested(self._read_all(self._ids_by_time(before)))
        wanted = ActionFilter(before, subject, kind, unfinished)
        return tuple(itertools.islice(filter(wanted.includes, records), max(limit, 0)))

    def stop_requested(self, run_id: str) -> ActionRecord | None:
        found = self._store.read(f"requests/{request_key('stop', run_id, {})}")
        known = None if found is None else self._read(found.value["action_id"])
        return known if known is not None and known.status in UNFINISHED else None

    # ------------------------------------------------------------------ carrying out

    def claimable(self) -> tuple[ActionRecord, ...]:
        now, found = self.now(), sorted(self._open_actions(), key=_time_mark, reverse=True)
        return tuple(record for record in found if record.is_claimable(now))

    def keep_waiting(self, seen: ActionRecord, seconds: float) -> bool:
        return bool(self._change(seen.action_id, lambda one: one.keep_waiting(seen, seconds)))

    def claim(self, seen: ActionRecord, holder: str, seconds: float) -> ActionRecord | None:
        return self._change(seen.action_id, lambda actions: actions.claim(seen, holder, seconds))

    def begin(self, claimed: ActionRecord, seconds: float, holder: str | None = None) -> bool:
        return bool(self._change(claimed.action_id, lambda one: one.begin(claimed, seconds, holder)))

    def renew(self, claimed: ActionRecord, seconds: float) -> bool:
        return bool(self._change(claimed.action_id, lambda one: one.renew(claimed, seconds)))

    def hand_back(self, claimed: ActionRecord) -> bool:
        return bool(self._change(claimed.action_id, lambda one: one.hand_back(claimed)))

    def end(
        self,
        claimed: ActionRecord,
        status: ActionStatus,
        outcome: str,
        run_ids: tuple[str, ...] = (),
    ) -> bool:
        ended = self._change(claimed.action_id, lambda one: one.end(claimed, status, outcome, run_ids))
        if ended:
            self._store.remove([_open_mark(claimed)])
        return bool(ended)

    def _change(self, action_id: str, change: Callable[[MemoryActionStore], T]) -> T | None:
        """Apply a change to the current action, write it, and return the answer of the change."""
        for _ in range(_MAX_TRIES):
            found = self._store.read(_action_key(action_id))
            if found is None:
                return None
            before = ActionRecord.from_json(found.value)
            one = MemoryActionStore(self._clock, [before])
            answer = change(one)
            after = one.get(action_id)
            if after == before:
                return answer
            if self._store.replace(_action_key(action_id), after.to_json(), found.tag):
                return answer
        raise self._too_many_conflicts(f"the action {action_id}")

    # ------------------------------------------------------------------ holds

    def hold(self, kind: HoldKind, name: str, *, by: str, reason: str | None = None) -> bool:
        made = new_hold(kind, name, by, reason, self.now())
        return self._store.create(_hold_key(kind, name), made.to_json())

    def release(self, kind: HoldKind, name: str) -> bool:
        key = _hold_key(kind, name)
        is_there = self._store.fetch(key) is not None
        self._store.remove([key])
        return is_there

    def holds(self) -> tuple[Hold, ...]:
        documents = self._store.read_all(self._store.names("holds/"))
        found = (Hold.from_json(document.value) for document in documents if document is not None)
        return tuple(sorted(found, key=lambda hold: (hold.kind, hold.name)))

    def find_hold(self, kind: HoldKind, name: str) -> Hold | None:
        found = self._store.read(_hold_key(kind, name))
        return None if found is None else Hold.from_json(found.value)

    def mark_held(self, name: str, run_id: str, at: str) -> None:
        self._change_hold(name, lambda hold: replace(hold, held_run=run_id, held_at=stored_text(at)))

    def mark_released(self, name: str, run_id: str) -> None:
        def released(hold: Hold) -> Hold:
            return replace(hold, held_run=None, held_at=None) if hold.held_run == run_id else hold

        self._change_hold(name, released)

    def _change_hold(self, name: str, change: Callable[[Hold], Hold]) -> None:
        key = _hold_key("run", name)
        for _ in range(_MAX_TRIES):
            found = self._store.read(key)
            if found is None:
                return
            before = Hold.from_json(found.value)
            after = change(before)
            if after == before or self._store.replace(key, after.to_json(), found.tag):
                return
        raise self._too_many_conflicts(f"the pause of {name}")

    # ------------------------------------------------------------------ forgetting

    def purge(self, before: dt.datetime) -> int:
        """Delete the oldest last, in the order of the names: an interrupted purge leaves the older part.

        A request at this very time may get a second action for a key of an action that is deleted. What a
        crash left of a request goes too: a waiting action that its key does not name, a mark without action.
        """
        done = 0
        marks = self._time_marks((before, "0"))
        while some := list(itertools.islice(marks, _PURGE_PORTION)):
            records = list(self._read_all(_id_of_mark(mark) for mark in some))
            known = {_time_mark(record) for record in records}
            found = [each for each in records if each.status == "waiting" or is_purgeable(each, before)]
            names = [f"requests/{request_key(each.kind, each.subject, each.arguments)}" for each in found]
            old, last_of_key = [], []
            for record, name, document in zip(found, names, self._store.read_all(names), strict=True):
                is_named = document is not None and document.value["action_id"] == record.action_id
                if record.status != "waiting" or not is_named:
                    old.append(record)
                    last_of_key += [name] if is_named else []
            self._store.remove([*last_of_key, *(_action_key(record.action_id) for record in old)])
            self._store.remove([mark for record in old for mark in _marks(record)])
            self._store.remove([mark for mark in some if mark not in known])
            done += len(old)
        return done

    # ------------------------------------------------------------------ names and documents

    def _open_actions(self, kind: ActionKind | None = None) -> Iterator[ActionRecord]:
        """Yield the actions that have not ended, and delete marks of ended ones that a crash left behind."""
        prefix = "open-actions/" if kind is None else f"open-actions/{kind}/"
        for record in self._read_all(key.rpartition("/")[2] for key in self._store.names(prefix)):
            if record.status in UNFINISHED:
                yield record
            else:
                self._store.remove([_open_mark(record)])

    def _requested(self, records: Iterator[ActionRecord]) -> Iterator[ActionRecord]:
        """Yield the actions without those whose request was not completed."""
        for record in records:
            if record.status == "waiting" and self._store.fetch(_open_mark(record)) is None:
                again = self._read(record.action_id)  # it may just have ended
                if again is None or again.status in UNFINISHED:
                    continue
                yield again
            else:
                yield record

    def _ids_by_time(self, before: tuple[dt.datetime, str] | None) -> Iterator[str]:
        yield from map(_id_of_mark, self._time_marks(before))

    def _time_marks(self, before: tuple[dt.datetime, str] | None) -> Iterator[str]:
        """Yield the marks of the actions requested before that one, newest first."""
        after = "" if before is None else f"action-times/{_time_part(*before)}"
        yield from self._store.names("action-times/", after=after)

    def _remove_action(self, record: ActionRecord) -> None:
        """Remove an action that was not requested after all: its mark last, so that a purge can find it."""
        self._store.remove([_action_key(record.action_id)])
        self._store.remove([_time_mark(record)])

    def _read(self, action_id: str) -> ActionRecord | None:
        found = self._store.read(_action_key(action_id))
        return None if found is None else ActionRecord.from_json(found.value)

    def _read_all(self, ids: Iterator[str]) -> Iterator[ActionRecord]:
        """Yield the actions that exist; a mark of an action that was deleted may remain."""
        for document in self._store.read_all(_action_key(each) for each in ids):
            if document is not None:
                yield ActionRecord.from_json(document.value)

    def _too_many_conflicts(self, what: str) -> ConfigError:
        return ConfigError(
            f"others kept changing {what} in {self.location}", next_step="run it again; it may have passed"
        )


def _action_key(action_id: str) -> str:
    return f"actions/{key_part(action_id)}"


def _hold_key(kind: HoldKind, name: str) -> str:
    return f"holds/{kind}/{key_part(name)}"


def _marks(record: ActionRecord) -> tuple[str, str]:
    return _open_mark(record), _time_mark(record)


def _open_mark(record: ActionRecord) -> str:
    return f"open-actions/{record.kind}/{record.action_id}"


def _time_mark(record: ActionRecord) -> str:
    return f"action-times/{_time_part(record.requested_at, record.action_id)}"


def _id_of_mark(key: str) -> str:
    """Return the id of the action that a mark of its time belongs to."""
    return _inverted(key.rpartition("-")[2])


def _time_part(at: dt.datetime, action_id: str) -> str:
    return f"{newest_first_key(at)}-{_inverted(action_id)}"


def _inverted(action_id: str) -> str:
    """Return the id with its hexadecimal digits inverted: the greatest id comes first, as its time does."""
    return action_id.translate(_INVERTED)
