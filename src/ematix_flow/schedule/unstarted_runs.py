"""Records runs that cannot record themselves: they could not be started, or died each time."""

from __future__ import annotations

import uuid
from dataclasses import replace

from ematix_flow.errors import FlowError, LoadError, UsageError
from ematix_flow.observe.observer import RunEnd
from ematix_flow.run.last_runs import unstarted_run_record
from ematix_flow.run.run_context import RunContext
from ematix_flow.schedule.executors.base import CannotDispatch
from ematix_flow.schedule.slot_lifecycle import MAX_DEATHS
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.slots.base import SlotRecord
from ematix_flow.state.times import utc_now

_NAMES = uuid.UUID("6f2c1a52-6a0e-4f5f-9a43-0f3f6f1b7c3e")


class RunsDied(LoadError):
    """The attempts of a slot died one after the other."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            reason,
            next_step="find out what ends them: memory, the machine, the executor's own log",
        )


def never_began_error(record: SlotRecord) -> CannotDispatch | None:
    """Return the error of a slot whose runs are started repeatedly and do not begin; None otherwise.

    One or two such starts are not an error: a scheduler may have died before it started the run.
    """
    started = record.fence - record.failures - record.deaths
    if record.status != "claimed" or record.begun or started < MAX_DEATHS:
        return None
    return CannotDispatch(
        f"a run of {record.slot.pipeline!r} was started, but did not begin before its claim expired",
        next_step="check the executor: its own log, its quota, and whether its runs reach the run log",
    )


def record_unstarted_run(
    spec: PipelineSpec, context: RunContext, error: FlowError, *, attempts: int, fence: int = 0
) -> FlowError:
    """Record a failed run, once per slot and kind of error, and notify the observers each time.

    An alert that was not delivered is sent again the next time; a delivered one is not. ``attempts`` is the
    number of attempts made, if none follows. ``fence`` is that of the claim, if each claim is reported: a
    slot that was reopened by hand may be given up again.
    """
    slot = context.slot
    error.with_location(spec.where)
    # not random: another process that notices the same finds the record
    run_id = str(uuid.uuid5(_NAMES, f"{spec.name}\n{slot}\n{type(error).__name__}\n{fence}"))
    record = unstarted_run_record(run_id, spec, context.trigger, slot, max(attempts, 1))
    is_known = False
    try:
        context.run_log.start(record)
    except UsageError:
        record, is_known = context.run_log.get(run_id), True
    context.run_log.finish(run_id, "failed", error=error)
    failed = replace(
        record,
        status="failed",
        finished_at=utc_now(),
        error_type=type(error).__name__,
        error_message=str(error),
    )
    most = attempts or spec.retry.max_attempts
    ending = RunEnd(most, will_retry=not attempts, error=error, already_reported=is_known)
    context.observers.run_finished(failed, ending)
    return error
