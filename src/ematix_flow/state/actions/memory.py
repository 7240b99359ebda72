"""Actions in this process's memory: for tests, and where nothing need outlive the process."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ematix_flow.state.actions.base import ActionStore, no_such_action
from ematix_flow.state.actions.records import (
    ENDED,
    UNFINISHED,
    ActionFilter,
    ActionKind,
    ActionRecord,
    ActionStatus,
    Hold,
    HoldKind,
    listing_order,
    request_key,
    stored_arguments,
    stored_name,
    stored_text,
)
from ematix_flow.state.id_prefixes import find_by_prefix
from ematix_flow.state.times import utc_now


class MemoryActionStore(ActionStore):
    """Actions in memory. ``known`` is the initial content."""

    def __init__(
        self, clock: Callable[[], dt.datetime] = utc_now, known: Iterable[ActionRecord] = ()
    ) -> None:
        self._clock = clock
        self._actions: dict[str, ActionRecord] = {record.action_id: record for record in known}
        self._holds: dict[tuple[HoldKind, str], Hold] = {}
        self._lock = threading.Lock()

    def now(self) -> dt.datetime:
        return self._clock()

    def request(
        self, kind: ActionKind, subject: str, arguments: Mapping[str, Any], *, by: str, via: str
    ) -> tuple[ActionRecord, bool]:
        record = new_action(kind, subject, arguments, by, via, self._clock())
        wanted = request_key(kind, subject, record.arguments)
        with self._lock:
            for known in self._actions.values():
                if (
                    known.status in UNFINISHED
                    and request_key(known.kind, known.subject, known.arguments) == wanted
                ):
                    return known, False
            self._actions[record.action_id] = record
        return record, True

    def get(self, action_id: str) -> ActionRecord:
        with self._lock:
            matching = {key: each for key, each in self._actions.items() if key.startswith(action_id)}
        found = find_by_prefix("actions", action_id, matching) if action_id else None
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
        wanted = ActionFilter(before, subject, kind, unfinished)
        with self._lock:
            found = [record for record in self._actions.values() if wanted.includes(record)]
        found.sort(key=listing_order, reverse=True)
        return tuple(found[: max(limit, 0)])

    def stop_requested(self, run_id: str) -> ActionRecord | None:
        return next(iter(self.list(limit=1, subject=run_id, kind="stop", unfinished=True)), None)

    def claimable(self) -> tuple[ActionRecord, ...]:
        now = self._clock()
        with self._lock:
            found = [record for record in self._actions.values() if record.is_claimable(now)]
        return tuple(sorted(found, key=listing_order))

    def claim(self, seen: ActionRecord, holder: str, seconds: float) -> ActionRecord | None:
        with self._lock:
            now, known = self._clock(), self._actions.get(seen.action_id)
            if known is None or known.fence != seen.fence or not known.is_claimable(now):
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
            self._actions[seen.action_id] = claimed
            return claimed

    def keep_waiting(self, seen: ActionRecord, seconds: float) -> bool:
        with self._lock:
            known = self._actions.get(seen.action_id)
            if known is None or known.status != "waiting" or known.fence != seen.fence:
                return False
            until = self._clock() + dt.timedelta(seconds=seconds)
            self._actions[seen.action_id] = replace(known, expires_at=until)
            return True

    def begin(self, claimed: ActionRecord, seconds: float, holder: str | None = None) -> bool:
        with self._lock:
            known = self._claimed(claimed)
            if known is None or known.begun:
                return False
            until = self._clock() + dt.timedelta(seconds=seconds)
            self._actions[claimed.action_id] = replace(
                known, begun=True, expires_at=until, holder=holder or known.holder
            )
            return True

    def renew(self, claimed: ActionRecord, seconds: float) -> bool:
        with self._lock:
            known = self._claimed(claimed)
            if known is None:
                return False
            until = self._clock() + dt.timedelta(seconds=seconds)
            self._actions[claimed.action_id] = replace(known, expires_at=until)
            return True

    def hand_back(self, claimed: ActionRecord) -> bool:
        with self._lock:
            known = self._claimed(claimed)
            if known is None:
                return False
            self._actions[claimed.action_id] = replace(
                known, status="waiting", begun=False, holder=None, expires_at=None
            )
            return True

    def end(
        self,
        claimed: ActionRecord,
        status: ActionStatus,
        outcome: str,
        run_ids: tuple[str, ...] = (),
    ) -> bool:
        with self._lock:
            known = self._actions.get(claimed.action_id)
            if known is None or known.status not in UNFINISHED or known.fence != claimed.fence:
                return False
            self._actions[claimed.action_id] = replace(
                known,
                status=status,
                outcome=stored_text(outcome),
                run_ids=tuple(run_ids),
                ended_at=self._clock(),
                holder=None,
                expires_at=None,
            )
            return True

    def _claimed(self, claimed: ActionRecord) -> ActionRecord | None:
        """Return the action while this claim is its newest.

        An expired claim that was not taken over still counts.
        """
        known = self._actions.get(claimed.action_id)
        if known is None or known.status != "claimed" or known.fence != claimed.fence:
            return None
        return known

    # ------------------------------------------------------------------ holds

    def hold(self, kind: HoldKind, name: str, *, by: str, reason: str | None = None) -> bool:
        with self._lock:
            if (kind, name) in self._holds:
                return False
            self._holds[kind, name] = new_hold(kind, name, by, reason, self._clock())
            return True

    def release(self, kind: HoldKind, name: str) -> bool:
        with self._lock:
            return self._holds.pop((kind, name), None) is not None

    def holds(self) -> tuple[Hold, ...]:
        with self._lock:
            return tuple(self._holds[key] for key in sorted(self._holds))

    def mark_held(self, name: str, run_id: str, at: str) -> None:
        with self._lock:
            known = self._holds.get(("run", name))
            if known is not None:
                self._holds["run", name] = replace(known, held_run=run_id, held_at=stored_text(at))

    def mark_released(self, name: str, run_id: str) -> None:
        with self._lock:
            known = self._holds.get(("run", name))
            if known is not None and known.held_run == run_id:
                self._holds["run", name] = replace(known, held_run=None, held_at=None)

    def purge(self, before: dt.datetime) -> int:
        with self._lock:
            old = [key for key, record in self._actions.items() if is_purgeable(record, before)]
            for key in old:
                del self._actions[key]
        return len(old)


def new_action(
    kind: ActionKind,
    subject: str,
    arguments: Mapping[str, Any],
    by: str,
    via: str,
    now: dt.datetime,
) -> ActionRecord:
    """Return a new action with a new id, as it may be stored."""
    action_id, stored = uuid.uuid4().hex, stored_arguments(arguments)
    return ActionRecord(action_id, kind, subject, stored, "waiting", stored_name(by), via, now)


def new_hold(kind: HoldKind, name: str, by: str, reason: str | None, now: dt.datetime) -> Hold:
    return Hold(kind, name, stored_name(by), now, stored_text(reason))


def is_purgeable(record: ActionRecord, before: dt.datetime) -> bool:
    return record.status in ENDED and record.ended_at is not None and record.ended_at < before
