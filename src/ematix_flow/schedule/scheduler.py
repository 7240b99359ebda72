"""The scheduler: polls for due slots, claims them and hands them to an executor, until it is stopped.

Any number of schedulers may use one store. One of them leads and polls; the others wait for its lease to
end. Correctness does not depend on a single leader: a slot is claimed once even if several poll.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from ematix_flow.errors import FlowError
from ematix_flow.observe.observer import SchedulerTick
from ematix_flow.schedule.actions.carrier import ActionCarrier
from ematix_flow.schedule.backlog import NO_BACKLOG, Backlog, measure_backlog
from ematix_flow.schedule.blocked_slots import UnfinishedSlots, skip_blocked_slots
from ematix_flow.schedule.due_slots import DueCalculator
from ematix_flow.schedule.executors.base import CannotDispatch, Executor, RunDispatch, WorkerExit
from ematix_flow.schedule.run_due import SlotOutcome, SlotRunner
from ematix_flow.schedule.slot_lifecycle import RESTART_DELAY_SECONDS
from ematix_flow.schedule.unstarted_runs import record_unstarted_run
from ematix_flow.state.slots.base import ENDED, Claim, SlotStore
from ematix_flow.state.slots.scheduler_lease import SchedulerLease

POLL_SECONDS, LEADER_SECONDS, GRACE_SECONDS = 10.0, 60.0, 60.0
MIN_LEASE_SECONDS = 5.0  # a run needs this long to start and to record that it has begun
_EXECUTOR_POLL_SECONDS = 0.2
_LEASE_NAME = "scheduler"
_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass
class Scheduler:
    """Runs due slots through an executor. ``stop`` ends it between two polls."""

    runner: SlotRunner
    executor: Executor
    module: str
    run_log: str | None = None
    engine: str | None = None
    interval: dt.timedelta = dt.timedelta(minutes=1)
    poll_seconds: float = POLL_SECONDS
    leader_seconds: float = LEADER_SECONDS
    grace_seconds: float = GRACE_SECONDS
    restart_delay_seconds: float = RESTART_DELAY_SECONDS
    stop: threading.Event = field(default_factory=threading.Event)
    environment: Mapping[str, str] = field(default_factory=dict)  # further variables for the runs
    carrier: ActionCarrier | None = None  # of actions, whether this scheduler leads or not

    def __post_init__(self) -> None:
        takeover = dt.timedelta(seconds=self.leader_seconds + 2 * self.poll_seconds)
        self.due_calculator: DueCalculator = self.runner.due_calculator(
            self.interval, max(self.interval, takeover)
        )
        self._lease: SchedulerLease | None = None
        self._is_leader: bool | None = None
        specs = [self.runner.registry.pipeline(name).spec for name in self.runner.names]
        self._max_attempts = {spec.name: spec.retry.max_attempts for spec in specs}
        self._freshness_slas = {spec.name: spec.freshness_seconds for spec in specs if spec.freshness_seconds}
        self._refused = self._taken_over = 0
        self._lags: list[float] = []
        self._backlog: Backlog | None = None

    def run(self, looks: int | None = None) -> None:
        """Poll until stopped, or ``looks`` times. A failed poll is logged, and the next one follows.

        At the end it releases the lease and waits for its runs; an interrupt ends that wait at once.
        """
        try:
            while not self.stop.is_set() and looks != 0:
                looks = None if looks is None else looks - 1
                self._tick_and_report()
                if looks != 0:
                    self._wait_for_next_poll()
            self._release_lease()
            until = time.monotonic() + self.grace_seconds
            if self.carrier is not None:
                self.carrier.stop_claiming()
            self.executor.close(self.grace_seconds)
            self._log_failure("the ends of actions were not checked", partial(self._close_carrier, until))
            self._log_failure("the ends of runs were not checked", self.check_runs)
        except BaseException:
            if self.carrier is not None:
                self.carrier.abandon()
            self.executor.abandon()
            self._release_lease()
            raise

    def _close_carrier(self, until: float) -> None:
        """Let the actions that are being carried out go on until then, as the runs may."""
        if self.carrier is not None:
            self.carrier.close(max(0.0, until - time.monotonic()))

    def _wait_for_next_poll(self) -> None:
        """Wait for the next poll, which comes early when a run ends: the next slot may wait for it."""
        until = time.monotonic() + self.poll_seconds
        while (left := until - time.monotonic()) > 0 and not self.stop.wait(
            min(left, _EXECUTOR_POLL_SECONDS)
        ):
            if self.executor.has_freed_worker():
                return

    def _tick_and_report(self) -> None:
        """Poll once and report the tick to the observers, even if it failed."""
        began, self._lags = time.monotonic(), []
        self._refused = self._taken_over = 0
        self._backlog = None
        if self.carrier is not None:
            self._log_failure("a poll of the actions failed", self.carrier.poll)
        started = self._log_failure("a poll of the schedules failed", self.tick)
        self.runner.observers.scheduler_ticked(
            SchedulerTick(
                time.monotonic() - began,
                bool(self._is_leader),
                started is None,
                len(started or ()),
                tuple(self._lags),
                self._refused,
                self._taken_over,
                self._max_attempts,
                self._freshness_slas,
                due=None if self._backlog is None else self._backlog.due_slots,
                oldest_due_seconds=0.0 if self._backlog is None else self._backlog.behind_seconds,
            )
        )

    def tick(self) -> list[Claim]:
        """Poll once and return the claims whose runs were started."""
        store = self.runner.store
        self._lease = store.lease(_LEASE_NAME, self.runner.holder, self.leader_seconds)
        if (self._lease is not None) != self._is_leader:
            self._is_leader = self._lease is not None
            _log.info("this scheduler %s", "leads" if self._is_leader else "waits: another one leads")
        self.check_runs()
        if self._lease is None:
            self._backlog = NO_BACKLOG  # the leader reports it
            return []
        return self._start_due(store)

    def check_runs(self) -> None:
        """Renew the claims of runs that have not begun, and release those whose runs died."""
        workers = self.executor.poll_workers()
        for claim in workers.starting:
            self.runner.store.renew(claim, self.runner.lease_seconds)
        for ending in workers.exits:
            self._release_dead_run(ending)

    def _start_due(self, store: SlotStore) -> list[Claim]:
        until = time.monotonic() + self.leader_seconds / 2  # then the lease must be renewed first
        due = self.runner.poll(self.due_calculator)
        started: list[Claim] = []
        if not due:
            self._backlog = NO_BACKLOG
            return started
        now, unfinished = store.now(), UnfinishedSlots(store.unfinished())
        left = {record.slot: record for record in due}
        free = [record for record in due if not unfinished.is_running(record.slot.pipeline, now)]
        for slot, why in skip_blocked_slots(self.runner, free, now, unfinished).items():
            del left[slot]
            _log.warning("%s of %s skipped: %s", slot.pipeline, slot.fire_time.isoformat(), why)
        for record in list(left.values()):
            if unfinished.is_running(record.slot.pipeline, now):
                continue  # a pipeline runs one slot at a time
            room = self.executor.capacity()
            if self.stop.is_set() or (room is not None and room <= 0) or time.monotonic() > until:
                break  # the rest is due at the next poll, the oldest first
            found = self.runner.try_claim(record, now, unfinished.of_pipelines)
            if isinstance(found, SlotOutcome):
                if found.status in ENDED:
                    unfinished.drop(found.slot)
                    del left[found.slot]
                    outcome = f"{found.status.replace('_', ' ')}: {found.reason}"
                    level = logging.INFO if found.status == "succeeded" else logging.WARNING
                    _log.log(
                        level, "%s of %s %s", found.slot.pipeline, found.slot.fire_time.isoformat(), outcome
                    )
                continue
            unfinished.mark_claimed(
                record
            )  # also if another process holds it or its run is refused: newer ones wait
            if found is None:
                del left[record.slot]
            elif self._start(found):
                started.append(found)
                del left[record.slot]
                self._taken_over += int(record.status == "claimed")
                if found.fence == 1:
                    self._lags.append((now - found.slot.fire_time).total_seconds())
        self._backlog = measure_backlog((record.slot.fire_time for record in left.values()), now)
        return started

    def _start(self, claim: Claim) -> bool:
        seconds = self.runner.lease_seconds
        job = RunDispatch(claim, self.module, seconds, self.run_log, self.engine, self.environment)
        try:
            self.executor.dispatch(job)
        except CannotDispatch as error:
            if not self.runner.store.begin(claim, self.restart_delay_seconds):
                _log.info("%s, but the run has begun", error.what)  # only the answer was lost
                return True
            _log.error("%s", error.what)
            self._refused += 1
            spec = self.runner.registry.pipeline(claim.slot.pipeline).spec
            record_unstarted_run(spec, self.runner.context(claim.slot), error, attempts=0)
            self.runner.store.retry_later(claim, self.restart_delay_seconds, error.what, failed=False)
            return False
        _log.info("%s of %s is started", claim.slot.pipeline, claim.slot.fire_time.isoformat())
        return True

    def _release_dead_run(self, ending: WorkerExit) -> None:
        """End the claim of a dead run early, unless the run recorded its end.

        The attempt counts as a death.
        """
        store, claim = self.runner.store, ending.claim
        record = store.get(claim.slot)
        if record is None or record.status != "claimed" or record.fence != claim.fence:
            return
        pause = min(self.restart_delay_seconds * 2**record.deaths, self.runner.lease_seconds)
        if ending.never_began:
            if store.begin(claim, pause) and store.retry_later(
                claim, 0.0, "it was stopped while it started", failed=False
            ):
                _log.info("%s of %s is returned", claim.slot.pipeline, claim.slot.fire_time.isoformat())
            return
        store.begin(claim, pause)  # a run that ended before it began is dead too
        if store.renew(claim, pause, ending.reason):
            _log.warning(
                "the run of %s of %s died: %s. The next attempt is in %g s",
                claim.slot.pipeline,
                claim.slot.fire_time.isoformat(),
                ending.reason,
                pause,
            )

    def _log_failure(self, failed: str, step: Callable[[], Answer]) -> Answer | None:
        """Run one step; log its error and return None if it fails. The scheduler goes on."""
        try:
            return step()
        except FlowError as error:
            _log.error("%s: %s", failed, error.what)
        except Exception:
            _log.exception("%s", failed)
        return None

    def _release_lease(self) -> None:
        """Release the lease, so that another scheduler need not wait for it to end."""
        if self._lease is not None:
            try:
                self.runner.store.release(self._lease)
            except FlowError as error:
                _log.warning("the lease was not released, and ends by itself: %s", error.what)
