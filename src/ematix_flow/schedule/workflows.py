"""Workflows: what starts one, the slots of its jobs, and when it has ended.

A workflow has slots like a pipeline. Its schedule opens one, or its trigger when it is satisfied. The slot
opens a slot of every job with the same fire time, and ends when all of these have ended. It succeeds if all
of them succeed.

A trigger depends on how each upstream last ended. A success that no firing has used is new. When new
successes satisfy the tree of ``AllOf`` and ``AnyOf``, the workflow fires and uses all of them. A firing is
one row, stored once even if several processes write it, and names the ends that it used: so no end starts
a workflow twice, and none is lost.

A clear or a restart may change a job while its workflow ends. So a workflow is claimed before its jobs are
read, and who changes a job takes that claim away, or reopens a workflow that has ended.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ematix_flow.run.last_runs import LastEnd
from ematix_flow.schedule.due_slots import ScheduleEntry, is_missed
from ematix_flow.spec.schedules import Schedule
from ematix_flow.spec.workflows import Trigger, WorkflowSpec
from ematix_flow.state.slots.base import (
    CLOCK_STEP,
    ENDED,
    ENDING_CLAIM_SECONDS,
    Claim,
    Slot,
    SlotRecord,
    SlotStatus,
    SlotStore,
)
from ematix_flow.state.times import format_utc

SLOT_NAME_PREFIX = "workflow:"
_FIRINGS_SUFFIX = ":firings"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MAX_USED_ENDS = 20  # of each upstream, that a firing keeps
_LOOKBACK = 50
_MAX_TRIES = 5  # for a slot that others change at the same time
MAX_UNFINISHED = 1_000  # slots of one workflow that may wait for their jobs at once
TOO_MANY_UNFINISHED = (
    f"{MAX_UNFINISHED:,} earlier slots of this workflow have not ended: its jobs do not end, or run less "
    "often than it fires"
)

_log = logging.getLogger(__name__)

LastEnds = Callable[[Sequence[str]], Mapping[str, LastEnd]]


@dataclass(frozen=True)
class WorkflowFiring:
    """The last time a trigger was satisfied, and the ends that firings have used, by upstream."""

    number: int = 0
    fired_at: dt.datetime | None = None
    used_ends: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_text(self) -> str:
        return json.dumps(
            {"at": self.fired_at.isoformat() if self.fired_at else None, "used": self.used_ends}
        )

    @classmethod
    def from_record(cls, record: SlotRecord | None) -> WorkflowFiring:
        if record is None:
            return cls()
        stored = json.loads(record.reason or "{}")
        number = round((record.slot.fire_time - _EPOCH).total_seconds())
        return cls(number, dt.datetime.fromisoformat(stored["at"]), stored["used"])


class WorkflowSlots:
    """Opens and ends the slots of workflows. ``runs`` returns how pipelines last ended."""

    def __init__(self, specs: Sequence[WorkflowSpec], runs: LastEnds) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self._last_ends_of = runs

    def scheduled(self) -> Iterator[ScheduleEntry]:
        for spec in self.specs.values():
            if spec.schedule is not None:
                schedule = Schedule(spec.schedule, spec.timezone or "UTC")
                yield ScheduleEntry(slot_name(spec.name), schedule, spec.catchup)

    def jobs(self) -> set[str]:
        return {job for spec in self.specs.values() for job in spec.jobs}

    def advance(self, store: SlotStore) -> None:
        """End the slots whose jobs have ended, and open a slot for each trigger that is satisfied now."""
        now = store.now()
        unfinished = self._unfinished(store)
        known = _known_job_slots(store, unfinished)
        for spec, record in unfinished:
            if _ended_jobs(spec, record, known) is None:
                continue
            if not record.is_due(now) and not _end_wait_if_fired(store, record, now):
                continue
            claim = store.claim(record, "workflow", ENDING_CLAIM_SECONDS)
            if claim is not None:
                _end_workflow(store, spec, record, claim)
        self._fire_triggers(store)

    def open_fired(self, store: SlotStore, wanted: Iterable[Slot]) -> None:
        """Open the fired slots of workflows and pipelines, up to the limit of unfinished slots per workflow.

        Slots beyond the limit are skipped; with ``catchup="all"`` a later poll opens them.
        """
        specs = {slot_name(name): spec for name, spec in self.specs.items()}
        number = (
            self._count_unfinished(store) if any(slot.pipeline in specs for slot in wanted) else Counter()
        )
        fits: list[Slot] = []
        skipped: list[Slot] = []
        for slot in wanted:
            spec = specs.get(slot.pipeline)
            if spec is None or number[slot.pipeline] < MAX_UNFINISHED:
                fits.append(slot)
                number[slot.pipeline] += 1
            elif spec.catchup != "all":
                skipped.append(slot)
        if fits:
            store.open(fits)
        if skipped:
            self._skip_slots(store, skipped)

    def _skip_slots(self, store: SlotStore, slots: Sequence[Slot]) -> None:
        if store.open(slots, "skipped", TOO_MANY_UNFINISHED):
            for slot in slots:
                _log.warning(
                    "%s of %s is skipped: %s", slot.pipeline, format_utc(slot.fire_time), TOO_MANY_UNFINISHED
                )

    def _count_unfinished(self, store: SlotStore) -> Counter[str]:
        """Return the number of unfinished slots of each workflow."""
        return Counter(record.slot.pipeline for _, record in self._unfinished(store))

    def open_jobs(self, store: SlotStore, until: dt.datetime, not_yet: Collection[str] = ()) -> None:
        """Open the slots of jobs, with the fire time of their workflow's slot, up to ``until``.

        Until then the jobs' own fires are opened: a later slot would hide one of them. ``not_yet`` are
        pipelines with older fires that are not opened yet.
        """
        unfinished = [
            (spec, record)
            for spec, record in self._unfinished(store)
            if record.slot.fire_time <= until and not set(spec.jobs) & set(not_yet)
        ]
        known = _known_job_slots(store, unfinished)
        wanted = [slot for spec, record in unfinished for slot in job_slots(spec, record)]
        if new := [slot for slot in wanted if slot not in known]:
            store.open(new)
        for slot, job in known.items():
            if is_missed(job):  # its own schedule missed it, but the workflow needs it
                store.reopen(slot)

    def firings(self, store: SlotStore) -> dict[str, WorkflowFiring]:
        """Return the newest firing of each workflow that has a trigger."""
        names = {
            name: slot_name(name) + _FIRINGS_SUFFIX for name, spec in self.specs.items() if spec.triggered_by
        }
        newest = store.newest(list(names.values()))
        return {name: WorkflowFiring.from_record(newest.get(key)) for name, key in names.items()}

    def last_ends(self, store: SlotStore) -> dict[str, LastEnd]:
        """Return how each pipeline and workflow that a trigger names last ended."""
        triggers = [spec.triggered_by for spec in self.specs.values() if spec.triggered_by is not None]
        names = {name for trigger in triggers for name in trigger.names()}
        ends = dict(self._last_ends_of(sorted(names)))
        others = {slot_name(name): name for name in names if name not in ends}
        for key, newest in store.newest(list(others)).items() if others else ():
            end = _last_workflow_end(store, newest)
            if end is not None:
                ends[others[key]] = end
        return ends

    def waits_for(self, name: str, firing: WorkflowFiring, ends: Mapping[str, LastEnd]) -> list[str]:
        """Describe what a workflow's trigger waits for; empty if it is satisfied."""
        trigger = self.specs[name].triggered_by
        assert trigger is not None
        missing = unsatisfied_part(trigger, new_ends(trigger, firing, ends))
        if missing is None:
            return []
        since = f" since {format_utc(firing.fired_at)}" if firing.fired_at else ""
        failed = [
            name for name in dict.fromkeys(missing.names()) if name in ends and not ends[name].succeeded
        ]
        return [f"a success of {missing}{since}", *(f"{name} {ends[name].summary}" for name in failed)]

    def _fire_triggers(self, store: SlotStore) -> None:
        firings = self.firings(store)
        if not firings:
            return
        ends = self.last_ends(store)
        self._open_newest_firings(store, firings)
        number: Counter[str] | None = None
        for name, firing in firings.items():
            trigger = self.specs[name].triggered_by
            assert trigger is not None
            new = new_ends(trigger, firing, ends)
            if not is_satisfied(trigger, new):
                continue
            at = store.now()
            if (
                firing.fired_at is not None and firing.fired_at - at < CLOCK_STEP
            ):  # otherwise a clock was ahead
                at = max(at, firing.fired_at + dt.timedelta(microseconds=1))
            used = {upstream: [*firing.used_ends.get(upstream, ()), end] for upstream, end in new.items()}
            newest = {upstream: each[-_MAX_USED_ENDS:] for upstream, each in used.items()}
            following = WorkflowFiring(firing.number + 1, at, {**firing.used_ends, **newest})
            row = Slot(slot_name(name) + _FIRINGS_SUFFIX, _EPOCH + dt.timedelta(seconds=following.number))
            if store.open([row], "succeeded", following.to_text()) == 1:
                cause = f"after {', '.join(sorted(new))}"
                number = self._count_unfinished(store) if number is None else number
                if number[slot_name(name)] >= MAX_UNFINISHED:
                    self._skip_slots(store, [Slot(slot_name(name), at)])
                    continue
                store.open([Slot(slot_name(name), at)], reason=cause)
                _log.info("workflow %s fires %s", name, cause)

    def _open_newest_firings(self, store: SlotStore, firings: Mapping[str, WorkflowFiring]) -> None:
        """Open the slots of the newest firings: the process that stored the firing may have died before.

        If a newer slot is known, this one was opened before and has been purged since.
        """
        slots = [
            Slot(slot_name(name), firing.fired_at) for name, firing in firings.items() if firing.fired_at
        ]
        known = store.get_many(slots)
        unknown = {slot.pipeline: slot for slot in slots if slot not in known}
        if unknown:
            last, now = store.last_fires(list(unknown)), store.now()
            never = dt.datetime.min.replace(tzinfo=dt.timezone.utc)
            known_until = {name: at for name, at in last.items() if at - now < CLOCK_STEP}
            store.open(
                [slot for name, slot in unknown.items() if known_until.get(name, never) < slot.fire_time]
            )

    def _unfinished(self, store: SlotStore) -> list[tuple[WorkflowSpec, SlotRecord]]:
        by_slot = {slot_name(name): spec for name, spec in self.specs.items()}
        found = store.unfinished(list(by_slot)) if by_slot else ()
        return [(by_slot[record.slot.pipeline], record) for record in found]


