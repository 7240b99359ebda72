"""The runs that an action asks for: of pipelines, from the failed step, from the watermark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ematix_flow import fault_points
from ematix_flow.errors import FlowError, Interrupted
from ematix_flow.graph.registry import Registry
from ematix_flow.observe.listener import Attempt, Listener
from ematix_flow.plan.results import RunResult
from ematix_flow.run.dag import PipelineOutcome, pipeline_outcome, run_dag
from ematix_flow.run.restart import finished_restart, restart_run
from ematix_flow.run.run_context import RunContext
from ematix_flow.schedule.actions.carrying_out import ActionEnd, ActionInterrupted
from ematix_flow.schedule.actions.checks import pipelines_to_run
from ematix_flow.schedule.actions.died_restarts import describe_finished_restart
from ematix_flow.schedule.restarted_slots import end_restarted_slot
from ematix_flow.state.actions.records import ActionRecord
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import SlotStore

LOCKED_SECONDS = 5.0  # before the next attempt at a pipeline that an earlier process of the action may hold
MOST_LOCKED_SECONDS = 60.0  # between two later attempts
MAX_LOCKED_SECONDS = 600.0  # the longest that any lock of a dead process lasts
_STORE_RETRY_SECONDS = (1.0, 4.0, 15.0)  # between attempts to record that a slot is loaded

Outcomes = Mapping[str, PipelineOutcome]


@dataclass(frozen=True)
class ActionRuns:
    """Carries out the actions that run pipelines. ``before`` and ``after`` are as for `run_dag`.

    ``open_slots`` opens the slots next to the run log: a restart that succeeds ends the slot of its run.
    """

    registry: Registry
    context: RunContext
    open_slots: Callable[[], SlotStore]
    before: Callable[[str], None] = lambda name: None
    after: Callable[[PipelineOutcome], None] = lambda outcome: None

    def run(self, action: ActionRecord) -> ActionEnd:
        """Run the pipelines that the action names, or the one that it resumes from its watermark."""
        arguments = action.arguments if action.kind == "run" else {}
        names = pipelines_to_run(self.registry, action.subject, arguments)
        watch = _RunIds(self.context.listener)
        context = replace(
            self.context, listener=watch, batch_key=action_batch_key(action), trigger=action.via
        )

        def run_some(some: Sequence[str], known: Outcomes) -> list[PipelineOutcome]:
            return run_dag(self.registry, some, context, before=self.before, after=self.after, known=known)

        return _end_of(self._run_until_free(action, watch, names, run_some), watch.run_ids)

    def restart(self, action: ActionRecord) -> ActionEnd:
        """Run a failed run again from the step that failed."""
        run_log = self.context.run_log
        record = run_log.get(action.subject)
        declared = self.registry.pipeline(record.pipeline)
        done = finished_restart(run_log, record) if action.fence > 1 else None
        if done is not None:
            # an earlier process of this action restarted it, and died before it recorded that
            return self._end_slot(record, ActionEnd("done", describe_finished_restart(done), (done.run_id,)))
        watch = _RunIds(self.context.listener)
        context = replace(
            self.context, listener=watch, batch_key=action_batch_key(action), trigger=action.via
        )

        def run_again(some: Sequence[str], known: Outcomes) -> list[PipelineOutcome]:
            self.before(record.pipeline)
            outcome = pipeline_outcome(
                self.registry, record.pipeline, lambda: restart_run(declared, context, record)
            )
            self.after(outcome)
            return [outcome]

        outcomes = self._run_until_free(action, watch, [record.pipeline], run_again)
        ended = _end_of(outcomes, watch.run_ids)
        return self._end_slot(record, ended) if ended.status == "done" else ended

    def _end_slot(self, failed: RunRecord, ended: ActionEnd) -> ActionEnd:
        """Record that the slot of a run that was restarted well has succeeded."""
        if failed.slot is None:
            return ended
        fault_points.point("restart.run_ended")
        for pause in (*_STORE_RETRY_SECONDS, None):
            try:
                with self.open_slots() as slots:
                    end_restarted_slot(slots, self.registry, failed, ended.run_ids[-1])
                return ended
            except FlowError as error:
                if pause is None:
                    what = f"{ended.outcome}; but its slot was not recorded as succeeded: {error.what}. "
                    what += f"flow clear {failed.pipeline}  lets the next run find that it is loaded"
                    return replace(ended, status="failed", outcome=what, error=error)
                self.context.sleep(pause)
        return ended

    def _run_until_free(
        self,
        action: ActionRecord,
        watch: _RunIds,
        names: Sequence[str],
        run: Callable[[Sequence[str], Outcomes], list[PipelineOutcome]],
    ) -> list[PipelineOutcome]:
        """Run the pipelines. If an earlier process of the action may still hold some, try those again.

        When one is free, what did not run because of it follows. Nothing else runs twice.
        """
        try:
            found = {outcome.pipeline: outcome for outcome in run(names, {})}
            waited, pause = 0.0, LOCKED_SECONDS
            while action.fence > 1 and waited < MAX_LOCKED_SECONDS:
                locked = [name for name, outcome in found.items() if outcome.status == "locked"]
                if not locked:
                    break
                self.context.sleep(pause)
                waited, pause = waited + pause, min(2 * pause, MOST_LOCKED_SECONDS)
                found |= {outcome.pipeline: outcome for outcome in run(locked, {})}
                freed = {name for name in locked if found[name].status != "locked"}
                known = {name: each for name, each in found.items() if each.because_of not in freed}
                if len(known) < len(found):
                    found = {outcome.pipeline: outcome for outcome in run(names, known)}
        except Interrupted as error:
            raise ActionInterrupted(error, tuple(watch.run_ids)) from error
        return list(found.values())


def action_batch_key(action: ActionRecord) -> str:
    """Return the batch key that every run of an action loads under."""
    return f"action:{action.action_id}"


@dataclass
class _RunIds(Listener):
    """Notes the ids of the runs that start, and passes their events on."""

    inner: Listener
    run_ids: list[str] = field(default_factory=list)

    def run_started(self, attempt: Attempt) -> Listener:
        self.run_ids.append(attempt.run_id)
        return self.inner.run_started(attempt)


def _end_of(outcomes: Sequence[PipelineOutcome], run_ids: Sequence[str]) -> ActionEnd:
    bad = [outcome for outcome in outcomes if outcome.error is not None or outcome.status == "not_run"]
    if len(outcomes) == 1:
        (only,) = outcomes
        text = f"{only.pipeline} {only.status.replace('_', ' ')}: " + (
            only.reason or (_summary(only.result) if only.result is not None else "")
        )
    elif bad:
        first = f"{bad[0].pipeline}: {bad[0].reason or bad[0].status}"
        text = f"{len(bad):,} of {len(outcomes):,} pipelines did not succeed; {first}"
    else:
        text = f"{len(outcomes):,} pipelines ended well"
    error = next((outcome.error for outcome in bad if outcome.error is not None), None)
    return ActionEnd("failed" if bad else "done", text.removesuffix(": "), tuple(run_ids), error)


def _summary(result: RunResult) -> str:
    counts = {
        "inserted": result.rows_inserted,
        "updated": result.rows_updated,
        "deleted": result.rows_deleted,
    }
    changed = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
    return f"{changed or 'no row changed'} in {result.seconds:.1f} s"
