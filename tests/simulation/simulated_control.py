"""Schedulers and workers in virtual time, on a store that may lose requests and answers.

Every step of a process is a point at which it may die, pause or be overtaken. The seed decides everything.
"""

from __future__ import annotations

import bisect
import datetime as dt
import functools
import heapq
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from typing import Any, TypeVar

from ematix_flow.schedule.due import Agenda, Scheduled
from ematix_flow.schedule.slots import Ended, conclude, look, take
from ematix_flow.spec.pipelines import RetryPolicy
from ematix_flow.spec.schedules import Schedule
from ematix_flow.state.slots import Claim, Slot, SlotStore

T = TypeVar("T")
Process = Generator[float, None, None]  # yields how long it sleeps
EPOCH = dt.datetime(2026, 3, 28, 22, tzinfo=dt.timezone.utc)
LEASE, LEADER, INTERVAL = 30.0, 20.0, dt.timedelta(minutes=5)


@dataclass(frozen=True)
class KnownSchedule(Schedule):
    """Its fires are computed once for all courses: what is tried here is what is done with them."""

    def fires(self, after: dt.datetime, until: dt.datetime) -> Iterator[dt.datetime]:
        known = _all_fires(self)
        return takewhile(lambda at: at <= until, islice(known, bisect.bisect_right(known, after), None))


@functools.cache
def _all_fires(schedule: Schedule) -> list[dt.datetime]:
    return list(Schedule.fires(schedule, EPOCH - dt.timedelta(days=2), EPOCH + dt.timedelta(days=2)))


PIPELINES = (
    Scheduled("minutes", KnownSchedule("*/7 * * * *"), "all"),
    Scheduled("berlin", KnownSchedule("30 1,2,3 * * *", "Europe/Berlin"), "all"),
    Scheduled("latest", KnownSchedule("*/10 * * * *"), "last"),
)
POLICY = RetryPolicy(max_attempts=3, backoff="exponential", base_seconds=20)


class Unreachable(Exception):
    """A request or its answer was lost."""


