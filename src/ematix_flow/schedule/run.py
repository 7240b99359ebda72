"""The one way to run a pipeline: lock, settle, plan, execute, transform, record.

Decorator, CLI and ``.sync()`` all end here. Every run is written to the run log, whatever becomes of
it.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ematix_flow.engine.failures import translate
from ematix_flow.engine.interrupts import was_interrupted
from ematix_flow.engine.results import RunResult, Status, TargetResult
from ematix_flow.engine.storage import tell
from ematix_flow.errors import (
    ConfigError,
    DeclarationError,
    FlowError,
    Interrupted,
    LoadError,
    PipelineLocked,
    PlanError,
    PostTransformFailed,
    RowRejected,
    ShrinkRefused,
)
from ematix_flow.graph.registry import DeclaredPipeline
from ematix_flow.observe.listener import Attempt, Listener
from ematix_flow.observe.observer import Ending, Observers
from ematix_flow.plan.build import build_plan
from ematix_flow.plan.definition import Plan
from ematix_flow.plan.world import StartSpark, World
from ematix_flow.schedule.batches import Batch, choose_batch
from ematix_flow.schedule.loading import BEFORE_COMMIT, Try, loaded_before, lock_targets, run_targets
from ematix_flow.schedule.post import run_post_transforms
from ematix_flow.schedule.recording import Recording
from ematix_flow.schedule.settle import batch_of, committed_targets, settle_interrupted
from ematix_flow.schedule.slots import pause
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.records import RunRecord, RunStatus
from ematix_flow.state.runlog import RunLog

# errors that the next attempt would meet again: waiting does not help
_FINAL = (
    DeclarationError,
    ConfigError,
    PlanError,
    PipelineLocked,
    Interrupted,
    RowRejected,
    ShrinkRefused,
    PostTransformFailed,  # what failed is not the load, which is committed
)

_CHANCE = random.Random()


@dataclass(frozen=True)
class RunContext:
    """What a run needs from outside: the engine, where to record, who watches, why it runs.

    A run that is ``tried_elsewhere`` is one attempt, the ``attempt``-th: whoever keeps its slot tries again.
    Runs that are older than ``keep`` are forgotten.
    """

    run_log: RunLog
    spark: StartSpark
    listener: Listener = field(default_factory=Listener)
    trigger: str = "sync"
    slot: dt.datetime | None = None
    attempt: int = 1
    tried_elsewhere: bool = False
    observers: Observers = field(default_factory=Observers)
    keep: dt.timedelta | None = None
    sleep: Callable[[float], None] = time.sleep


def run_pipeline(declared: DeclaredPipeline, context: RunContext) -> RunResult:
    """Run it, trying again as its retry policy says. Raises the last error when all attempts failed."""
    policy = declared.spec.retry
    batch = batch_of(context.slot) if context.slot else f"run:{uuid.uuid4()}"
    attempt = Try(batch, context.attempt)
    while True:
        listener = context.listener.run_started(_watched(declared.spec, context, attempt))
        try:
            return _told(declared, replace(context, listener=listener), attempt)
        except FlowError as error:
            number = attempt.number
            if context.tried_elsewhere or not _tried_again(declared.spec, context, number, error):
                error.attempts = number
                raise
            delay = pause(policy, number, _CHANCE)
            listener.note(
                f"attempt {number} of {policy.max_attempts} failed ({error.what}); the next in {delay:.3g} s"
            )
            context.sleep(delay)
            attempt = Try(batch, number + 1, (*attempt.earlier, str(attempt.run_id)))


def _tried_again(spec: PipelineSpec, context: RunContext, number: int, error: object) -> bool:
    """Whether another attempt follows. A slot's next comes later, when what is wrong may be mended."""
    if number >= spec.retry.max_attempts:
        return False
    return context.tried_elsewhere or (isinstance(error, FlowError) and not isinstance(error, _FINAL))


def plan_pipeline(declared: DeclaredPipeline, spark: StartSpark) -> Plan:
    """The plan of a run that would start now. Changes nothing, takes no lock."""
    return build_plan(declared, open_world(spark))


def open_world(spark: StartSpark) -> World:
    """The world of one run, with Spark's failures told in our words."""
    return World(spark, lambda error, what: translate(error, what=what, source=True), tell)


