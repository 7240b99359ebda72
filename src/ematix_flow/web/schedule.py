"""The endpoint of the schedule: past slots with their runs, next fires, what was missed, what is paused."""

from __future__ import annotations

import datetime as dt
import heapq
from collections.abc import Iterator
from typing import Any

from ematix_flow.errors import UsageError
from ematix_flow.schedule.due_slots import is_before_first_poll, is_missed
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.slots.base import SlotRecord
from ematix_flow.web.answers import Answer, plain_json_bytes
from ematix_flow.web.endpoints import Call
from ematix_flow.web.site import Site
from ematix_probe.redaction import mask, mask_all

SIDE = dt.timedelta(hours=48)
MOST_SLOTS = 2_000  # of past slots, and of next fires
_LONGEST_RANGE = dt.timedelta(days=92)


def show_schedule(site: Site, call: Call) -> Answer:
    slots = site.stores.slots()
    now = slots.now()
    since, until = call.time("from") or now - SIDE, call.time("to") or now + SIDE
    if not since <= until <= since + _LONGEST_RANGE:
        raise UsageError(f"the range from {since.isoformat()} to {until.isoformat()} is not one of 92 days")
    past = min(until, now)
    records = slots.between(since, past, MOST_SLOTS) if since < past else []
    shown = [record for record in records if not is_before_first_poll(record)]
    run_ids: dict[tuple[str, dt.datetime], str] = {}
    if shown:
        oldest, newest = shown[-1].slot.fire_time, shown[0].slot.fire_time
        run_ids = site.stores.run_log().runs_of_slots(oldest, newest, 2 * MOST_SLOTS)
    value = {
        "slots": [_slot_json(record, run_ids) for record in reversed(shown) if not is_missed(record)],
        "upcoming": [
            {"pipeline": name, "at": at.isoformat()} for at, name in _upcoming(site, max(now, since), until)
        ],
        "missed": [_slot_json(record, run_ids) for record in reversed(shown) if is_missed(record)],
        "holds": mask_all([hold.to_json() for hold in site.stores.actions().holds()]),
    }
    return Answer(value, body=plain_json_bytes(value))  # its reasons and holds are masked


def _slot_json(record: SlotRecord, run_ids: dict[tuple[str, dt.datetime], str]) -> dict[str, Any]:
    return {
        "pipeline": record.slot.pipeline,
        "at": record.slot.fire_time.isoformat(),
        "status": record.status,
        "run_id": run_ids.get((record.slot.pipeline, record.slot.fire_time)),
        "reason": None if record.reason is None else mask(record.reason),
        "failures": record.failures,
    }


def _upcoming(site: Site, after: dt.datetime, until: dt.datetime) -> list[tuple[dt.datetime, str]]:
    """The next fires of all schedules, the earliest `MOST_SLOTS`. Equal schedules are computed once."""
    names: dict[Schedule, list[str]] = {}
    for declared in site.registry.pipelines.values():
        spec = declared.spec
        if spec.schedule is not None:
            names.setdefault(Schedule(spec.schedule, spec.timezone or "UTC"), []).append(spec.name)
    for workflow in site.registry.workflows.values():
        if workflow.schedule is not None:
            schedule = Schedule(workflow.schedule, workflow.timezone or "UTC")
            names.setdefault(schedule, []).append(f"workflow:{workflow.name}")
    found: list[tuple[dt.datetime, str]] = []
    for at, group in heapq.merge(*(_fires(schedule, its, after, until) for schedule, its in names.items())):
        found += [(at, name) for name in group]
        if len(found) >= MOST_SLOTS:
            break
    return found[:MOST_SLOTS]


def _fires(
    schedule: Schedule, names: list[str], after: dt.datetime, until: dt.datetime
) -> Iterator[tuple[dt.datetime, list[str]]]:
    return ((at, names) for at in schedule.fire_times(after, until))
