"""Runs what is due now in this process: upstreams first, and each slot once, even with several processes."""

from __future__ import annotations

import datetime as dt
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

from ematix_flow.errors import FlowError, Interrupted, PipelineLocked, RunStopped, UsageError
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.observe.observer import Observers
from ematix_flow.plan.results import RunResult, unexpected_error
from ematix_flow.run.context_setup import refuse_spark
from ematix_flow.run.last_runs import last_ends, last_success, record_skipped_run
from ematix_flow.run.pipeline import open_connections, run_declared_pipeline
from ematix_flow.run.recovery import slot_is_done
from ematix_flow.run.run_context import RunContext
from ematix_flow.run.worker_pool import WorkerPool, pipeline_jar_groups, with_jar_groups
from ematix_flow.schedule.blocked_slots import UnfinishedSlots, skip_blocked_slots
from ematix_flow.schedule.clearing import reopen_slots
from ematix_flow.schedule.due_slots import MISSED, DueCalculator, ScheduleEntry
from ematix_flow.schedule.slot_lifecycle import (
    ALREADY_LOADED,
    AttemptEnd,
    claim_slot,
    conclude_attempt,
    describe_holder,
    describe_next_attempt,
    longest_retry_delay,
    poll_slots,
)
from ematix_flow.schedule.unstarted_runs import RunsDied, never_began_error, record_unstarted_run
from ematix_flow.schedule.upstream_gate import check_upstreams
from ematix_flow.schedule.workflows import WorkflowSlots
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.process_liveness import new_holder
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.slots.base import CLOCK_STEP, Claim, Slot, SlotRecord, SlotStore
from ematix_flow.state.times import format_utc

LEASE_SECONDS = 300.0
_STORE_RETRY_SECONDS = (1.0, 4.0, 15.0)  # between attempts to record the end of a run
_JOIN_SECONDS = 5.0
_log = logging.getLogger(__name__)

UnfinishedLookup = Callable[[Sequence[str]], Sequence[SlotRecord]]
SlotOutcomeStatus = Literal["succeeded", "waiting", "gave_up", "skipped", "lost"]


@dataclass(frozen=True)
class SlotOutcome:
    """The outcome of a slot: ``waiting`` for its next attempt, ``lost`` if another process took it over."""

    slot: Slot
    status: SlotOutcomeStatus
    reason: str | None = None
    result: RunResult | None = None
    error: FlowError | None = None