def _told(declared: DeclaredPipeline, context: RunContext, attempt: Try) -> RunResult:
    """The attempt, with its end told to whoever watches it."""
    try:
        result = _attempt(declared, context, attempt)
    except BaseException as error:
        context.listener.run_finished(None, error)
        raise
    context.listener.run_finished(result, result.failure)
    return result


def _attempt(declared: DeclaredPipeline, context: RunContext, attempt: Try) -> RunResult:
    spec = declared.spec
    before = sys.exc_info()[1]  # a caller may be at work on an error of its own
    recorded = _Recorded(spec, context, _record(spec, context, attempt))
    try:
        with recorded.captured():
            result, batch = _locked_run(declared, recorded.watched(), attempt)
    except KeyboardInterrupt:
        raise _cancelled(spec, context, recorded) from None
    except PipelineLocked as error:
        recorded.over("locked", error)
        raise error.at(spec.where) from None
    except Exception as error:
        if was_interrupted(error, before):
            raise _cancelled(spec, context, recorded) from None
        if isinstance(error, FlowError):
            error.at(spec.where)
            if error.state is None and isinstance(error, BEFORE_COMMIT):
                error.state = "the target is as before"
        recorded.over("failed", error)
        raise
    failure = _failure(spec, result, batch)
    recorded.over(result.status, failure, result)
    if failure is not None and not spec.continue_on_target_failure:
        raise failure
    return replace(result, failure=failure)


class _Recorded(Recording):
    """An attempt at a pipeline, recorded."""

    def __init__(self, spec: PipelineSpec, context: RunContext, record: RunRecord) -> None:
        super().__init__(record, context.run_log, context.observers, where=spec.where, keep=context.keep)
        self._spec, self._context = spec, context

    def watched(self) -> RunContext:
        """The context of the attempt: what becomes of it is heard."""
        context = self._context
        return replace(context, listener=self.listener(context.listener), spark=self.spark(context.spark))

    def over(self, status: RunStatus, error: BaseException | None, result: RunResult | None = None) -> None:
        spec, context = self._spec, self._context
        again = status == "failed" and _tried_again(spec, context, self.record.attempt, error)
        if result is not None and spec.continue_on_target_failure and not context.tried_elsewhere:
            again = False  # it goes on past what failed
        ending = Ending(spec.retry.max_attempts, again, error)
        self.finish(status, error, ending, **({} if result is None else _said(result)))


def _cancelled(spec: PipelineSpec, context: RunContext, recorded: _Recorded) -> Interrupted:
    """Recorded as stopped by a person, with what the target holds now."""
    stopped = Interrupted(
        f"pipeline {spec.name!r} was interrupted",
        where=spec.where,
        state=_state_after_interrupt(spec, context, recorded.record.run_id),
        next_step=f"flow run {spec.name}  starts it again",
    )
    recorded.over("cancelled", stopped)
    return stopped


def _state_after_interrupt(spec: PipelineSpec, context: RunContext, run_id: str) -> str:
    """What the ledgers say of a run that was stopped: it may have committed already."""
    problem: BaseException | None = None
    for _ in range(2):  # one more: the interrupt may come twice, and break off the question too
        try:
            committed = committed_targets(spec, open_world(context.spark), run_id)
        except (FlowError, KeyboardInterrupt) as error:
            problem = error
            continue
        if not committed:
            return "nothing had committed; the target is as before"
        told = f"it had committed to {', '.join(committed)}"
        if len(committed) < len(spec.targets):
            return f"{told}; another run loads only the rest"
        return f"{told}; unless it is incremental, another run appends again"
    return f"the ledger could not be asked whether it had committed: {problem}"


def _failure(spec: PipelineSpec, result: RunResult, batch: Batch) -> LoadError | None:
    failed = [t for t in result.targets if t.status == "failed"]
    if not failed:
        return None
    done = [t.target for t in result.targets if t.status != "failed"]
    missing = {t.label for t in spec.targets} - set(done)
    loads = "loads all targets anew" if missing <= set(batch.overdue) else "loads only what is missing"
    return LoadError(
        f"{len(failed)} of {len(spec.targets)} targets failed: "
        + "; ".join(f"{t.target}: {t.reason}" for t in failed),
        where=spec.where,
        state=f"committed: {', '.join(done) or 'none'}; every other target is as before",
        next_step=f"mend it; flow run {spec.name}  {loads}" if done else None,
    )


