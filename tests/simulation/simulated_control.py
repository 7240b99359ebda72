"""Real schedulers and runners in virtual time, on hosts that die, pause and come back; runs do so too.

Simulated are the network to the store, the executor, the load of a slot, its target with a ledger, and the
operator. The seed decides everything.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ematix_flow.errors import (
    FlowError,
    Interrupted,
    LoadError,
    PipelineLocked,
    PostTransformFailed,
    SourceFailed,
)
from ematix_flow.graph.registry import DeclaredPipeline, Registry
from ematix_flow.plan.results import RunResult
from ematix_flow.run.recovery import slot_batch_key, slot_is_done, slot_load
from ematix_flow.run.run_context import RunContext
from ematix_flow.schedule import (
    clearing,
    due_slots,
    restarted_slots,
    run_due,
    scheduler,
    slot_lifecycle,
    stopped_slots,
    workflows,
)
from ematix_flow.schedule.executors.base import CannotDispatch, Executor, RunDispatch, WorkerExit, WorkerState
from ematix_flow.schedule.run_due import SlotRunner, resolve_claim
from ematix_flow.schedule.scheduler import Scheduler
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Slot, SlotRecord, SlotStore
from ematix_flow.state.slots.memory import MemorySlotStore
from tests.simulation.catch_up import CatchUp, KnownSchedule
from tests.simulation.declared import REGISTRY, TARGET
from tests.simulation.faulty_store import Books, Faulty, Network
from tests.simulation.run_history import RunHistory
from tests.simulation.virtual_time import Event, Kernel, Process, ProcessDied, current

EPOCH = dt.datetime(2026, 3, 29, 0, 51, 30, tzinfo=dt.timezone.utc)  # Berlin's clocks go forward at 1:00
LEASE, LEADER, POLL, AGAIN = 30.0, 25.0, 14.0, 6.0
BACK, FORWARD = -30.0, 90.0  # how far the store's clock jumps
INTERVAL = dt.timedelta(seconds=60)
MakeStore = Callable[[Callable[[], dt.datetime]], SlotStore]


class Simulation:
    """One simulation. ``ledger`` is whether the target refuses a batch that it already has.

    ``failing`` is how often the source is unreachable.
    """

    def __init__(
        self,
        seed: int,
        make_store: MakeStore = MemorySlotStore,
        *,
        ledger: bool = True,
        failing: float = 0.15,
    ) -> None:
        self.seed, self.ledger, self.failing = seed, ledger, failing
        self.kernel = Kernel(seed)
        self.chance = self.kernel.chance
        self.until = EPOCH + dt.timedelta(minutes=self.chance.uniform(6, 14))  # the last fire
        self.jumped = dt.timedelta()  # of the store's clock
        self.real = make_store(self.now)
        pipelines = REGISTRY.pipelines.values()
        self.books = Books(
            self.now,
            {each.spec.name: each.spec.retry for each in pipelines},
            self.real.unfinished,
            {each.spec.name: each.spec.depends_on for each in pipelines},
        )
        self.network = Network(self.kernel, fault=self.chance.choice((0.003, 0.01, 0.03)))
        self.store = Faulty(self.network, self.real, self.books)
        self.history = RunHistory(self.host_clock)
        self.run_log = Faulty(self.network, self.history)
        self.catch_up = CatchUp(REGISTRY, INTERVAL, self.until)
        self.loaded: Counter[Slot] = Counter()  # commits of its batch
        self.transformed: Counter[Slot] = Counter()  # what follows the load, where something does
        self.seen: dict[str, Process] = {}  # by the names under which they hold claims
        self.too_late: set[Slot] = (
            set()
        )  # loaded after it was given up, by a run that has not recorded it yet
        self.unasked: set[Slot] = set()  # whose ledger did not answer when it mattered
        self.cut_short: list[
            set[Slot]
        ] = []  # changed by a process that may not have reopened their workflows
        self.locks: dict[str, Process] = {}
        self.deadly = self.chance.choice((0.04, 0.04, 0.4))  # how often a run dies at a step of its work
        self.is_quiet = False
        self.counts: Counter[str] = Counter()
        self._numbers = 0

    # ------------------------------------------------------------------ clocks

    def now(self) -> dt.datetime:
        """The store's clock."""
        return EPOCH + dt.timedelta(seconds=self.kernel.time) + self.jumped

    def host_clock(self) -> dt.datetime:
        here = current().process
        return EPOCH + dt.timedelta(seconds=self.kernel.time + here.clock_error)

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def happens(self, chance: float) -> bool:
        return not self.is_quiet and self.chance.random() < chance

    # ------------------------------------------------------------------ the course

    def run(self) -> Simulation:
        with self._patched():
            hosts = self.chance.choice((1, 2, 2, 3))
            for _ in range(hosts):
                self.host(self.scheduler, self.chance.uniform(0, 60))
            if self.chance.random() < 0.4:
                self.host(self.cron_of_run_due, self.chance.uniform(0, 120))
            self.host(self.operator, self.chance.uniform(200, 600))
            self._steps(lambda: self.now() < self.until)
            self.is_quiet, self.network.fault = True, 0.0
            self.host(self.scheduler)
            self._rest()
        return self

    def _steps(self, going_on: Callable[[], bool]) -> None:
        while going_on():
            self.kernel.step()
            if self.happens(0.001):
                self._jump(dt.timedelta(seconds=self.chance.uniform(BACK, FORWARD)))
            if self.books.broken:
                raise AssertionError(f"seed {self.seed}: {self.books.broken[0]}")

    def _jump(self, by: dt.timedelta) -> None:
        """Of the store's clock."""
        self.books.jumps += 1
        self.jumped += by

    def run_calmly(self, minutes_before: float, ahead: dt.timedelta, minutes_ahead: float) -> dt.datetime:
        """One scheduler, no fault, and a clock that is ahead for a while; when it was right again."""
        self.is_quiet, self.network.fault = True, 0.0
        with self._patched():
            self.host(self.scheduler)
            self._steps(lambda: self.kernel.time < minutes_before * 60)
            self._jump(ahead)
            self._steps(lambda: self.kernel.time < (minutes_before + minutes_ahead) * 60)
            self._jump(-ahead)
            returned = self.now()
            self._steps(lambda: self.now() < self.until)
            self._rest()
        return returned

    def _rest(self) -> None:
        """Run until nothing is left to do: three polls after the last slot has ended."""
        last = self.kernel.time + 4 * 3600
        rested = self.kernel.time + 5 * LEASE  # paused processes continue, and every lease ends
        while self.kernel.time < rested:
            assert self.kernel.time < last, f"seed {self.seed}: no end of {self.real.unfinished()}"
            until = self.kernel.time + POLL
            self._steps(lambda: self.kernel.time < until)  # noqa: B023  # called before it changes
            if any(record.slot.fire_time <= self.now() for record in self.real.unfinished()):
                rested = max(rested, self.kernel.time + 3 * POLL)

    @contextmanager
    def _patched(self) -> Iterator[None]:
        threading, time = self.kernel.modules()
        schedule = lambda cron, zone="UTC": KnownSchedule(cron, zone, self.until)  # noqa: E731
        few = self.chance.choice((3, 1000))
        with ExitStack() as patches:
            for module, name, value in (
                (run_due, "threading", threading),
                (run_due, "time", time),
                (run_due, "run_declared_pipeline", self.load),
                (run_due, "open_connections", lambda spark: Target(self)),
                (run_due, "slot_is_done", self.is_done),
                (run_due, "reopen_slots", self.reopen_slots),
                (run_due, "Schedule", schedule),
                (workflows, "Schedule", schedule),
                (due_slots, "MAX_SLOTS_PER_POLL", few),
                (slot_lifecycle, "MAX_SLOTS_PER_POLL", few),
                (slot_lifecycle, "RESTART_DELAY_SECONDS", AGAIN),
                (slot_lifecycle, "holder_is_dead", self.holder_is_dead),
                (scheduler, "time", time),
                (scheduler, "_EXECUTOR_POLL_SECONDS", POLL / 2),
            ):
                patches.enter_context(mock.patch.object(module, name, value, create=name == "time"))
            yield

    # ------------------------------------------------------------------ hosts

    def host(self, work: Callable[[], None], after: float = 0.0) -> Process:
        """A separate process, which is started again when it has ended."""
        process = Process(f"{work.__name__} {self.number()}", self._clock_error())

        def again() -> None:
            pause = self.chance.uniform(1, 90) if self.chance.random() < 0.8 else self.chance.uniform(90, 600)
            self.host(work, 0.0 if self.is_quiet else pause)

        process.at_death.append(again)

        def lives() -> None:
            work()
            self.kernel.kill(process)

        self.kernel.start(process, lives, after)
        return process

    def holder_is_dead(self, holder: str) -> bool:
        dead = holder in self.seen and not self.seen[holder].is_alive
        self.counts["seen dead"] += dead
        return dead

    def _clock_error(self) -> float:
        return self.chance.uniform(-120, 120) if self.happens(0.3) else 0.0

    def runner(self) -> SlotRunner:
        holder = f"{current().process.name}/{self.number()}"
        if self.chance.random() < 0.5:  # others on its machine can see whether it lives
            self.seen[holder] = current().process
        return _Watched(
            REGISTRY,
            self.store,
            self.run_log,  # type: ignore[arg-type]
            lambda slot: RunContext(self.run_log, _no_spark, trigger="schedule", slot=slot.fire_time),
            LEASE,
            holder,
            random.Random(self.chance.random()),
            sleep=self.kernel.sleep,
        ).watched(self)

    def scheduler(self) -> None:
        stop = Event()
        if self.happens(0.5):  # a deployment
            self.kernel.start(current().process, stop.set, self.chance.uniform(60, 900))
        Scheduler(
            self.runner(),
            SimulatedExecutor(self),
            "project",
            interval=INTERVAL,
            poll_seconds=POLL,
            leader_seconds=LEADER,
            grace_seconds=20.0,
            restart_delay_seconds=AGAIN,
            stop=stop,  # type: ignore[arg-type]
        ).run()
        self.counts["stopped"] += 1

    def cron_of_run_due(self) -> None:
        with _expected():
            self.runner().run_due(INTERVAL)
        self.kernel.sleep(60)

    def operator(self) -> None:
        with _expected():
            bad = clearing.clearable_slots(self.store, list(REGISTRY.pipelines), None)
            self.kernel.sleep(self.chance.uniform(0, 60))
            self.reopen_slots(self.store, REGISTRY, [] if self.is_quiet else bad)
            self.stop_a_slot_that_waits()
            self.restart_what_is_loaded()
        self.kernel.sleep(self.chance.uniform(300, 900))

    def stop_a_slot_that_waits(self) -> None:
        """``flow stop`` of a slot between two attempts."""
        waits = stopped_slots.stoppable_slots(self.store, list(REGISTRY.pipelines))
        self.kernel.sleep(self.chance.uniform(0, 5))
        if waits and not self.is_quiet:
            stopped_slots.stop_slot(self.store, self.chance.choice(waits), "ada")

    def restart_what_is_loaded(self) -> None:
        """``flow restart`` whose run has loaded a slot: the slot is ended without a claim."""
        for record in self.store.unsuccessful(list(REGISTRY.pipelines), EPOCH - dt.timedelta(days=2)):
            slot = record.slot
            done = self.transformed if REGISTRY.pipeline(slot.pipeline).spec.transforms_post else self.loaded
            if done[slot]:
                failed = RunRecord("failed", slot.pipeline, "t", "append", slot=slot.fire_time)
                with self._changing({slot}):
                    restarted_slots.end_restarted_slot(self.store, REGISTRY, failed, "restarted")

    def reopen_slots(
        self, store: SlotStore, registry: Registry, wanted: Sequence[SlotRecord]
    ) -> list[SlotRecord]:
        with self._changing({record.slot for record in wanted}):
            return clearing.reopen_slots(store, registry, wanted)

    @contextmanager
    def _changing(self, slots: set[Slot]) -> Iterator[None]:
        """Within the block, slots are changed and then their workflows, unless the process dies or fails."""
        self.cut_short.append(slots)
        yield
        self.cut_short = [each for each in self.cut_short if each is not slots]

    # ------------------------------------------------------------------ runs

    def start_run(self, job: RunDispatch, after: float) -> Process:
        """``flow run-slot`` in its own process."""
        claim = job.claim
        process = Process(f"run {self.number()} of {claim.slot.pipeline}", self._clock_error())

        def work() -> None:
            with _expected():
                runner = self.runner()
                held = resolve_claim(
                    runner.store, claim.slot.pipeline, claim.slot.fire_time, f"{claim.fence}:{claim.holder}"
                )
                runner.run_claimed(held)
                self.too_late.discard(claim.slot)
            self.kernel.kill(process)

        self.kernel.start(process, work, after)
        return process

    def load(self, declared: DeclaredPipeline, context: RunContext) -> RunResult:
        """Replaces `run_declared_pipeline`: lock, recover, ask the ledger, commit, transform, record."""
        spec, here = declared.spec, current().process
        assert context.slot is not None
        slot, batch = Slot(spec.name, context.slot), slot_batch_key(context.slot)
        record = RunRecord(f"run-{self.number()}", spec.name, "t", "append", slot=slot.fire_time, batch=batch)
        self._write(lambda: self.run_log.start(record))
        if spec.name in self.locks:
            locked = PipelineLocked("another run holds it")
            self._write(lambda: self.run_log.finish(record.run_id, "locked", error=locked))
            self.counts["locked"] += 1
            raise locked
        self.locks[spec.name] = here
        self.books.starts(slot)
        unlock = lambda: self._unlock(slot, here)  # noqa: E731
        here.at_death.append(unlock)
        try:
            self._settle(spec, record.run_id)
            status, error = self._outcome(spec, slot)
            self._write(lambda: self.run_log.finish(record.run_id, status, error=error))
            if error is not None and not spec.continue_on_target_failure:
                raise error
            return RunResult(spec.name, record.run_id, "succeeded", (), 1.0, failure=error)
        except Interrupted as stopped:
            self.counts["interrupted"] += 1
            self._write(lambda error=stopped: self.run_log.finish(record.run_id, "cancelled", error=error))
            raise
        finally:
            unlock()

    def _outcome(self, spec: PipelineSpec, slot: Slot) -> tuple[Any, LoadError | None]:
        target = Target(self)
        try:
            found = slot_load(spec, slot.fire_time, target, self.run_log)  # type: ignore[arg-type]
        except FlowError as error:
            return self._failed(slot, LoadError(f"the ledger cannot be asked: {error}"))
        if found.loaded and self.ledger:
            self.counts["already applied"] += 1
        else:
            self._at_work(self._long())
            if self.happens(self.failing):
                return self._failed(slot, SourceFailed("the source is away"))
            self.loaded[slot] += 1  # one transaction, the ledger's entry in it
            if slot in self.books.ended:
                self.too_late.add(slot)
            if self.happens(0.03):
                self.counts["answer lost"] += 1
                try:
                    target.ledger(spec.name, TARGET.label)
                except FlowError:
                    return self._failed(slot, LoadError("the answer to the commit was lost"))
        if found.done:
            return "skipped", None
        self._at_work(self.chance.uniform(0, 3))
        if spec.transforms_post:
            if self.happens(0.1):
                return self._failed(slot, PostTransformFailed("the table is locked"))
            self.transformed[slot] += 1
            self._at_work(self.chance.uniform(0, 3))
        return "succeeded", None

    def _failed(self, slot: Slot, error: LoadError) -> tuple[Any, LoadError]:
        self.books.failed[slot] += 1
        if not isinstance(error, SourceFailed):
            self.unasked.add(slot)
        return "failed", error

    def _long(self) -> float:
        return self.chance.uniform(1, 20) if self.chance.random() < 0.9 else self.chance.uniform(20, 90)

    def is_done(self, spec: PipelineSpec, at: dt.datetime, target: Any, run_log: Any) -> bool | None:
        """Call the real function, and record whether it could read the ledger."""
        done = slot_is_done(spec, at, target, run_log)
        self.counts["found done"] += bool(done)
        if target.is_away:
            self.unasked.add(Slot(spec.name, at))
        return done

    def _at_work(self, seconds: float) -> None:
        """Work for this long; the run may die or be asked to stop."""
        here = current().process
        self.kernel.sleep(seconds)
        if here.is_interrupted or self.happens(0.01):
            here.is_interrupted = False
            raise Interrupted("it was asked to stop")
        if self.happens(self.deadly):
            self.counts["died at work"] += 1
            self.kernel.kill(here)
            raise ProcessDied
        if self.happens(0.02):
            here.was_hurt = True
            here.paused_until = self.kernel.time + self.chance.uniform(0, 4 * LEASE)
            self.kernel.sleep(0)

    def _settle(self, spec: PipelineSpec, own: str) -> None:
        """The holder of the lock settles the runs that died while they held it."""
        with _expected():
            for left in self.run_log.running(spec.name):
                if left.run_id != own:
                    assert left.slot is not None
                    there = Slot(spec.name, left.slot) in self.loaded and not spec.transforms_post
                    self.run_log.settle(left.run_id, "succeeded" if there else "interrupted", "settled")

    def _unlock(self, slot: Slot, process: Process) -> None:
        if self.locks.get(slot.pipeline) is process and self.books.at_work.get(slot) is process:
            del self.locks[slot.pipeline], self.books.at_work[slot]

    def _write(self, write: Callable[[], object]) -> None:
        """A run log that cannot be written to never stops a run."""
        with _expected():
            write()


