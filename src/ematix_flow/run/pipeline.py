"""Runs a pipeline: lock, recover, plan, load, transform, record.

Decorator, CLI and ``.sync()`` all end here. Every run is recorded in the run log, with any outcome.
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ematix_flow.backends.base import LedgerEntry
from ematix_flow.engine.connections import Connections, StartSpark
from ematix_flow.engine.planning.planner import build_plan
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.engine.spark.interrupts import was_interrupted
from ematix_flow.engine.spark.spark_users import using_spark
from ematix_flow.engine.spark.storage_settings import apply_storage_settings
from ematix_flow.errors import CannotConnect, ConfigError, FlowError, Interrupted, LoadError, PipelineLocked
from ematix_flow.graph.registry import DeclaredPipeline
from ematix_flow.observe.listener import Attempt
from ematix_flow.plan.definition import Plan
from ematix_flow.plan.results import ResultStatus, RunResult, TargetResult
from ematix_flow.run.attempt_recording import AttemptRecording, new_record, record_cancelled
from ematix_flow.run.attempt_waits import wait_for_next_attempt
from ematix_flow.run.batches import RunBatch, choose_batch
from ematix_flow.run.loading import (
    BEFORE_COMMIT,
    context_batch_key,
    lock_targets,
    results_if_loaded,
    run_targets,
)
from ematix_flow.run.post_transforms import parent_context, run_post_transforms
from ematix_flow.run.probes import run_pre_probes
from ematix_flow.run.recovery import restarted_entries, settle_interrupted_runs
from ematix_flow.run.retry_decision import will_retry
from ematix_flow.run.run_context import RunContext
from ematix_flow.run.run_control import START_ANSWER_SECONDS, RunControl
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.spec.retry_policy import retry_delay
from ematix_flow.state.runlog.slot_attempts import attempts_at_slot

_RANDOM = random.Random()


def run_declared_pipeline(declared: DeclaredPipeline, context: RunContext) -> RunResult:
    """Run the pipeline and retry by its policy. Raises the last error if all attempts fail."""
    policy = declared.spec.retry
    attempt = Attempt(
        declared.spec.name,
        str(uuid.uuid4()),
        context.attempt,
        context.slot,
        context.trigger,
        _batch_key(context),
    )
    while True:
        listener = context.listener.run_started(attempt)
        try:
            return _run_and_notify(declared, replace(context, listener=listener), attempt)
        except FlowError as error:
            number = attempt.number
            if isinstance(error, Interrupted) or not will_retry(declared.spec, context, number, error):
                error.attempts = number
                raise
            delay = 0.0 if context.retried_by_scheduler else retry_delay(policy, number, _RANDOM)
            if not context.retried_by_scheduler:
                listener.note(
                    f"attempt {number} of {policy.max_attempts} failed ({error.what}); "
                    f"the next in {delay:.3g} s"
                )
            _wait_for_next_attempt(declared.spec, context, attempt, error, delay)
            if context.retried_by_scheduler:
                error.attempts = number
                raise
            attempt = attempt.next_attempt()


def _wait_for_next_attempt(
    spec: PipelineSpec, context: RunContext, failed: Attempt, error: FlowError, delay: float
) -> None:
    """Wait for the delay. Raises RunStopped if somebody stopped the attempt that failed, even in its end."""
    control = RunControl(spec.name, failed.run_id, context.actions)
    stopped = wait_for_next_attempt(control, delay, context.sleep)
    if stopped is not None:
        stopped.with_location(spec.where)
        stopped.attempts = failed.number
        stopped.state = f"attempt {failed.number} had failed: {error.what}"
        stopped.next_step = f"flow restart {failed.run_id[:8]}  loads what is missing"
        raise stopped from error


def _batch_key(context: RunContext) -> str:
    if context.restart is not None and context.restart.batch is not None:
        return context.restart.batch
    return context_batch_key(context) or f"run:{uuid.uuid4()}"


def plan_pipeline(declared: DeclaredPipeline, spark: StartSpark) -> Plan:
    """Return the plan of a run that would start now. Changes nothing and takes no lock."""
    return build_plan(declared, open_connections(spark))


def open_connections(spark: StartSpark) -> Connections:
    """Open the connections of one run. Spark's failures become errors of ours."""
    return Connections(
        spark,
        lambda error, what: translate_spark_error(error, what=what, source=True),
        apply_storage_settings,
    )