@dataclass
class World:
    """Everything that is not a process: time, the store, the target and what it has seen."""

    seed: int
    make_store: Callable[[Callable[[], dt.datetime]], SlotStore]
    hours: float = 2.0
    clock: dt.datetime = EPOCH
    loaded: Counter[Slot] = field(default_factory=Counter)  # rows of a slot that readers see
    held: dict[Slot, Claim] = field(default_factory=dict)
    faults: bool = True
    deaths: int = 0
    noticed: int = 0
    given_back: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.store = self.make_store(lambda: self.clock)
        self.ready: list[tuple[dt.datetime, int, str, Process]] = []
        self.at_work: dict[str, Claim] = {}  # by the name of a worker
        self.started = 0

    # -------------------------------------------------------------- faults

    def asked(self, call: Callable[..., T], *arguments: Any) -> T:
        """A call to the store over a network."""
        lost = self.chance.random() if self.faults else 1.0
        if lost < 0.02:
            raise Unreachable("the request")
        answer = call(*arguments)
        if lost < 0.04:
            raise Unreachable("the answer")
        return answer

    def spawn(self, name: str, process: Process, after: float = 0.0) -> None:
        self.started += 1
        heapq.heappush(self.ready, (self.clock + dt.timedelta(seconds=after), self.started, name, process))

    # -------------------------------------------------------------- time

    def run(self) -> None:
        for number in range(3):
            self.spawn(
                f"scheduler {number}", self.scheduler(f"scheduler {number}"), self.chance.uniform(0, 9)
            )
        end = EPOCH + dt.timedelta(hours=self.hours)
        while self.clock < end:
            self.step()
        self.faults = False
        quiet = end + dt.timedelta(minutes=40)  # time enough for every retry
        self.spawn("the last scheduler", self.scheduler("the last scheduler"))
        while self.clock < quiet:
            self.step()

    def step(self) -> None:
        at, _, name, process = heapq.heappop(self.ready)
        self.clock = max(self.clock, at)
        roll = self.chance.random() if self.faults else 1.0
        if roll < 0.004:
            self.die(name, process)
            return
        if roll < 0.012:  # it stands still for longer than any lease
            self.spawn_again(name, process, self.chance.uniform(0, 4 * LEASE))
            return
        if roll < 0.014:
            self.clock += dt.timedelta(seconds=self.chance.uniform(-20, 90))
        try:
            pause = next(process)
        except StopIteration:
            return
        except Unreachable:
            self.die(name, process)
            return
        self.spawn_again(name, process, pause)

    def spawn_again(self, name: str, process: Process, after: float) -> None:
        self.spawn(name, process, after)

    def die(self, name: str, process: Process) -> None:
        self.deaths += 1
        process.close()
        claim = self.at_work.pop(name, None)
        if claim is not None and self.chance.random() < 0.5:  # an executor sees it
            self.spawn("executor", self.executor(claim), self.chance.uniform(0, LEASE))
        if name.startswith("scheduler"):  # somebody starts it again
            self.spawn(name, self.scheduler(f"{name} {self.started}"), self.chance.uniform(1, 120))

    # -------------------------------------------------------------- processes

    def scheduler(self, holder: str) -> Process:
        agenda = Agenda(PIPELINES, INTERVAL)
        while True:
            lease = self.asked(self.store.lease, "scheduler", holder, LEADER)
            yield 0.1
            if lease is not None:
                for record in self.asked(look, self.store, agenda):
                    yield 0.05
                    claim = self.asked(take, self.store, record, holder, LEASE, POLICY)
                    if isinstance(claim, Claim):
                        self.note_held(claim)
                    yield 0.05
                    if isinstance(claim, Claim):
                        worker = f"worker {self.started} of {claim.slot.pipeline}"
                        self.at_work[worker] = claim
                        self.spawn(worker, self.worker(claim))
            yield 15.0

    def executor(self, claim: Claim) -> Process:
        """One that tells a scheduler of a run that died; the run may have said how it ended."""
        record = self.asked(self.store.get, claim.slot)
        yield 0.1
        if record is not None and (record.status, record.fence) == ("claimed", claim.fence):
            self.asked(self.store.begin, claim, 5.0)
            self.noticed += self.asked(self.store.renew, claim, 5.0, "it died")

    def worker(self, claim: Claim) -> Process:
        if not self.asked(self.store.begin, claim, LEASE):
            return
        for _ in range(self.chance.randrange(4)):
            yield LEASE / 3
            if not self.asked(self.store.renew, claim, LEASE):
                return
        yield 1.0
        if self.faults and self.chance.random() < 0.05:  # interrupted, or another run had the lock
            self.given_back += self.asked(partial(self.store.wait, failed=False), claim, 5.0)
            return
        fails = self.faults and self.chance.random() < 0.2
        if not fails:
            self.commit(claim.slot)
            yield 1.0
        ended = Ended(not fails, "it failed" if fails else None)
        self.asked(conclude, self.store, claim, ended, POLICY, self.chance)

    def commit(self, slot: Slot) -> None:
        """One transaction of the target, whose ledger knows a slot's batch."""
        if self.loaded[slot] == 0:
            self.loaded[slot] += 1

    def note_held(self, claim: Claim) -> None:
        before = self.held.get(claim.slot)
        assert before is None or before.fence < claim.fence, f"{before} and {claim}"
        self.held[claim.slot] = claim

    # -------------------------------------------------------------- what must hold

    def expected(self) -> Iterator[Slot]:
        """Every fire since the first that was seen, of those pipelines that want them all."""
        until = EPOCH + dt.timedelta(hours=self.hours)
        for each in PIPELINES:
            first = min((slot.at for slot in self.held if slot.pipeline == each.name), default=None)
            if each.catchup == "all" and first is not None:
                fires = each.schedule.fires(first - dt.timedelta(seconds=1), until)
                yield from (Slot(each.name, at) for at in fires)
