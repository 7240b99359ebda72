"""The scheduler: looks at the clock, claims what is due and hands it to an executor, until it is stopped.

Any number may run against one store. One of them leads and looks; the others wait for its lease to end.
Nothing depends on there being one leader only: a slot is claimed once whoever looks.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from ematix_flow.errors import FlowError
from ematix_flow.schedule.due import Agenda
from ematix_flow.schedule.executors.base import CannotDispatch, Dispatch, Executor
from ematix_flow.schedule.run_due import Runner, SlotOutcome
from ematix_flow.schedule.slots import look
from ematix_flow.schedule.unstarted import record_unstarted
from ematix_flow.state.slots import Claim, Lease

POLL_SECONDS, LEADER_SECONDS, GRACE_SECONDS = 10.0, 60.0, 60.0
_AGAIN_SECONDS = 30.0  # after a run that could not be started
_NAME = "scheduler"
_log = logging.getLogger(__name__)


@dataclass
class Scheduler:
    """``stop`` ends it between two looks."""

    runner: Runner
    executor: Executor
    module: str
    run_log: str | None = None
    interval: dt.timedelta = dt.timedelta(minutes=1)
    poll_seconds: float = POLL_SECONDS
    leader_seconds: float = LEADER_SECONDS
    grace_seconds: float = GRACE_SECONDS
    stop: threading.Event = field(default_factory=threading.Event)
    environment: Mapping[str, str] = field(default_factory=dict)  # for the runs, beside what they inherit

    def __post_init__(self) -> None:
        self._agenda: Agenda = self.runner.agenda(self.interval)
        self._lease: Lease | None = None
        self._leads = False

    def run(self, looks: int | None = None) -> None:
        """Until it is stopped, or for so many looks. One that fails is told, and the next one comes."""
        try:
            while not self.stop.is_set() and looks != 0:
                looks = None if looks is None else looks - 1
                try:
                    self.tick()
                except FlowError as error:
                    _log.error("a look at the schedules failed: %s", error.what)
                if looks != 0:
                    self.stop.wait(self.poll_seconds)
        finally:
            self._leave()
            self.executor.close(self.grace_seconds)

    def tick(self) -> list[Claim]:
        """One look; the slots whose runs were started."""
        store = self.runner.store
        self._lease = store.lease(_NAME, self.runner.holder, self.leader_seconds)
        if (self._lease is not None) != self._leads:
            self._leads = self._lease is not None
            _log.info("this scheduler %s", "leads" if self._leads else "waits: another one leads")
        if self._lease is None:
            return []
        started: list[Claim] = []
        for record in look(store, self._agenda):
            room = self.executor.room()
            if self.stop.is_set() or (room is not None and room <= 0):
                break  # what is left is due at the next look, the oldest first
            found = self.runner.pick(record)
            if isinstance(found, SlotOutcome):
                _tell(found)
            elif found is not None and self._start(found):
                started.append(found)
        return started

    def _start(self, claim: Claim) -> bool:
        seconds = self.runner.lease_seconds
        job = Dispatch(claim, self.module, seconds, self.run_log, self.environment)
        try:
            self.executor.dispatch(job)
        except CannotDispatch as error:
            _log.error("%s", error.what)
            spec = self.runner.registry.pipeline(claim.slot.pipeline).spec
            record_unstarted(spec, self.runner.context(claim.slot), error, attempts=0)
            self.runner.store.wait(claim, _AGAIN_SECONDS, error.what, failed=False)
            return False
        _log.info("%s of %s is started", claim.slot.pipeline, claim.slot.at.isoformat())
        return True

    def _leave(self) -> None:
        """So that another need not wait for the lease to end."""
        if self._lease is not None:
            try:
                self.runner.store.release(self._lease)
            except FlowError as error:
                _log.warning("the lease was not given back, and ends by itself: %s", error.what)


def _tell(outcome: SlotOutcome) -> None:
    slot = outcome.slot
    if outcome.status in ("skipped", "gave_up"):
        became = outcome.status.replace("_", " ")
        _log.warning("%s of %s %s: %s", slot.pipeline, slot.at.isoformat(), became, outcome.reason)
