"""Decides whether a slot may run: the upstreams of its pipeline must have succeeded before it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ematix_flow.schedule.due_slots import is_missed
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import UNSUCCESSFUL, Slot, SlotRecord
from ematix_flow.state.times import format_utc

LastSuccess = Callable[[str], RunRecord | None]
LatestSlot = Callable[[str, dt.datetime], SlotRecord | None]


@dataclass(frozen=True)
class UpstreamGate:
    """The verdict on a slot. ``wait``: check again later. ``skip``: this slot does not run."""

    verdict: Literal["go", "wait", "skip"]
    reason: str | None = None


GO = UpstreamGate("go")


def check_upstreams(
    spec: PipelineSpec,
    slot: Slot,
    now: dt.datetime,
    unfinished: Sequence[SlotRecord],
    latest: LatestSlot,
    last_success: LastSuccess,
) -> UpstreamGate:
    """Return the strictest verdict of the slot's upstreams: skip, then wait, then go."""
    found = [
        _check_upstream(spec, name, slot, now, unfinished, latest, last_success) for name in spec.depends_on
    ]
    for verdict in ("skip", "wait"):
        for one in found:
            if one.verdict == verdict:
                return one
    return GO


def _check_upstream(
    spec: PipelineSpec,
    upstream: str,
    slot: Slot,
    now: dt.datetime,
    unfinished: Sequence[SlotRecord],
    latest: LatestSlot,
    last_success: LastSuccess,
) -> UpstreamGate:
    for record in unfinished:
        if record.slot.pipeline == upstream and record.slot.fire_time <= slot.fire_time:
            return UpstreamGate(
                "wait", f"{upstream} of {format_utc(record.slot.fire_time)} has not ended yet"
            )
    before, success = latest(upstream, slot.fire_time), last_success(upstream)
    if before is not None and is_missed(before) and not _makes_up_for(success, before):
        for record in unfinished:
            if record.slot.pipeline == upstream:
                late = f"{upstream} of {format_utc(record.slot.fire_time)} has not ended yet"
                return UpstreamGate("wait", f"{late}, and makes up for {format_utc(before.slot.fire_time)}")
    if before is not None and is_unresolved(before, success):
        if before.status == "skipped":
            return UpstreamGate("skip", before.reason)  # name the failure further upstream
        why = before.reason or "it failed"
        return UpstreamGate("skip", f"{upstream} of {format_utc(before.slot.fire_time)} was given up: {why}")
    oldest = spec.upstream_freshness_seconds
    if oldest is None and before is not None and before.status == "succeeded":
        return GO  # also if its run could not be recorded
    if success is None:
        return UpstreamGate("skip", f"{upstream} has never succeeded")
    at = success.finished_at or success.started_at
    if oldest is not None and now - at > dt.timedelta(seconds=oldest):
        return UpstreamGate(
            "skip", f"{upstream} last succeeded at {format_utc(at)}, more than {oldest:g} s ago"
        )
    return GO


def is_unresolved(record: SlotRecord, success: RunRecord | None) -> bool:
    """Whether a slot did not succeed and the newest ``success`` of its pipeline does not make up for it."""
    return record.status in UNSUCCESSFUL and not is_missed(record) and not _makes_up_for(success, record)


def _makes_up_for(success: RunRecord | None, record: SlotRecord) -> bool:
    """A later manual run or the run of a later slot makes up for it; a late run of an older slot does not."""
    if success is None or success.started_at <= record.slot.fire_time:
        return False
    return success.slot is None or success.slot >= record.slot.fire_time
