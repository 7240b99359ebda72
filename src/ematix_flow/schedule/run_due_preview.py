"""Predicts what ``flow run-due`` would do now, without doing it: every run is assumed to succeed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ematix_flow.run.context_setup import refuse_spark
from ematix_flow.run.last_runs import last_success
from ematix_flow.run.pipeline import open_connections
from ematix_flow.run.recovery import slot_is_done
from ematix_flow.schedule.due_slots import is_missed
from ematix_flow.schedule.run_due import SlotRunner
from ematix_flow.schedule.slot_lifecycle import ALREADY_LOADED, AttemptEnd, claim_slot, describe_holder
from ematix_flow.schedule.upstream_gate import check_upstreams
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord
from ematix_flow.state.slots.dry_run import DryRunSlotStore
from ematix_flow.state.times import format_utc


@dataclass(frozen=True)
class PredictedOutcome:
    """The predicted outcome of a slot. ``why`` is None if its schedule or workflow has just fired."""

    slot: Slot
    would: Literal["run", "wait", "succeed", "be skipped", "be given up"]
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.slot.pipeline,
            "slot": self.slot.fire_time.isoformat(),
            "would": self.would.replace(" ", "_"),
            "why": self.why,
        }


def predict_due_runs(runner: SlotRunner, interval: dt.timedelta) -> list[PredictedOutcome]:
    """Predict the outcome of all unfinished slots and of those that would be opened now. Changes nothing.

    Slots that workflows would open after these have run are left out.
    """
    store = DryRunSlotStore(runner.store)
    rehearsed = replace(runner, store=store)
    due = rehearsed.poll(rehearsed.due_calculator(interval))
    rehearsal = _Prediction(rehearsed, store)
    missed = [record for record in store.changed_records() if is_missed(record)]
    found = [
        PredictedOutcome(record.slot, "be skipped", record.reason)
        for record in missed
        if record.slot.pipeline in runner.names
    ]
    found += rehearsal.waiting_slots({record.slot for record in due})
    found += [rehearsal.predict(record) for record in due]
    return sorted(found, key=lambda each: (each.slot.fire_time, runner.pipeline_order[each.slot.pipeline]))


class _Prediction:
    def __init__(self, runner: SlotRunner, store: DryRunSlotStore) -> None:
        self.runner, self._store = runner, store
        self._now = store.now()
        self._held_slots = {record.slot.pipeline: record for record in runner.held_slots(runner.names)}
        self._predicted_runs: dict[str, RunRecord] = {}

    def waiting_slots(self, due: Collection[Slot]) -> Iterator[PredictedOutcome]:
        """Return the slots that are not due yet, or that another process holds."""
        for record in self._store.unfinished(list(self.runner.names)):
            if record.slot in due:
                continue
            if record.status == "claimed":
                yield PredictedOutcome(record.slot, "wait", describe_holder(record))
            else:
                next_attempt = f"again at {format_utc(record.not_before, seconds=True)}"
                yield PredictedOutcome(
                    record.slot, "wait", f"{self._attempts_so_far(record) or 'it waits'}; {next_attempt}"
                )

    def predict(self, record: SlotRecord) -> PredictedOutcome:
        slot = record.slot
        spec = self.runner.registry.pipeline(slot.pipeline).spec
        if slot.pipeline in self._held_slots:
            return PredictedOutcome(slot, "wait", describe_holder(self._held_slots[slot.pipeline]))
        upstreams = self._store.unfinished(spec.depends_on) if spec.depends_on else ()
        found = check_upstreams(spec, slot, self._now, upstreams, self._store.latest, self._last_success)
        if found.verdict == "wait":
            return PredictedOutcome(slot, "wait", found.reason)

        def is_done() -> bool | None:
            connections = open_connections(refuse_spark)
            return slot_is_done(spec, slot.fire_time, connections, self.runner.run_log, only_asked=True)

        claim = claim_slot(
            self._store,
            record,
            self.runner.holder,
            self.runner.lease_seconds,
            spec.retry,
            is_done=is_done,
        )
        if isinstance(claim, AttemptEnd) and claim.succeeded:
            self._note_success(slot)
            return PredictedOutcome(slot, "succeed", ALREADY_LOADED)
        if isinstance(claim, AttemptEnd):
            return PredictedOutcome(slot, "be given up", claim.reason)
        assert claim is not None  # no other process uses this store
        if found.verdict == "skip" and record.fence and is_done():
            self._store.end(claim, "succeeded", ALREADY_LOADED)
            self._note_success(slot)
            return PredictedOutcome(slot, "succeed", ALREADY_LOADED)
        return self._predict_claimed(spec, record, claim, found.reason if found.verdict == "skip" else None)

    def _predict_claimed(
        self, spec: PipelineSpec, record: SlotRecord, claim: Claim, skipped: str | None
    ) -> PredictedOutcome:
        if skipped is not None:
            self._store.end(claim, "skipped", skipped)
            return PredictedOutcome(record.slot, "be skipped", skipped)
        self._store.end(claim, "succeeded")
        before = ", ".join(name for name in spec.depends_on if name in self._predicted_runs)
        self._note_success(record.slot)
        reasons = [self._attempts_so_far(record), f"after {before}, if that succeeds" if before else ""]
        return PredictedOutcome(record.slot, "run", "; ".join(filter(None, reasons)) or None)

    def _note_success(self, slot: Slot) -> None:
        name, now = slot.pipeline, self._now
        self._predicted_runs[name] = RunRecord(
            "foreseen", name, "", "", status="succeeded", slot=slot.fire_time, started_at=now, finished_at=now
        )

    def _attempts_so_far(self, record: SlotRecord) -> str:
        """Describe the attempts so far; empty if the slot has just fired."""
        allowed = self.runner.registry.pipeline(record.slot.pipeline).spec.retry.max_attempts
        if record.status == "claimed" and record.expires_at is not None:
            return f"{record.holder} sent no heartbeat until {format_utc(record.expires_at, seconds=True)}"
        if record.failures:
            return f"attempt {record.failures} of {allowed} failed: {record.reason}"
        return record.reason or ""

    def _last_success(self, upstream: str) -> RunRecord | None:
        return self._predicted_runs.get(upstream) or last_success(self.runner.run_log, upstream)
