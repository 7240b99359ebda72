"""Restarts and stops of runs of slots: what becomes of the slot, and of what waits for it."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.backends.state_stores.run_logs import open_actions, open_slots
from ematix_flow.cli.project import load_project, read_run_log
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.fault_points import inject
from ematix_flow.schedule.actions.carrier import ActionCarrier
from ematix_flow.state.slots.base import Slot, SlotRecord

NOON = dt.datetime(2026, 3, 29, 12, tzinfo=dt.timezone.utc)
SHOP = """
from ematix_flow import BigInt, SQLiteConnection, ematix, register_connection

register_connection(SQLiteConnection(name="shop", path="shop.db"))

@ematix.table(name="new_orders")
class Orders:
    order_id: BigInt

@ematix.pipeline(target=Orders, target_connection="shop",
                 retry=RETRY,
                 transforms_post=["INSERT INTO loads SELECT count(*) FROM new_orders"])
def orders(conn):
    return "SELECT order_id FROM orders"

@ematix.table(name="new_items")
class Items:
    order_id: BigInt

@ematix.pipeline(target=Items, target_connection="shop", depends_on=["orders"])
def items(conn):
    return "SELECT order_id FROM orders"

ematix.workflow("nightly", jobs=["orders"], schedule="0 0 29 2 *")
"""


@pytest.fixture(params=[1])
def shop(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The retry policy allows as many attempts as the parameter says."""
    module = f"shop_slot_actions_{request.param}"
    policy = {"max_attempts": request.param} | ({"backoff_seconds": 900} if request.param > 1 else {})
    (tmp_path / f"{module}.py").write_text(SHOP.replace("RETRY", repr(policy)), encoding="utf-8")
    monkeypatch.setenv("EMATIX_FLOW_MODULE", module)
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    in_shop(tmp_path, "CREATE TABLE orders (order_id INTEGER)")
    in_shop(tmp_path, "INSERT INTO orders VALUES (1), (2)")
    return tmp_path


with_retries = pytest.mark.parametrize("shop", [3], indirect=True)


