"""Schedulers, claims and retries under crashes, lost answers, pauses and clocks that jump."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest

from ematix_flow.state.slots import ENDED, Claim, Slot, SlotStatus
from ematix_flow.state.slots_memory import MemorySlots
from tests.simulation.simulated_control import EPOCH, PIPELINES, World


class CountingSlots(MemorySlots):
    """Counts how often a slot is said to have succeeded, and is believed."""

    def end(self, claim: Claim, status: SlotStatus, reason: str | None = None) -> bool:
        done = super().end(claim, status, reason)
        if done and status == "succeeded":
            self.successes[claim.slot] += 1
        return done

    @property
    def successes(self) -> Counter[Slot]:
        if not hasattr(self, "_successes"):
            self._successes: Counter[Slot] = Counter()
        return self._successes


def check(seed: int) -> World:
    world = World(seed, CountingSlots)
    world.run()
    store = world.store
    assert isinstance(store, CountingSlots)
    assert all(times == 1 for times in store.successes.values()), f"seed {seed}: a slot succeeded twice"
    assert all(times == 1 for times in world.loaded.values())
    late = EPOCH + dt.timedelta(hours=world.hours)
    left = [record for record in store.unended() if record.slot.at <= late]
    assert not left, f"seed {seed}: {left}"
    for slot in world.expected():
        record = store.get(slot)
        assert record is not None, f"seed {seed}: {slot} was lost"
        assert record.status in ENDED
        assert record.status != "succeeded" or world.loaded[slot] == 1, f"seed {seed}: {record}"
    return world


@pytest.mark.parametrize("start", range(0, 1_000, 100))
def test_a_thousand_courses_lose_and_double_no_slot(start: int) -> None:
    for seed in range(start, start + 100):
        check(seed)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("start", range(1_000, 101_000, 2_500))
def test_a_hundred_thousand_courses_lose_and_double_no_slot(start: int) -> None:
    """Half an hour on two cores: ``make test ARGS='tests/simulation -m long'``."""
    for seed in range(start, start + 2_500):
        check(seed)


def test_the_simulation_is_rough() -> None:
    """A simulation in which nothing happens proves nothing."""
    worlds = [check(seed) for seed in range(20)]
    assert sum(world.deaths for world in worlds) > 200
    assert sum(world.noticed for world in worlds) > 20
    assert sum(world.given_back for world in worlds) > 20
    taken_over = retried = given_up = 0
    for world in worlds:
        for slot in world.held:
            record = world.store.get(slot)
            assert record is not None
            retried += record.failures > 0
            taken_over += record.deaths > 0
            given_up += record.status == "gave_up"
    assert retried > 100 and taken_over > 50 and given_up > 0
    assert {slot.pipeline for world in worlds for slot in world.held} == {each.name for each in PIPELINES}


def test_a_seed_tells_the_same_story_twice() -> None:
    first, second = check(7), check(7)
    assert (first.loaded, first.deaths, first.clock) == (second.loaded, second.deaths, second.clock)
