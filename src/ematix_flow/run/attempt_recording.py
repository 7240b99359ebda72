"""Records one attempt at a pipeline: what its record holds, and how the attempt ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.engine.connections import Connections
from ematix_flow.errors import ExpectationFailed, FlowError, Interrupted
from ematix_flow.observe.listener import Attempt
from ematix_flow.observe.observer import RunEnd
from ematix_flow.plan.results import RunResult
from ematix_flow.run.batches import SHARED_BATCH
from ematix_flow.run.recording import RunRecording
from ematix_flow.run.recovery import committed_targets
from ematix_flow.run.retry_decision import will_retry
from ematix_flow.run.run_context import RunContext
from ematix_flow.run.run_control import RunControl
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.spec.retry_policy import longest_retry_delay
from ematix_flow.state.runlog.next_attempts import next_attempt_mark
from ematix_flow.state.runlog.records import RunRecord, RunStatus


class AttemptRecording(RunRecording):
    """Records one attempt at a pipeline. ``loaded`` is what it has loaded, once that is committed."""

    loaded: RunResult | None = None

    def __init__(
        self,
        spec: PipelineSpec,
        context: RunContext,
        record: RunRecord,
        earlier_run_ids: Sequence[str] = (),
    ) -> None:
        super().__init__(
            record,
            context.run_log,
            context.observers,
            where=spec.where,
            keep=context.keep_runs_for,
            control=RunControl(spec.name, record.run_id, context.actions, earlier_run_ids=earlier_run_ids),
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
        follows = status == "failed" and will_retry(spec, context, self.record.attempt, error)
        if result is not None and spec.continue_on_target_failure and not context.retried_by_scheduler:
            follows = False  # the run goes on without the failed targets
        ending = RunEnd(spec.retry.max_attempts, follows, error)
        if result is not None:
            values = _record_values(result)
        elif self.loaded is not None:  # a step after the load failed, or was stopped
            values = _record_values(self.loaded)
            values["metrics"]["status"] = status
        else:
            values = _failed_values(error, self.record.target)
        if follows and not context.retried_by_scheduler:
            mark = next_attempt_mark(longest_retry_delay(spec.retry, self.record.attempt))
            values["metrics"] = {**values.get("metrics", {}), **mark}
        self.finish(status, error, ending, **values)


def record_cancelled(
    spec: PipelineSpec, connect: Callable[[], Connections], recorded: AttemptRecording
) -> Interrupted:
    """Record the run as stopped by a person, and return the error with the state of the targets."""
    run_id = recorded.record.run_id
    stopped: Interrupted | None = recorded.control.stop_error
    if stopped is not None:
        stopped.next_step = f"flow restart {run_id[:8]}  loads what is missing"
    else:
        stopped = Interrupted(
            f"pipeline {spec.name!r} was interrupted", next_step=f"flow run {spec.name}  starts it again"
        )
    stopped.with_location(spec.where)
    stopped.state = _state_after_interrupt(spec, connect, run_id)
    recorded.finish_attempt("cancelled", stopped)
    return stopped


def _state_after_interrupt(spec: PipelineSpec, connect: Callable[[], Connections], run_id: str) -> str:
    """Ask the ledgers what a stopped run left behind: it may have committed already."""
    problem: BaseException | None = None
    for _ in range(2):  # a second interrupt may stop the first query
        try:
            committed = committed_targets(spec, connect(), run_id)
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


def new_record(spec: PipelineSpec, context: RunContext, attempt: Attempt) -> RunRecord:
    restart = context.restart
    # a restart that dies is restarted too: it carries what was done before it
    restarted = {"restart_of": restart.run_id, "post": list(restart.post_steps)} if restart else {}
    shared = {SHARED_BATCH: context.batch_key} if context.batch_key is not None else {}
    return RunRecord(
        run_id=attempt.run_id,
        pipeline=spec.name,
        target=", ".join(t.label for t in spec.targets),
        mode=", ".join(dict.fromkeys(t.mode for t in spec.targets)),
        trigger=context.trigger,
        slot=context.slot,
        attempt=attempt.number,
        # with several targets the batch is known only when the locks are held
        batch=attempt.batch_key if len(spec.targets) == 1 or restart else None,
        overdue=restart.overdue if restart else (),
        pid=os.getpid(),
        metrics=restarted | shared,
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