def in_shop(folder: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        return connection.execute(statement).fetchall()


def open_slot(*names: str) -> None:
    with open_slots(slots_url(None), env=os.environ) as store:
        store.open([Slot(name, NOON) for name in names])


def slot(name: str = "orders") -> SlotRecord:
    with open_slots(slots_url(None), env=os.environ) as store:
        found = store.get(Slot(name, NOON))
    assert found is not None
    return found


def end_wait() -> None:
    """Let the next attempt be due now."""
    with open_slots(slots_url(None), env=os.environ) as store:
        assert store.end_wait(slot())


def fail_slot(flow) -> str:
    """Run the slot of noon, whose transform fails, and return the id of the run."""
    open_slot("workflow:nightly", "orders")
    assert flow("run-due").code == 1
    (failed,) = flow("runs", "list", "-o", "json").json
    return failed["run_id"]


def poll_carrier() -> None:
    """Let a carrier of the shop's module do what it can without a process."""
    url = slots_url(None)
    with (
        open_actions(url, env=os.environ) as actions,
        open_slots(url, env=os.environ) as store,
        read_run_log(None) as log,
    ):
        ActionCarrier(actions, log, store, load_project(None), "shop", url, workers=0).poll()


def make_it_work(shop: Path) -> None:
    in_shop(shop, "CREATE TABLE loads (n INTEGER)")


# ------------------------------------------------------------------ restarts


def test_a_restart_that_succeeds_ends_the_slot_of_its_run_as_a_success(flow, shop) -> None:
    run_id = fail_slot(flow)
    flow("run-due")  # ends the workflow
    assert (slot().status, slot("workflow:nightly").status) == ("gave_up", "gave_up")
    make_it_work(shop)
    restarted = flow("restart", run_id, "-o", "json")
    assert restarted.code == 0, restarted.err
    restart_id = restarted.json["run_ids"][0]
    assert (slot().status, slot().reason) == ("succeeded", f"restarted by run {restart_id[:8]}")
    assert "nothing to clear" in flow("clear", "orders").err
    status = {each.get("pipeline"): each for each in flow("status", "-o", "json").json}
    assert (status["orders"]["slot"], status["orders"]["why"]) == (None, None)
    assert flow("run-due").code == 0
    assert slot("workflow:nightly").status == "succeeded"
    assert in_shop(shop, "SELECT n FROM loads") == [(2,)]


def test_a_slot_that_depends_on_a_restarted_one_runs(flow, shop) -> None:
    run_id = fail_slot(flow)
    make_it_work(shop)
    assert flow("restart", run_id).code == 0
    open_slot("items")
    assert [each["status"] for each in flow("run-due", "-o", "json").json] == ["succeeded"]


def test_a_restart_that_fails_again_leaves_the_slot_as_it_was(flow, shop) -> None:
    run_id = fail_slot(flow)
    before = slot()
    assert flow("restart", run_id).code == 1
    assert slot() == before


@with_retries
def test_a_restart_ends_a_slot_that_waits_for_its_next_attempt(flow, shop) -> None:
    run_id = fail_slot(flow)
    assert slot().status == "waiting"
    make_it_work(shop)
    assert flow("restart", run_id).code == 0
    assert slot().status == "succeeded"
    assert flow("run-due").err == "nothing is due\n"


@with_retries
def test_a_slot_that_an_attempt_holds_is_ended_by_that_attempt(flow, shop) -> None:
    run_id = fail_slot(flow)
    make_it_work(shop)
    end_wait()
    with open_slots(slots_url(None), env=os.environ) as store:
        claim = store.claim(slot(), "another process", 60)
        assert claim is not None
        assert flow("restart", run_id).code == 0
        assert slot().status == "claimed"
        assert store.renew(claim, 0.0)  # the process dies
    assert [each["status"] for each in flow("run-due", "-o", "json").json] == ["succeeded"]
    assert (slot().status, in_shop(shop, "SELECT n FROM loads")) == ("succeeded", [(2,)])


@pytest.mark.parametrize("point", ["restart.run_ended", "restart.slot_ended"])
def test_a_restart_that_dies_before_it_ends_its_slot_is_completed_by_the_same_command(
    flow, shop, point: str
) -> None:
    run_id = fail_slot(flow)
    flow("run-due")  # ends the workflow
    make_it_work(shop)
    with inject(point, "crash") as fault:
        flow("restart", run_id)
    assert fault.has_fired
    with open_actions(slots_url(None), env=os.environ) as actions:
        (died,) = actions.list(unfinished=True)
        assert actions.renew(died, 0.0)  # as after a minute
    again = flow("restart", run_id, "-o", "json")
    assert (again.code, again.json["status"], again.json["action_id"]) == (0, "done", died.action_id)
    assert slot().status == "succeeded"
    flow("run-due")
    assert slot("workflow:nightly").status == "succeeded"
    assert in_shop(shop, "SELECT n FROM loads") == [(2,)]


@pytest.mark.parametrize("point", ["restart.run_ended", "restart.slot_ended", "action.carried_out"])
def test_the_same_command_waits_for_the_claim_of_a_restart_that_has_just_died(
    flow, shop, monkeypatch, point: str
) -> None:
    run_id = fail_slot(flow)
    make_it_work(shop)
    with inject(point, "crash") as fault:
        flow("restart", run_id)
    assert fault.has_fired
    waits = []

    def let_the_claim_expire(seconds: float) -> None:
        waits.append(seconds)
        with open_actions(slots_url(None), env=os.environ) as actions:
            (died,) = actions.list(unfinished=True)
            assert actions.renew(died, 0.0)

    monkeypatch.setattr("ematix_flow.cli.action_work.sleep", let_the_claim_expire)
    again = flow("restart", run_id, "-o", "json")
    assert (again.code, again.json["status"], len(waits)) == (0, "done", 1), again.err
    assert slot().status == "succeeded"
    assert in_shop(shop, "SELECT n FROM loads") == [(2,)]
    refused = flow("restart", run_id)
    assert refused.code == 2 and "has ended well" in refused.err


def test_a_slot_store_that_stays_away_is_named_in_the_outcome_of_a_restart(flow, shop, monkeypatch) -> None:
    from ematix_flow.errors import CannotConnect
    from ematix_flow.schedule.actions import action_runs

    run_id = fail_slot(flow)
    make_it_work(shop)

    def refuse(*_: object) -> bool:
        raise CannotConnect("the server is away")

    monkeypatch.setattr(action_runs, "end_restarted_slot", refuse)
    monkeypatch.setattr(action_runs, "_STORE_RETRY_SECONDS", (0.0,))
    restarted = flow("restart", run_id, "-o", "json")
    assert restarted.code != 0 and restarted.json["status"] == "failed"
    assert "its slot was not recorded as succeeded: the server is away" in restarted.json["outcome"]
    assert "flow clear orders" in restarted.json["outcome"]
    assert flow("clear", "orders").code == 0
    assert [each["status"] for each in flow("run-due", "-o", "json").json] == ["succeeded"]
    assert in_shop(shop, "SELECT n FROM loads") == [(2,)]


# ------------------------------------------------------------------ stops between two attempts


@with_retries
@pytest.mark.parametrize("by_name", [True, False])
def test_a_slot_that_waits_for_its_next_attempt_is_stopped(flow, shop, by_name: bool) -> None:
    run_id = fail_slot(flow)
    stopped = flow("stop", "orders" if by_name else run_id[:8], "-o", "json")
    assert stopped.code == 0, stopped.err
    action = stopped.json
    assert (action["status"], action["subject"], action["run_ids"]) == ("done", run_id, [run_id])
    assert action["outcome"] == "the slot of 2026-03-29 12:00 UTC is given up: no further attempt starts"
    reason = slot().reason or ""
    assert slot().status == "gave_up"
    assert reason.startswith("stopped by ada before its next attempt; the last message: ")
    assert "no such table: loads" in reason
    assert [run["status"] for run in flow("runs", "list", "-o", "json").json] == ["failed"]
    assert flow("run-due").err == "nothing is due\n"
    assert "stopped by ada" in flow("status").out
    again = flow("stop", run_id)
    assert again.code == 2 and "has ended: it is failed" in again.err
    nothing = flow("stop", "orders")
    assert nothing.code == 2 and "none of its slots waits for its next attempt" in nothing.err
    make_it_work(shop)
    assert flow("clear", "orders").code == 0
    assert [each["status"] for each in flow("run-due", "-o", "json").json] == ["succeeded"]


@with_retries
def test_a_waiting_slot_whose_attempts_did_not_start_is_stopped_by_name(flow, shop) -> None:
    open_slot("orders")
    with open_slots(slots_url(None), env=os.environ) as store:
        claim = store.claim(slot(), "scheduler", 60)
        assert claim is not None and store.retry_later(claim, 900, "there was no room for it")
    stopped = flow("stop", "orders")
    assert (stopped.code, stopped.err) == (0, "flow status orders\n")
    assert stopped.out == "the slot of 2026-03-29 12:00 UTC is given up: no further attempt starts\n"
    assert (slot().status, flow("run-due").err) == ("gave_up", "nothing is due\n")
    (listed,) = flow("actions", "list", "-o", "json").json
    assert (listed["subject"], listed["run_ids"], listed["status"]) == ("orders", [], "done")


@with_retries
@pytest.mark.parametrize("restarted", [False, True])
def test_a_stop_that_comes_when_the_next_attempt_has_been_claimed_is_obeyed_by_it(
    flow, shop, restarted: bool
) -> None:
    run_id = fail_slot(flow)
    if restarted:
        assert flow("restart", run_id).code == 1
    end_wait()
    with open_slots(slots_url(None), env=os.environ) as store:
        claim = store.claim(slot(), "another process", 60)
        assert claim is not None
        with open_actions(slots_url(None), env=os.environ) as actions:
            asked, _ = actions.request("stop", run_id, {}, by="ada", via="web")
        assert slot().status == "claimed"
        assert store.retry_later(claim, 0.0, "interrupted", failed=False)
    ran = flow("run-due")
    assert ran.code == 130 and "gave up" in ran.out
    assert (slot().status, slot().reason) == ("gave_up", "pipeline 'orders' was stopped by ada")
    runs = flow("runs", "list", "-o", "json").json
    assert [run["status"] for run in runs] == ["cancelled", "failed", "failed"][: 3 if restarted else 2]
    shown = flow("actions", "show", asked.action_id, "-o", "json").json
    assert shown["status"] == "done"


@with_retries
@pytest.mark.parametrize("point", ["action.requested", "action.effected"])
def test_a_stop_between_attempts_that_dies_is_completed_by_the_same_command(flow, shop, point: str) -> None:
    run_id = fail_slot(flow)
    with inject(point, "crash") as fault:
        flow("stop", run_id)
    assert fault.has_fired
    again = flow("stop", run_id, "-o", "json")
    assert (again.code, again.json["status"], again.json["is_new"]) == (0, "done", False)
    assert (slot().status, (slot().reason or "")[:14]) == ("gave_up", "stopped by ada")


@with_retries
def test_a_stop_that_did_not_record_its_end_does_not_give_up_the_slot_once_it_is_cleared(flow, shop) -> None:
    run_id = fail_slot(flow)
    with inject("action.effected", "crash"):
        flow("stop", run_id)
    assert slot().status == "gave_up"
    assert flow("clear", "orders").code == 0
    poll_carrier()
    assert slot().status == "waiting"
    (ended,) = flow("actions", "list", "-o", "json").json
    assert (ended["status"], ended["outcome"]) == (
        "done",
        "the slot of 2026-03-29 12:00 UTC was given up, and then cleared",
    )
    make_it_work(shop)
    assert [each["status"] for each in flow("run-due", "-o", "json").json] == ["succeeded"]


@with_retries
def test_a_slot_that_was_cleared_can_be_stopped_again(flow, shop) -> None:
    run_id = fail_slot(flow)
    for _ in range(2):
        assert flow("stop", run_id, "-o", "json").json["is_new"]
        assert slot().status == "gave_up"
        assert flow("clear", "orders").code == 0
        assert slot().status == "waiting"
