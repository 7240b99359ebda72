"""The targets of one attempt: locked, asked whether they hold its slot already, loaded."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ematix_flow.engine.connections import Connections
from ematix_flow.engine.execution.execute import ALREADY_APPLIED, execute_target
from ematix_flow.engine.execution.fanout import execute_targets
from ematix_flow.errors import (
    CannotConnect,
    EngineError,
    FlowError,
    Interrupted,
    RowRejected,
    ShrinkRefused,
    SourceFailed,
)
from ematix_flow.plan.definition import Plan
from ematix_flow.plan.results import TargetResult, failed_result
from ematix_flow.run.recovery import committed_targets, ledger_holds, slot_load
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec

if TYPE_CHECKING:
    from ematix_flow.run.pipeline import RunContext

# errors that only come up while nothing has been committed yet
BEFORE_COMMIT = (SourceFailed, RowRejected, ShrinkRefused, EngineError)


@dataclass(frozen=True)
class LoadAttempt:
    """One try. All tries of a run share the batch, so that the ledger knows what one of them committed."""

    batch_key: str
    number: int
    earlier_run_ids: tuple[str, ...] = ()  # the run ids of the tries before
    run_id: uuid.UUID = field(default_factory=uuid.uuid4)
    started: float = field(default_factory=time.monotonic)


def results_if_loaded(
    spec: PipelineSpec, world: Connections, context: RunContext, attempt: LoadAttempt
) -> list[TargetResult]:
    """The results of a slot that every target holds already: nothing is asked of its source any more.

    Where transforms follow the load and no run has said that they ran, they do so now: one that is killed
    between the commit and its last transform has them run again, from the first.
    """
    if context.slot is None:
        return []
    found = slot_load(spec, context.slot, world, context.run_log)
    if not found.loaded:
        return []
    results = [TargetResult(each.label, each.mode, "", "skipped", ALREADY_APPLIED) for each in spec.targets]
    if not found.done:
        told = "an earlier run had committed it, and may not have run what follows the load"
        return [replace(each, status="succeeded", reason=told) for each in results]
    return [_explain_already_applied(each, attempt, attempt.batch_key) for each in results]


def lock_targets(
    spec: PipelineSpec, world: Connections, run_id: uuid.UUID, locks: ExitStack
) -> dict[str, FlowError]:
    """Lock every target. Those that cannot be reached are the answer, when the others are to go on."""
    unreachable: dict[str, FlowError] = {}
    for target in spec.targets:
        try:
            locks.enter_context(world.target(target.connection).lock(spec.name, target.label, run_id))
        except CannotConnect as error:
            unreachable[target.label] = error
            if not spec.continue_on_target_failure or len(unreachable) == len(spec.targets):
                raise
    return unreachable


def run_targets(
    plan: Plan,
    world: Connections,
    context: RunContext,
    attempt: LoadAttempt,
    batch: str,
    unreachable: Mapping[str, FlowError],
) -> list[TargetResult]:
    """All targets in order. With several, a failure is kept and the policy decides what becomes of it."""
    run_id, listener = attempt.run_id, context.listener
    if plan.shared is None:
        only = plan.targets[0]
        try:
            result = execute_target(plan, only, world, run_id=run_id, batch_key=batch, listener=listener)
        except FlowError as error:
            if isinstance(error, (*BEFORE_COMMIT, Interrupted)):
                raise
            unsure = failed_result(only.target.label, only.target.mode, only.path.value, error)
            result = _recheck_failed_commit(plan.pipeline, only.target, unsure, world, run_id)
            if result.status == "failed":
                raise
        return [_explain_already_applied(result, attempt, batch)]
    is_new = attempt.number == 1 and batch == attempt.batch_key and context.slot is None
    there: list[str] = []
    if not is_new and plan.targets[0].range is None:
        there = committed_targets(plan.pipeline, world, None, batch, unreachable)
    results = execute_targets(plan, world, run_id=run_id, batch_key=batch, listener=listener, committed=there)
    specs = {target.label: target for target in plan.pipeline.targets}
    if len(results) == len(plan.targets):  # where a failure kept others from their turn, it stays one
        results = [
            _recheck_failed_commit(plan.pipeline, specs[each.target], each, world, run_id) for each in results
        ]
    found = {result.target: _explain_already_applied(result, attempt, batch) for result in results}
    for target in plan.pipeline.targets:
        if target.label in unreachable:
            found[target.label] = failed_result(target.label, target.mode, "", unreachable[target.label])
    return [found[target.label] for target in plan.pipeline.targets if target.label in found]


def _recheck_failed_commit(
    spec: PipelineSpec, target: TargetSpec, result: TargetResult, world: Connections, run_id: uuid.UUID
) -> TargetResult:
    """The result; one that failed has succeeded when only the answer to its commit was lost."""
    try:
        if result.status != "failed" or not ledger_holds(spec, target, world, str(run_id)):
            return result
    except FlowError:
        return result  # who cannot be asked is believed
    told = f"committed, though the answer was lost ({result.reason})"
    return TargetResult(result.target, result.mode, result.path, "succeeded", told)


def _explain_already_applied(result: TargetResult, attempt: LoadAttempt, batch: str) -> TargetResult:
    """Who had committed it, when the ledger holds the batch already."""
    if result.reason != ALREADY_APPLIED:
        return result
    if batch != attempt.batch_key:
        return replace(result, reason="an earlier run had committed it")
    if attempt.number == 1:
        return result
    told = "an earlier attempt of this run had committed it"
    return replace(result, status="succeeded", reason=told)