def _run_and_notify(declared: DeclaredPipeline, context: RunContext, attempt: Attempt) -> RunResult:
    """Run the attempt and notify the listener of its end."""
    try:
        result = _run_recorded(declared, context, attempt)
    except BaseException as error:
        context.listener.run_finished(None, error)
        raise
    context.listener.run_finished(result, result.failure)
    return result


def _run_recorded(declared: DeclaredPipeline, context: RunContext, attempt: Attempt) -> RunResult:
    spec = declared.spec
    before = sys.exc_info()[1]  # the caller may be handling another error
    earlier = attempt.earlier_run_ids[-1:] or _attempts_before(spec, context)
    recorded = AttemptRecording(spec, context, new_record(spec, context, attempt), earlier)
    connect = partial(open_connections, context.spark)
    try:
        with (
            recorded.at_work(),
            recorded.control.interruptible(),
            using_spark(f"pipeline {spec.name!r}"),
        ):
            if attempt.number > 1 or earlier:  # stopped or paused since the last attempt, which held no lock
                recorded.control.wait_for_answer()
                recorded.control.safe_point("before its next attempt")
            else:
                recorded.control.wait_for_answer(at_most=START_ANSWER_SECONDS)
            result, batch = _run_with_locks(declared, recorded.observed_context(), attempt, recorded)
    except KeyboardInterrupt:
        raise record_cancelled(spec, connect, recorded) from None
    except PipelineLocked as error:
        if recorded.control.stop_error is not None:
            raise record_cancelled(spec, connect, recorded) from None
        recorded.finish_attempt("locked", error)
        raise error.with_location(spec.where) from None
    except Exception as error:
        if was_interrupted(error, before) or recorded.control.stop_error is not None:
            raise record_cancelled(spec, connect, recorded) from None
        if isinstance(error, FlowError):
            error.with_location(spec.where)
            if error.state is None and isinstance(error, BEFORE_COMMIT):
                error.state = "the target is as before"
        recorded.finish_attempt("failed", error)
        raise
    failure = _partial_failure(spec, result, batch)
    recorded.finish_attempt(result.status, failure, result)
    if failure is not None and not spec.continue_on_target_failure:
        raise failure
    return replace(result, failure=failure)


def _attempts_before(spec: PipelineSpec, context: RunContext) -> tuple[str, ...]:
    """Return the runs of the earlier attempts at the slot, newest first: a stop of one is a stop of this.

    Their processes have ended, perhaps without an error, so that this may be attempt 1 again.
    """
    if context.slot is None or context.restart is not None:
        return ()
    try:
        attempts = attempts_at_slot(context.run_log, spec.name, context.slot)
    except FlowError:  # a run log that cannot be read stops no run
        return ()
    return tuple(run.run_id for run in attempts)


def _partial_failure(spec: PipelineSpec, result: RunResult, batch: RunBatch) -> LoadError | None:
    failed = [t for t in result.targets if t.status == "failed"]
    if not failed:
        return None
    done = [t.target for t in result.targets if t.status != "failed"]
    missing = {t.label for t in spec.targets} - set(done)
    loads = "loads all targets again" if missing <= set(batch.overdue) else "loads only what is missing"
    return LoadError(
        f"{len(failed)} of {len(spec.targets)} targets failed: "
        + "; ".join(f"{t.target}: {t.reason}" for t in failed),
        where=spec.where,
        state=f"committed: {', '.join(done) or 'none'}; every other target is as before",
        next_step=f"fix it; flow run {spec.name}  {loads}" if done else None,
    )