def slot_name(workflow: str) -> str:
    """Return the name under which a workflow's slots are stored; no pipeline has such a name."""
    return SLOT_NAME_PREFIX + workflow


def stored_names(specs: Iterable[WorkflowSpec]) -> Iterator[str]:
    """Yield the names under which the store keeps workflows: their slots and their firings."""
    for spec in specs:
        yield slot_name(spec.name)
        yield slot_name(spec.name) + _FIRINGS_SUFFIX


def end_again(store: SlotStore, slot: Slot) -> None:
    """Let a workflow's slot end again: the slot of one of its jobs has changed since it ended.

    Also if a process is about to end it by what it has read before.
    """
    for _ in range(_MAX_TRIES):
        record = store.get(slot)
        if record is None or record.status in ("waiting", "succeeded"):
            return
        if record.status == "claimed":
            claim = Claim(slot, record.holder or "", record.fence, record.failures, record.deaths)
            if store.retry_later(claim, 0.0, record.reason, failed=False):
                return
        elif store.reopen(slot):
            return


def job_slots(spec: WorkflowSpec, record: SlotRecord) -> list[Slot]:
    return [Slot(job, record.slot.fire_time) for job in spec.jobs]


def _ended_jobs(
    spec: WorkflowSpec, record: SlotRecord, known: Mapping[Slot, SlotRecord]
) -> list[SlotRecord] | None:
    """Return the slots of the jobs, None if one of them has not ended."""
    jobs = (known.get(slot) for slot in job_slots(spec, record))
    ended = [each for each in jobs if each and each.status in ENDED and not is_missed(each)]
    return ended if len(ended) == len(spec.jobs) else None


