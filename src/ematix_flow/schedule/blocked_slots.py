"""Skips slots because of their upstreams: finds all of them together, and ends them together.

One poll may find thousands of them behind one failure. They cost the stores only a few transactions. A slot
with earlier attempts is left out here: each of those is first checked for whether it is loaded.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from ematix_flow.errors import FlowError
from ematix_flow.graph.registry import Registry
from ematix_flow.observe.observer import Observers
from ematix_flow.run.last_runs import last_successes, skipped_run_record
from ematix_flow.run.run_context import RunContext
from ematix_flow.schedule.upstream_gate import check_upstreams
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord, SlotStore

_log = logging.getLogger(__name__)


class SlotSkipper(Protocol):
    """What `skip_blocked_slots` needs of the process that polls: its stores, its name and its observers."""

    @property
    def registry(self) -> Registry: ...

    @property
    def store(self) -> SlotStore: ...

    @property
    def run_log(self) -> RunLog: ...

    @property
    def context(self) -> Callable[[Slot], RunContext]: ...

    @property
    def holder(self) -> str: ...

    @property
    def lease_seconds(self) -> float: ...

    @property
    def observers(self) -> Observers: ...


class UnfinishedSlots:
    """The slots that have not ended, by pipeline, as of one poll."""

    def __init__(self, records: Iterable[SlotRecord]) -> None:
        self._records: dict[str, dict[Slot, SlotRecord]] = {}
        for record in records:
            self._records.setdefault(record.slot.pipeline, {})[record.slot] = record

    def of_pipelines(self, pipelines: Sequence[str]) -> list[SlotRecord]:
        return [record for name in pipelines for record in self._records.get(name, {}).values()]

    def is_running(self, pipeline: str, now: dt.datetime) -> bool:
        """Whether a slot of the pipeline is claimed.

        A slot later than now (a clock was ahead) does not count.
        """
        found = [
            record for record in self._records.get(pipeline, {}).values() if record.slot.fire_time <= now
        ]
        return any(record.status == "claimed" and not record.is_due(now) for record in found)

    def mark_claimed(self, record: SlotRecord) -> None:
        claimed = replace(record, status="claimed", expires_at=None)
        self._records.setdefault(record.slot.pipeline, {})[record.slot] = claimed

    def drop(self, slot: Slot) -> None:
        self._records.get(slot.pipeline, {}).pop(slot, None)


def skip_blocked_slots(
    runner: SlotSkipper, due: Iterable[SlotRecord], now: dt.datetime, unfinished: UnfinishedSlots
) -> dict[Slot, str]:
    """Skip the due slots that their upstreams block, and return the reasons by slot.

    They are no longer unfinished. A skipped slot blocks its downstreams, so this repeats until
    nothing more is blocked.
    """
    specs = {name: runner.registry.pipeline(name).spec for name in {record.slot.pipeline for record in due}}
    left = [record for record in due if not record.fence and specs[record.slot.pipeline].depends_on]
    skipped: dict[Slot, str] = {}
    while left:
        found = _blocked_slots(runner, left, specs, now, unfinished)
        if not found:
            break
        ended = _skip_slots(runner, found, specs)
        for slot in ended:
            unfinished.drop(slot)
        skipped |= {record.slot: why for record, why in found.items() if record.slot in ended}
        behind = {slot.pipeline for slot in ended}
        left = [
            record
            for record in left
            if record not in found and behind & set(specs[record.slot.pipeline].depends_on)
        ]
    return skipped


def _blocked_slots(
    runner: SlotSkipper,
    records: Sequence[SlotRecord],
    specs: dict[str, PipelineSpec],
    now: dt.datetime,
    unfinished: UnfinishedSlots,
) -> dict[SlotRecord, str]:
    """Return the slots to skip now, with the reasons."""
    known = _UpstreamCache(runner, records, specs)
    found: dict[SlotRecord, str] = {}
    for record in records:
        spec = specs[record.slot.pipeline]
        before = unfinished.of_pipelines(spec.depends_on)
        gate = check_upstreams(spec, record.slot, now, before, known.latest, known.last_success)
        if gate.verdict == "skip":
            found[record] = gate.reason or ""
    return found


class _UpstreamCache:
    """The state of the upstreams of many slots, read by a few queries."""

    def __init__(
        self, runner: SlotSkipper, records: Sequence[SlotRecord], specs: dict[str, PipelineSpec]
    ) -> None:
        wanted = {Slot(name, r.slot.fire_time) for r in records for name in specs[r.slot.pipeline].depends_on}
        self._wanted = sorted(wanted, key=lambda slot: (slot.fire_time, slot.pipeline))
        self._names = sorted({slot.pipeline for slot in wanted})
        self._store: SlotStore = runner.store
        self._run_log = runner.run_log
        self._latest_by_slot: dict[Slot, SlotRecord | None] = {}

    @cached_property
    def _newest(self) -> dict[str, SlotRecord]:
        return self._store.newest(self._names)

    @cached_property
    def _same_fire_time(self) -> dict[Slot, SlotRecord]:
        return self._store.get_many(self._wanted)

    def last_success(self, pipeline: str) -> RunRecord | None:
        return self._successes.get(pipeline)

    @cached_property
    def _successes(self) -> dict[str, RunRecord]:
        return last_successes(self._run_log, self._names)

    def latest(self, pipeline: str, until: dt.datetime) -> SlotRecord | None:
        slot, newest = Slot(pipeline, until), self._newest.get(pipeline)
        if newest is None or newest.slot.fire_time <= until:
            return newest
        if slot in self._same_fire_time:
            return self._same_fire_time[slot]
        if slot not in self._latest_by_slot:
            self._latest_by_slot[slot] = self._store.latest(pipeline, until)
        return self._latest_by_slot[slot]


def _skip_slots(
    runner: SlotSkipper, found: dict[SlotRecord, str], specs: dict[str, PipelineSpec]
) -> Collection[Slot]:
    """Claim, record and end the slots. A crash in between records them twice, and never loses them."""
    reasons = {record.slot: why for record, why in found.items()}
    claims = runner.store.claim_all(list(found), runner.holder, runner.lease_seconds)
    _record_skips(runner, claims, reasons, specs)
    ended = runner.store.end_all({claim: reasons[claim.slot] for claim in claims}, "skipped")
    for claim in claims:
        slot = claim.slot
        if slot in ended:
            runner.observers.slot_ended(slot.pipeline, slot.fire_time, "skipped", reasons[slot])
    return ended


def _record_skips(
    runner: SlotSkipper, claims: Sequence[Claim], reasons: dict[Slot, str], specs: dict[str, PipelineSpec]
) -> None:
    slots = [claim.slot for claim in claims]
    try:
        runner.run_log.start_all(
            [
                skipped_run_record(
                    specs[slot.pipeline], reasons[slot], runner.context(slot).trigger, slot.fire_time
                )
                for slot in slots
            ]
        )
    except FlowError as error:
        _log.warning(
            "the run log did not record that %s slots are skipped: %s", f"{len(slots):,}", error.what
        )
