"""All pipelines with their state, kept in memory and rendered, so that many readers cost one query.

Owns what the list of pipelines shows. A change of a run, a slot or a hold marks its pipeline, and the poller
then reads that pipeline again. What the clock alone changes (the next fire, lags, a backlog) is computed
again every `CLOCK_SECONDS`. A reader waits only for the first list, and for what an action has just changed.
Where nobody polls, as in `flow mcp`, a reader reads the store itself (`read_at_each_use`).
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ematix_flow.graph.listing import pipeline_listing
from ematix_flow.graph.registry import Registry
from ematix_flow.observe.alerts.event import FRESHNESS
from ematix_flow.schedule.freshness import last_success_time
from ematix_flow.schedule.status import PipelineStatus, pipeline_statuses
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.actions.records import Hold
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.web.answers import plain_json_bytes
from ematix_flow.web.run_values import bar_json
from ematix_flow.web.store_access import StoreAccess
from ematix_probe.redaction import mask_all

BARS, DAYS = 30, 14
CLOCK_SECONDS = 60.0
_LOCK_SECONDS = 0.05  # that a reader waits for a refresh at work
_RECENT_DAYS = 1  # whose rows may still change: a run counts on the day of its start


@dataclass(frozen=True)
class PipelineView:
    """One pipeline as the list shows it: its values, and its JSON with the bars and the days."""

    name: str
    state: str  # of its last run, or "never"
    rank: tuple[int, str]  # failing first
    value: dict[str, Any]
    searched: str
    rendered: bytes = b""


class RowsPerDay:
    """The rows that each pipeline wrote on each of the last days. Days that are over are read once."""

    def __init__(self) -> None:
        self._days: dict[dt.date, dict[str, int]] = {}
        self._is_known = True

    def load(self, log: RunLog, today: dt.date, names: Sequence[str]) -> bool:
        """Read the days that are missing, and of the recent ones these pipelines. Whether a day is new."""
        days = [today - dt.timedelta(days=back) for back in range(DAYS)]
        is_new = any(day not in self._days for day in days)
        found = {day: rows for day, rows in self._days.items() if day in days}
        for number, day in enumerate(days):
            known = found.get(day)
            if known is not None and (number > _RECENT_DAYS or not names):
                continue
            since = dt.datetime(day.year, day.month, day.day, tzinfo=dt.timezone.utc)
            rows = log.rows_written(since, since + dt.timedelta(days=1), None if known is None else names)
            if rows is None:
                self._is_known = False
                return False
            found[day] = {**(known or {}), **rows}
        self._days = found
        return is_new

    @property
    def is_loaded(self) -> bool:
        return not self._is_known or len(self._days) == DAYS

    def of(self, name: str) -> list[dict[str, Any]]:
        days = sorted(self._days.items()) if self._is_known else []
        return [{"day": day.isoformat(), "rows": rows.get(name, 0)} for day, rows in days]


class Overview:
    """The pipelines of a module, as of the last refresh."""

    def __init__(self, registry: Registry, stores: StoreAccess) -> None:
        self._registry, self._stores = registry, stores
        self._lock = threading.Lock()
        self._marks_lock = threading.Lock()
        self._marked: set[str] = set(registry.pipelines)
        self._is_urgent = False
        self._is_unavailable = False
        self._is_polled = True
        self._views: dict[str, PipelineView] = {}
        self._bars: dict[str, bytes] = {}
        self._rows = RowsPerDay()
        self._fresh_since: dict[str, tuple[dt.datetime | None, bool | None]] = {}
        self._listings = {
            name: pipeline_listing(declared.spec) for name, declared in registry.pipelines.items()
        }
        self._clocked_at = 0.0

    def mark(self, names: Iterable[str], *, at_once: bool = False) -> None:
        """These pipelines have changed in the store. With ``at_once`` the next reader sees it."""
        known = set(names) & self._registry.pipelines.keys()
        with self._marks_lock:
            self._marked |= known
            self._is_urgent |= at_once

    def mark_all(self) -> None:
        """Anything may have changed: the store was away, or nobody polled it."""
        self.mark(self._registry.pipelines)

    def read_at_each_use(self) -> None:
        """Nobody calls `refresh` regularly: let readers read what was marked, and wait for it."""
        self._is_polled = False

    def mark_unavailable(self) -> None:
        """The store is away: readers get its error, until it can be read again."""
        self.mark_all()
        self._is_unavailable = True

    def views(self) -> Mapping[str, PipelineView]:
        """All pipelines, as of the last refresh; of now, for what was marked to be seen at once."""
        if not self._is_polled:
            self.refresh()
        elif self._is_unavailable or (not self._views and self._registry.pipelines):
            with self._lock:
                if self._is_unavailable or not self._views:
                    self._refresh_marked()
        elif self._is_urgent and self._lock.acquire(timeout=_LOCK_SECONDS):
            try:
                self._refresh_marked()
            finally:
                self._lock.release()
        return self._views

    def refresh(self) -> None:
        """Read every marked pipeline again, and compute again what the clock changes."""
        with self._lock:
            is_due = time.monotonic() - self._clocked_at > CLOCK_SECONDS
            if self._marked or is_due:
                self._refresh_marked(with_all=is_due)
            if is_due or not self._rows.is_loaded:
                log, today = self._stores.run_log(), self._stores.slots().now().date()
                if self._rows.load(log, today, []):
                    self._views = {name: self._rendered(view) for name, view in self._views.items()}

    def _refresh_marked(self, *, with_all: bool = False) -> None:
        with self._marks_lock:
            marked, self._marked, self._is_urgent = self._marked, set(), False
        try:
            self._refresh(marked, with_all or len(marked) == len(self._registry.pipelines))
        except BaseException:
            self.mark(marked)
            raise

    def _refresh(self, marked: set[str], is_whole: bool) -> None:
        """Read the marked pipelines' runs again, and make their views, or all."""
        log, slots = self._stores.run_log(), self._stores.slots()
        now = slots.now()
        if marked:
            self._read_runs(marked, log, now)
        holds = {(str(hold.kind), hold.name): hold for hold in self._stores.actions().holds()}
        statuses = pipeline_statuses(self._registry, None if is_whole else marked, slots, log, now)
        views = dict(self._views)
        for status in statuses:
            views[status.spec.name] = self._rendered(self._view(status, holds, now))
        self._views = {name: views[name] for name in self._registry.pipelines if name in views}
        if is_whole:
            self._clocked_at = time.monotonic()
            self._is_unavailable = False

    def _read_runs(self, marked: set[str], log: RunLog, now: dt.datetime) -> None:
        changed = [name for name in self._registry.pipelines if name in marked]
        found = log.recent(changed, BARS)
        for name in changed:
            # of a run log, where every text is masked: ids, times and numbers
            bars = [bar_json(run) for run in reversed(found.get(name, ()))]
            self._bars[name] = plain_json_bytes(bars)
            self._read_freshness(self._registry.pipelines[name].spec, log)
        if self._rows.is_loaded:
            self._rows.load(log, now.date(), changed)

    def _read_freshness(self, spec: PipelineSpec, log: RunLog) -> None:
        """A column is read from the target by ``flow freshness-check`` alone: its last result counts."""
        if spec.freshness_seconds is None:
            return
        if spec.freshness_column is None:
            self._fresh_since[spec.name] = last_success_time(spec.name, log), None
        else:
            checked = log.last(f"{FRESHNESS}{spec.name}")
            self._fresh_since[spec.name] = None, checked is not None and checked.status == "failed"

    def _freshness_json(self, spec: PipelineSpec, now: dt.datetime) -> dict[str, Any] | None:
        sla = spec.freshness_seconds
        if sla is None or spec.name not in self._fresh_since:
            return None
        since, is_breached = self._fresh_since[spec.name]
        lag = None if since is None else max(0.0, (now - since).total_seconds())
        if is_breached is None:
            is_breached = lag is None or lag > sla
        return {
            "lag_seconds": None if lag is None else round(lag, 3),
            "sla_seconds": sla,
            "is_breached": is_breached,
        }

    def _view(
        self, status: PipelineStatus, holds: Mapping[tuple[str, str], Hold], now: dt.datetime
    ) -> PipelineView:
        spec = status.spec
        listed = self._listings[spec.name]
        run_hold, schedule_hold = holds.get(("run", spec.name)), holds.get(("schedule", spec.name))
        value = {
            **status.to_json(),
            **{name: listed[name] for name in ("name", "description", "targets", "incremental", "where")},
            "freshness": self._freshness_json(spec, now),
            "hold": run_hold.to_json() if run_hold else None,
            "schedule_hold": schedule_hold.to_json() if schedule_hold else None,
        }
        if value["last_run"] is not None:
            value["last_run"]["metrics"] = {}  # which one run shows
        state = status.last_run.status if status.last_run else "never"
        return PipelineView(
            spec.name, state, (_rank(status), spec.name), mask_all(value), _searched(spec.name, listed)
        )

    def _rendered(self, view: PipelineView) -> PipelineView:
        body = plain_json_bytes(view.value)
        bars, days = self._bars.get(view.name, b"[]"), plain_json_bytes(self._rows.of(view.name))
        return replace(view, rendered=body[:-1] + b',"bars":' + bars + b',"rows_per_day":' + days + b"}")


def _searched(name: str, listed: Mapping[str, Any]) -> str:
    targets = " ".join(target["target"] for target in listed["targets"])
    return f"{name} {targets} {' '.join(listed['tags'])} {listed['description'] or ''}".casefold()


def _rank(status: PipelineStatus) -> int:
    """Failing first, then what waits or is wrong, then what runs, then the rest."""
    if status.failures or (status.slot is not None and status.slot.status == "gave_up"):
        return 0
    if status.why:
        return 1
    return 2 if status.last_run is not None and status.last_run.status == "running" else 3
