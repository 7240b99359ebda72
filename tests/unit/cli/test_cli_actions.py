"""``flow pause``, ``resume``, ``stop``, ``restart`` and ``actions``: what they change, and what they show."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from ematix_flow.backends.state_stores.run_logs import open_actions, open_slots
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.state.actions.records import ActionRecord
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.times import utc_now

SHOP = """
from ematix_flow import BigInt, SQLiteConnection, ematix, register_connection

register_connection(SQLiteConnection(name="shop", path="shop.db"))

@ematix.table(name="new_orders")
class Orders:
    order_id: BigInt

@ematix.pipeline(target=Orders, target_connection="shop", schedule="* * * * *", catchup="last",
                 transforms_post=["INSERT INTO loads SELECT count(*) FROM new_orders"])
def orders(conn):
    return "SELECT order_id FROM orders"
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop_actions.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "shop_actions")
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    in_shop(tmp_path, "CREATE TABLE orders (order_id INTEGER)")
    in_shop(tmp_path, "INSERT INTO orders VALUES (1), (2)")
    in_shop(tmp_path, "CREATE TABLE loads (n INTEGER)")
    return tmp_path


def in_shop(folder: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        return connection.execute(statement).fetchall()


def running(run_id: str, **more: int) -> None:
    with open_local_run_log(env=os.environ) as log:
        log.start(RunRecord(run_id, "orders", "shop:new_orders", "append", **more))  # type: ignore[arg-type]


def test_a_paused_schedule_starts_nothing_and_what_was_due_fires_by_catchup_when_it_is_resumed(
    flow, shop
) -> None:
    long_ago = utc_now().replace(year=2020, second=0, microsecond=0)
    with open_slots(slots_url(None), env=os.environ) as store:
        store.open([Slot("orders", long_ago)], "succeeded")
    paused = flow("pause", "orders", "--schedule", "--reason", "the shop moves")
    assert paused.code == 0 and paused.out == "no slot of orders starts until its schedule is resumed\n"
    assert paused.err == "flow resume orders --schedule  ends the pause\n"
    assert flow("run-due").err == "nothing is due\n"
    assert "nothing" in flow("run-due", "--dry-run").err
    status = flow("status")
    assert "schedule paused by ada since" in status.out and "(the shop moves)" in status.out
    assert "backlog: 1 slot is due and waits" in status.out
    (told,) = flow("status", "-o", "json").json
    assert (told["schedule_hold"]["by"], told["schedule_hold"]["reason"]) == ("ada", "the shop moves")
    assert (told["hold"], told["due_slots"]) == (None, 1)
    again = flow("pause", "orders", "--schedule")
    assert again.code == 2 and "the schedule of 'orders' is already paused by ada since" in again.err
    resumed = flow("resume", "orders", "--schedule")
    assert resumed.code == 0 and resumed.out.startswith("the schedule of orders fires again")
    ran = flow("run-due", "-o", "json").json
    assert [slot["status"] for slot in ran] == ["succeeded"]
    assert flow("status", "-o", "json").json[0]["schedule_hold"] is None


def test_a_run_is_paused_and_resumed(flow, shop) -> None:
    refused = flow("pause", "orders")
    assert refused.code == 2 and "'orders' is not running, so there is no run to pause" in refused.err
    assert "--schedule" in refused.err
    running("live")
    assert flow("pause", "orders", "-o", "json").json["status"] == "done"
    assert "paused by ada since" in flow("status").out
    with open_actions(slots_url(None), env=os.environ) as actions:
        actions.mark_held("orders", "live-and-long-id", "before apply into shop:new_orders")
    assert "its run live-and waits before apply into shop:new_orders" in flow("status").out
    assert flow("status", "-o", "json").json[0]["hold"]["held_run"] == "live-and-long-id"
    assert flow("resume", "orders").out == "orders goes on\n"
    missing = flow("resume", "orders")
    assert missing.code == 2 and "'orders' is not paused" in missing.err
    wrong = flow("pause", "ordrs")
    assert wrong.code == 2 and "Did you mean 'orders'?" in wrong.err


def test_a_run_is_asked_to_stop_unless_it_has_ended_or_its_process_is_gone(flow, shop) -> None:
    running("live0001")
    running("dead0001", pid=2**22 + 1)
    asked = flow("stop", "live")
    assert (asked.code, asked.out) == (0, "run live0001 is asked to stop\n")
    assert asked.err == "flow runs show live0001  shows when it has\n"
    again = flow("stop", "live0001", "-o", "json").json
    assert (again["status"], again["is_new"], again["requested_by"]) == ("waiting", False, "ada")
    assert again["why"] is None  # the run obeys it
    assert "run live0001 is asked to stop, as ada did at" in flow("stop", "live0001").out
    gone = flow("stop", "dead")
    assert gone.code == 2
    assert "there is nothing to stop: the process 4194305 of run dead0001 of 'orders' is gone" in gone.err
    assert "flow restart dead0001" in gone.err
    assert "the run log has no run 'nothing'" in flow("stop", "nothing").err


def test_a_failed_run_is_restarted_from_its_failed_step_by_this_process(flow, shop) -> None:
    in_shop(shop, "ALTER TABLE loads RENAME TO gone")
    assert flow("run", "orders").code == 1
    in_shop(shop, "ALTER TABLE gone RENAME TO loads")
    (failed,) = flow("runs", "list", "-o", "json").json
    restarted = flow("restart", failed["run_id"][:8], "-o", "json")
    assert restarted.code == 0, restarted.err
    action = restarted.json
    assert (action["status"], action["requested_by"], action["via"]) == ("done", "ada", "cli")
    newest = flow("runs", "list", "-o", "json").json[0]
    assert action["run_ids"] == [newest["run_id"]] and newest["status"] == "succeeded"
    assert in_shop(shop, "SELECT count(*) FROM new_orders") == [(2,)]
    assert in_shop(shop, "SELECT n FROM loads") == [(2,)]
    refused = flow("restart", failed["run_id"])
    assert refused.code == 2 and "cannot be restarted" in refused.err


def test_a_restart_that_fails_again_says_so(flow, shop) -> None:
    in_shop(shop, "DROP TABLE loads")
    assert flow("run", "orders").code == 1
    (failed,) = flow("runs", "list", "-o", "json").json
    again = flow("restart", failed["run_id"])
    assert again.code == 1 and "status     failed" in again.out
    assert "no such table: loads" in again.err


def failed_restart_of_scheduler(flow, shop) -> tuple[str, ActionRecord]:
    """A run that failed, and the claim of a scheduler that restarts it."""
    in_shop(shop, "DROP TABLE loads")
    flow("run", "orders")
    (failed,) = flow("runs", "list", "-o", "json").json
    with open_actions(slots_url(None), env=os.environ) as actions:
        asked, _ = actions.request("restart", failed["run_id"], {}, by="bob", via="web")
        claimed = actions.claim(asked, "vm/1/x", 60)
    assert claimed is not None
    return failed["run_id"], claimed


@pytest.mark.parametrize(("status", "code"), [("done", 0), ("failed", 1), ("refused", 1)])
def test_a_restart_that_a_scheduler_carries_out_is_awaited(flow, shop, monkeypatch, status, code) -> None:
    run_id, claimed = failed_restart_of_scheduler(flow, shop)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            with open_actions(slots_url(None), env=os.environ) as actions:
                assert actions.end(claimed, status, "this is how it ended")

    monkeypatch.setattr("ematix_flow.cli.action_work.sleep", wait)
    awaited = flow("restart", run_id)
    assert (awaited.code, len(waits)) == (code, 2)
    assert "vm/1 carries out the action" in awaited.err and "this is how it ended" in awaited.out
    assert len(flow("runs", "list", "-o", "json").json) == 1


def test_a_restart_whose_scheduler_dies_is_carried_out_by_the_command_that_waits(
    flow, shop, monkeypatch
) -> None:
    run_id, claimed = failed_restart_of_scheduler(flow, shop)
    in_shop(shop, "CREATE TABLE loads (n INTEGER)")

    def wait(seconds: float) -> None:
        with open_actions(slots_url(None), env=os.environ) as actions:
            assert actions.renew(claimed, 0.0)

    monkeypatch.setattr("ematix_flow.cli.action_work.sleep", wait)
    restarted = flow("restart", run_id, "-o", "json")
    assert (restarted.code, restarted.json["status"], restarted.json["fence"]) == (0, "done", 2)
    assert in_shop(shop, "SELECT n FROM loads") == [(2,)]


def test_actions_are_listed_and_shown(flow, shop) -> None:
    assert flow("actions", "list").err == "nobody has requested an action yet\n"
    running("live0001")
    flow("pause", "orders", "--schedule")
    flow("stop", "live0001")
    listed = flow("actions", "list")
    stop, pause = (line.split() for line in listed.out.splitlines()[1:])
    assert stop[1:4] == ["stop", "live0001", "waiting"]
    assert pause[1:5] == ["pause", "schedule", "orders", "done"] and "ada," in pause
    assert "flow actions show ACTION" in listed.err
    assert [each["kind"] for each in flow("actions", "list", "--unfinished", "-o", "json").json] == ["stop"]
    (of_orders,) = flow("actions", "list", "--of", "orders", "-o", "json").json
    assert flow("actions", "list", "--of", "nothing").err == "no such action\n"
    shown = flow("actions", "show", of_orders["action_id"][:6])
    assert "outcome    no slot of orders starts until its schedule is resumed" in shown.out
    assert flow("actions", "show", of_orders["action_id"], "-o", "json").json == of_orders
    unknown = flow("actions", "show", "zzz")
    assert unknown.code == 2 and "there is no action 'zzz'" in unknown.err


def test_an_action_that_nobody_takes_says_why_it_waits(flow, shop, monkeypatch) -> None:
    monkeypatch.setattr("ematix_flow.schedule.actions.untaken_actions._TAKEN_WITHIN", timedelta(seconds=-60))
    with open_actions(slots_url(None), env=os.environ) as actions:
        asked, _ = actions.request("run", "elsewhere", {}, by="bob", via="web")
    nobody = "no running scheduler or page declares 'elsewhere', or all that do are busy"
    assert nobody in " ".join(flow("actions", "list").out.split())
    assert f"waits      {nobody}; one that starts after" in flow("actions", "show", asked.action_id).out
    (listed,) = flow("actions", "list", "-o", "json").json
    assert listed["why"].startswith(nobody)


def test_a_command_for_programs_is_not_shown_and_refuses_what_it_has_no_claim_of(flow, shop) -> None:
    assert "run-action" not in flow("--help").out
    refused = flow("run-action", "zzz", "--claim=1:me")
    assert refused.code == 2 and "there is no action 'zzz'" in refused.err
