"""Whether a slot may run, by what became of its upstreams."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from ematix_flow.schedule.due_slots import MISSED
from ematix_flow.schedule.upstream_gate import UpstreamGate, check_upstreams
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.slots.memory import MemorySlotStore

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)
HOUR = dt.timedelta(hours=1)
SPEC = PipelineSpec("sums", "m:sums", (), depends_on=("orders", "items"))
SLOT = Slot("sums", NOON)


def asked(
    store: MemorySlotStore,
    successes: dict[str, dt.datetime],
    spec: PipelineSpec = SPEC,
    now: dt.datetime = NOON,
    slot: dt.datetime | None = None,
) -> UpstreamGate:
    """``slot``: whose the runs were that succeeded; without one they were started by hand."""
    runs = {
        name: RunRecord(
            name, name, "w:t", "append", status="succeeded", slot=slot, started_at=at, finished_at=at
        )
        for name, at in successes.items()
    }
    return check_upstreams(spec, SLOT, now, store.unfinished(spec.depends_on), store.latest, runs.get)


def ended(store: MemorySlotStore, pipeline: str, at: dt.datetime, status: str = "succeeded") -> None:
    slot = Slot(pipeline, at)
    store.open([slot])
    seen = store.get(slot)
    assert seen is not None
    claim = store.claim(seen, "a", 60)
    assert claim is not None
    store.end(claim, status, "no space left")  # type: ignore[arg-type]


BOTH = {"orders": NOON, "items": NOON}


def test_a_slot_goes_when_all_upstreams_of_its_time_have_succeeded() -> None:
    store = MemorySlotStore()
    ended(store, "orders", NOON)
    ended(store, "items", NOON - HOUR)
    assert asked(store, BOTH).verdict == "go"


def test_a_slot_waits_for_an_upstream_that_has_not_ended() -> None:
    store = MemorySlotStore()
    store.open([Slot("orders", NOON)])
    found = asked(store, BOTH)
    assert found == UpstreamGate("wait", "orders of 2026-05-17 12:00 UTC has not ended yet")


def test_a_later_slot_of_an_upstream_is_not_waited_for() -> None:
    store = MemorySlotStore()
    store.open([Slot("orders", NOON + HOUR)])
    assert asked(store, BOTH).verdict == "go"


def test_a_later_slot_that_makes_up_for_a_missed_one_is_waited_for() -> None:
    store, late = MemorySlotStore(), Slot("orders", NOON + HOUR)
    store.open([Slot("orders", NOON)], "skipped", MISSED)
    store.open([late])
    before = {"orders": NOON - HOUR, "items": NOON}
    words = "orders of 2026-05-17 13:00 UTC has not ended yet, and makes up for 2026-05-17 12:00 UTC"
    assert asked(store, before) == UpstreamGate("wait", words)
    ran = {"orders": NOON + 2 * HOUR, "items": NOON}
    store.open([Slot("orders", NOON + 2 * HOUR)])
    assert asked(store, ran, slot=late.fire_time, now=NOON + 3 * HOUR).verdict == "go"


def test_a_slot_is_skipped_when_an_upstream_was_given_up() -> None:
    store = MemorySlotStore()
    ended(store, "orders", NOON, "gave_up")
    found = asked(store, BOTH)
    assert found == UpstreamGate("skip", "orders of 2026-05-17 12:00 UTC was given up: no space left")


def test_one_failure_does_not_latch() -> None:
    store = MemorySlotStore()
    ended(store, "orders", NOON - HOUR, "gave_up")
    ended(store, "orders", NOON)
    assert asked(store, BOTH).verdict == "go"


@pytest.mark.parametrize(
    ("slot", "verdict"), [(NOON - HOUR, "skip"), (NOON, "go"), (NOON + HOUR, "go"), (None, "go")]
)
def test_a_slot_that_was_given_up_is_made_up_for_by_a_later_success_of_no_older_slot(
    slot: dt.datetime | None, verdict: str
) -> None:
    """After an outage the slots of many hours run late: the success of one says nothing about the next."""
    store = MemorySlotStore()
    ended(store, "orders", NOON, "gave_up")
    late = dict.fromkeys(BOTH, NOON + 3 * HOUR)
    assert asked(store, late, now=NOON + 3 * HOUR, slot=slot).verdict == verdict


def test_what_never_succeeded_holds_back() -> None:
    found = asked(MemorySlotStore(), {"orders": NOON})
    assert found == UpstreamGate("skip", "items has never succeeded")


def test_an_upstream_may_be_too_old() -> None:
    fresh = replace(SPEC, upstream_freshness_seconds=3_600)
    old = {"orders": NOON - 2 * HOUR, "items": NOON}
    assert asked(MemorySlotStore(), old).verdict == "go"
    assert asked(MemorySlotStore(), old, fresh).verdict == "skip"
    assert asked(MemorySlotStore(), {**old, "orders": NOON - HOUR}, fresh).verdict == "go"


def test_a_slot_that_succeeded_counts_also_where_its_run_is_not_in_the_run_log() -> None:
    store = MemorySlotStore()
    ended(store, "orders", NOON)
    ended(store, "items", NOON)
    assert asked(store, {}).verdict == "go"
    strict = replace(SPEC, upstream_freshness_seconds=60.0)
    assert asked(store, {}, strict).reason == "orders has never succeeded"