def _end_workflow(store: SlotStore, spec: WorkflowSpec, record: SlotRecord, claim: Claim) -> None:
    """End the slot as its jobs are now. If one of them waits again, so does the slot."""
    ended = _ended_jobs(spec, record, store.get_many(job_slots(spec, record)))
    if ended is None:
        store.retry_later(claim, 0.0, record.reason, failed=False)
    else:
        store.end(claim, *_workflow_outcome(ended))


def _end_wait_if_fired(store: SlotStore, record: SlotRecord, now: dt.datetime) -> bool:
    """End the wait of a slot that was opened while a clock was ahead, if its fire time has come."""
    return record.status == "waiting" and record.slot.fire_time <= now and store.end_wait(record)


def _known_job_slots(
    store: SlotStore, unfinished: Iterable[tuple[WorkflowSpec, SlotRecord]]
) -> dict[Slot, SlotRecord]:
    """Return the known slots of all their jobs, by one query."""
    wanted = dict.fromkeys(slot for spec, record in unfinished for slot in job_slots(spec, record))
    return store.get_many(list(wanted)) if wanted else {}


def new_ends(trigger: Trigger, firing: WorkflowFiring, ends: Mapping[str, LastEnd]) -> dict[str, str]:
    """Return the successes that no firing has used, by upstream."""
    return {
        name: ends[name].event
        for name in trigger.names()
        if name in ends and ends[name].succeeded and ends[name].event not in firing.used_ends.get(name, ())
    }


