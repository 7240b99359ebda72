"""What is due now, run in this process: upstreams first, and each slot once, whoever else looks."""

from __future__ import annotations

import datetime as dt
import logging
import os
import random
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from ematix_flow.engine.results import RunResult, unexpected
from ematix_flow.errors import FlowError, Interrupted, PipelineLocked, UsageError
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.schedule.due import Agenda, Scheduled
from ematix_flow.schedule.gates import gate
from ematix_flow.schedule.run import RunContext, run_pipeline
from ematix_flow.schedule.slots import Ended, conclude, look, take
from ematix_flow.schedule.unstarted import RunsDied, record_unstarted
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.runlog import RunLog
from ematix_flow.state.slots import Claim, Slot, SlotRecord, SlotStore

LEASE_SECONDS = 300.0
_log = logging.getLogger(__name__)

Status = Literal["succeeded", "waiting", "gave_up", "skipped", "lost"]


@dataclass(frozen=True)
class SlotOutcome:
    """What became of a slot: ``waiting`` for its next attempt, ``lost`` when another took it over."""

    slot: Slot
    status: Status
    reason: str | None = None
    result: RunResult | None = None
    error: FlowError | None = None


@dataclass(frozen=True)
class Runner:
    """Runs the slots of a registry's pipelines. ``context`` makes what a run of a slot needs."""

    registry: Registry
    store: SlotStore
    run_log: RunLog
    context: Callable[[Slot], RunContext]
    lease_seconds: float = LEASE_SECONDS
    holder: str = field(default_factory=lambda: new_holder())
    chance: random.Random = field(default_factory=random.Random)

    def agenda(self, interval: dt.timedelta) -> Agenda:
        return Agenda(list(scheduled(self.registry)), interval)

    def run_due(
        self,
        interval: dt.timedelta,
        before: Callable[[Slot], None] = lambda slot: None,
        after: Callable[[SlotOutcome], None] = lambda outcome: None,
    ) -> list[SlotOutcome]:
        """Everything that is due, once through. What must wait is due again at the next call."""
        due = look(self.store, self.agenda(interval))
        place = {name: number for number, name in enumerate(self.registry.order())}
        outcomes = []
        for record in sorted(due, key=lambda each: (each.slot.at, place.get(each.slot.pipeline, 0))):
            outcome = self._run(record, before)
            if outcome is not None:
                outcomes.append(outcome)
                after(outcome)
        return outcomes

    def _run(self, record: SlotRecord, before: Callable[[Slot], None]) -> SlotOutcome | None:
        found = self.pick(record)
        if not isinstance(found, Claim):
            return found
        before(found.slot)
        return self.run_claimed(found)

    def pick(self, record: SlotRecord) -> Claim | SlotOutcome | None:
        """Claim a slot that is due and may run; what becomes of it otherwise; None when it is another's."""
        spec, slot = self.registry.pipeline(record.slot.pipeline).spec, record.slot
        found = gate(
            spec,
            slot,
            self.store.now(),
            self.store.unended(spec.depends_on),
            self.store.latest,
            self._last_success,
        )
        if found.verdict == "wait":
            return SlotOutcome(slot, "waiting", found.reason)
        claim = take(self.store, record, self.holder, self.lease_seconds, spec.retry)
        context = self.context(slot)
        if isinstance(claim, Ended):
            error = record_unstarted(spec, context, RunsDied(claim.reason or ""), attempts=claim.attempts)
            context.observers.slot_ended(spec.name, slot.at, "gave_up", claim.reason)
            return SlotOutcome(slot, "gave_up", claim.reason, error=error)
        if claim is not None and found.verdict == "skip":
            self.store.end(claim, "skipped", found.reason)
            context.observers.slot_ended(spec.name, slot.at, "skipped", found.reason)
            return SlotOutcome(slot, "skipped", found.reason)
        return claim

    def run_claimed(self, claim: Claim) -> SlotOutcome:
        """Run a slot whose claim is held here, keep the claim meanwhile, and say how it ended."""
        declared = self.registry.pipeline(claim.slot.pipeline)
        slot, result = claim.slot, None
        error: FlowError | None = None
        with self._kept(claim):
            try:
                with use_registry(self.registry):
                    # attempts are counted in the store, so that they outlive this process
                    context = replace(self.context(slot), attempt=claim.failures + 1)
                    result = run_pipeline(declared, context)
                ended = Ended(True, result.reason)
            except Interrupted:
                self.store.wait(claim, 0.0, "interrupted", failed=False)
                raise
            except PipelineLocked as locked:
                error, ended = locked, Ended(False, locked.what, locked=True)
            except FlowError as failure:
                error, ended = failure, Ended(False, failure.what)
            except Exception as failure:
                error = unexpected(failure)
                error.__cause__ = failure
                ended = Ended(False, error.what)
        said = conclude(self.store, claim, ended, declared.spec.retry, self.chance)
        status: Status = "lost" if said is None else said  # type: ignore[assignment]  # one of its words
        return SlotOutcome(slot, status, ended.reason, result, error)

    @contextmanager
    def _kept(self, claim: Claim) -> Iterator[None]:
        """The claim is renewed while the block runs. Who loses it finishes: the ledger takes a slot once."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(self.lease_seconds / 3):
                try:
                    if not self.store.renew(claim, self.lease_seconds):
                        _log.warning("%s of %s was taken over by another", claim.slot.pipeline, claim.slot.at)
                        return
                except FlowError as error:
                    _log.warning("the claim of %s was not renewed: %s", claim.slot.pipeline, error.what)

        thread = threading.Thread(target=renew, name="ematix-flow-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _last_success(self, pipeline: str) -> dt.datetime | None:
        found = self.run_log.list(pipeline, "succeeded", limit=1)
        return (found[0].finished_at or found[0].started_at) if found else None


def new_holder() -> str:
    """A name for who claims: its machine and process, and never given twice."""
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"


def claim_of(store: SlotStore, pipeline: str, at: dt.datetime, said: str) -> Claim:
    """The claim that ``fence:holder`` names, when it is still the newest of its slot."""
    fence, _, holder = said.partition(":")
    record = store.get(Slot(pipeline, at))
    if record is None or record.status != "claimed" or (str(record.fence), record.holder) != (fence, holder):
        raise UsageError(
            f"{pipeline!r} of {at.isoformat()} is not claimed by {holder!r} any more",
            state="nothing was run",
        )
    return Claim(record.slot, holder, record.fence, record.failures)


def scheduled(registry: Registry) -> Iterator[Scheduled]:
    """The pipelines that fire by themselves."""
    for declared in registry.pipelines.values():
        spec = declared.spec
        if spec.schedule is not None:
            yield Scheduled(spec.name, Schedule(spec.schedule, spec.timezone or "UTC"), spec.catchup)
