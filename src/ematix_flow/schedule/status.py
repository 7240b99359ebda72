"""The status of pipelines and workflows, from a few queries to the run log and the slots."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ematix_flow.graph.registry import Registry
from ematix_flow.run.last_runs import LOOKBACK_RUNS, has_ended, last_ends, was_locked
from ematix_flow.schedule.actions.schedule_holds import describe_hold, waiting_fires
from ematix_flow.schedule.backlog import NO_BACKLOG, Backlog, measure_backlog
from ematix_flow.schedule.due_slots import is_before_first_poll
from ematix_flow.schedule.upstream_gate import is_unresolved
from ematix_flow.schedule.workflows import WorkflowSlots, slot_name
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.spec.schedules import Schedule
from ematix_flow.spec.workflows import WorkflowSpec
from ematix_flow.state.actions.records import Hold
from ematix_flow.state.process_liveness import run_is_dead
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import ENDED, SlotRecord, SlotStore
from ematix_flow.state.times import format_utc

_UNPOLLED_AFTER = dt.timedelta(minutes=20)  # longer than any polling interval that ``flow init`` writes


@dataclass(frozen=True)
class PipelineStatus:
    """The status of one pipeline: its last run, the failures since the last success, and its next fire time.

    ``last_run`` is the last run that did not find the pipeline locked. ``slot`` is the one that waits or
    runs, or else the last one, if it was given up or skipped and nothing has succeeded since.
    ``unpolled_since`` is a fire that no scheduler has polled for a long time. ``slot_ahead`` is a slot later
    than now, opened while a clock was ahead. ``backlog`` are the slots that are due and wait, also for a
    paused schedule. ``hold`` and ``schedule_hold`` say that its runs, or its schedule, are paused.
    """

    spec: PipelineSpec
    last_run: RunRecord | None
    failures: int
    slot: SlotRecord | None
    next_due: dt.datetime | None
    unpolled_since: dt.datetime | None = None
    slot_ahead: dt.datetime | None = None
    backlog: Backlog = NO_BACKLOG
    hold: Hold | None = None
    schedule_hold: Hold | None = None

    @property
    def why(self) -> str:
        """What the pipeline waits for, or why it failed; empty if all is well."""
        if self.hold is None and self.schedule_hold is None:
            return self._trouble
        texts = [] if self.hold is None else [describe_hold(self.hold)]
        if self.hold is not None and self.hold.held_run:
            texts.append(f"its run {self.hold.held_run[:8]} waits {self.hold.held_at}")
        if self.schedule_hold is not None:
            texts.append(f"schedule {describe_hold(self.schedule_hold)}")
        return "; ".join([*texts, *filter(None, [self._trouble])])

    @property
    def _trouble(self) -> str:
        if self.last_run is not None and run_is_dead(self.last_run):
            return (
                f"its process {self.last_run.pid} is gone: the next run reads from the ledger "
                "what it committed"
            )
        if self.unpolled_since is not None and self.schedule_hold is None:
            return (
                f"due since {format_utc(self.unpolled_since)}: neither flow scheduler nor "
                "flow run-due has polled since"
            )
        if self.slot_ahead is not None:
            return (
                f"it has a slot of {format_utc(self.slot_ahead)}, later than now: a "
                "clock was ahead; present slots "
                "fire as usual, and that one does not fire again"
            )
        reason = self.slot.reason if self.slot is not None else None
        if (
            reason is None
            and self.last_run is not None
            and has_ended(self.last_run)
            and not self.last_run.ended_well
        ):
            reason = self.last_run.error_message
        return (reason or "").split("\n")[0]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "pipeline",
            "pipeline": self.spec.name,
            "schedule": self.spec.schedule,
            "timezone": self.spec.timezone,
            "depends_on": list(self.spec.depends_on),
            "tags": list(self.spec.tags),
            "last_run": self.last_run.to_json() if self.last_run else None,
            "failures_since_success": self.failures,
            "attempts_allowed": self.spec.retry.max_attempts,
            "slot": None if self.slot is None else _slot_json(self.slot),
            "why": self.why or None,
            "next_due": self.next_due.isoformat() if self.next_due else None,
            "slot_ahead": self.slot_ahead.isoformat() if self.slot_ahead else None,
            "unseen_since": self.unpolled_since.isoformat() if self.unpolled_since else None,
            "due_slots": self.backlog.due_slots,
            "oldest_due": self.backlog.oldest_due.isoformat() if self.backlog.oldest_due else None,
            "behind_seconds": self.backlog.behind_seconds,
            "hold": None if self.hold is None else self.hold.to_json(),
            "schedule_hold": None if self.schedule_hold is None else self.schedule_hold.to_json(),
        }


@dataclass(frozen=True)
class WorkflowStatus:
    """The status of one workflow: its last slot, what its trigger waits for, and its next fire time."""

    spec: WorkflowSpec
    slot: SlotRecord | None
    waits_for: tuple[str, ...]
    next_due: dt.datetime | None

    @property
    def outcome(self) -> str:
        if self.slot is None:
            return "never"
        return self.slot.status.replace("_", " ") if self.slot.status in ENDED else "running"

    @property
    def why(self) -> str:
        failed = self.slot is not None and self.slot.status in ("gave_up", "skipped")
        reasons = [self.slot.reason or ""] if failed and self.slot is not None else []
        return "; ".join([*reasons, *self.waits_for])

    def to_json(self) -> dict[str, Any]:
        trigger = self.spec.triggered_by
        return {
            "kind": "workflow",
            "workflow": self.spec.name,
            "jobs": list(self.spec.jobs),
            "schedule": self.spec.schedule,
            "timezone": self.spec.timezone,
            "triggered_by": trigger.to_json() if trigger else None,
            "outcome": self.outcome,
            "slot": None if self.slot is None else _slot_json(self.slot),
            "waits_for": list(self.waits_for),
            "next_due": self.next_due.isoformat() if self.next_due else None,
        }


def pipeline_statuses(
    registry: Registry,
    only: Collection[str] | None,
    store: SlotStore,
    run_log: RunLog,
    now: dt.datetime,
    holds: Sequence[Hold] = (),
) -> list[PipelineStatus]:
    """Return the status of the pipelines in ``only`` (all by default), in the order of their declaration."""
    names = [name for name in registry.pipelines if only is None or name in only]
    records = run_log.newest(names, LOOKBACK_RUNS)
    unfinished: dict[str, SlotRecord] = {}
    due: dict[str, list[dt.datetime]] = {}
    held = {(hold.kind, hold.name): hold for hold in holds}
    for record in store.unfinished(names):
        unfinished.setdefault(record.slot.pipeline, record)
        if record.is_due(now):
            due.setdefault(record.slot.pipeline, []).append(record.slot.fire_time)
    newest, ahead = store.newest(names), dict[str, dt.datetime]()
    for name, record in list(newest.items()):
        if record.slot.fire_time > now:
            ahead[name] = record.slot.fire_time
            present = store.latest(name, now)
            if present is None:
                del newest[name]
            else:
                newest[name] = present
    found = [
        _pipeline_status(registry.pipelines[name].spec, records.get(name, ()), unfinished, newest, now)
        for name in names
    ]
    for name in names:
        if ("schedule", name) in held and name in newest:
            spec, last = registry.pipelines[name].spec, newest[name].slot.fire_time
            due[name] = [*due.get(name, ()), *(slot.fire_time for slot in waiting_fires(spec, last, now))]
    return [
        replace(
            each,
            slot_ahead=ahead.get(each.spec.name),
            backlog=measure_backlog(due.get(each.spec.name, ()), now),
            hold=held.get(("run", each.spec.name)),
            schedule_hold=held.get(("schedule", each.spec.name)),
        )
        for each in found
    ]


def _pipeline_status(
    spec: PipelineSpec,
    records: Sequence[RunRecord],
    unfinished: Mapping[str, SlotRecord],
    newest: Mapping[str, SlotRecord],
    now: dt.datetime,
) -> PipelineStatus:
    failures, success = 0, None
    for record in records:
        if record.ended_well:
            success = record
            break
        failures += record.status in ("failed", "interrupted")
    slot, last = unfinished.get(spec.name), newest.get(spec.name)
    fired = next_fire_time(spec.schedule, spec.timezone, last.slot.fire_time) if last is not None else None
    unseen = fired if fired is not None and fired < now - _UNPOLLED_AFTER else None
    if slot is None:
        slot = last if last is not None and is_unresolved(last, success) else None
    due = next_fire_time(spec.schedule, spec.timezone, now)
    unlocked_runs = [record for record in records if not was_locked(record)] or records
    return PipelineStatus(spec, unlocked_runs[0] if unlocked_runs else None, failures, slot, due, unseen)


def workflow_statuses(
    registry: Registry, only: Collection[str] | None, store: SlotStore, run_log: RunLog, now: dt.datetime
) -> list[WorkflowStatus]:
    """Return the status of the workflows that run one of the pipelines in ``only``."""
    specs = [
        spec for spec in registry.workflows.values() if only is None or set(only).intersection(spec.jobs)
    ]
    if not specs:
        return []
    workflows = WorkflowSlots(specs, lambda names: last_ends(run_log, names, registry))
    found = store.newest([slot_name(spec.name) for spec in specs])
    newest = {name: record for name, record in found.items() if not is_before_first_poll(record)}
    firings, ends = workflows.firings(store), workflows.last_ends(store)
    return [
        WorkflowStatus(
            spec,
            newest.get(slot_name(spec.name)),
            tuple(workflows.waits_for(spec.name, firings[spec.name], ends)) if spec.triggered_by else (),
            next_fire_time(spec.schedule, spec.timezone, now),
        )
        for spec in specs
    ]


def next_fire_time(schedule: str | None, timezone: str | None, now: dt.datetime) -> dt.datetime | None:
    """Return the next fire time of a schedule in its time zone; None if there is none."""
    return None if schedule is None else Schedule(schedule, timezone or "UTC").next_fire_time(now)


def _slot_json(record: SlotRecord) -> dict[str, Any]:
    return {
        "at": record.slot.fire_time.isoformat(),
        "status": record.status,
        "failures": record.failures,
        "reason": record.reason,
        "not_before": record.not_before.isoformat(),
    }
