"""Workflows under crashes, lost answers and pauses: no end starts one twice, and none is lost."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from ematix_flow.schedule.due import Agenda, Scheduled
from ematix_flow.schedule.endings import LastEnd
from ematix_flow.schedule.slots import Ended, conclude, look, take
from ematix_flow.schedule.workflows import Workflows, slot_name
from ematix_flow.spec.schedules import Schedule
from ematix_flow.spec.workflows import Trigger, WorkflowSpec
from ematix_flow.state.slots import ENDED, Claim, Slot, SlotRecord
from ematix_flow.state.slots_memory import MemorySlots
from tests.simulation.simulated_control import EPOCH, INTERVAL, LEADER, LEASE, POLICY, Process, World

OWN = (Scheduled("orders", Schedule("*/7 * * * *"), "all"), Scheduled("stock", Schedule("*/10 * * * *")))
SPECS = (
    WorkflowSpec("nightly", ("items", "daily"), schedule="*/15 * * * *", catchup="all"),
    WorkflowSpec("any", ("mail",), Trigger("any", ("orders", "stock"))),
    WorkflowSpec("both", ("report",), Trigger("all", ("orders", "nightly"))),
    WorkflowSpec("chain", ("archive",), Trigger("all", (Trigger("any", ("both", "any")), "stock"))),
)
PIPELINES = ("orders", "stock", "items", "daily", "mail", "report", "archive")


class WorkflowWorld(World):
    """The same processes, which also look after workflows. ``log`` is the run log."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log: dict[str, LastEnd] = {}
        self.ends: dict[str, set[str]] = {}

    def runs(self, names: Sequence[str]) -> Mapping[str, LastEnd]:
        return {name: self.log[name] for name in names if name in self.log}

    def scheduler(self, holder: str) -> Process:
        workflows = Workflows(SPECS, self.runs)
        agenda = Agenda([*OWN, *workflows.scheduled()], INTERVAL)
        while True:
            lease = self.asked(self.store.lease, "scheduler", holder, LEADER)
            yield 0.1
            if lease is not None or self.chance.random() < 0.2:  # one that believes it leads
                for record in self.looked(workflows, agenda):
                    yield 0.05
                    claim = self.asked(take, self.store, record, holder, LEASE, POLICY)
                    if isinstance(claim, Claim):
                        self.note_held(claim)
                        self.spawn(f"worker of {claim.slot.pipeline}", self.worker(claim))
                    yield 0.05
            yield 15.0

    def looked(self, workflows: Workflows, agenda: Agenda) -> list[SlotRecord]:
        """One look, every question of which may be the last of this process."""
        return look(_Dying(self), agenda, workflows, PIPELINES)  # type: ignore[arg-type]

    def worker(self, claim: Claim) -> Process:
        yield self.chance.uniform(0.5, LEASE / 2)
        if not self.asked(self.store.begin, claim, LEASE):
            return
        fails = self.faults and self.chance.random() < 0.4
        slot = claim.slot
        if not fails:
            self.commit(slot)
        event = f"slot:{slot.at.isoformat()}"
        self.log[slot.pipeline] = LastEnd(event, not fails, "")
        if not fails:
            self.ends.setdefault(slot.pipeline, set()).add(event)
        yield 0.5
        self.asked(conclude, self.store, claim, Ended(not fails), POLICY, self.chance)


class _Dying:
    """The store over a network, for code that asks it many things."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> object:
        method = getattr(self._world.store, name)
        return lambda *given, **named: self._world.asked(lambda: method(*given, **named))


def firings(world: WorkflowWorld, name: str) -> list[SlotRecord]:
    store = world.store
    assert isinstance(store, MemorySlots)
    key = slot_name(name) + ":firings"
    return sorted((r for s, r in store._slots.items() if s.pipeline == key), key=lambda r: r.slot.at)


def check(seed: int) -> WorkflowWorld:
    world = WorkflowWorld(seed, MemorySlots)
    world.run()
    store = world.store
    late = EPOCH + dt.timedelta(hours=world.hours)
    left = [record for record in store.unended() if record.slot.at <= late]
    assert not left, f"seed {seed}: {left}"
    assert all(times == 1 for times in world.loaded.values())
    for spec in SPECS:
        _check_jobs(world, spec, late)
        if spec.triggered_by is not None:
            _check_trigger(world, spec)
    # when all is quiet, nothing has ended well that a trigger has not seen
    workflows = Workflows(SPECS, world.runs)
    newest, ends = workflows.firings(store), workflows.last_ends(store)
    for name in ("any", "both", "chain"):
        assert workflows.waits_for(name, newest[name], ends), f"seed {seed}: {name} was not fired"
    return world


def _check_jobs(world: WorkflowWorld, spec: WorkflowSpec, late: dt.datetime) -> None:
    """A slot of a workflow has one of each job, and ended as they did."""
    assert isinstance(world.store, MemorySlots)
    for slot, record in list(world.store._slots.items()):
        if slot.pipeline != slot_name(spec.name) or slot.at > late:
            continue
        jobs = [world.store.get(Slot(job, slot.at)) for job in spec.jobs]
        assert all(job is not None and job.status in ENDED for job in jobs), f"seed {world.seed}: {slot}"
        well = all(job is not None and job.status == "succeeded" for job in jobs)
        assert (record.status == "succeeded") is well, f"seed {world.seed}: {record}"


def _check_trigger(world: WorkflowWorld, spec: WorkflowSpec) -> None:
    """Every firing used at least one end that no other had, every end is real, and each has its slot."""
    rows = firings(world, spec.name)
    used: Counter[tuple[str, str]] = Counter()
    moments = {dt.datetime.fromisoformat(json.loads(row.reason or "")["at"]) for row in rows}
    before: dict[str, list[str]] = {}
    for row in rows:
        told = json.loads(row.reason or "")
        new = {
            (upstream, end)
            for upstream, ends in told["used"].items()
            for end in ends
            if end not in before.get(upstream, [])
        }
        assert new, f"seed {world.seed}: {spec.name} fired for nothing"
        used.update(new)
        before = {upstream: [*before.get(upstream, []), *ends] for upstream, ends in told["used"].items()}
    assert isinstance(world.store, MemorySlots)
    opened = {slot.at for slot in world.store._slots if slot.pipeline == slot_name(spec.name)}
    assert opened == moments, f"seed {world.seed}: {spec.name}"
    assert all(times == 1 for times in used.values()), f"seed {world.seed}: {used}"
    for upstream, end in used:
        assert upstream not in PIPELINES or end in world.ends[upstream]
    assert [round(row.slot.at.timestamp()) for row in rows] == list(range(1, len(rows) + 1))


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_sixty_courses_fire_each_workflow_once_for_what_started_it(start: int) -> None:
    for seed in range(start, start + 20):
        check(seed)


@pytest.mark.long
def test_twenty_thousand_courses() -> None:
    for seed in range(1_000, 21_000):
        check(seed)


def test_workflows_do_fire_in_these_courses() -> None:
    worlds = [check(seed) for seed in range(10)]
    assert sum(world.deaths for world in worlds) > 100
    for spec in SPECS[1:]:
        assert sum(len(firings(world, spec.name)) for world in worlds) > 10, spec.name
    statuses = {
        record.status
        for world in worlds
        if isinstance(world.store, MemorySlots)
        for slot, record in world.store._slots.items()
        if slot.pipeline == slot_name("nightly")
    }
    assert {"succeeded", "gave_up"} <= statuses