class Target:
    """The database with the ledger of every pipeline, in place of a run's connections."""

    def __init__(self, world: Simulation) -> None:
        self._world, self.is_away = world, False

    def target(self, connection: object) -> Target:
        return self

    def ledger(self, pipeline: str, target: str, *, run_id: str | None = None, limit: int = 100) -> list[Any]:
        """The batches of a pipeline; which run loaded one is not kept here."""

        def held() -> list[Any]:
            if run_id is not None:
                return []
            slots = [
                slot for slot, times in self._world.loaded.items() if times and slot.pipeline == pipeline
            ]
            return [SimpleNamespace(batch_key=slot_batch_key(slot.fire_time), run_id="") for slot in slots]

        try:
            found: list[Any] = self._world.network.call(held)
        except FlowError:
            self.is_away = True
            raise
        return found


class _Watched(SlotRunner):
    """A scheduler whose polls are recorded for `CatchUp`."""

    def watched(self, world: Simulation) -> SlotRunner:
        object.__setattr__(self, "world", world)
        return self

    def poll(self, agenda: Any) -> list[SlotRecord]:
        world: Simulation = self.world  # type: ignore[attr-defined]
        seen, jumps, is_complete = world.catch_up.begins(world.now()), world.books.jumps, False
        try:
            found = super().poll(agenda)
            is_complete = True
            return found
        finally:
            jumped = (world.books.jumps - jumps) * FORWARD
            world.catch_up.ends(seen, world.now() + dt.timedelta(seconds=jumped), is_complete)


