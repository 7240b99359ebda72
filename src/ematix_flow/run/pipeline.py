"""Runs a pipeline: lock, recover, plan, load, transform, record.

Decorator, CLI and ``.sync()`` all end here. Every run is recorded in the run log, with any outcome.
"""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from ematix_flow.engine.connections import Connections, StartSpark
from ematix_flow.engine.planning.planner import build_plan
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.engine.spark.interrupts import was_interrupted
from ematix_flow.engine.spark.spark_users import using_spark
from ematix_flow.engine.spark.storage_settings import apply_storage_settings
from ematix_flow.errors import (
    CannotConnect,
    ConfigError,
    DeclarationError,
    ExpectationFailed,
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
from ematix_flow.observe.listener import Attempt
from ematix_flow.observe.observer import RunEnd
from ematix_flow.plan.definition import Plan
from ematix_flow.plan.results import ResultStatus, RunResult, TargetResult
from ematix_flow.run.batches import RunBatch, choose_batch
from ematix_flow.run.loading import BEFORE_COMMIT, lock_targets, results_if_loaded, run_targets
from ematix_flow.run.post_transforms import run_post_transforms
from ematix_flow.run.probes import run_pre_probes
from ematix_flow.run.recording import RunRecording
from ematix_flow.run.recovery import committed_targets, settle_interrupted_runs, slot_batch_key
from ematix_flow.run.retries import retry_delay
from ematix_flow.run.run_context import RunContext
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.records import RunRecord, RunStatus

# errors that the next attempt would meet again
_NOT_RETRIED = (
    DeclarationError,
    ConfigError,
    PlanError,
    PipelineLocked,
    Interrupted,
    RowRejected,
    ShrinkRefused,
    ExpectationFailed,
    PostTransformFailed,  # the load is committed; only a transform failed
)

_RANDOM = random.Random()


def run_declared_pipeline(declared: DeclaredPipeline, context: RunContext) -> RunResult:
    """Run the pipeline and retry by its policy. Raises the last error if all attempts fail."""
    policy = declared.spec.retry
    batch = slot_batch_key(context.slot) if context.slot else f"run:{uuid.uuid4()}"
    attempt = Attempt(
        declared.spec.name, str(uuid.uuid4()), context.attempt, context.slot, context.trigger, batch
    )
    while True:
        listener = context.listener.run_started(attempt)
        try:
            return _run_and_notify(declared, replace(context, listener=listener), attempt)
        except FlowError as error:
            number = attempt.number
            if context.retried_by_scheduler or not _will_retry(declared.spec, context, number, error):
                error.attempts = number
                raise
            delay = retry_delay(policy, number, _RANDOM)
            listener.note(
                f"attempt {number} of {policy.max_attempts} failed ({error.what}); the next in {delay:.3g} s"
            )
            context.sleep(delay)
            attempt = attempt.next_attempt()


def _will_retry(spec: PipelineSpec, context: RunContext, number: int, error: object) -> bool:
    """Whether another attempt follows. The scheduler retries a slot later, when the cause may be fixed."""
    if number >= spec.retry.max_attempts:
        return False
    return context.retried_by_scheduler or (
        isinstance(error, FlowError) and not isinstance(error, _NOT_RETRIED)
    )


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
    recorded = _AttemptRecording(spec, context, _new_record(spec, context, attempt))
    try:
        with recorded.capture_output(), using_spark(f"pipeline {spec.name!r}"):
            result, batch = _run_with_locks(declared, recorded.observed_context(), attempt)
    except KeyboardInterrupt:
        raise _record_cancelled(spec, context, recorded) from None
    except PipelineLocked as error:
        recorded.finish_attempt("locked", error)
        raise error.with_location(spec.where) from None
    except Exception as error:
        if was_interrupted(error, before):
            raise _record_cancelled(spec, context, recorded) from None
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


class _AttemptRecording(RunRecording):
    """Records one attempt at a pipeline."""

    def __init__(self, spec: PipelineSpec, context: RunContext, record: RunRecord) -> None:
        super().__init__(
            record, context.run_log, context.observers, where=spec.where, keep=context.keep_runs_for
        )
        self._spec, self._context = spec, context

    def observed_context(self) -> RunContext:
        """Return the context of the attempt, whose events are recorded."""
        context = self._context
        return replace(
            context, listener=self.wrap_listener(context.listener), spark=self.wrap_spark_start(context.spark)
        )

    def finish_attempt(
        self, status: RunStatus, error: BaseException | None, result: RunResult | None = None
    ) -> None:
        spec, context = self._spec, self._context
        will_retry = status == "failed" and _will_retry(spec, context, self.record.attempt, error)
        if result is not None and spec.continue_on_target_failure and not context.retried_by_scheduler:
            will_retry = False  # the run goes on without the failed targets
        ending = RunEnd(spec.retry.max_attempts, will_retry, error)
        values = _record_values(result) if result is not None else _failed_values(error, self.record.target)
        self.finish(status, error, ending, **values)


def _record_cancelled(spec: PipelineSpec, context: RunContext, recorded: _AttemptRecording) -> Interrupted:
    """Record the run as stopped by a person, and return the error with the state of the targets."""
    stopped = Interrupted(
        f"pipeline {spec.name!r} was interrupted",
        where=spec.where,
        state=_state_after_interrupt(spec, context, recorded.record.run_id),
        next_step=f"flow run {spec.name}  starts it again",
    )
    recorded.finish_attempt("cancelled", stopped)
    return stopped


def _state_after_interrupt(spec: PipelineSpec, context: RunContext, run_id: str) -> str:
    """Ask the ledgers what a stopped run left behind: it may have committed already."""
    problem: BaseException | None = None
    for _ in range(2):  # a second interrupt may stop the first query
        try:
            committed = committed_targets(spec, open_connections(context.spark), run_id)
        except (FlowError, KeyboardInterrupt) as error:
            problem = error
            continue
        if not committed:
            return "nothing had committed; the target is as before"
        state = f"it had committed to {', '.join(committed)}"
        if len(committed) < len(spec.targets):
            return f"{state}; another run loads only the rest"
        return f"{state}; unless it is incremental, another run appends again"
    return f"the ledger could not be read, so it is not known whether it had committed: {problem}"


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
    declared: DeclaredPipeline, context: RunContext, attempt: Attempt
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
            settle_interrupted_runs(
                spec, connections, context.run_log, str(run_id), unreachable, note, context.observers
            )
            for target in spec.targets:
                if target.label not in unreachable:
                    for left in connections.target(target.connection).sweep_staging(spec.name, target.label):
                        note(f"removed staging that an interrupted run had left: {left}")
            batch = RunBatch(attempt.batch_key)
            if context.slot is None:
                batch = choose_batch(
                    spec,
                    connections,
                    context.run_log,
                    attempt.batch_key,
                    attempt.earlier_run_ids,
                    unreachable,
                    note,
                )
            results = [] if unreachable else results_if_loaded(spec, connections, context, attempt)
        reports: list[Mapping[str, Any]] = []
        if not results:
            results = _plan_and_load(
                declared, connections, context, attempt, batch, unreachable, note, reports
            )
        for each in results:
            if each.rows_outranked:
                note(_outranked_note(each))
            for text in expectation_notes(each):
                note(text)
        seconds = time.monotonic() - attempt.started
        loaded = RunResult(spec.name, str(run_id), _status(results), tuple(results), seconds, attempt.number)
        post = run_post_transforms(
            declared, connections, loaded, context, run_declared_pipeline, note, reports
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
) -> list[TargetResult]:
    """``reports`` gets those of the data probes that run before the load."""
    spec, listener = declared.spec, context.listener
    with _before_loading(attempt):
        plan, unplanned = _plan_available_targets(declared, connections, unreachable)
    if len(spec.targets) > 1:  # only now: a run that fails before it loads leaves everything to the next run
        context.run_log.record_batch(attempt.run_id, batch.key, batch.overdue)
    listener.planned(plan)
    for warning in dict.fromkeys(text for target in plan.targets for text in target.warnings):
        note(warning)
    reports += run_pre_probes(declared, note)
    return run_targets(plan, connections, context, attempt, batch.key, unplanned)


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


def _new_record(spec: PipelineSpec, context: RunContext, attempt: Attempt) -> RunRecord:
    return RunRecord(
        run_id=attempt.run_id,
        pipeline=spec.name,
        target=", ".join(t.label for t in spec.targets),
        mode=", ".join(dict.fromkeys(t.mode for t in spec.targets)),
        trigger=context.trigger,
        slot=context.slot,
        attempt=attempt.number,
        # with several targets the batch is known only when the locks are held
        batch=attempt.batch_key if len(spec.targets) == 1 else None,
        pid=os.getpid(),
    )


def _failed_values(error: BaseException | None, target: str) -> dict[str, Any]:
    """Return what the record of a run holds that failed: which expectations its rows did not meet."""
    if not isinstance(error, ExpectationFailed) or not error.results:
        return {}
    found = [each.to_json() for each in error.results]
    return {"metrics": {"targets": [{"target": target, "status": "failed", "expectations": found}]}}


def _record_values(result: RunResult) -> dict[str, Any]:
    """Return what a result adds to the record of its run."""
    first = result.targets[0]
    return {
        "path": result.path,
        "rows": result.rows,
        "source_from": first.source_from,
        "source_to": first.source_to,
        "metrics": result.to_json(),
    }
