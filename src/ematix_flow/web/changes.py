"""Finds what changed in the store since the last poll: runs, slots, actions and holds.

A poll costs a few small queries, however many runs there are. It marks the pipelines that changed in the
overview, and tells the changes as events.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from typing import Any

from ematix_flow.errors import UsageError
from ematix_flow.state.runlog.history import RunFilter, RunSummary
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.times import utc_now
from ematix_flow.web.site import Site

_OVERLAP = dt.timedelta(minutes=5)  # runs of other machines may be recorded late, by another clock
_MOST_NEW, _MOST_RUNNING = 500, 500
_NEWEST_ACTIONS, _MOST_UNFINISHED = 50, 500
_WORK = ("progress", "stages", "post")  # what a running record says about its work
Change = dict[str, Any]


def store_change(status: str) -> Change:
    """The event that the store is away, or back: everything may have changed."""
    return {"kind": "store", "name": "run log", "id": None, "status": status, "at": utc_now().isoformat()}


class ChangePoller:
    """Compares the store with what the poll before saw. Safe for several threads; one polls at a time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[str, Any]] = {}  # of the runs seen lately: status and work
        self._running: set[str] = set()
        self._newest: dt.datetime | None = None
        self._slots: dict[Slot, str] = {}
        self._actions: dict[str, tuple[str, str]] = {}
        self._unfinished: set[str] = set()
        self._holds: dict[tuple[str, str], Any] = {}
        self._is_first = True

    def poll(self) -> list[Change]:
        """Return the changes since the last poll; none at the first one."""
        with self._lock:
            changes = [*self._poll_runs(), *self._poll_slots(), *self._poll_actions(), *self._poll_holds()]
            if self._is_first:
                self._is_first = False
                self._site.overview.mark_all()
                return []
            self._site.overview.mark(change["name"] for change in changes)
            return changes

    def forget(self) -> None:
        """The store was away: what is read next is no change, but anything may have changed."""
        with self._lock:
            self._is_first = True

    # ------------------------------------------------------------------ runs

    def _poll_runs(self) -> list[Change]:
        log = self._site.stores.run_log()
        since = None if self._newest is None else self._newest - _OVERLAP
        new = {run.run_id: run for run in log.newest_summaries(since, _MOST_NEW)}
        running = log.page(RunFilter(status="running"), None, _MOST_RUNNING).records
        found = new | {record.run_id: RunSummary.of(record) for record in running}
        for run_id in self._running - found.keys():  # it has ended since
            with contextlib.suppress(UsageError):  # it was purged
                found[run_id] = RunSummary.of(log.get(run_id))
        progress = {record.run_id: record.metrics.get("progress") for record in running}
        work = {record.run_id: [record.metrics.get(part) for part in _WORK] for record in running}
        seen: dict[str, tuple[str, Any]] = {
            run_id: (run.status, work.get(run_id)) for run_id, run in found.items()
        }
        changed = [run for run_id, run in found.items() if self._runs.get(run_id) != seen[run_id]]
        self._runs, self._running = seen, set(progress)
        self._newest = max((run.started_at for run in new.values()), default=self._newest)
        changed.sort(key=lambda run: run.started_at)
        return [self._run_change(run, progress.get(run.run_id)) for run in changed]

    def _run_change(self, run: RunSummary, progress: Any) -> Change:
        is_stream = run.pipeline in self._site.registry.streams
        change: Change = {
            "kind": "stream" if is_stream else "run",
            "name": run.pipeline,
            "id": run.run_id,
            "status": run.status,
            "at": (run.finished_at or run.started_at).isoformat(),
        }
        return change if progress is None else {**change, "progress": progress}

    # ------------------------------------------------------------------ slots, actions, holds

    def _poll_slots(self) -> list[Change]:
        store = self._site.stores.slots()
        now = {record.slot: record.status for record in store.unfinished()}
        ended = [slot for slot in self._slots if slot not in now]
        found = {slot: record.status for slot, record in store.get_many(ended).items()} if ended else {}
        changed = {slot: status for slot, status in now.items() if self._slots.get(slot) != status}
        self._slots = dict(now)
        return [
            {
                "kind": "slot",
                "name": slot.pipeline,
                "id": slot.fire_time.isoformat(),
                "status": status,
                "at": utc_now().isoformat(),
            }
            for slot, status in {**changed, **found}.items()
        ]

    def _poll_actions(self) -> list[Change]:
        """The newest actions, those that are not finished, and those that were not at the last poll."""
        store = self._site.stores.actions()
        found = {record.action_id: record for record in store.list(limit=_NEWEST_ACTIONS)}
        unfinished = store.list(limit=_MOST_UNFINISHED, unfinished=True)
        found |= {record.action_id: record for record in unfinished}
        for action_id in self._unfinished - found.keys():
            with contextlib.suppress(UsageError):  # it was purged
                found[action_id] = store.get(action_id)
        records = sorted(found.values(), key=lambda record: record.requested_at)
        changes = []
        for record in records:
            seen = (record.status, record.outcome or "")
            if self._actions.get(record.action_id) != seen:
                at = record.ended_at or record.requested_at
                changes.append(
                    {
                        "kind": "action",
                        "name": record.subject,
                        "id": record.action_id,
                        "status": record.status,
                        "at": at.isoformat(),
                    }
                )
        self._actions = {record.action_id: (record.status, record.outcome or "") for record in records}
        self._unfinished = {record.action_id for record in unfinished}
        return changes

    def _poll_holds(self) -> list[Change]:
        holds = {(str(hold.kind), hold.name): hold for hold in self._site.stores.actions().holds()}
        changed = [key for key in {*holds, *self._holds} if holds.get(key) != self._holds.get(key)]
        self._holds = dict(holds)
        return [
            {
                "kind": "hold",
                "name": name,
                "id": kind,
                "status": "held" if (kind, name) in holds else "released",
                "at": utc_now().isoformat(),
            }
            for kind, name in sorted(changed)
        ]
