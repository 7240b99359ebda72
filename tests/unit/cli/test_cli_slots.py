"""``flow status`` and ``flow scheduler`` about slots: what is due and waits, what is later than now."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.state_stores.run_logs import open_slots
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.observe.metrics import memory_metrics
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Slot, SlotStore

HOUR = dt.timedelta(hours=1)
SHOP = """
from ematix_flow import BigInt, SQLiteConnection, ematix, register_connection

register_connection(SQLiteConnection(name="shop", path="shop.db"))

@ematix.table(name="new_orders")
class Orders:
    order_id: BigInt

@ematix.pipeline(target=Orders, target_connection="shop", mode="truncate", schedule="0 0 1 1 *")
def orders(conn):
    return "SELECT order_id FROM orders"

@ematix.table(name="new_items")
class Items:
    order_id: BigInt

@ematix.pipeline(target=Items, target_connection="shop", mode="truncate", schedule="0 0 1 1 *")
def items(conn):
    return "SELECT order_id FROM orders"
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop_slots.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "shop_slots")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (order_id INTEGER)")
    return tmp_path


def in_store(change: Callable[[SlotStore], Any]) -> None:
    with open_slots(slots_url(None), env=os.environ) as store:
        change(store)


def open_slots_of(pipeline: str, *at: dt.datetime) -> None:
    in_store(lambda store: store.open([Slot(pipeline, each) for each in at]))


def test_a_backlog_is_shown_with_how_far_behind_it_is_and_counted(flow, shop) -> None:
    assert "backlog" not in flow("status").out
    now = dt.datetime.now(dt.timezone.utc)
    open_slots_of("orders", now - 5 * HOUR, now - 4 * HOUR, now - 3 * HOUR)
    open_slots_of("items", now - 2 * HOUR)
    told = flow("status").out.splitlines()[-1]
    assert told.startswith("backlog: 4 slots are due and wait; the oldest is orders of ")
    assert told.endswith("5 h 0 min behind")
    orders, items = flow("status", "-o", "json").json
    assert (orders["due_slots"], orders["oldest_due"]) == (3, (now - 5 * HOUR).isoformat())
    assert 5 * 3600 <= orders["behind_seconds"] < 6 * 3600
    assert (items["due_slots"], items["oldest_due"]) == (1, (now - 2 * HOUR).isoformat())
    assert flow("status", "items").out.splitlines()[-1].startswith("backlog: 1 slot is due and waits: items")

    looked = flow(
        "scheduler",
        "--executor=subprocess://?workers=1",
        "--max-iterations=1",
        "--metrics=memory://backlog",
    )
    assert looked.code == 0, looked.err
    numbers = memory_metrics("backlog")
    assert numbers.value("ematix_flow_scheduler_due_slots") == 3  # the oldest has the only worker
    behind = numbers.value("ematix_flow_scheduler_oldest_due_seconds")
    assert behind is not None and 4 * 3600 <= behind < 5 * 3600
    assert flow("status", "-o", "json").json[0]["due_slots"] == 2


def test_a_slot_that_waits_for_its_next_attempt_is_no_backlog(flow, shop) -> None:
    slot = Slot("orders", dt.datetime.now(dt.timezone.utc) - HOUR)

    def fail(store: SlotStore) -> None:
        store.open([slot])
        seen = store.get(slot)
        assert seen is not None
        claim = store.claim(seen, "me", 60)
        assert claim is not None
        store.retry_later(claim, 300, "it failed")

    in_store(fail)
    assert "backlog" not in flow("status").out
    assert flow("status", "-o", "json").json[0]["due_slots"] == 0


def test_a_slot_later_than_now_is_shown_and_warned_of_and_its_pipeline_fires_as_usual(flow, shop) -> None:
    """As a clock that jumped ahead and came back leaves it."""
    now = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
    later = now + 30 * HOUR
    open_slots_of("orders", later)
    orders, items = flow("status", "-o", "json").json
    assert (orders["slot_ahead"], items["slot_ahead"]) == (later.isoformat(), None)
    shown = f"it has a slot of {later:%Y-%m-%d %H:%M} UTC, later than now: a clock was ahead"
    assert orders["why"].startswith(shown) and items["why"] is None
    text = " ".join(flow("status", "orders").out.split())
    assert "it has a slot of" in text and "backlog" not in text
    open_slots_of("orders", now - HOUR)
    looked = flow("scheduler", "--max-iterations=1")
    assert looked.code == 0
    (warned,) = [line for line in looked.err.splitlines() if "a clock was ahead" in line]
    assert f"orders has a slot of {later:%Y-%m-%d %H:%M} UTC, and it is " in warned
    assert f"orders of {(now - HOUR).isoformat()} is started" in looked.err
    assert flow("status", "-o", "json").json[0]["slot_ahead"] == later.isoformat()


def test_a_scheduler_without_any_schedule_says_so_and_ends_with_code_2(flow, shop) -> None:
    module = shop / "shop_slots.py"
    module.write_text(SHOP.replace(', schedule="0 0 1 1 *"', ""), encoding="utf-8")
    ended = flow("scheduler")
    assert ended.code == 2
    assert (
        "no pipeline has a schedule, and no workflow runs one: the scheduler would never run anything"
        in ended.err
    )
    assert "flow run NAME" in ended.err


def test_a_scheduler_of_chosen_pipelines_without_any_schedule_ends_with_code_2(flow, shop) -> None:
    module = shop / "shop_slots.py"
    once = SHOP.replace(', schedule="0 0 1 1 *"', "", 1)
    module.write_text(once, encoding="utf-8")
    ended = flow("scheduler", "orders")
    assert ended.code == 2 and "none of the chosen pipelines has a schedule" in ended.err
    assert flow("scheduler", "items", "--max-iterations=1").code == 0


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC0", "2026-03-29 12:00:00 UTC INFO one"),
        ("EST5", "2026-03-29 07:00:00 EST INFO one"),
    ],
)
def test_the_times_of_a_log_are_local_and_name_their_zone(
    flow, monkeypatch: pytest.MonkeyPatch, zone: str, shown: str
) -> None:
    with open_local_run_log(env=os.environ) as log:
        log.start(RunRecord("feedbeef", "orders", "w:t", "append"))
        log.save_output("feedbeef", "2026-03-29 12:00:00Z INFO one\nwithout a time\n")
    try:
        with monkeypatch.context() as here:
            here.setenv("TZ", zone)
            time.tzset()
            assert flow("logs", "feed").out == f"{shown}\nwithout a time\n"
            assert flow("logs", "feed", "-o", "json").json["lines"][0] == "2026-03-29 12:00:00Z INFO one"
    finally:
        time.tzset()