class SimulatedExecutor(Executor):
    """Loses runs, starts them late or twice, and may not notice how they end."""

    def __init__(self, world: Simulation) -> None:
        self._world, self._host = world, current().process
        self._runs: list[tuple[RunDispatch, Process]] = []
        self._sees = world.chance.random() < 0.7
        self._owns = world.chance.random() < 0.5  # its runs end with it
        self._freed = False

    def check(self, run_log: str) -> None: ...

    def capacity(self) -> int:
        return 6 - sum(process.is_alive for _, process in self._runs)

    def dispatch(self, job: RunDispatch) -> None:
        world = self._world
        if world.happens(0.03):
            world.counts["refused"] += 1
            raise CannotDispatch("no room for it")
        if world.happens(0.03):
            world.counts["lost"] += 1
            return
        copies = 2 if world.happens(0.05) else 1
        world.counts["twice"] += copies - 1
        for _ in range(copies):
            late = world.happens(0.05)
            delay = world.chance.uniform(0, 3 * LEASE if late else 3.0)
            process = world.start_run(job, delay)
            process.at_death.append(self._ended)
            self._runs.append((job, process))

    def _ended(self) -> None:
        self._freed = True

    def poll_workers(self) -> WorkerState:
        over = [job.claim for job, process in self._runs if not process.is_alive]
        self._runs = [(job, process) for job, process in self._runs if process.is_alive]
        alive = [job.claim for job, _ in self._runs]
        if not self._sees:
            return WorkerState()
        begun = self._world.books.claims
        starting = [claim for claim in alive if begun[claim.slot].begun_by is None]
        return WorkerState([WorkerExit(claim, "it died") for claim in over if claim not in alive], starting)

    def has_freed_worker(self) -> bool:
        freed, self._freed = self._freed, False
        return freed

    def close(self, grace: float) -> None:
        self.abandon()
        end = self._world.kernel.time + grace
        while self._owns and self._world.kernel.time < end and any(p.is_alive for _, p in self._runs):
            self._world.kernel.sleep(2)

    def abandon(self) -> None:
        if self._owns and self._host.is_alive:
            for _, process in self._runs:
                process.is_interrupted = True


def _expected() -> AbstractContextManager[None]:
    """An error that ends a command and is reported to its caller."""
    return suppress(FlowError)


def _no_spark(_: object) -> Any:
    raise AssertionError("nothing is loaded here")
