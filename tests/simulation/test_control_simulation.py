"""Schedulers, claims, retries and workflows under crashes, lost answers, pauses and clocks that jump."""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ematix_flow.schedule import due_slots
from ematix_flow.state.slots.base import ENDED, Claim, Slot, SlotRecord
from ematix_flow.state.slots.memory import MemorySlotStore
from ematix_flow.state.slots.sql import SqlSlotStore
from ematix_flow.state.sql.sqlite import begin_transaction, disable_driver_transactions
from tests.simulation import simulated_control
from tests.simulation.catch_up import KnownSchedule
from tests.simulation.declared import REGISTRY
from tests.simulation.fired_workflows import broken_workflows
from tests.simulation.simulated_control import MakeStore, Simulation


@pytest.fixture(autouse=True)
def nothing_is_logged() -> Iterator[None]:
    """Simulated faults are not reported as errors."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def check(seed: int, make_store: MakeStore = MemorySlotStore, **how: Any) -> Simulation:
    world = Simulation(seed, make_store, **how).run()
    for slot, times in world.loaded.items():
        assert times == 1, f"seed {seed}: {slot} was loaded {times} times"
    for slot in world.books.opened:
        record = world.real.get(slot)
        assert record is not None and record.status in ENDED, f"seed {seed}: {slot} was left: {record}"
        if slot.pipeline in REGISTRY.pipelines:
            follows = bool(REGISTRY.pipeline(slot.pipeline).spec.transforms_post)
            if record.status == "succeeded":
                done = world.transformed[slot] if follows else world.loaded[slot]
                assert done, f"seed {seed}: {slot} succeeded and was not loaded"
            elif not follows and slot not in world.unasked | world.too_late | world.books.by_hand:
                assert not world.loaded[slot], f"seed {seed}: {slot} is loaded, and {record}"
    for told in (*world.catch_up.broken(world.real), *broken_workflows(world)):
        raise AssertionError(f"seed {seed}: {told}")
    return world


@pytest.mark.parametrize("start", range(0, 500, 50))
def test_hundreds_of_courses_lose_and_double_no_slot(start: int) -> None:
    for seed in range(start, start + 50):
        check(seed)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("start", range(0, 100_000, 1_000))
def test_a_hundred_thousand_courses_lose_and_double_no_slot(start: int) -> None:
    """An hour on two cores: ``make test-long ARGS=tests/simulation``."""
    for seed in range(start, start + 1_000):
        check(seed)


@pytest.mark.parametrize("ahead", [dt.timedelta(minutes=7), dt.timedelta(hours=30)])
def test_a_clock_that_was_ahead_silences_no_schedule_and_doubles_no_slot(ahead: dt.timedelta) -> None:
    seen: Counter[str] = Counter()
    for seed in range(6):
        world = Simulation(seed)
        returned = world.run_calmly(1 + seed % 3, ahead, 1.5)
        assert set(world.loaded.values()) == {1}, f"seed {seed}"
        for name in ("minutes", "latest", "punctual"):
            spec = REGISTRY.pipeline(name).spec
            assert spec.schedule is not None
            for at in KnownSchedule(spec.schedule, end=world.until).fire_times(returned, world.until):
                record = world.real.get(Slot(name, at))
                assert record is not None and record.status == "succeeded", f"seed {seed}: {name} of {at}"
                seen[name] += 1
    assert min(seen.values()) >= 3, seen


def test_the_same_holds_in_a_database(tmp_path: Path) -> None:
    for seed in (5, 6, 7):  # these seeds detect a store that forgets a fence or a claim
        check_in_database(seed, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_the_same_holds_in_a_database_for_long(tmp_path: Path) -> None:
    for seed in range(8, 1_000):
        check_in_database(seed, tmp_path)


def check_in_database(seed: int, folder: Path) -> None:
    """On one connection that does not wait for the disk: what is tried is the SQL."""
    engine = sa.create_engine(f"sqlite:///{folder}/{seed}.db", poolclass=sa.pool.StaticPool)
    sa.event.listen(engine, "connect", disable_driver_transactions)
    sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    sa.event.listen(engine, "begin", begin_transaction)
    try:
        check(seed, lambda clock: SqlSlotStore(engine, "here", clock))
    finally:
        engine.dispose()


def test_the_simulation_is_rough() -> None:
    """A simulation in which nothing happens proves nothing."""
    worlds = [check(seed) for seed in range(30)]
    seen: Counter[str] = Counter()
    for world in worlds:
        seen += world.counts + world.books.counts + world.network.seen
        seen.update(record.status for record in map(world.real.get, world.books.opened) if record)
        seen.update(slot.pipeline for slot in world.books.opened)
    often = ("death", "error", "delay", "pause", "died at work", "taken over", "already applied", "locked")
    assert all(seen[what] >= 30 for what in often), seen
    rare = (
        "answer lost",
        "twice",
        "lost",
        "refused",
        "not begun",
        "too late",
        "interrupted",
        "given back",
        "reopened",
        "by hand gave_up",
    )
    assert all(seen[what] >= 10 for what in (*rare, "gave up", "skipped", "stopped")), seen
    assert seen["found done"] and seen["seen dead"] and seen["by hand succeeded"], seen
    assert sum(world.books.jumps for world in worlds) >= 5
    assert all(seen[name] for name in REGISTRY.pipelines), seen
    assert all(seen[f"workflow:{name}"] > 5 for name in REGISTRY.workflows), seen


def test_a_seed_tells_the_same_story_twice() -> None:
    first, second = check(7), check(7)
    assert first.books.ended == second.books.ended and first.books.calls == second.books.calls
    assert first.counts == second.counts and first.kernel.time == second.kernel.time


# ---------------------------------------------------------------------- what it finds


class Unfenced(MemorySlotStore):
    """Accepts every request of a holder without checking its claim."""

    def _record_of_claim(self, claim: Claim) -> SlotRecord | None:
        known = self._slots.get(claim.slot)
        return known if known is not None and known.status == "claimed" else None


class Eager(MemorySlotStore):
    """Grants every claim."""

    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        known = self._slots[seen.slot]
        fresh = SlotRecord(seen.slot, "waiting", known.fence, known.failures, seen.not_before)
        self._slots[seen.slot] = fresh
        return super().claim(fresh, holder, seconds)


class Forgetful(MemorySlotStore):
    """Counts no failure, so that no attempt is the last."""

    def retry_later(
        self, claim: Claim, seconds: float, reason: str | None = None, *, failed: bool = True
    ) -> bool:
        return super().retry_later(claim, seconds, reason, failed=False)


@pytest.mark.parametrize("store", [Unfenced, Eager])
def test_a_store_that_does_not_keep_its_word_is_found_out(store: MakeStore) -> None:
    assert found(lambda seed: check(seed, store))


def test_a_store_that_counts_no_failures_is_found_out() -> None:
    """With sources that fail often: otherwise few slots use up all their attempts."""
    assert "after its last attempt" in found(lambda seed: check(seed, Forgetful, failing=0.5))


def test_a_target_without_a_ledger_is_found_out() -> None:
    assert "times" in found(lambda seed: check(seed, ledger=False))


def test_who_does_not_ask_the_ledger_before_it_gives_up_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_control, "slot_is_done", lambda *_: False)
    assert "is loaded, and" in found(check)


def test_fires_that_nobody_catches_up_with_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = due_slots.due_slots

    def only_recent(
        scheduled: due_slots.ScheduleEntry, since: dt.datetime, now: dt.datetime, *rest: dt.timedelta
    ) -> due_slots.DueSlots:
        return real(scheduled, max(since, now - dt.timedelta(seconds=60)), now, *rest)

    monkeypatch.setattr(due_slots, "due_slots", only_recent)
    assert "was lost" in found(check)


def found(tried: Callable[[int], object], seeds: int = 200) -> str:
    """The violation that the first failing simulation reports; empty if none fails."""
    for seed in range(seeds):
        try:
            tried(seed)
        except AssertionError as error:
            return str(error)
    return ""
