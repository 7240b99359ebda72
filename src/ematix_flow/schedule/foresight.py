"""What ``flow run-due`` would do now, found out without doing it: every run is taken to succeed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ematix_flow.schedule.due import is_missed
from ematix_flow.schedule.endings import last_success
from ematix_flow.schedule.gates import gate, shown
from ematix_flow.schedule.run import open_world
from ematix_flow.schedule.run_due import Runner, no_spark
from ematix_flow.schedule.settle import slot_is_done
from ematix_flow.schedule.slots import LOADED, Ended, take, told_held
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.records import RunRecord
from ematix_flow.state.slots import Claim, Slot, SlotRecord
from ematix_flow.state.slots_rehearsed import RehearsedSlots


@dataclass(frozen=True)
class Foreseen:
    """What would become of a slot, and why; None for one that its schedule or workflow has just fired."""

    slot: Slot
    would: Literal["run", "wait", "succeed", "be skipped", "be given up"]
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.slot.pipeline,
            "slot": self.slot.at.isoformat(),
            "would": self.would.replace(" ", "_"),
            "why": self.why,
        }


def foresee(runner: Runner, interval: dt.timedelta) -> list[Foreseen]:
    """Of all slots that have not ended, and of those that would be opened now. Nothing is changed.

    What workflows start once these have run is not among them.
    """
    store = RehearsedSlots(runner.store)
    rehearsed = replace(runner, store=store)
    due = rehearsed.look(rehearsed.agenda(interval))
    rehearsal = _Rehearsal(rehearsed, store)
    missed = [record for record in store.opened() if is_missed(record)]
    found = [
        Foreseen(record.slot, "be skipped", record.reason)
        for record in missed
        if record.slot.pipeline in runner.names
    ]
    found += rehearsal.waiting({record.slot for record in due})
    found += [rehearsal.decided(record) for record in due]
    return sorted(found, key=lambda each: (each.slot.at, runner.places[each.slot.pipeline]))


class _Rehearsal:
    def __init__(self, runner: Runner, store: RehearsedSlots) -> None:
        self.runner, self._store = runner, store
        self._now = store.now()
        self._held = {record.slot.pipeline: record for record in runner.held(runner.names)}
        self._ran: dict[str, RunRecord] = {}

    def waiting(self, due: Collection[Slot]) -> Iterator[Foreseen]:
        """What is not due yet, or another has."""
        for record in self._store.unended(list(self.runner.names)):
            if record.slot in due:
                continue
            if record.status == "claimed":
                yield Foreseen(record.slot, "wait", told_held(record))
            else:
                again = f"again at {shown(record.not_before, seconds=True)}"
                yield Foreseen(record.slot, "wait", f"{self._tried(record) or 'it waits'}; {again}")

    def decided(self, record: SlotRecord) -> Foreseen:
        slot = record.slot
        spec = self.runner.registry.pipeline(slot.pipeline).spec
        if slot.pipeline in self._held:
            return Foreseen(slot, "wait", told_held(self._held[slot.pipeline]))
        upstreams = self._store.unended(spec.depends_on) if spec.depends_on else ()
        found = gate(spec, slot, self._now, upstreams, self._store.latest, self._last_success)
        if found.verdict == "wait":
            return Foreseen(slot, "wait", found.reason)

        def is_done() -> bool | None:
            world = open_world(no_spark)
            return slot_is_done(spec, slot.at, world, self.runner.run_log, only_asked=True)

        claim = take(
            self._store,
            record,
            self.runner.holder,
            self.runner.lease_seconds,
            spec.retry,
            is_done=is_done,
        )
        if isinstance(claim, Ended) and claim.succeeded:
            self._note_success(slot)
            return Foreseen(slot, "succeed", LOADED)
        if isinstance(claim, Ended):
            return Foreseen(slot, "be given up", claim.reason)
        assert claim is not None  # nobody else has this store
        if found.verdict == "skip" and record.fence and is_done():
            self._store.end(claim, "succeeded", LOADED)
            self._note_success(slot)
            return Foreseen(slot, "succeed", LOADED)
        return self._ended(spec, record, claim, found.reason if found.verdict == "skip" else None)

    def _ended(self, spec: PipelineSpec, record: SlotRecord, claim: Claim, skipped: str | None) -> Foreseen:
        if skipped is not None:
            self._store.end(claim, "skipped", skipped)
            return Foreseen(record.slot, "be skipped", skipped)
        self._store.end(claim, "succeeded")
        before = ", ".join(name for name in spec.depends_on if name in self._ran)
        self._note_success(record.slot)
        told = [self._tried(record), f"after {before}, if that succeeds" if before else ""]
        return Foreseen(record.slot, "run", "; ".join(filter(None, told)) or None)

    def _note_success(self, slot: Slot) -> None:
        name, now = slot.pipeline, self._now
        self._ran[name] = RunRecord(
            "foreseen", name, "", "", status="succeeded", slot=slot.at, started_at=now, finished_at=now
        )

    def _tried(self, record: SlotRecord) -> str:
        """What became of it so far; empty when it has only just fired."""
        allowed = self.runner.registry.pipeline(record.slot.pipeline).spec.retry.max_attempts
        if record.status == "claimed" and record.expires_at is not None:
            return f"{record.holder} was not heard of until {shown(record.expires_at, seconds=True)}"
        if record.failures:
            return f"attempt {record.failures} of {allowed} failed: {record.reason}"
        return record.reason or ""

    def _last_success(self, upstream: str) -> RunRecord | None:
        return self._ran.get(upstream) or last_success(self.runner.run_log, upstream)
