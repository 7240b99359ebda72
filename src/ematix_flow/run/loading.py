"""Locks and loads the targets of one attempt, and finds targets that hold its slot already."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from ematix_flow.backends.base import LedgerEntry
from ematix_flow.engine.connections import Connections
from ematix_flow.engine.execution.executor import ALREADY_APPLIED, execute_target
from ematix_flow.engine.execution.several_targets import execute_targets
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
from ematix_flow.run.recovery import batch_load, committed_targets, ledger_holds, slot_batch_key, slot_load
from ematix_flow.run.run_context import RunContext
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec

# errors that can only occur before anything is committed
BEFORE_COMMIT = (SourceFailed, RowRejected, ShrinkRefused, ExpectationFailed, EngineError)


def context_batch_key(context: RunContext) -> str | None:
    """Return the batch key that the run shares with other runs; None for a run that has one for itself."""
    return context.batch_key if context.slot is None else slot_batch_key(context.slot)


def results_if_loaded(
    spec: PipelineSpec,
    connections: Connections,
    context: RunContext,
    attempt: Attempt,
    batch: str,
    before: Mapping[str, LedgerEntry],
) -> list[TargetResult]:
    """Return the results of a slot or batch that every target holds already; the source is not read.

    The same for a restarted run: ``before`` are the ledger entries of the targets that it had committed.

    If post-load transforms follow and no run has recorded that they ran, they run now. A run that is killed
    between the commit and its last transform runs all of them again.
    """
    if context.restart is not None:
        is_loaded = all(target.label in before for target in spec.targets)
        return [_restarted_result(each, before[each.label]) for each in spec.targets] if is_loaded else []
    if context.slot is not None:
        found = slot_load(spec, context.slot, connections, context.run_log)
    elif context.batch_key is not None:
        found = batch_load(spec, batch, connections, context.run_log)
    else:
        return []
    if not found.loaded:
        return []
    results = [TargetResult(each.label, each.mode, "", "skipped", ALREADY_APPLIED) for each in spec.targets]
    if not found.done:
        reason = "an earlier run had committed it, and may not have run its post-load transforms"
        return [replace(each, status="succeeded", reason=reason) for each in results]
    if (
        spec.transforms_post
    ):  # a run has recorded that they ran: as a success, the attempt would run them again
        return results
    return [_explain_already_applied(each, attempt, batch) for each in results]


def _restarted_result(target: TargetSpec, entry: LedgerEntry) -> TargetResult:
    """Post-load steps that had not ended well follow, so the target counts as loaded."""
    reason = f"run {entry.run_id[:8]} had committed it"
    return TargetResult(target.label, target.mode, "", "succeeded", reason)


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
    before: Mapping[str, LedgerEntry],
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
    is_new = attempt.number == 1 and batch == attempt.batch_key and context_batch_key(context) is None
    committed = list(before)
    if context.restart is None and not is_new and plan.targets[0].range is None:
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
    found |= {label: _restarted_result(specs[label], entry) for label, entry in before.items()}
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