def _locked_run(declared: DeclaredPipeline, context: RunContext, attempt: Try) -> tuple[RunResult, Batch]:
    spec, world, listener = declared.spec, open_world(context.spark), context.listener
    run_id = attempt.run_id
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        listener.note(text)

    with ExitStack() as locks:
        unreachable = lock_targets(spec, world, run_id, locks)
        settle_interrupted(spec, world, context.run_log, str(run_id), unreachable, note, context.observers)
        for target in spec.targets:
            if target.label not in unreachable:
                for left in world.target(target.connection).sweep(spec.name, target.label):
                    note(f"removed staging that an interrupted run had left: {left}")
        batch = Batch(attempt.batch)
        if context.slot is None:
            batch = choose_batch(
                spec, world, context.run_log, attempt.batch, attempt.earlier, unreachable, note
            )
        results = [] if unreachable else loaded_before(spec, world, context, attempt)
        if not results:
            results = _planned_run(declared, world, context, attempt, batch, unreachable, note)
        seconds = time.monotonic() - attempt.started
        loaded = RunResult(spec.name, str(run_id), _status(results), tuple(results), seconds, attempt.number)
        post = run_post_transforms(declared, world, loaded, context, run_pipeline)
    seconds = time.monotonic() - attempt.started
    return replace(loaded, seconds=seconds, post=tuple(post), notes=tuple(notes)), batch


def _planned_run(
    declared: DeclaredPipeline,
    world: World,
    context: RunContext,
    attempt: Try,
    batch: Batch,
    unreachable: Mapping[str, FlowError],
    note: Callable[[str], None],
) -> list[TargetResult]:
    spec, listener = declared.spec, context.listener
    plan, unplanned = _plan_what_can_be(declared, world, unreachable)
    if len(spec.targets) > 1:  # only now: a run that fails before it loads leaves all to the next
        context.run_log.take_batch(str(attempt.run_id), batch.key, batch.overdue)
    listener.planned(plan)
    for told in dict.fromkeys(text for target in plan.targets for text in target.warnings):
        note(told)
    return run_targets(plan, world, context, attempt, batch.key, unplanned)


def _plan_what_can_be(
    declared: DeclaredPipeline, world: World, unreachable: Mapping[str, FlowError]
) -> tuple[Plan, Mapping[str, FlowError]]:
    """The plan, and the targets that it leaves out with why.

    One that cannot be planned fails alone where the others are to go on; the last one's error is raised.
    """
    spec, left_out = declared.spec, dict(unreachable)
    while True:
        try:
            return build_plan(declared, world, without=left_out), left_out
        except FlowError as error:
            if error.target is None or not spec.continue_on_target_failure or isinstance(error, Interrupted):
                raise
            left_out[error.target] = error
            if len(left_out) == len(spec.targets):
                raise


def _status(results: list[TargetResult]) -> Status:
    statuses = {r.status for r in results}
    if "failed" in statuses:
        return "failed"
    return "skipped" if statuses == {"skipped"} else "succeeded"


def _watched(spec: PipelineSpec, context: RunContext, attempt: Try) -> Attempt:
    return Attempt(spec.name, str(attempt.run_id), attempt.number, context.slot, context.trigger)


def _record(spec: PipelineSpec, context: RunContext, attempt: Try) -> RunRecord:
    return RunRecord(
        run_id=str(attempt.run_id),
        pipeline=spec.name,
        target=", ".join(t.label for t in spec.targets),
        mode=", ".join(dict.fromkeys(t.mode for t in spec.targets)),
        trigger=context.trigger,
        slot=context.slot,
        attempt=attempt.number,
        # with several targets it is known only when the locks are held
        batch=attempt.batch if len(spec.targets) == 1 else None,
        pid=os.getpid(),
    )


def _said(result: RunResult) -> dict[str, Any]:
    """What a result adds to the record of its run."""
    first = result.targets[0]
    return {
        "path": result.path,
        "rows_read": result.rows_read,
        "rows_inserted": result.rows_inserted,
        "rows_updated": result.rows_updated,
        "rows_deleted": result.rows_deleted,
        "rows_unchanged": result.rows_unchanged,
        "source_from": first.source_from,
        "source_to": first.source_to,
        "metrics": result.to_json(),
    }
