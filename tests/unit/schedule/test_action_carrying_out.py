"""Carrying out a claimed action: begun once, ended once, handed back when only its process was stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ematix_flow.errors import CannotConnect, Interrupted, LoadError, RunStopped, UsageError
from ematix_flow.schedule.actions.carrying_out import (
    ActionCarryingOut,
    ActionEnd,
    ActionInterrupted,
    ends_before_it_begins,
    resolve_action_claim,
)
from ematix_flow.state.actions.memory import MemoryActionStore
from ematix_flow.state.actions.records import ActionRecord

DONE = ActionEnd("done", "orders succeeded", ("r1",))


def claimed_action(store: MemoryActionStore) -> ActionRecord:
    action, _ = store.request("run", "orders", {}, by="ada", via="web")
    claimed = store.claim(action, "carrier", 60)
    assert claimed is not None
    return claimed


def carry(
    store: MemoryActionStore, work: Callable[[ActionRecord], ActionEnd], *, hands_back: bool = True
) -> ActionCarryingOut:
    return ActionCarryingOut(store, work, hands_back, holder="process", sleep=lambda seconds: None)


def test_the_end_of_the_work_is_the_end_of_the_action() -> None:
    store = MemoryActionStore()
    claimed = claimed_action(store)

    def work(action: ActionRecord) -> ActionEnd:
        known = store.get(action.action_id)
        assert (known.begun, known.holder) == (True, "process")
        return DONE

    assert carry(store, work).carry_out(claimed) == DONE
    ended = store.get(claimed.action_id)
    assert (ended.status, ended.outcome, ended.run_ids) == ("done", "orders succeeded", ("r1",))
    with pytest.raises(UsageError, match="no longer claimed") as lost:
        carry(store, work).carry_out(claimed)
    assert lost.value.state == "nothing was run; it is done"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (LoadError("the target is away"), "the target is away"),
        (ValueError("x"), "ValueError: x"),
        (ActionInterrupted(RunStopped("pipeline 'orders' was stopped by bob"), ("r1",)), "stopped by bob"),
    ],
)
def test_an_error_or_a_stop_ends_the_action_as_failed(error: Exception, outcome: str) -> None:
    store = MemoryActionStore()
    claimed = claimed_action(store)

    def work(action: ActionRecord) -> ActionEnd:
        raise error

    if isinstance(error, Interrupted):
        with pytest.raises(Interrupted):
            carry(store, work).carry_out(claimed)
    else:
        carry(store, work).carry_out(claimed)
    ended = store.get(claimed.action_id)
    assert ended.status == "failed" and outcome in (ended.outcome or "")


@pytest.mark.parametrize(
    "error", [ActionInterrupted(Interrupted("it was interrupted"), ("r1",)), KeyboardInterrupt()]
)
@pytest.mark.parametrize("hands_back", [True, False])
def test_an_action_is_handed_back_if_its_process_is_stopped_but_not_by_a_person(
    error: BaseException, hands_back: bool
) -> None:
    store = MemoryActionStore()
    claimed = claimed_action(store)

    def work(action: ActionRecord) -> ActionEnd:
        raise error

    with pytest.raises((Interrupted, KeyboardInterrupt)):
        carry(store, work, hands_back=hands_back).carry_out(claimed)
    known = store.get(claimed.action_id)
    assert known.status == ("waiting" if hands_back else "failed")
    assert len(store.claimable()) == hands_back


def test_a_claim_that_was_taken_over_is_not_ended_by_the_first_process() -> None:
    store = MemoryActionStore()
    first = claimed_action(store)
    store.renew(first, 0.0)

    def work(action: ActionRecord) -> ActionEnd:
        store.renew(first, 0.0)
        second = store.claim(store.get(first.action_id), "another", 60)
        assert second is not None and second.deaths == 1
        return DONE

    carry(store, work).carry_out(first)
    known = store.get(first.action_id)
    assert (known.status, known.holder, known.fence) == ("claimed", "another", 2)


def test_a_claim_is_renewed_while_the_work_goes_on() -> None:
    class Renewed(MemoryActionStore):
        times, enough = 0, threading.Event()

        def renew(self, claimed: ActionRecord, seconds: float) -> bool:
            self.times += 1
            if self.times == 3:
                self.enough.set()
            return super().renew(claimed, seconds)

    store = Renewed()
    claimed = claimed_action(store)

    def work(action: ActionRecord) -> ActionEnd:
        assert store.enough.wait(60)
        return DONE

    ActionCarryingOut(store, work, True, lease_seconds=0.05).carry_out(claimed)
    assert store.get(claimed.action_id).status == "done"


def test_only_the_newest_claim_is_resolved() -> None:
    store = MemoryActionStore()
    claimed = claimed_action(store)
    assert resolve_action_claim(store, claimed.action_id[:8], "1:carrier") == claimed
    for wrong in ("2:carrier", "1:another", "x", ""):
        with pytest.raises(UsageError, match="no longer claimed"):
            resolve_action_claim(store, claimed.action_id, wrong)


@pytest.mark.parametrize("method", ["get", "end"])
def test_a_store_that_is_away_does_not_hide_why_a_process_could_not_begin(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def refuse(*_: object) -> None:
        raise CannotConnect("the store is away")

    store = MemoryActionStore()
    claimed = claimed_action(store)
    monkeypatch.setattr(store, method, refuse)
    with pytest.raises(RuntimeError, match="it is broken"), ends_before_it_begins(store, claimed):
        raise RuntimeError("it is broken")
