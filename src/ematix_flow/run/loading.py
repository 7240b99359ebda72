"""Locks and loads the targets of one attempt, and finds targets that hold its slot already."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from ematix_flow.engine.connections import Connections
from ematix_flow.engine.execution.executor import ALREADY_APPLIED, execute_target
from ematix_flow.engine.execution.fanout import execute_targets
from ematix_flow.errors import (
    CannotConnect,
    EngineError,
    ExpectationFailed,
    FlowError,
    Interrupted,
    RowRejected,
    ShrinkRefused,
    SourceFailed,
)
from ematix_flow.observe.listener import Attempt
from ematix_flow.plan.definition import Plan
from ematix_flow.plan.results import TargetResult, failed_result
from ematix_flow.run.recovery import committed_targets, ledger_holds, slot_load
from ematix_flow.run.run_context import RunContext
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec

# errors that can only occur before anything is committed
BEFORE_COMMIT = (SourceFailed, RowRejected, ShrinkRefused, ExpectationFailed, EngineError)


def results_if_loaded(
    spec: PipelineSpec, connections: Connections, context: RunContext, attempt: Attempt
) -> list[TargetResult]:
    """Return the results of a slot that every target holds already; the source is not read.

    If post-load transforms follow and no run has recorded that they ran, they run now. A run that is killed
    between the commit and its last transform runs all of them again.
    """
    if context.slot is None:
        return []
    found = slot_load(spec, context.slot, connections, context.run_log)
    if not found.loaded:
        return []
    results = [TargetResult(each.label, each.mode, "", "skipped", ALREADY_APPLIED) for each in spec.targets]
    if not found.done:
        reason = "an earlier run had committed it, and may not have run its post-load transforms"
        return [replace(each, status="succeeded", reason=reason) for each in results]
    return [_explain_already_applied(each, attempt, attempt.batch_key) for each in results]


def lock_targets(
    spec: PipelineSpec, connections: Connections, run_id: uuid.UUID, locks: ExitStack
) -> dict[str, FlowError]:
    """Lock every target. Returns the targets that cannot be reached, if the others may go on without them."""
    unreachable: dict[str, FlowError] = {}
    for target in spec.targets:
        try:
            locks.enter_context(connections.target(target.connection).lock(spec.name, target.label, run_id))
        except CannotConnect as error:
            unreachable[target.label] = error
            if not spec.continue_on_target_failure or len(unreachable) == len(spec.targets):
                raise
    return unreachable


def run_targets(
    plan: Plan,
    connections: Connections,
    context: RunContext,
    attempt: Attempt,
    batch: str,
    unreachable: Mapping[str, FlowError],
) -> list[TargetResult]:
    """Load all targets in order. With several targets, a failure becomes a result and the policy decides."""
    run_id, listener = uuid.UUID(attempt.run_id), context.listener
    if plan.shared is None:
        only = plan.targets[0]
        try:
            result = execute_target(
                plan, only, connections, run_id=run_id, batch_key=batch, listener=listener
            )
        except FlowError as error:
            if isinstance(error, (*BEFORE_COMMIT, Interrupted)):
                raise
            unsure = failed_result(only.target.label, only.target.mode, only.path.value, error)
            result = _recheck_failed_commit(plan.pipeline, only.target, unsure, connections, run_id)
            if result.status == "failed":
                raise
        return [_explain_already_applied(result, attempt, batch)]
    is_new = attempt.number == 1 and batch == attempt.batch_key and context.slot is None
    committed: list[str] = []
    if not is_new and plan.targets[0].range is None:
        committed = committed_targets(plan.pipeline, connections, None, batch, unreachable)
    results = execute_targets(
        plan, connections, run_id=run_id, batch_key=batch, listener=listener, committed=committed
    )
    specs = {target.label: target for target in plan.pipeline.targets}
    if len(results) == len(plan.targets):  # a failure that stopped the other targets stays a failure
        results = [
            _recheck_failed_commit(plan.pipeline, specs[each.target], each, connections, run_id)
            for each in results
        ]
    found = {result.target: _explain_already_applied(result, attempt, batch) for result in results}
    for target in plan.pipeline.targets:
        if target.label in unreachable:
            found[target.label] = failed_result(target.label, target.mode, "", unreachable[target.label])
    return [found[target.label] for target in plan.pipeline.targets if target.label in found]


def _recheck_failed_commit(
    spec: PipelineSpec, target: TargetSpec, result: TargetResult, connections: Connections, run_id: uuid.UUID
) -> TargetResult:
    """Return the result. A failed one becomes a success if the ledger shows that only the answer was lost."""
    try:
        if result.status != "failed" or not ledger_holds(spec, target, connections, str(run_id)):
            return result
    except FlowError:
        return result  # the target cannot be reached: keep the recorded failure
    reason = f"committed, though the answer was lost ({result.reason})"
    return TargetResult(result.target, result.mode, result.path, "succeeded", reason)


def _explain_already_applied(result: TargetResult, attempt: Attempt, batch: str) -> TargetResult:
    """If the ledger holds the batch already, give the reason: which run had committed it."""
    if result.reason != ALREADY_APPLIED:
        return result
    if batch != attempt.batch_key:
        return replace(result, reason="an earlier run had committed it")
    if attempt.number == 1:
        return result
    reason = "an earlier attempt of this run had committed it"
    return replace(result, status="succeeded", reason=reason)
