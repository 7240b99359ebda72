"""Whether a slot may run, by what became of its upstreams."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from ematix_flow.schedule.due import MISSED
from ematix_flow.schedule.gates import Gate, gate
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.records import RunRecord
from ematix_flow.state.slots import Slot
from ematix_flow.state.slots_memory import MemorySlots

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)
HOUR = dt.timedelta(hours=1)
SPEC = PipelineSpec("sums", "m:sums", (), depends_on=("orders", "items"))
SLOT = Slot("sums", NOON)


def asked(
    store: MemorySlots,
    successes: dict[str, dt.datetime],
    spec: PipelineSpec = SPEC,
    now: dt.datetime = NOON,
    slot: dt.datetime | None = None,
) -> Gate:
    """``slot``: whose the runs were that succeeded; without one they were started by hand."""
    runs = {
        name: RunRecord(
            name, name, "w:t", "append", status="succeeded", slot=slot, started_at=at, finished_at=at
        )
        for name, at in successes.items()
    }
    return gate(spec, SLOT, now, store.unended(spec.depends_on), store.latest, runs.get)


def ended(store: MemorySlots, pipeline: str, at: dt.datetime, status: str = "succeeded") -> None:
    slot = Slot(pipeline, at)
    store.open([slot])
    seen = store.get(slot)
    assert seen is not None
    claim = store.claim(seen, "a", 60)
    assert claim is not None
    store.end(claim, status, "no space left")  # type: ignore[arg-type]


BOTH = {"orders": NOON, "items": NOON}


def test_a_slot_goes_when_all_upstreams_of_its_time_have_succeeded() -> None:
    store = MemorySlots()
    ended(store, "orders", NOON)
    ended(store, "items", NOON - HOUR)
    assert asked(store, BOTH).verdict == "go"


def test_a_slot_waits_for_an_upstream_that_has_not_ended() -> None:
    store = MemorySlots()
    store.open([Slot("orders", NOON)])
    found = asked(store, BOTH)
    assert found == Gate("wait", "orders of 2026-05-17 12:00 UTC has not ended yet")


def test_a_later_slot_of_an_upstream_is_not_waited_for() -> None:
    store = MemorySlots()
    store.open([Slot("orders", NOON + HOUR)])
    assert asked(store, BOTH).verdict == "go"


def test_a_later_slot_that_makes_up_for_a_missed_one_is_waited_for() -> None:
    store, late = MemorySlots(), Slot("orders", NOON + HOUR)
    store.open([Slot("orders", NOON)], "skipped", MISSED)
    store.open([late])
    before = {"orders": NOON - HOUR, "items": NOON}
    words = "orders of 2026-05-17 13:00 UTC has not ended yet, and makes up for 2026-05-17 12:00 UTC"
    assert asked(store, before) == Gate("wait", words)
    ran = {"orders": NOON + 2 * HOUR, "items": NOON}
    store.open([Slot("orders", NOON + 2 * HOUR)])
    assert asked(store, ran, slot=late.at, now=NOON + 3 * HOUR).verdict == "go"


def test_a_slot_is_skipped_when_an_upstream_was_given_up() -> None:
    store = MemorySlots()
    ended(store, "orders", NOON, "gave_up")
    found = asked(store, BOTH)
    assert found == Gate("skip", "orders of 2026-05-17 12:00 UTC was given up: no space left")


def test_one_failure_does_not_latch() -> None:
    store = MemorySlots()
    ended(store, "orders", NOON - HOUR, "gave_up")
    ended(store, "orders", NOON)
    assert asked(store, BOTH).verdict == "go"


@pytest.mark.parametrize(
    ("slot", "verdict"), [(NOON - HOUR, "skip"), (NOON, "go"), (NOON + HOUR, "go"), (None, "go")]
)
def test_a_slot_that_was_given_up_is_made_up_for_by_a_later_success_of_no_older_slot(
    slot: dt.datetime | None, verdict: str
) -> None:
    """After an outage the slots of many hours run late: the success of one says nothing of the next."""
    store = MemorySlots()
    ended(store, "orders", NOON, "gave_up")
    late = dict.fromkeys(BOTH, NOON + 3 * HOUR)
    assert asked(store, late, now=NOON + 3 * HOUR, slot=slot).verdict == verdict


def test_what_never_succeeded_holds_back() -> None:
    found = asked(MemorySlots(), {"orders": NOON})
    assert found == Gate("skip", "items has never succeeded")


def test_an_upstream_may_be_too_old() -> None:
    fresh = replace(SPEC, upstream_freshness_seconds=3_600)
    old = {"orders": NOON - 2 * HOUR, "items": NOON}
    assert asked(MemorySlots(), old).verdict == "go"
    assert asked(MemorySlots(), old, fresh).verdict == "skip"
    assert asked(MemorySlots(), {**old, "orders": NOON - HOUR}, fresh).verdict == "go"


def test_a_slot_that_succeeded_counts_also_where_its_run_is_not_in_the_run_log() -> None:
    store = MemorySlots()
    ended(store, "orders", NOON)
    ended(store, "items", NOON)
    assert asked(store, {}).verdict == "go"
    strict = replace(SPEC, upstream_freshness_seconds=60.0)
    assert asked(store, {}, strict).reason == "orders has never succeeded"