def _run_with_locks(
    declared: DeclaredPipeline, context: RunContext, attempt: Attempt, recorded: AttemptRecording
) -> tuple[RunResult, RunBatch]:
    spec, connections, listener = declared.spec, open_connections(context.spark), context.listener
    run_id = uuid.UUID(attempt.run_id)
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        listener.note(text)

    with ExitStack() as locks:
        with _before_loading(attempt):
            unreachable = lock_targets(spec, connections, run_id, locks)
            if settle_interrupted_runs(
                spec, connections, context.run_log, str(run_id), unreachable, note, context.observers
            ):
                recorded.control.wait_for_answer()  # a run that died while it was held: this one is held too
            for target in spec.targets:
                if target.label not in unreachable:
                    for left in connections.target(target.connection).sweep_staging(spec.name, target.label):
                        note(f"removed staging that an interrupted run had left: {left}")
            batch = RunBatch(attempt.batch_key, context.restart.overdue if context.restart else ())
            if context.restart is None and context.slot is None:
                batch = choose_batch(
                    spec,
                    connections,
                    context.run_log,
                    attempt.batch_key,
                    context.batch_key is not None,
                    attempt.earlier_run_ids,
                    unreachable,
                    note,
                )
            before = (
                {}
                if context.restart is None
                else restarted_entries(spec, connections, context.restart, attempt, unreachable)
            )
            results = (
                []
                if unreachable
                else results_if_loaded(spec, connections, context, attempt, batch.key, before)
            )
        reports: list[Mapping[str, Any]] = []
        if not results:
            results = _plan_and_load(
                declared, connections, context, attempt, batch, unreachable, note, reports, before
            )
        for each in results:
            if each.rows_outranked:
                note(_outranked_note(each))
            for text in expectation_notes(each):
                note(text)
        seconds = time.monotonic() - attempt.started
        loaded = RunResult(spec.name, str(run_id), _status(results), tuple(results), seconds, attempt.number)
        recorded.loaded = loaded
        parent = parent_context(spec, loaded, before)
        post = run_post_transforms(
            declared, connections, loaded, parent, context, run_declared_pipeline, note, reports
        )
    seconds = time.monotonic() - attempt.started
    return replace(
        loaded, seconds=seconds, post=tuple(post), notes=tuple(notes), probes=tuple(reports)
    ), batch


@contextmanager
def _before_loading(attempt: Attempt) -> Iterator[None]:
    """Say in the error of a connection or a setting that nothing was loaded: the block loads nothing."""
    try:
        yield
    except (CannotConnect, ConfigError) as error:
        if error.state is None:
            error.state = "nothing was loaded" if attempt.number == 1 else "this attempt loaded nothing"
        raise


def _plan_and_load(
    declared: DeclaredPipeline,
    connections: Connections,
    context: RunContext,
    attempt: Attempt,
    batch: RunBatch,
    unreachable: Mapping[str, FlowError],
    note: Callable[[str], None],
    reports: list[Mapping[str, Any]],
    before: Mapping[str, LedgerEntry],
) -> list[TargetResult]:
    """``reports`` gets those of the data probes that run before the load.

    ``before`` are the ledger entries of targets that a restarted run had committed.
    """
    spec, listener = declared.spec, context.listener
    with _before_loading(attempt):
        plan, unplanned = _plan_available_targets(declared, connections, unreachable)
    if len(spec.targets) > 1:  # only now: a run that fails before it loads leaves everything to the next run
        context.run_log.record_batch(attempt.run_id, batch.key, batch.overdue)
    listener.planned(plan)
    for warning in dict.fromkeys(text for target in plan.targets for text in target.warnings):
        note(warning)
    reports += run_pre_probes(declared, note)
    return run_targets(plan, connections, context, attempt, batch.key, unplanned, before)


def _plan_available_targets(
    declared: DeclaredPipeline, connections: Connections, unreachable: Mapping[str, FlowError]
) -> tuple[Plan, Mapping[str, FlowError]]:
    """Return the plan, and the targets that it leaves out with their errors.

    If the others may go on, a target that cannot be planned fails alone. If none is left, raises its error.
    """
    spec, left_out = declared.spec, dict(unreachable)
    while True:
        try:
            return build_plan(declared, connections, without=left_out), left_out
        except FlowError as error:
            if error.target is None or not spec.continue_on_target_failure or isinstance(error, Interrupted):
                raise
            left_out[error.target] = error
            if len(left_out) == len(spec.targets):
                raise


def _outranked_note(result: TargetResult) -> str:
    """Warn of outranked rows: a source that changes a value but not its event time may lose the change."""
    rows = "1 row" if result.rows_outranked == 1 else f"{result.rows_outranked:,} rows"
    return (
        f"{result.target}: {rows} did not become a version, because another row of the same key holds at "
        "the same event time; let the source move event_timestamp_column whenever a value changes"
    )


def expectation_notes(result: TargetResult) -> list[str]:
    """One note for each rule that rows failed although they were loaded or set aside."""
    notes = []
    for each in result.expectations:
        if each.verdict == "pass":
            continue
        rows = "1 row" if each.quarantined == 1 else f"{each.quarantined:,} rows"
        aside = f"; {rows} went to the quarantine table" if each.quarantined else ""
        notes.append(f"{result.target}: {each}{aside}")
    return notes


def _status(results: list[TargetResult]) -> ResultStatus:
    statuses = {r.status for r in results}
    if "failed" in statuses:
        return "failed"
    return "skipped" if statuses == {"skipped"} else "succeeded"
