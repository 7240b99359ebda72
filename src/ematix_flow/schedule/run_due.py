"""What is due now, run in this process: upstreams first, and each slot once, whoever else looks."""

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
from typing import TYPE_CHECKING, Literal

from ematix_flow.errors import EngineError, FlowError, Interrupted, PipelineLocked, UsageError
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.observe.observer import Observers
from ematix_flow.plan.results import RunResult, unexpected_error
from ematix_flow.run.last_runs import last_ends, last_success, record_skipped_run
from ematix_flow.run.pipeline import RunContext, open_connections, run_pipeline
from ematix_flow.run.recovery import slot_is_done
from ematix_flow.run.worker_pool import WorkerPool, pipeline_jar_groups, with_jar_groups
from ematix_flow.schedule.clearing import reopen_slots
from ematix_flow.schedule.due import MISSED, DueCalculator, ScheduleEntry
from ematix_flow.schedule.skipped_slots import UnendedSlots, skip_blocked_slots
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
from ematix_flow.schedule.upstream_gate import check_upstreams, format_utc
from ematix_flow.schedule.workflows import WorkflowSlots
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.process_liveness import new_holder
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord, SlotStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEASE_SECONDS = 300.0
_STORE_RETRY_SECONDS = (1.0, 4.0, 15.0)  # until a store that did not hear how a run ended is told again
_JOIN_SECONDS = 5.0
_CLOCK_STEP = dt.timedelta(minutes=1)
_log = logging.getLogger(__name__)

UnendedLookup = Callable[[Sequence[str]], Sequence[SlotRecord]]
SlotOutcomeStatus = Literal["succeeded", "waiting", "gave_up", "skipped", "lost"]


@dataclass(frozen=True)
class SlotOutcome:
    """What became of a slot: ``waiting`` for its next attempt, ``lost`` when another took it over."""

    slot: Slot
    status: SlotOutcomeStatus
    reason: str | None = None
    result: RunResult | None = None
    error: FlowError | None = None


