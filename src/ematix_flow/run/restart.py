"""Restarts a run that did not end well: it goes on where that run stopped.

The run loads under the batch key of the failed one, so that no target gets its rows twice. Targets that have
committed and post-load steps that ended well are not done again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ematix_flow.errors import UsageError
from ematix_flow.graph.registry import DeclaredPipeline
from ematix_flow.plan.results import RunResult
from ematix_flow.run.last_runs import was_locked
from ematix_flow.run.pipeline import run_declared_pipeline
from ematix_flow.run.recovery import is_process_alive
from ematix_flow.run.run_context import RestartedRun, RunContext
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord

_LOOKBACK_RUNS = 100
_RESTARTABLE = ("failed", "cancelled", "interrupted", "running")


def restart_run(declared: DeclaredPipeline, context: RunContext, record: RunRecord) -> RunResult:
    """Run the pipeline again from where the run of this record stopped. Raises UsageError if it cannot.

    If a restart of that run did not end well either, this one goes on where the restart stopped.
    """
    restarted = find_restart(declared.spec, context.run_log, record)
    return run_declared_pipeline(declared, replace(context, slot=record.slot, restart=restarted))


def finished_restart(run_log: RunLog, record: RunRecord) -> RunRecord | None:
    """Return the run that restarted the one of this record and ended well, also if a later run followed."""
    runs = run_log.list(record.pipeline, limit=_LOOKBACK_RUNS, since=record.started_at)
    known = {each.run_id: each for each in runs}
    return next((run for run in runs if run.ended_well and record.run_id in restarted_ids(run, known)), None)


def find_restart(spec: PipelineSpec, run_log: RunLog, record: RunRecord) -> RestartedRun:
    """Return what a restart of this run would go on with. Raises UsageError with the reason if it cannot."""
    if record.mode == "stream":
        again = f"flow consume {record.pipeline}  goes on where the stream stopped"
        raise _refuse(record, "it is the run of a stream, which keeps its position itself", again)
    if record.pipeline != spec.name:
        raise _refuse(record, f"it is no run of {spec.name!r}", "flow runs list")
    known = {each.run_id: each for each in run_log.list(spec.name, limit=_LOOKBACK_RUNS)}
    newest = next((each for each in known.values() if _has_begun(each)), record)
    if newest.run_id != record.run_id and record.run_id not in restarted_ids(newest, known):
        another = f"flow restart {newest.run_id[:8]}" if newest.status in _RESTARTABLE else None
        raise _refuse(
            record,
            f"run {newest.run_id[:8]} of {spec.name!r} is newer",
            "; ".join(filter(None, (another, f"flow run {spec.name}  loads it again"))),
        )
    _require_restartable(spec, newest)
    same_batch = [each.run_id for each in known.values() if newest.batch and each.batch == newest.batch]
    return RestartedRun(
        newest.run_id,
        frozenset({newest.run_id, *restarted_ids(newest, known), *same_batch}),
        newest.batch,
        newest.overdue,
        tuple(step for step in newest.metrics.get("post") or () if step.get("status") == "ok"),
    )


def _has_begun(record: RunRecord) -> bool:
    """Whether the run did more than to find a lock, or that its upstream had failed."""
    return not was_locked(record) and not (record.status == "skipped" and record.error_message)


def restarted_ids(record: RunRecord, known: Mapping[str, RunRecord]) -> list[str]:
    """Return the run that this one restarted, the one that that one had restarted, and so on."""
    found: list[str] = []
    run: RunRecord | None = record
    while run is not None and (before := run.metrics.get("restart_of")) and before not in found:
        found.append(before)
        run = known.get(before)
    return found


def _require_restartable(spec: PipelineSpec, record: RunRecord) -> None:
    name, run = spec.name, record.run_id[:8]
    if record.status not in _RESTARTABLE:
        raise _refuse(
            record, f"run {run} has ended well: {record.status}", f"flow run {name}  loads it again"
        )
    if record.status == "running" and is_process_alive(record):
        raise _refuse(record, f"run {run} is still running", f"flow stop {run}  stops it")
    now = ", ".join(target.label for target in spec.targets)
    modes = ", ".join(dict.fromkeys(target.mode for target in spec.targets))
    if (record.target, record.mode) != (now, modes):
        raise _refuse(
            record,
            f"{name!r} has other targets since: {now} ({modes}) instead of {record.target} ({record.mode})",
            f"flow run {name}  loads all targets; what run {run} had committed stays",
        )


def _refuse(record: RunRecord, why: str, next_step: str) -> UsageError:
    return UsageError(
        f"run {record.run_id[:8]} cannot be restarted: {why}", state="nothing was run", next_step=next_step
    )
