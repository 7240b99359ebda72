"""Carries actions out: claims each that waits, and starts a process for it.

Any number of carriers may use one store: schedulers and web processes. An action is claimed by one of them at
a time. A carrier leaves alone what its module does not declare: other projects may use the same store. If a
carrier dies, its processes go on and renew their claims; if a process dies, its claim expires.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ematix_flow import fault_points
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.graph.registry import Registry
from ematix_flow.schedule.actions.carrying_out import LEASE_SECONDS
from ematix_flow.schedule.actions.checks import pipelines_to_run
from ematix_flow.schedule.actions.schedule_holds import has_taken_effect, hold_effect, is_hold_action
from ematix_flow.schedule.actions.untaken_actions import (
    EXPIRED,
    has_expired,
    has_expired_for_any,
    keep_waiting,
)
from ematix_flow.schedule.executors.base import (
    ENGINE_VARIABLE,
    RUN_LOG_VARIABLE,
    CannotDispatch,
    has_secret,
)
from ematix_flow.schedule.executors.child_processes import ChildProcesses, exit_reason
from ematix_flow.schedule.stopped_slots import settle_stop
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.records import CARRIED_KINDS, ActionRecord
from ematix_flow.state.process_liveness import new_holder, run_is_dead
from ematix_flow.state.runlog.base import RunLog, warn_once
from ematix_flow.state.slots.base import SlotStore

MAX_DEATHS = 3  # processes that die with an action before it is given up
_LONGEST_HOLD_ACTION = dt.timedelta(minutes=5)  # until a pause or a resume that is at work has ended
_LONGEST_ACTION_AT_ONCE = dt.timedelta(days=1)  # the same of the others that are done at once
_PURGE_SECONDS = 3600.0
_log = logging.getLogger(__name__)


@dataclass
class ActionCarrier:
    """Starts processes for actions, at most ``workers`` at once. Used by one thread."""

    actions: ActionStore
    run_log: RunLog
    slots: SlotStore
    registry: Registry
    module: str
    run_log_url: str | None = None
    engine: str | None = None
    workers: int = 4
    lease_seconds: float = LEASE_SECONDS
    holder: str = field(default_factory=new_holder)
    environment: Mapping[str, str] = field(default_factory=dict)  # further variables for the processes
    keep_for: dt.timedelta | None = None  # older actions that have ended are deleted; None: none is
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._processes = ChildProcesses[ActionRecord]()
        self._is_closing = False
        self._purged_at: float | None = None
        self._came_up_at: dt.datetime | None = None  # by the store's clock

    def poll(self) -> list[ActionRecord]:
        """Start what waits, as far as there is room, and return what was started."""
        self.check_processes()
        self._settle_unclaimed()
        self._purge_now_and_then()
        started: list[ActionRecord] = []
        claimable: Sequence[ActionRecord] = self.actions.claimable()
        now = self.actions.now() if self._came_up_at is None or claimable else self._came_up_at
        self._came_up_at = self._came_up_at or now
        for seen in self._end_expired(claimable, self._came_up_at, now):
            if self._is_closing:
                break
            if not self._is_declared(seen):
                continue
            if len(self._processes) >= self.workers:
                keep_waiting(self.actions, seen, now)  # until it is claimed at a later poll, or by another
                continue
            claimed = self.actions.claim(seen, self.holder, self.lease_seconds)
            if claimed is None:
                continue
            if claimed.deaths >= MAX_DEATHS:
                self.actions.end(
                    claimed, "failed", f"{claimed.deaths} processes died while they carried it out"
                )
                continue
            fault_points.point("action.claimed")
            if self._start(claimed):
                started.append(claimed)
        return started

    def _end_expired(
        self, found: Sequence[ActionRecord], came_up_at: dt.datetime, now: dt.datetime
    ) -> list[ActionRecord]:
        """End the actions that have waited too long, and return the others.

        What waits because this carrier is busy does not expire, however long that takes.
        """
        left = []
        for action in found:
            is_declared = self._is_declared(action)
            if has_expired(action, came_up_at) if is_declared else has_expired_for_any(action, now):
                self.actions.end(action, "failed", EXPIRED)
            else:
                left.append(action)
        return left

    def check_processes(self) -> None:
        """End or release the actions whose processes have ended without doing so."""
        for claimed, code in self._processes.take_ended():
            if code != 0:
                self._release_dead(claimed, exit_reason(code))

    def is_idle(self) -> bool:
        """Whether none of its processes runs."""
        return not len(self._processes)

    def stop_claiming(self) -> None:
        """Start no more. Its processes go on."""
        self._is_closing = True

    def close(self, grace: float = 0.0) -> None:
        """Start no more. Processes may go on for ``grace`` seconds; then they are stopped and hand back."""
        self.stop_claiming()
        self._processes.wait(grace)
        self._processes.close()
        self.check_processes()

    def abandon(self) -> None:
        """Start no more, and stop its processes without waiting for them."""
        self._is_closing = True
        self._processes.terminate()

    def _start(self, claimed: ActionRecord) -> bool:
        settings = {RUN_LOG_VARIABLE: self.run_log_url, ENGINE_VARIABLE: self.engine}
        variables = {**self.environment, **{name: value for name, value in settings.items() if value}}
        what = f"the action {claimed.kind} of {claimed.subject!r}"
        try:
            self._processes.start(self._arguments(claimed), variables, claimed, what)
        except CannotDispatch as error:
            _log.error("%s", error.what)
            self.actions.end(claimed, "failed", error.what)
            return False
        _log.info("%s, asked for by %s, is started", what, claimed.requested_by)
        return True

    def _arguments(self, claimed: ActionRecord) -> list[str]:
        """Return the arguments of the process. Secrets are in its variables, never in its arguments."""
        return [
            "run-action",
            f"--module={self.module}",
            f"--claim={claimed.fence}:{claimed.holder}",
            f"--lease-seconds={self.lease_seconds:g}",
            *([f"--engine={self.engine}"] if self.engine and not has_secret(self.engine) else []),
            claimed.action_id,
        ]

    def _release_dead(self, claimed: ActionRecord, reason: str) -> None:
        record = self.actions.get(claimed.action_id)
        if record.status != "claimed" or record.fence != claimed.fence:
            return  # it recorded its end, or another process has it
        if not record.begun and not self._is_closing:
            self.actions.end(
                record, "failed", f"{reason} before it began; see the output of the scheduler or page"
            )
        elif not record.begun:
            self.actions.hand_back(record)
        elif self.actions.renew(record, 0.0):
            _log.warning(
                "the process of action %s died: %s; another takes over", record.action_id[:8], reason
            )

    def _settle_unclaimed(self) -> None:
        """End the stops whose runs have ended, and what was to be done at once but did not record its end."""
        unfinished = self.actions.list(unfinished=True, limit=1_000)
        now = self.actions.now() if unfinished else None
        for action in unfinished:
            if action.kind == "stop":
                self._settle_stop(action)
            elif action.kind not in CARRIED_KINDS and now is not None:
                self._settle_done_at_once(action, now - action.requested_at)

    def _settle_done_at_once(self, action: ActionRecord, age: dt.timedelta) -> None:
        if not is_hold_action(action):
            if age > _LONGEST_ACTION_AT_ONCE and self._declares(action.subject):
                self.actions.end(
                    action, "failed", "it did not record its end; request it again to complete it"
                )
        elif age > _LONGEST_HOLD_ACTION:
            if has_taken_effect(action, self.actions):
                self.actions.end(action, "done", hold_effect(action))
            else:
                self.actions.end(
                    action, "failed", "it was interrupted before it took effect; request it again"
                )

    def _purge_now_and_then(self) -> None:
        """Delete old actions, once an hour. A failure is only a warning."""
        now = self.clock()
        if self.keep_for is None or (self._purged_at is not None and now - self._purged_at < _PURGE_SECONDS):
            return
        self._purged_at = now
        try:
            self.actions.purge(self.actions.now() - self.keep_for)
        except FlowError as error:
            warn_once("actions", f"old actions could not be deleted: {error.what}")

    def _is_declared(self, action: ActionRecord) -> bool:
        """Whether the module declares what an action is about. An unknown run is of no other module."""
        if action.kind == "restart":
            try:
                return self._declares(self.run_log.get(action.subject).pipeline)
            except UsageError:
                return True
        if action.kind != "run":
            return self._declares(action.subject)
        try:
            return bool(pipelines_to_run(self.registry, action.subject, action.arguments))
        except FlowError:  # no pipeline here has this name, or matches this selector
            return False

    def _declares(self, name: str) -> bool:
        """Whether the module declares this pipeline or stream. Of ``maintain:orders`` that is ``orders``."""
        return name.rpartition(":")[2] in {*self.registry.pipelines, *self.registry.streams}

    def _settle_stop(self, action: ActionRecord) -> None:
        if action.subject in self.registry.pipelines:  # which of its slots it was to give up is not known
            if self.actions.now() - action.requested_at > _LONGEST_HOLD_ACTION:
                outcome = "it did not record its end; flow status shows whether a slot waits"
                self.actions.end(action, "failed", outcome)
            return
        try:
            record = self.run_log.get(action.subject)
        except UsageError:
            self.actions.end(action, "failed", "the run log no longer has this run")
            return
        except FlowError as error:
            _log.warning("it is not known whether run %s has ended: %s", action.subject[:8], error.what)
            return
        if not self._declares(record.pipeline):
            return
        if record.status != "running" or run_is_dead(record):
            settle_stop(action, record, self.actions, self.slots)
