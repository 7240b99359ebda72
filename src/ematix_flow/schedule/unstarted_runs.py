"""Slots of which no run can tell: it could not be started, or died each time. Someone else says so for it."""

from __future__ import annotations

import uuid
from dataclasses import replace

from ematix_flow.errors import FlowError, LoadError, UsageError
from ematix_flow.observe.observer import RunEnd
from ematix_flow.run.last_runs import unstarted_run_record
from ematix_flow.run.pipeline import RunContext
from ematix_flow.schedule.executors.base import CannotDispatch
from ematix_flow.schedule.slot_lifecycle import MAX_DEATHS
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.run_records import utc_now
from ematix_flow.state.slots.base import SlotRecord

_NAMES = uuid.UUID("6f2c1a52-6a0e-4f5f-9a43-0f3f6f1b7c3e")


class RunsDied(LoadError):
    """The attempts of a slot ended without a word, one after the other."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            reason,
            next_step="look at what ends them: memory, the machine, the executor's own log",
        )


def never_began_error(record: SlotRecord) -> CannotDispatch | None:
    """What is told of a slot whose runs are started again and again, and do not begin.

    Once is none: a scheduler may have died before it started the run.
    """
    started = record.fence - record.failures - record.deaths
    if record.status != "claimed" or record.begun or started < MAX_DEATHS:
        return None
    return CannotDispatch(
        f"a run of {record.slot.pipeline!r} was started, and did not begin before its claim expired",
        next_step="look at the executor: its own log, its quota, and whether its runs reach the run log",
    )


def record_unstarted_run(
    spec: PipelineSpec, context: RunContext, error: FlowError, *, attempts: int, fence: int = 0
) -> FlowError:
    """A failed run in the log, once for a slot and a kind of error, and before the observers each time.

    An alert that did not get through is sent the next time; one that did is not sent again.
    ``attempts`` are those that were made, when none is to follow. ``fence`` is that of the claim, where each
    is told: a slot that was reopened by hand may be given up again.
    """
    slot = context.slot
    error.with_location(spec.where)
    # not random: whoever else notices the same finds it there
    run_id = str(uuid.uuid5(_NAMES, f"{spec.name}\n{slot}\n{type(error).__name__}\n{fence}"))
    record = unstarted_run_record(run_id, spec, context.trigger, slot, max(attempts, 1))
    is_known = False
    try:
        context.run_log.start(record)
    except UsageError:
        record, is_known = context.run_log.get(run_id), True
    context.run_log.finish(run_id, "failed", error=error)
    told = replace(
        record,
        status="failed",
        finished_at=utc_now(),
        error_type=type(error).__name__,
        error_message=str(error),
    )
    most = attempts or spec.retry.max_attempts
    ending = RunEnd(most, will_retry=not attempts, error=error, already_reported=is_known)
    context.observers.run_finished(told, ending)
    return error