def is_satisfied(trigger: Trigger, new: Collection[str]) -> bool:
    each = (is_satisfied(m, new) if isinstance(m, Trigger) else m in new for m in trigger.members)
    return all(each) if trigger.kind == "all" else any(each)


def unsatisfied_part(trigger: Trigger, new: Collection[str]) -> Trigger | None:
    """Return the part of a trigger that these do not satisfy; None if it is satisfied."""
    if is_satisfied(trigger, new):
        return None
    left: list[str | Trigger] = []
    for member in trigger.members:
        rest = unsatisfied_part(member, new) if isinstance(member, Trigger) else member
        if rest is not None and rest not in new:
            left.append(rest)
    only = left[0] if len(left) == 1 else None
    return only if isinstance(only, Trigger) else Trigger(trigger.kind, tuple(left))


def _workflow_outcome(jobs: Sequence[SlotRecord]) -> tuple[SlotStatus, str | None]:
    bad = [job for job in jobs if job.status != "succeeded"]
    if not bad:
        return "succeeded", None
    first = min(bad, key=lambda job: job.status != "gave_up")  # a skipped job was skipped because of another
    word = "was given up" if first.status == "gave_up" else "was skipped"
    reason = f"{first.slot.pipeline} {word}: {first.reason or 'no reason is known'}"
    return "gave_up", f"{len(bad)} of {len(jobs)} jobs did not succeed; {reason}"


def _last_workflow_end(store: SlotStore, newest: SlotRecord) -> LastEnd | None:
    """Return the end of a workflow's newest ended slot."""
    record: SlotRecord | None = newest
    for _ in range(_LOOKBACK):
        if record is None:
            return None
        if record.status in ENDED and not is_missed(record):
            well = record.status == "succeeded"
            summary = f"{record.status.replace('_', ' ')} at {format_utc(record.slot.fire_time)}"
            event = f"slot:{record.slot.fire_time.isoformat()}/{record.fence}"
            return LastEnd(event, well, summary)
        record = store.latest(newest.slot.pipeline, record.slot.fire_time - dt.timedelta(microseconds=1))
    return None
