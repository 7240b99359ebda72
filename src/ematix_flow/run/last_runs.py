"""Reads from the run log how pipelines last ended, and records runs that never began."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ematix_flow.errors import PipelineLocked
from ematix_flow.graph.registry import Registry
from ematix_flow.run.recording import with_code_version
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord, new_run_id
from ematix_flow.state.times import format_utc, utc_now

LOOKBACK_RUNS = 20


@dataclass(frozen=True)
class LastEnd:
    """How a pipeline or workflow last ended. ``event`` identifies this end; ``summary`` describes it."""

    event: str
    succeeded: bool
    summary: str


def has_ended(record: RunRecord) -> bool:
    """Whether the run ended by itself. A run that found its pipeline locked never began."""
    return record.status != "running" and not was_locked(record)


def was_locked(record: RunRecord) -> bool:
    """Whether the run found its pipeline locked. Older run logs call such a run skipped."""
    return record.status == "locked" or record.error_type == PipelineLocked.__name__


def last_ends(run_log: RunLog, names: Iterable[str], registry: Registry) -> Mapping[str, LastEnd]:
    """Return how each pipeline among the names last ended; pipelines that never ended are left out."""
    pipelines = [name for name in names if name in registry.pipelines]
    found = {name: _last_end(records) for name, records in run_log.newest(pipelines, LOOKBACK_RUNS).items()}
    return {name: end for name, end in found.items() if end is not None}


def _last_end(records: Iterable[RunRecord]) -> LastEnd | None:
    for record in records:
        if has_ended(record):
            # a slot that runs again after its run died is the same event
            event = f"slot:{record.slot.isoformat()}" if record.slot else f"run:{record.run_id}"
            reason = (record.error_message or record.status).split("\n")[0]
            summary = f"{record.status} at {format_utc(record.finished_at or record.started_at)}"
            return LastEnd(event, record.ended_well, summary if record.ended_well else f"{summary}: {reason}")
    return None


def last_success(run_log: RunLog, pipeline: str) -> RunRecord | None:
    """Return the newest run of a pipeline that ended well."""
    recent = [record for record in run_log.list(pipeline, limit=LOOKBACK_RUNS) if record.ended_well]
    found = recent or run_log.list(pipeline, "succeeded", limit=1)
    return found[0] if found else None


def last_successes(run_log: RunLog, names: Sequence[str]) -> dict[str, RunRecord]:
    """Return the newest run that ended well, for each of these pipelines that has one."""
    found: dict[str, RunRecord] = {}
    recent = run_log.newest(names, LOOKBACK_RUNS) if names else {}
    for name in names:
        records = recent.get(name, ())
        success = next((record for record in records if record.ended_well), None)
        if success is None and len(records) == LOOKBACK_RUNS:
            success = next(iter(run_log.list(name, "succeeded", limit=1)), None)
        if success is not None:
            found[name] = success
    return found


def record_skipped_run(
    run_log: RunLog, spec: PipelineSpec, reason: str, trigger: str, slot: dt.datetime | None = None
) -> RunRecord:
    """Record a run that did not begin because of its upstreams."""
    record = skipped_run_record(spec, reason, trigger, slot)
    run_log.start(record)
    return record


def skipped_run_record(
    spec: PipelineSpec, reason: str, trigger: str, slot: dt.datetime | None = None
) -> RunRecord:
    """Return the record of a run that did not begin because of its upstreams."""
    now, record = utc_now(), unstarted_run_record(new_run_id(), spec, trigger, slot)
    return replace(record, status="skipped", started_at=now, finished_at=now, error_message=reason)


def unstarted_run_record(
    run_id: str, spec: PipelineSpec, trigger: str, slot: dt.datetime | None, attempt: int = 1
) -> RunRecord:
    """Return the record of a run that cannot report itself."""
    record = RunRecord(
        run_id=run_id,
        pipeline=spec.name,
        target=", ".join(target.label for target in spec.targets),
        mode=", ".join(dict.fromkeys(target.mode for target in spec.targets)),
        trigger=trigger,
        slot=slot,
        attempt=attempt,
    )
    return with_code_version(record, spec.where)
