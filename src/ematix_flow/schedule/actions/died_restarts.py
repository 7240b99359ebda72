"""Ends restarts that ran well and whose processes died before they recorded it."""

from __future__ import annotations

import logging

from ematix_flow.errors import FlowError, UsageError
from ematix_flow.graph.registry import Registry
from ematix_flow.run.restart import finished_restart
from ematix_flow.schedule.restarted_slots import end_restarted_slot
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import ENDING_CLAIM_SECONDS, SlotStore

_log = logging.getLogger(__name__)


def finish_died_restarts(
    registry: Registry, actions: ActionStore, run_log: RunLog, slots: SlotStore, holder: str
) -> None:
    """End the restarts that succeeded and whose processes died before they recorded it.

    For commands that carry out no actions. A failure is only a warning: the next one tries again.
    """
    try:
        now = actions.now()
        for action in actions.list(kind="restart", unfinished=True):
            if action.fence and action.is_claimable(now):
                failed = _run_of(run_log, action.subject)
                if failed is None or failed.pipeline not in registry.pipelines:
                    continue
                done = finished_restart(run_log, failed)
                claimed = None if done is None else actions.claim(action, holder, ENDING_CLAIM_SECONDS)
                if done is not None and claimed is not None:
                    end_restarted_slot(slots, registry, failed, done.run_id)
                    actions.end(claimed, "done", describe_finished_restart(done), (done.run_id,))
    except FlowError as error:
        _log.warning("restarts whose processes died were not settled: %s", error.what)


def describe_finished_restart(done: RunRecord) -> str:
    return f"{done.pipeline} {done.status} by run {done.run_id[:8]}"


def _run_of(run_log: RunLog, run_id: str) -> RunRecord | None:
    try:
        return run_log.get(run_id)
    except UsageError:  # it was purged
        return None