@dataclass(frozen=True)
class SlotRunner:
    """Runs the slots of a registry's pipelines. ``context`` makes what a run of a slot needs."""

    registry: Registry
    store: SlotStore
    run_log: RunLog
    context: Callable[[Slot], RunContext]
    lease_seconds: float = LEASE_SECONDS
    holder: str = field(default_factory=new_holder)
    rng: random.Random = field(default_factory=random.Random)
    observers: Observers = field(default_factory=Observers)
    only: frozenset[str] | None = None  # the pipelines that it runs, where that is not all
    sleep: Callable[[float], None] = time.sleep
    _warned_ahead: set[Slot] = field(default_factory=set, compare=False, repr=False)

    @property
    def names(self) -> Collection[str]:
        """The pipelines that it runs."""
        return self.registry.pipelines if self.only is None else self.only

    @cached_property
    def workflows(self) -> WorkflowSlots:
        """Those that have a job here."""
        specs = self.registry.workflows.values()
        watched = [spec for spec in specs if self.only is None or self.only & set(spec.jobs)]
        return WorkflowSlots(watched, lambda names: last_ends(self.run_log, names, self.registry))

    @cached_property
    def pipeline_order(self) -> dict[str, int]:
        """Of each pipeline, upstreams first."""
        return {name: number for number, name in enumerate(self.registry.dependency_order())}

    def due_calculator(self, interval: dt.timedelta, late: dt.timedelta | None = None) -> DueCalculator:
        """What fires by itself, and of what a workflow here runs all, so that no fire of a job is lost.

        ``late`` is from when on a fire is missed, where that is not the ``interval``.
        """
        wanted = None if self.only is None else self.only | self.workflows.jobs()
        pipelines = [
            each for each in scheduled_pipelines(self.registry) if wanted is None or each.name in wanted
        ]
        return DueCalculator([*pipelines, *self.workflows.scheduled()], interval, late)

    def poll(self, agenda: DueCalculator) -> list[SlotRecord]:
        """What may be claimed now, upstreams first among those of one moment."""
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
        )
        return sorted(found, key=lambda each: (each.slot.fire_time, self.pipeline_order[each.slot.pipeline]))

    def _warn_clock_ahead(self, slot: Slot, now: dt.datetime) -> None:
        """Say once of each that a clock was ahead. Seconds are no news: clocks are set by so much."""
        if slot not in self._warned_ahead and slot.fire_time - now > _CLOCK_STEP:
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
        """Everything that is due, and the workflows that this starts. What must wait is due another time."""
        if workers > 1:
            groups = pipeline_jar_groups(self.registry, self.names)
            runner = replace(self, context=lambda slot: with_jar_groups(self.context(slot), groups))
        else:
            runner = self
        agenda, seen = self.due_calculator(interval), set[Slot]()
        outcomes: list[SlotOutcome] = []
        for _ in range(1 + len(self.workflows.specs)):  # none of them starts another in a circle
            due = [record for record in self.poll(agenda) if record.slot not in seen]
            if not due:
                break
            seen.update(record.slot for record in due)
            for outcome in runner._run_all(due, before, workers):
                outcomes.append(outcome)
                after(outcome)
        return outcomes

    def _run_all(
        self, due: Sequence[SlotRecord], before: Callable[[Slot], None], workers: int
    ) -> Iterator[SlotOutcome]:
        """Each once, side by side where nothing stands between; how they end, as they do."""
        team: WorkerPool[SlotOutcome] = WorkerPool(workers)
        try:
            yield from self._run_each(team, due, before)
        except FlowError as error:  # of the store: what is at work ends, and says so when it can
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
                elif found is None:  # another has it since: what is newer waits for that
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
        """Those that what they depend on holds back."""
        if not any(self.registry.pipeline(record.slot.pipeline).spec.depends_on for record in due):
            return {}
        found = skip_blocked_slots(self, due, self.store.now(), UnendedSlots(self.store.unended()))
        return {slot: SlotOutcome(slot, "skipped", why) for slot, why in found.items()}

    def held_slots(self, pipelines: Collection[str]) -> list[SlotRecord]:
        """The slots of these that are claimed now, and whose runs may still be at work.

        Not those later than now: such a claim may last as long as a clock was ahead, and holds nothing back.
        """
        now, found = self.store.now(), self.store.unended(list(pipelines))
        claimed = [record for record in found if record.status == "claimed" and record.slot.fire_time <= now]
        return [record for record in claimed if not record.is_due(now)]

    def _held_elsewhere(self, pipelines: Collection[str]) -> dict[str, SlotRecord]:
        return {held.slot.pipeline: held for held in self.held_slots(pipelines)}

    def _released_by(self, waiting: dict[SlotRecord, SlotOutcome], ended: str) -> list[SlotRecord]:
        """What may have waited for this pipeline: it is looked at again."""
        free = [
            record
            for record in waiting
            if ended in (record.slot.pipeline, *self.registry.pipeline(record.slot.pipeline).spec.depends_on)
        ]
        for record in free:
            del waiting[record]
        return free

    def try_claim(
        self, record: SlotRecord, now: dt.datetime | None = None, unended: UnendedLookup | None = None
    ) -> Claim | SlotOutcome | None:
        """Claim a slot that is due and may run; what becomes of it otherwise; None when it is another's.

        Who picks many says what time it is and which slots have not ended, so that they are asked for once.
        """
        spec, slot = self.registry.pipeline(record.slot.pipeline).spec, record.slot
        found = check_upstreams(
            spec,
            slot,
            now or self.store.now(),
            (unended or self.store.unended)(spec.depends_on) if spec.depends_on else (),
            self.store.latest,
            lambda upstream: last_success(self.run_log, upstream),
        )
        if found.verdict == "wait":
            return SlotOutcome(slot, "waiting", found.reason)
        errors: list[FlowError] = []

        def tell(claim: Claim, ended: AttemptEnd) -> None:
            died, made = RunsDied(ended.reason or ""), ended.attempts
            context = self.context(slot)
            errors.append(record_unstarted_run(spec, context, died, attempts=made, fence=claim.fence))

        def is_done() -> bool | None:
            with use_registry(self.registry):  # it may know its connections by name
                return slot_is_done(spec, slot.fire_time, open_connections(refuse_spark), self.run_log)

        claim = claim_slot(self.store, record, self.holder, self.lease_seconds, spec.retry, tell, is_done)
        if isinstance(claim, AttemptEnd) and claim.succeeded:
            return self._report_already_loaded(slot)
        if isinstance(claim, AttemptEnd):
            return SlotOutcome(slot, "gave_up", claim.reason, error=errors[0])
        unbegun = never_began_error(record)
        if claim is not None and unbegun is not None:
            record_unstarted_run(spec, self.context(slot), unbegun, attempts=0)
        if claim is not None and found.verdict == "skip":
            if record.fence and is_done():  # what held it back came after an attempt of it
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
        """Before the slot ends: who dies in between tells it twice, and never not at all."""
        try:
            record_skipped_run(self.run_log, spec, reason, self.context(slot).trigger, slot.fire_time)
        except FlowError as error:
            _log.warning(
                "that %s of %s is skipped was not recorded: %s", spec.name, slot.fire_time, error.what
            )

    def _report_already_loaded(self, slot: Slot) -> SlotOutcome:
        self.observers.slot_ended(slot.pipeline, slot.fire_time, "succeeded", ALREADY_LOADED)
        return SlotOutcome(slot, "succeeded", ALREADY_LOADED)

    def run_claimed(self, claim: Claim) -> SlotOutcome:
        """Run a slot whose claim is held here, keep the claim meanwhile, and say how it ended.

        ``lost``, and nothing is run, when another run has begun under the claim or has taken it over.
        """
        declared = self.registry.pipeline(claim.slot.pipeline)
        slot, result = claim.slot, None
        error: FlowError | None = None
        if not self._begin_claim(claim):
            return SlotOutcome(slot, "lost", "another run has it, or its claim could not be kept")
        with self._keep_claim_alive(claim):
            try:
                with use_registry(self.registry):
                    # attempts are counted in the store, so that they outlive this process
                    context = replace(
                        self.context(slot), attempt=claim.failures + 1, retried_by_scheduler=True
                    )
                    result = run_pipeline(declared, context)
                error = result.failure  # of some targets, where the others go on
                ended = AttemptEnd(error is None, error.what if error else result.reason)
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
            said = self._record_conclusion(claim, ended)
        status: SlotOutcomeStatus = "lost" if said is None else said  # type: ignore[assignment]  # one of its words
        reason = ended.reason
        if status == "waiting" and not ended.locked:
            tried = f"attempt {claim.failures + 1} of {declared.spec.retry.max_attempts} failed"
            reason = f"{tried}{describe_next_attempt(self.store, slot)}: {reason}"
        return SlotOutcome(slot, status, reason, result, error)

    def _begin_claim(self, claim: Claim) -> bool:
        """Whether this run has the claim. A store that does not answer is no reason to end the others."""
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
        except FlowError:  # which is told of the first time
            return False
        is_ours = known is not None and (known.fence, known.holder) == (claim.fence, self.holder)
        return known is not None and known.begun and is_ours

    def _return_slot(self, claim: Claim) -> None:
        """The slot of a run that was interrupted. When that fails its claim expires."""
        try:
            self.store.retry_later(claim, 0.0, "interrupted", failed=False)
        except FlowError as error:
            _log.warning(
                "%s of %s was not given back: %s", claim.slot.pipeline, claim.slot.fire_time, error.what
            )

    def _record_conclusion(self, claim: Claim, ended: AttemptEnd) -> str | None:
        """What the slot was told; None if too late, or if the store does not hear it for a while."""
        policy, slot = self.registry.pipeline(claim.slot.pipeline).spec.retry, claim.slot
        for pause in (*_STORE_RETRY_SECONDS, None):
            try:
                said = conclude_attempt(self.store, claim, ended, policy, self.rng)
                known = self.store.get(slot) if said is None else None
                if ended.succeeded and known is not None and known.status in ("gave_up", "skipped"):
                    reopen_slots(
                        self.store, self.registry, [known]
                    )  # too early: its next run finds it loaded
                # its answer may have been lost, the first time
                return known.status if known is not None and known.fence == claim.fence else said
            except FlowError as error:
                if pause is None:
                    _log.warning(
                        "how %s of %s ended was not heard: %s", slot.pipeline, slot.fire_time, error.what
                    )
                    return None
                self.sleep(pause)
        return None

    @contextmanager
    def _keep_claim_alive(self, claim: Claim) -> Iterator[None]:
        """The claim is renewed while the block runs. Who loses it finishes: the ledger takes a slot once."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(self.lease_seconds / 3):
                try:
                    if not self.store.renew(claim, self.lease_seconds) and not over.is_set():
                        _log.warning(
                            "%s of %s was taken over by another", claim.slot.pipeline, claim.slot.fire_time
                        )
                        return
                except FlowError as error:
                    if over.is_set():
                        return
                    _log.warning("the claim of %s was not renewed: %s", claim.slot.pipeline, error.what)

        thread = threading.Thread(target=renew, name="ematix-flow-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_JOIN_SECONDS)  # one that waits for the store does no harm: the claim has ended


def refuse_spark(_: Sequence[str]) -> SparkSession:
    """Who looks for work starts no engine: a ledger that only Spark can read is one that cannot be asked."""
    raise EngineError("no engine is started to look at a ledger")


def resolve_claim(store: SlotStore, pipeline: str, at: dt.datetime, said: str) -> Claim:
    """The claim that ``fence:holder`` names, when it is still the newest of its slot."""
    fence, _, holder = said.partition(":")
    record = store.get(Slot(pipeline, at))
    is_newest = record is not None and record.status == "claimed" and str(record.fence) == fence
    if record is None or not is_newest or (not record.begun and record.holder != holder):
        raise UsageError(
            f"{pipeline!r} of {at.isoformat()} is not claimed by {holder!r} any more",
            state="nothing was run; whoever has claimed it since runs it",
            next_step=f"flow status {pipeline}  shows how it stands; if this comes again and again, runs "
            "start more slowly than --lease-seconds allows",
        )
    return Claim(record.slot, holder, record.fence, record.failures, record.deaths)


def scheduled_pipelines(registry: Registry) -> Iterator[ScheduleEntry]:
    """The pipelines that fire by themselves."""
    for declared in registry.pipelines.values():
        spec = declared.spec
        if spec.schedule is not None:
            yield ScheduleEntry(spec.name, Schedule(spec.schedule, spec.timezone or "UTC"), spec.catchup)