@dataclass(frozen=True)
class SlotRunner:
    """Runs the slots of a registry's pipelines. ``context`` makes the context for the run of a slot."""

    registry: Registry
    store: SlotStore
    run_log: RunLog
    context: Callable[[Slot], RunContext]
    lease_seconds: float = LEASE_SECONDS
    holder: str = field(default_factory=new_holder)
    rng: random.Random = field(default_factory=random.Random)
    observers: Observers = field(default_factory=Observers)
    only: frozenset[str] | None = None  # run only these pipelines; None: all
    paused: Callable[[], Collection[str]] = tuple  # the pipelines whose schedules are paused
    sleep: Callable[[float], None] = time.sleep
    _warned_ahead: set[Slot] = field(default_factory=set, compare=False, repr=False)

    @property
    def names(self) -> Collection[str]:
        """The names of the pipelines that it runs."""
        return self.registry.pipelines if self.only is None else self.only

    @cached_property
    def workflows(self) -> WorkflowSlots:
        """The workflows that have a job here."""
        specs = self.registry.workflows.values()
        with_job_here = [spec for spec in specs if self.only is None or self.only & set(spec.jobs)]
        return WorkflowSlots(with_job_here, lambda names: last_ends(self.run_log, names, self.registry))

    @cached_property
    def pipeline_order(self) -> dict[str, int]:
        """The position of each pipeline in dependency order, upstreams first."""
        return {name: number for number, name in enumerate(self.registry.dependency_order())}

    def due_calculator(self, interval: dt.timedelta, late: dt.timedelta | None = None) -> DueCalculator:
        """Return the calculator for all scheduled pipelines here and all jobs of their workflows.

        A fire is missed when it is older than ``late``, by default the ``interval``.
        """
        wanted = None if self.only is None else self.only | self.workflows.jobs()
        pipelines = [
            each for each in scheduled_pipelines(self.registry) if wanted is None or each.name in wanted
        ]
        return DueCalculator([*pipelines, *self.workflows.scheduled()], interval, late)

    def poll(self, agenda: DueCalculator) -> list[SlotRecord]:
        """Return the slots that may be claimed now, by fire time and then upstreams first."""
        found = poll_slots(
            self.store,
            agenda,
            self.workflows,
            self.names,
            self._report_missed,
            self._warn_clock_ahead,
            lambda record: longest_retry_delay(
                self.registry.pipeline(record.slot.pipeline).spec.retry, record
            ),
            self.paused(),
        )
        return sorted(found, key=lambda each: (each.slot.fire_time, self.pipeline_order[each.slot.pipeline]))

    def _warn_clock_ahead(self, slot: Slot, now: dt.datetime) -> None:
        """Warn once per slot that a clock was ahead. A few seconds are normal clock adjustment."""
        if slot not in self._warned_ahead and slot.fire_time - now > CLOCK_STEP:
            self._warned_ahead.add(slot)
            _log.warning(
                "%s has a slot of %s, and it is %s now: a clock was ahead. Its present slots fire as usual, "
                "and that slot does not fire again",
                slot.pipeline,
                format_utc(slot.fire_time),
                format_utc(now),
            )

    def _report_missed(self, slot: Slot) -> None:
        _log.info("%s of %s: %s", slot.pipeline, format_utc(slot.fire_time), MISSED)
        self.observers.slot_ended(slot.pipeline, slot.fire_time, "missed", MISSED)

    def run_due(
        self,
        interval: dt.timedelta,
        before: Callable[[Slot], None] = lambda slot: None,
        after: Callable[[SlotOutcome], None] = lambda outcome: None,
        workers: int = 1,
    ) -> list[SlotOutcome]:
        """Run every due slot, and the workflows that this starts. Slots that must wait stay due."""
        if workers > 1:
            groups = pipeline_jar_groups(self.registry, self.names)
            runner = replace(self, context=lambda slot: with_jar_groups(self.context(slot), groups))
        else:
            runner = self
        agenda, polled = self.due_calculator(interval), set[Slot]()
        outcomes: list[SlotOutcome] = []
        for _ in range(1 + len(self.workflows.specs)):  # workflows do not start each other in a circle
            due = [record for record in self.poll(agenda) if record.slot not in polled]
            if not due:
                break
            polled.update(record.slot for record in due)
            for outcome in runner._run_all(due, before, workers):
                outcomes.append(outcome)
                after(outcome)
        return outcomes

    def _run_all(
        self, due: Sequence[SlotRecord], before: Callable[[Slot], None], workers: int
    ) -> Iterator[SlotOutcome]:
        """Run each slot once, in parallel where dependencies allow, and yield each outcome as it comes."""
        team: WorkerPool[SlotOutcome] = WorkerPool(workers)
        try:
            yield from self._run_each(team, due, before)
        except FlowError as error:  # the store failed: wait for running work, which records its end if it can
            while team.is_busy and not isinstance(error, Interrupted):
                yield team.wait_for_next()
            raise

    def _run_each(
        self, team: WorkerPool[SlotOutcome], due: Sequence[SlotRecord], before: Callable[[Slot], None]
    ) -> Iterator[SlotOutcome]:
        ready, waiting = list[SlotRecord](), dict[SlotRecord, SlotOutcome]()
        at_work: set[str] = set()
        elsewhere = self._held_elsewhere({record.slot.pipeline for record in due})
        order = {record.slot: number for number, record in enumerate(due)}
        new = list(due)
        while new or ready or team.is_busy:
            skipped = self._skip_blocked([r for r in new if r.slot.pipeline not in {*at_work, *elsewhere}])
            yield from skipped.values()
            ready += [record for record in new if record.slot not in skipped]
            ready.sort(key=lambda record: order[record.slot])
            new = [
                record
                for name in dict.fromkeys(slot.pipeline for slot in skipped)
                for record in self._released_by(waiting, name)
            ]
            if new:
                continue
            while ready and team.has_room:
                record = ready.pop(0)
                name = record.slot.pipeline
                if name in at_work:
                    waiting[record] = SlotOutcome(record.slot, "waiting", f"{name} is still running")
                    continue
                if name in elsewhere:  # one slot of a pipeline at a time, the oldest first
                    waiting[record] = SlotOutcome(record.slot, "waiting", describe_holder(elsewhere[name]))
                    continue
                found = self.try_claim(record)
                if isinstance(found, Claim):
                    before(found.slot)
                    at_work.add(name)
                    team.start_worker(partial(self.run_claimed, found))
                elif found is None:  # another process holds it now; newer slots wait
                    elsewhere |= self._held_elsewhere({name})
                elif found.status == "waiting":
                    waiting[record] = found
                else:
                    yield found
                    new += self._released_by(waiting, name)
            if team.is_busy:
                ended = team.wait_for_next()
                at_work.discard(ended.slot.pipeline)
                yield ended
                new += self._released_by(waiting, ended.slot.pipeline)
                if (
                    ended.status == "gave_up"
                ):  # it may hold back many of those that are ready, and they go together
                    new, ready = new + ready, []
        yield from waiting.values()

    def _skip_blocked(self, due: Sequence[SlotRecord]) -> dict[Slot, SlotOutcome]:
        """Skip the slots that their upstreams block."""
        if not any(self.registry.pipeline(record.slot.pipeline).spec.depends_on for record in due):
            return {}
        found = skip_blocked_slots(self, due, self.store.now(), UnfinishedSlots(self.store.unfinished()))
        return {slot: SlotOutcome(slot, "skipped", why) for slot, why in found.items()}

    def held_slots(self, pipelines: Collection[str]) -> list[SlotRecord]:
        """Return the claimed slots of these pipelines whose runs may still be at work.

        Slots later than now (a clock was ahead) are left out: such a claim may last long and blocks nothing.
        """
        now, found = self.store.now(), self.store.unfinished(list(pipelines))
        claimed = [record for record in found if record.status == "claimed" and record.slot.fire_time <= now]
        return [record for record in claimed if not record.is_due(now)]

    def _held_elsewhere(self, pipelines: Collection[str]) -> dict[str, SlotRecord]:
        return {record.slot.pipeline: record for record in self.held_slots(pipelines)}

    def _released_by(self, waiting: dict[SlotRecord, SlotOutcome], ended: str) -> list[SlotRecord]:
        """Return the slots that may have waited for this pipeline, to be checked again."""
        free = [
            record
            for record in waiting
            if ended in (record.slot.pipeline, *self.registry.pipeline(record.slot.pipeline).spec.depends_on)
        ]
        for record in free:
            del waiting[record]
        return free

    def try_claim(
        self, record: SlotRecord, now: dt.datetime | None = None, unfinished: UnfinishedLookup | None = None
    ) -> Claim | SlotOutcome | None:
        """Claim a due slot that may run; otherwise return its outcome, or None if another process holds it.

        A caller that claims many slots passes ``now`` and ``unfinished``, so that the store is asked once.
        """
        spec, slot = self.registry.pipeline(record.slot.pipeline).spec, record.slot
        found = check_upstreams(
            spec,
            slot,
            now or self.store.now(),
            (unfinished or self.store.unfinished)(spec.depends_on) if spec.depends_on else (),
            self.store.latest,
            lambda upstream: last_success(self.run_log, upstream),
        )
        if found.verdict == "wait":
            return SlotOutcome(slot, "waiting", found.reason)
        errors: list[FlowError] = []

        def tell(claim: Claim, ended: AttemptEnd) -> None:
            died, attempts = RunsDied(ended.reason or ""), ended.attempts
            context = self.context(slot)
            errors.append(record_unstarted_run(spec, context, died, attempts=attempts, fence=claim.fence))

        def is_done() -> bool | None:
            with use_registry(self.registry):  # the pipeline may name its connections
                return slot_is_done(spec, slot.fire_time, open_connections(refuse_spark), self.run_log)

        claim = claim_slot(self.store, record, self.holder, self.lease_seconds, spec.retry, tell, is_done)
        if isinstance(claim, AttemptEnd) and claim.succeeded:
            return self._report_already_loaded(slot)
        if isinstance(claim, AttemptEnd):
            return SlotOutcome(slot, "gave_up", claim.reason, error=errors[0])
        never_began = never_began_error(record)
        if claim is not None and never_began is not None:
            record_unstarted_run(spec, self.context(slot), never_began, attempts=0)
        if claim is not None and found.verdict == "skip":
            if record.fence and is_done():  # an attempt had loaded it before its upstream failed
                ended = self.store.end(claim, "succeeded", ALREADY_LOADED)
                return (
                    self._report_already_loaded(slot) if ended else SlotOutcome(slot, "lost", ALREADY_LOADED)
                )
            self._record_skip(spec, slot, found.reason or "")
            if self.store.end(claim, "skipped", found.reason):
                self.observers.slot_ended(slot.pipeline, slot.fire_time, "skipped", found.reason)
            return SlotOutcome(slot, "skipped", found.reason)
        return claim

    def _record_skip(self, spec: PipelineSpec, slot: Slot, reason: str) -> None:
        """Record the skip before the slot ends: a crash in between records it twice, and never loses it."""
        try:
            record_skipped_run(self.run_log, spec, reason, self.context(slot).trigger, slot.fire_time)
        except FlowError as error:
            _log.warning(
                "the run log did not record the skip of %s of %s: %s", spec.name, slot.fire_time, error.what
            )

    def _report_already_loaded(self, slot: Slot) -> SlotOutcome:
        self.observers.slot_ended(slot.pipeline, slot.fire_time, "succeeded", ALREADY_LOADED)
        return SlotOutcome(slot, "succeeded", ALREADY_LOADED)

    def run_claimed(self, claim: Claim) -> SlotOutcome:
        """Run a claimed slot, renew the claim meanwhile, and return the outcome.

        The outcome is ``lost``, and nothing runs, if another run has begun under the claim or taken it over.
        """
        declared = self.registry.pipeline(claim.slot.pipeline)
        slot, result = claim.slot, None
        error: FlowError | None = None
        if not self._begin_claim(claim):
            return SlotOutcome(slot, "lost", "another run has it, or its claim could not be kept")
        with self._keep_claim_alive(claim):
            try:
                with use_registry(self.registry):
                    # the store counts attempts, so that the count survives this process
                    context = replace(
                        self.context(slot), attempt=claim.failures + 1, retried_by_scheduler=True
                    )
                    result = run_declared_pipeline(declared, context)
                error = result.failure  # of some targets, if the others go on
                ended = AttemptEnd(error is None, error.what if error else result.reason)
            except RunStopped as stopped:
                error, ended = stopped, AttemptEnd(False, stopped.what, stopped=True)
            except Interrupted:
                self._return_slot(claim)
                raise
            except PipelineLocked as locked:
                error, ended = locked, AttemptEnd(False, locked.what, locked=True)
            except FlowError as failure:
                error, ended = failure, AttemptEnd(False, failure.what)
            except Exception as failure:
                error = unexpected_error(failure)
                error.__cause__ = failure
                ended = AttemptEnd(False, error.what)
            conclusion = self._record_conclusion(claim, ended)
        status: SlotOutcomeStatus = "lost" if conclusion is None else conclusion  # type: ignore[assignment]  # one of its words
        reason = ended.reason
        if status == "waiting" and not ended.locked:
            tried = f"attempt {claim.failures + 1} of {declared.spec.retry.max_attempts} failed"
            reason = f"{tried}{describe_next_attempt(self.store, slot)}: {reason}"
        return SlotOutcome(slot, status, reason, result, error)

    def _begin_claim(self, claim: Claim) -> bool:
        """Begin the run under the claim; False if it is lost.

        A store that does not answer ends only this run.
        """
        try:
            return self.store.begin(claim, self.lease_seconds, self.holder)
        except FlowError as error:
            if self._has_begun(claim):  # only the answer was lost
                return True
            _log.warning("%s of %s does not begin: %s", claim.slot.pipeline, claim.slot.fire_time, error.what)
            return False

    def _has_begun(self, claim: Claim) -> bool:
        try:
            known = self.store.get(claim.slot)
        except FlowError:  # already logged by the caller
            return False
        is_ours = known is not None and (known.fence, known.holder) == (claim.fence, self.holder)
        return known is not None and known.begun and is_ours

    def _return_slot(self, claim: Claim) -> None:
        """Return the slot of an interrupted run. If that fails, its claim expires."""
        try:
            self.store.retry_later(claim, 0.0, "interrupted", failed=False)
        except FlowError as error:
            _log.warning(
                "%s of %s was not returned: %s", claim.slot.pipeline, claim.slot.fire_time, error.what
            )

    def _record_conclusion(self, claim: Claim, ended: AttemptEnd) -> str | None:
        """Record how the attempt ended; None if the claim is lost or the store does not answer."""
        policy, slot = self.registry.pipeline(claim.slot.pipeline).spec.retry, claim.slot
        for pause in (*_STORE_RETRY_SECONDS, None):
            try:
                conclusion = conclude_attempt(self.store, claim, ended, policy, self.rng)
                known = self.store.get(slot) if conclusion is None else None
                if ended.succeeded and known is not None and known.status in ("gave_up", "skipped"):
                    # it was given up too early: its next run finds it loaded
                    reopen_slots(self.store, self.registry, [known])
                # the answer to the first request may have been lost
                return known.status if known is not None and known.fence == claim.fence else conclusion
            except FlowError as error:
                if pause is None:
                    _log.warning(
                        "the end of %s of %s was not recorded: %s", slot.pipeline, slot.fire_time, error.what
                    )
                    return None
                self.sleep(pause)
        return None

    @contextmanager
    def _keep_claim_alive(self, claim: Claim) -> Iterator[None]:
        """Renew the claim while the block runs. A run that loses it goes on: the ledger takes a slot once."""
        is_over = threading.Event()

        def renew() -> None:
            while not is_over.wait(self.lease_seconds / 3):
                try:
                    if not self.store.renew(claim, self.lease_seconds) and not is_over.is_set():
                        _log.warning(
                            "%s of %s was taken over by another", claim.slot.pipeline, claim.slot.fire_time
                        )
                        return
                except FlowError as error:
                    if is_over.is_set():
                        return
                    _log.warning("the claim of %s was not renewed: %s", claim.slot.pipeline, error.what)

        thread = threading.Thread(target=renew, name="ematix-flow-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(_JOIN_SECONDS)  # a thread that still waits for the store does no harm


def resolve_claim(store: SlotStore, pipeline: str, at: dt.datetime, claim_text: str) -> Claim:
    """Return the claim that ``fence:holder`` names, if it is still the newest of its slot."""
    fence, _, holder = claim_text.partition(":")
    record = store.get(Slot(pipeline, at))
    is_newest = record is not None and record.status == "claimed" and str(record.fence) == fence
    if record is None or not is_newest or (not record.begun and record.holder != holder):
        raise UsageError(
            f"{pipeline!r} of {at.isoformat()} is no longer claimed by {holder!r}",
            state="nothing was run; the process that has claimed it since runs it",
            next_step=f"flow status {pipeline}  shows its state; if this happens often, runs start more "
            "slowly than --lease-seconds allows",
        )
    return Claim(record.slot, holder, record.fence, record.failures, record.deaths)


def scheduled_pipelines(registry: Registry) -> Iterator[ScheduleEntry]:
    """Yield the pipelines that have a schedule."""
    for declared in registry.pipelines.values():
        spec = declared.spec
        if spec.schedule is not None:
            yield ScheduleEntry(spec.name, Schedule(spec.schedule, spec.timezone or "UTC"), spec.catchup)
