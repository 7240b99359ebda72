"""A store over a bad network, and a record of everything that the store has granted and done.

Each call may end its process, fail, take long or hang, before or after it took effect. The record
has what took effect, even if the caller got no answer.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.errors import ConfigError
from ematix_flow.schedule.slot_lifecycle import MAX_DEATHS
from ematix_flow.spec.retry_policy import RetryPolicy
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord, SlotStatus
from ematix_flow.state.slots.scheduler_lease import SchedulerLease
from tests.simulation.virtual_time import Kernel, Process, ProcessDied, current


class Unreachable(ConfigError):
    """What stores raise when a request or its answer was lost."""


@dataclass
class Network:
    """The chance of each fault for each call."""

    kernel: Kernel
    fault: float = 0.0  # a quarter each: death, error, delay, standstill
    longest_pause: float = 120.0
    seen: Counter[str] = field(default_factory=Counter)

    def call(self, work: Callable[[], Any]) -> Any:
        process = current().process
        if not process.is_alive:
            raise ProcessDied
        roll = self.kernel.chance.random()
        if roll >= self.fault:
            return work()
        kind, after = divmod(int(roll / self.fault * 8), 2)
        if not after:
            self._fault(kind, process)
        answer = work()
        if after:
            self._fault(kind, process)
        return answer

    def _fault(self, kind: int, process: Process) -> None:
        process.was_hurt = True
        self.seen[("death", "error", "delay", "pause")[kind]] += 1
        if kind == 0:
            self.kernel.kill(process)
            raise ProcessDied
        if kind == 1:
            raise Unreachable("the store did not answer")
        if kind == 3:
            process.paused_until = self.kernel.time + self.kernel.chance.uniform(0, self.longest_pause)
        self.kernel.sleep(self.kernel.chance.uniform(0, 5))


class Faulty:
    """An object behind a network. ``heard`` gets each call that took effect."""

    def __init__(self, network: Network, real: Any, heard: object = None) -> None:
        self._network, self._real, self._heard = network, real, heard

    def __getattr__(self, name: str) -> Any:
        method, told = getattr(self._real, name), getattr(self._heard, name, None)

        def asked(*given: Any, **named: Any) -> Any:
            def work() -> Any:
                answer = method(*given, **named)
                if told is not None:
                    told(answer, *given, **named)
                return answer

            return self._network.call(work)

        setattr(self, name, asked)
        return asked


@dataclass
class Held:
    """A claim that was granted, until it is over."""

    fence: int
    expires: dt.datetime
    is_over: bool = False
    begun_by: Process | None = None
    jumps: int = 0  # of the clock, before
    not_before: dt.datetime | None = None


@dataclass
class Books:
    """Follows every slot and lease. ``broken`` describes each violation of a rule."""

    clock: Callable[[], dt.datetime]
    policies: Mapping[str, RetryPolicy]
    left: Callable[[], list[SlotRecord]]  # the store's own unfinished
    upstreams: Mapping[str, tuple[str, ...]]
    broken: list[str] = field(default_factory=list)
    claims: dict[Slot, Held] = field(default_factory=dict)
    leases: dict[str, tuple[str, dt.datetime]] = field(default_factory=dict)
    at_work: dict[Slot, Process] = field(default_factory=dict)  # whose run has the pipeline's lock
    failed: Counter[Slot] = field(default_factory=Counter)  # attempts that did fail
    told_failed: Counter[Slot] = field(default_factory=Counter)  # those that the store believed
    deaths: Counter[Slot] = field(default_factory=Counter)
    ended: dict[Slot, tuple[SlotStatus, str | None]] = field(default_factory=dict)
    opened: dict[Slot, int] = field(default_factory=dict)  # the number of the call, the last that did so
    seen_unfinished: dict[Process, int] = field(default_factory=dict)  # as above
    begun: set[tuple[Slot, Process]] = field(default_factory=set)
    jumps: int = 0  # of the clock
    reopened: set[Slot] = field(default_factory=set)
    by_hand: set[Slot] = field(default_factory=set)  # ended without a claim
    counts: Counter[str] = field(default_factory=Counter)
    calls: int = 0

    def breaks(self, what: str) -> None:
        self.broken.append(f"{self.clock():%H:%M:%S} {current().process.name}: {what}")

    def starts(self, slot: Slot) -> None:
        """A run has the lock of its pipeline, and begins to load."""
        here = current().process
        if (slot, here) not in self.begun:
            self.breaks(f"{slot} is run by a process that has not begun a claim of it")
        self.at_work[slot] = here

    # ------------------------------------------------------------------ what the store has done

    def open(
        self,
        new: int,
        wanted: Any,
        status: SlotStatus = "waiting",
        reason: str | None = None,
        holder: str | None = None,
    ) -> None:
        self.calls += 1
        for slot in wanted:
            if slot not in self.opened:
                self.opened[slot] = self.calls
                if status != "waiting":
                    self.ended[slot] = (status, reason)

    def unfinished(self, found: object, *given: object) -> None:
        self.calls += 1
        self.seen_unfinished[current().process] = self.calls

    def claim(self, claim: Claim | None, seen: SlotRecord, holder: str, seconds: float) -> None:
        if claim is None:
            return
        now, before = self.clock(), self.claims.get(claim.slot)
        if claim.slot in self.ended:
            self.breaks(f"{claim} of a slot that has ended")
        if before is not None:
            if before.fence >= claim.fence:
                self.breaks(f"{claim} is not newer than fence {before.fence}")
            if not before.is_over and before.expires > now:
                self.breaks(f"{claim} while fence {before.fence} holds until {before.expires:%H:%M:%S}")
            if before.not_before is not None and now < before.not_before:
                self.breaks(f"{claim} before its pause ends at {before.not_before:%H:%M:%S}")
            if not before.is_over:
                self.counts["taken over"] += 1
                self.deaths[claim.slot] += before.begun_by is not None
                worker = self.at_work.get(claim.slot)
                is_well = worker is not None and worker.is_alive and not worker.was_hurt
                if is_well and worker is before.begun_by and before.jumps == self.jumps:
                    self.breaks(f"{claim} is taken over from a run that is well")
        self.claims[claim.slot] = Held(claim.fence, now + dt.timedelta(seconds=seconds), jumps=self.jumps)
        self._check_upstreams(claim.slot)

    def claim_all(self, claims: list[Claim], seen: Sequence[SlotRecord], holder: str, seconds: float) -> None:
        records = {record.slot: record for record in seen}
        for claim in claims:
            self.claim(claim, records[claim.slot], holder, seconds)

    def end_all(
        self, ended: Collection[Slot], reasons: Mapping[Claim, str | None], status: SlotStatus
    ) -> None:
        for claim, reason in reasons.items():
            self.end(claim.slot in ended, claim, status, reason)

    def _check_upstreams(self, slot: Slot) -> None:
        """None of the slots that it knew may still wait to run."""
        upstreams = self.upstreams.get(slot.pipeline, ())
        looked = self.seen_unfinished.get(current().process, 0)
        for record in self.left() if upstreams else ():
            known = self.opened.get(record.slot, looked) < looked
            if record.slot.pipeline in upstreams and record.slot.fire_time <= slot.fire_time and known:
                self.breaks(f"{slot} is claimed before {record}")

    def renew(self, kept: bool, claim: Claim, seconds: float, reason: str | None = None) -> None:
        if kept:
            self._newest(claim, "renewed").expires = self.clock() + dt.timedelta(seconds=seconds)

    def begin(self, begun: bool, claim: Claim, seconds: float, holder: str | None = None) -> None:
        if not begun:
            self.counts["not begun"] += 1
            return
        held = self._newest(claim, "begun")
        if held.begun_by is not None:
            self.breaks(f"{claim} is begun by two runs")
        held.begun_by = current().process
        self.begun.add((claim.slot, held.begun_by))
        held.expires = self.clock() + dt.timedelta(seconds=seconds)

    def end(self, done: bool, claim: Claim, status: SlotStatus, reason: str | None = None) -> None:
        if not done:
            self.counts["too late"] += 1
            return
        self._let_go(claim, "ended")
        slot, policy = claim.slot, self.policies.get(claim.slot.pipeline)
        if slot in self.ended:
            self.breaks(f"{slot} has ended twice: {self.ended[slot]} and {status}")
        self.ended[slot] = (status, reason)
        if status == "gave_up" and policy is not None:
            self.counts["gave up"] += 1
            spent = self.failed[slot] >= policy.max_attempts
            if not spent and self.deaths[slot] < max(MAX_DEATHS, policy.max_attempts):
                self.breaks(
                    f"{slot} was given up after {self.failed[slot]} failures, {self.deaths[slot]} deaths"
                )

    def retry_later(
        self, done: bool, claim: Claim, seconds: float, reason: str | None = None, *, failed: bool = True
    ) -> None:
        if not done:
            self.counts["too late"] += 1
            return
        held = self._let_go(claim, "given back")
        held.not_before = self.clock() + dt.timedelta(seconds=seconds)
        if failed:
            self.told_failed[claim.slot] += 1
            if self.told_failed[claim.slot] > self.failed[claim.slot]:
                self.breaks(f"{claim.slot} has more failures than failed")
            if self.told_failed[claim.slot] >= self.policies[claim.slot.pipeline].max_attempts:
                self.breaks(f"{claim.slot} is tried again after its last attempt")
        else:
            self.counts["given back"] += 1

    def reopen(self, done: bool, slot: Slot) -> None:
        if done:
            self.counts["reopened"] += 1
            self.reopened.add(slot)
            self.calls += 1
            self.opened[slot] = self.calls  # a process that polled before knows it as ended
            if slot in self.ended and self.ended[slot][0] == "succeeded":
                self.breaks(f"{slot} had succeeded and waits again")
            self.ended.pop(slot, None)
            self.failed[slot] = self.told_failed[slot] = self.deaths[slot] = 0

    def end_unclaimed(
        self, done: bool, seen: SlotRecord, status: SlotStatus, reason: str | None = None
    ) -> None:
        """By a person: a stop of a slot that waits, or a restart that has loaded it."""
        if not done:
            self.counts["end too late"] += 1
            return
        slot, held = seen.slot, self.claims.get(seen.slot)
        self.counts[f"by hand {status}"] += 1
        if held is not None and not held.is_over:
            self.breaks(f"{slot} was ended as {status} under the claim {held}")
        if slot in self.ended and (self.ended[slot][0] == "succeeded" or status != "succeeded"):
            self.breaks(f"{slot} has ended twice: {self.ended[slot]} and {status}")
        self.ended[slot] = (status, reason)
        self.by_hand.add(slot)
        if held is not None:
            held.not_before = None  # once it is reopened, it waits no longer

    def lease(self, lease: SchedulerLease | None, name: str, holder: str, seconds: float) -> None:
        if lease is not None:
            before, now = self.leases.get(name), self.clock()
            if before is not None and before[0] != holder and before[1] > now:
                self.breaks(f"{holder} leads while {before[0]} does until {before[1]:%H:%M:%S}")
            self.counts["leaders"] += before is None or before[0] != holder
            self.leases[name] = (holder, now + dt.timedelta(seconds=seconds))

    def release(self, _: None, lease: SchedulerLease) -> None:
        if self.leases[lease.name][0] == lease.holder:
            self.leases[lease.name] = (lease.holder, self.clock())

    # ------------------------------------------------------------------ a claim

    def _newest(self, claim: Claim, word: str) -> Held:
        held = self.claims[claim.slot]
        if held.fence != claim.fence or held.is_over:
            self.breaks(f"{claim} was {word}, and the newest is {held}")
        return held

    def _let_go(self, claim: Claim, word: str) -> Held:
        held, worker = self._newest(claim, word), self.at_work.get(claim.slot)
        held.is_over = True
        here = current().process
        if worker not in (None, here) and worker.is_alive and held.begun_by is worker:
            self.breaks(f"{claim} was {word} under the run that is at work")
        return held
