"""What is due, run here on a real SQLite file: order, workflows, skips, clearing, several at once."""

from __future__ import annotations

import datetime as dt
import os
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ematix_flow import (
    AllOf,
    AnyOf,
    BigInt,
    Pipeline,
    SQLiteConnection,
    Target,
    Text,
    ematix,
    fault_points,
    register_connection,
)
from ematix_flow.cli.commands.run_due import exit_code
from ematix_flow.errors import (
    ConfigError,
    Interrupted,
    LoadError,
    PipelineLocked,
    SourceFailed,
    TargetFailed,
)
from ematix_flow.graph.registry import Registry, current_registry, use_registry
from ematix_flow.run.context_setup import run_context
from ematix_flow.run.dag import run_dag
from ematix_flow.run.pipeline import run_declared_pipeline
from ematix_flow.schedule.clearing import clearable_slots, reopen_slots
from ematix_flow.schedule.run_due import SlotOutcome, SlotRunner
from ematix_flow.schedule.run_due_preview import predict_due_runs
from ematix_flow.schedule.slot_lifecycle import ALREADY_LOADED
from ematix_flow.schedule.status import pipeline_statuses, workflow_statuses
from ematix_flow.schedule.workflows import slot_name
from ematix_flow.state.local_stores import open_slots_file
from ematix_flow.state.process_liveness import holder_is_dead, new_holder
from ematix_flow.state.runlog.base import run_log_location
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord, SlotStore
from ematix_flow.state.times import utc_now

MINUTE = dt.timedelta(minutes=1)
LOG = "sqlite://log.db"


@ematix.table(schema="shop")
class Numbers:
    id: BigInt


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    execute(tmp_path, "CREATE TABLE raw (id INTEGER)")
    execute(tmp_path, "INSERT INTO raw VALUES (1)")
    register_connection(SQLiteConnection(name="shop", path=str(tmp_path / "shop.db")))
    return tmp_path


def execute(folder: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "shop.db", timeout=30)) as connection, connection:
        return connection.execute(sql).fetchall()


def declare(name: str, *depends_on: str, sql: str = "SELECT id FROM raw", **options: Any) -> Pipeline:
    @ematix.table(schema="shop", name=f"t_{name}")
    class Numbers:
        id: BigInt

    @ematix.pipeline(
        target=Numbers,
        target_connection="shop",
        name=name,
        depends_on=depends_on,
        **options,
    )
    def load(conn: Any) -> str:
        return sql

    return load


@contextmanager
def runner(only: frozenset[str] | None = None) -> Iterator[SlotRunner]:
    store = open_slots_file(run_log_location(LOG, os.environ))
    with run_context(run_log=LOG, trigger="schedule") as context:
        yield SlotRunner(
            current_registry(),
            store,
            context.run_log,
            lambda slot: replace(context, slot=slot.fire_time),
            only=only,
        )


def open_slot(name: str, at: dt.datetime) -> Slot:
    with runner() as here:
        here.store.open([Slot(name, at)])
    return Slot(name, at)


def run_due(workers: int = 1, only: frozenset[str] | None = None) -> list[SlotOutcome]:
    current_registry().check()
    with runner(only) as here:
        return here.run_due(MINUTE, workers=workers)


def names(outcomes: list[SlotOutcome]) -> list[tuple[str, str]]:
    return [(outcome.slot.pipeline, outcome.status) for outcome in outcomes]


def status_of(slot: Slot) -> tuple[str, str | None]:
    with runner() as here:
        found = here.store.get(slot)
    assert found is not None
    return found.status, found.reason


# ------------------------------------------------------------------ workflows


def test_the_slot_of_a_workflow_runs_its_jobs_in_their_order_and_ends_with_them() -> None:
    declare("daily", "orders")
    declare("orders")
    declare("apart")
    ematix.workflow("nightly", jobs=["daily", "orders"], schedule="0 2 29 2 *")
    at = utc_now()
    slot = open_slot(slot_name("nightly"), at)
    assert names(run_due()) == [("orders", "succeeded"), ("daily", "succeeded")]
    assert status_of(slot) == ("succeeded", None)
    assert status_of(Slot("daily", at))[0] == "succeeded"
    assert run_due() == []


def test_a_workflow_fires_by_its_own_schedule() -> None:
    declare("orders")
    ematix.workflow("minutely", jobs=["orders"], schedule="* * * * *")
    ran = run_due()
    assert names(ran)[0] == ("orders", "succeeded")
    assert ran[0].slot.fire_time.second == 0
    assert status_of(Slot(slot_name("minutely"), ran[0].slot.fire_time))[0] == "succeeded"


def test_a_job_that_its_own_schedule_fires_at_the_same_moment_runs_once(shop: Path) -> None:
    declare("orders", schedule="0 2 29 2 *")
    ematix.workflow("nightly", jobs=["orders"], schedule="0 2 29 2 *")
    at = utc_now()
    open_slot("orders", at)
    open_slot(slot_name("nightly"), at)
    assert names(run_due()) == [("orders", "succeeded")]
    assert execute(shop, "SELECT count(*) FROM shop__t_orders") == [(1,)]


def test_a_trigger_waits_for_the_transforms_of_a_run_that_died_before_them() -> None:
    """The load of the dead run is committed; another process polls while the next run does the rest."""
    fired: list[int] = []
    at, workflow = utc_now(), slot_name("after")

    def follows(conn: Any) -> None:
        with runner() as other:
            other.poll(other.due_calculator(MINUTE))
            fired.append(len(other.store.unfinished([workflow])))

    orders = declare("orders", transforms_post=[follows])
    declare("mail")
    ematix.workflow("after", jobs=["mail"], triggered_by="orders")
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("apply.after_commit", "crash"):
        orders.sync(run_log=LOG, slot=at)
    open_slot("orders", at)
    assert names(run_due()) == [("orders", "succeeded"), ("mail", "succeeded")]
    assert fired == [0]
    with runner() as here:
        _, dead = here.run_log.list("orders")
    assert dead.status == "interrupted"
    assert (dead.error_message or "").endswith("; its post-load transforms may not have run")


def test_a_job_that_fails_ends_its_workflow_with_the_reason() -> None:
    declare("orders", sql="SELECT id FROM nowhere")
    declare("daily", "orders")
    declare("report", "daily")
    ematix.workflow("nightly", jobs=["orders", "daily", "report"], schedule="0 2 29 2 *")
    slot = open_slot(slot_name("nightly"), utc_now())
    assert names(run_due()) == [("orders", "gave_up"), ("daily", "skipped"), ("report", "skipped")]
    status, reason = status_of(slot)
    assert status == "gave_up"
    assert reason is not None and reason.startswith("3 of 3 jobs did not succeed; orders was given up: ")


def test_a_success_starts_what_waits_for_it_once() -> None:
    orders = declare("orders")
    declare("mail")
    ematix.workflow("after", jobs=["mail"], triggered_by=orders)
    assert run_due() == []
    orders.sync(run_log=LOG)
    assert names(run_due()) == [("mail", "succeeded")]
    assert run_due() == []
    orders.sync(run_log=LOG)
    orders.sync(run_log=LOG)
    assert names(run_due()) == [("mail", "succeeded")]
    assert run_due() == []


def test_one_call_runs_a_chain_of_workflows() -> None:
    declare("orders")
    declare("mail")
    declare("archive")
    ematix.workflow("first", jobs=["orders"], schedule="0 2 29 2 *")
    ematix.workflow("second", jobs=["mail"], triggered_by="first")
    ematix.workflow("third", jobs=["archive"], triggered_by=["second", "orders"])
    open_slot(slot_name("first"), utc_now())
    assert names(run_due()) == [(name, "succeeded") for name in ("orders", "mail", "archive")]
    assert run_due() == []


def test_all_and_any_of_a_trigger() -> None:
    upstream = {name: declare(name) for name in ("orders", "items", "stock")}
    declare("mail")
    ematix.workflow("after", jobs=["mail"], triggered_by=AllOf("orders", AnyOf("items", "stock")))
    upstream["items"].sync(run_log=LOG)
    upstream["stock"].sync(run_log=LOG)
    assert run_due() == []
    upstream["orders"].sync(run_log=LOG)
    assert names(run_due()) == [("mail", "succeeded")]
    upstream["orders"].sync(run_log=LOG)
    assert run_due() == []  # the results of items and stock are used up
    upstream["stock"].sync(run_log=LOG)
    assert names(run_due()) == [("mail", "succeeded")]


def test_a_failed_upstream_starts_nothing_and_the_status_says_so() -> None:
    orders, items = declare("orders"), declare("items", sql="SELECT id FROM nowhere")
    declare("mail")
    ematix.workflow("after", jobs=["mail"], triggered_by=[orders, items])
    orders.sync(run_log=LOG)
    with pytest.raises(SourceFailed):
        items.sync(run_log=LOG)
    assert run_due() == []
    with runner() as here:
        (standing,) = workflow_statuses(current_registry(), None, here.store, here.run_log, utc_now())
    assert standing.outcome == "never"
    waiting, waits = standing.waits_for
    assert waiting == "a success of items"
    assert waits.startswith("items failed at ") and "nowhere" in waits


def test_the_status_names_a_fire_that_nobody_has_looked_at() -> None:
    declare("orders", schedule="0 * * * *")
    declare("fresh", schedule="0 * * * *")  # no poll ever happened: that is not a failure
    hour = utc_now().replace(minute=0, second=0, microsecond=0)
    open_slot("orders", hour - dt.timedelta(hours=3))
    with runner() as here:
        registry, asked = current_registry(), hour + dt.timedelta(minutes=30)
        orders, fresh = pipeline_statuses(registry, None, here.store, here.run_log, asked)
        (early, _) = pipeline_statuses(
            registry, None, here.store, here.run_log, hour - dt.timedelta(minutes=115)
        )
    assert orders.unpolled_since == hour - dt.timedelta(hours=2)
    assert orders.why.startswith("due since ") and orders.why.endswith("has polled since")
    assert (fresh.unpolled_since, fresh.why) == (None, "")
    assert early.unpolled_since is None


def test_many_who_look_at_once_fire_a_trigger_once(shop: Path) -> None:
    orders = declare("orders")
    declare("mail")
    ematix.workflow("after", jobs=["mail"], triggered_by="orders")
    orders.sync(run_log=LOG)
    together, ran = threading.Barrier(4), list[tuple[str, str]]()

    def call() -> None:
        together.wait(60)
        ran.extend(names(run_due()))

    registry = current_registry()
    from ematix_flow.graph.registry import use_registry

    def in_registry() -> None:
        with use_registry(registry):
            call()

    threads = [threading.Thread(target=in_registry) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran.count(("mail", "succeeded")) == 1
    assert execute(shop, "SELECT count(*) FROM shop__t_mail") == [(1,)]


def test_a_selection_runs_its_own_and_leaves_the_other_jobs_waiting() -> None:
    declare("orders")
    declare("items")
    ematix.workflow("nightly", jobs=["orders", "items"], schedule="0 2 29 2 *")
    at = utc_now()
    slot = open_slot(slot_name("nightly"), at)
    assert names(run_due(only=frozenset({"orders"}))) == [("orders", "succeeded")]
    assert status_of(Slot("items", at))[0] == status_of(slot)[0] == "waiting"
    assert names(run_due()) == [("items", "succeeded")]
    assert status_of(slot)[0] == "succeeded"


# ------------------------------------------------------------------ failures


def test_what_a_failure_holds_back_is_recorded_with_the_reason() -> None:
    declare("orders", sql="SELECT id FROM nowhere")
    declare("daily", "orders")
    declare("report", "daily")
    at = utc_now()
    for name in ("orders", "daily", "report"):
        open_slot(name, at)
    run_due()
    with runner() as here:
        (skipped,) = here.run_log.list("report")
    assert (skipped.status, skipped.slot, skipped.trigger) == ("skipped", at, "schedule")
    assert skipped.error_message is not None
    assert skipped.error_message.startswith("orders of ") and "was given up: " in skipped.error_message


def test_one_failure_does_not_latch(shop: Path) -> None:
    execute(shop, "ALTER TABLE raw RENAME TO gone")
    declare("orders")
    declare("daily", "orders")
    first = utc_now() - MINUTE
    for name in ("orders", "daily"):
        open_slot(name, first)
    assert names(run_due()) == [("orders", "gave_up"), ("daily", "skipped")]
    execute(shop, "ALTER TABLE gone RENAME TO raw")
    for name in ("orders", "daily"):
        open_slot(name, first + MINUTE)
    assert names(run_due()) == [("orders", "succeeded"), ("daily", "succeeded")]


def test_a_success_by_hand_lets_what_waits_go_on(shop: Path) -> None:
    execute(shop, "ALTER TABLE raw RENAME TO gone")
    orders = declare("orders")
    declare("daily", "orders")
    open_slot("orders", utc_now())
    assert names(run_due()) == [("orders", "gave_up")]
    execute(shop, "ALTER TABLE gone RENAME TO raw")
    open_slot("daily", utc_now())
    orders.sync(run_log=LOG)
    assert names(run_due()) == [("daily", "succeeded")]
    with runner() as here:
        standing, _ = pipeline_statuses(current_registry(), None, here.store, here.run_log, utc_now())
    assert standing.slot is None and standing.why == ""


def test_the_late_run_of_an_older_slot_does_not_make_up_for_one_that_was_given_up(shop: Path) -> None:
    """As in a catch-up: the first hour loads, the source is gone in the second."""
    first, second = utc_now() - 2 * MINUTE, utc_now() - MINUTE
    declare("orders", transforms_post=["ALTER TABLE raw RENAME TO gone"])
    declare("daily", "orders")
    for at in (first, second):
        open_slot("orders", at)
        open_slot("daily", at)
    run_due()
    assert status_of(Slot("orders", first))[0] == "succeeded"
    assert status_of(Slot("orders", second))[0] == "gave_up"
    assert status_of(Slot("daily", second))[0] == "skipped"
    with runner() as here:
        standing, _ = pipeline_statuses(current_registry(), None, here.store, here.run_log, utc_now())
    assert standing.slot is not None and standing.slot.status == "gave_up"


def test_what_is_foreseen_of_an_older_slot_does_not_make_up_for_one_that_was_given_up() -> None:
    first, second = utc_now() - 2 * MINUTE, utc_now() - MINUTE
    declare("orders")
    declare("daily", "orders")
    open_slot("orders", first)
    open_slot("daily", second)
    with runner() as here:
        here.store.open([Slot("orders", second)], "gave_up", "no source")
        found = [(each.slot.pipeline, each.would) for each in predict_due_runs(here, MINUTE)]
    assert found == [("orders", "run"), ("daily", "be skipped")]


def test_an_upstream_that_found_nothing_new_counts_as_fresh() -> None:
    orders = declare("orders", incremental=True, watermark_column="id")
    declare("daily", "orders", upstream_freshness_secs=3600)
    orders.sync(run_log=LOG)
    assert orders.sync(run_log=LOG).status == "skipped"
    open_slot("daily", utc_now())
    assert names(run_due()) == [("daily", "succeeded")]


def test_a_cleared_slot_runs_again_and_its_workflow_ends_again(shop: Path) -> None:
    execute(shop, "ALTER TABLE raw RENAME TO gone")
    declare("orders")
    declare("daily", "orders")
    ematix.workflow("nightly", jobs=["orders", "daily"], schedule="0 2 29 2 *")
    slot = open_slot(slot_name("nightly"), utc_now())
    run_due()
    assert status_of(slot)[0] == "gave_up"
    execute(shop, "ALTER TABLE gone RENAME TO raw")
    with runner() as here:
        found = clearable_slots(here.store, ["orders", "daily"], None)
        assert [(each.slot.pipeline, each.status) for each in found] == [
            ("orders", "gave_up"),
            ("daily", "skipped"),
        ]
        assert len(reopen_slots(here.store, current_registry(), found)) == 2
        assert reopen_slots(here.store, current_registry(), found) == []
    assert names(run_due()) == [("orders", "succeeded"), ("daily", "succeeded")]
    assert status_of(slot)[0] == "succeeded"


def test_a_missed_fire_is_neither_cleared_nor_in_the_way() -> None:
    declare("orders")
    declare("daily", "orders")
    at = utc_now()
    with runner() as here:
        from ematix_flow.schedule.due_slots import MISSED

        here.store.open([Slot("orders", at)], "skipped", MISSED)
        assert clearable_slots(here.store, ["orders"], None) == []
        assert clearable_slots(here.store, ["orders"], at - MINUTE) == []
    current_registry().pipeline("orders").handle.sync(run_log=LOG)
    open_slot("daily", at)
    assert names(run_due()) == [("daily", "succeeded")]


def test_slots_since_a_moment_are_cleared_oldest_first(shop: Path) -> None:
    declare("orders", sql="SELECT id FROM nowhere")
    start = utc_now() - 10 * MINUTE
    for number in range(3):
        open_slot("orders", start + number * MINUTE)
    run_due()
    with runner() as here:
        found = clearable_slots(here.store, ["orders"], start + MINUTE)
        assert [each.slot.fire_time for each in found] == [start + MINUTE, start + 2 * MINUTE]
        assert [each.slot.fire_time for each in clearable_slots(here.store, ["orders"], None)] == [
            start + 2 * MINUTE
        ]


# ------------------------------------------------------------------ side by side


def meeting(name: str, place: threading.Barrier, *depends_on: str, **options: Any) -> None:
    """A pipeline that continues only while another one runs."""

    @ematix.table(schema="shop", name=f"t_{name}")
    class Numbers:
        id: BigInt

    @ematix.pipeline(
        target=Numbers, target_connection="shop", name=name, depends_on=depends_on, mode="truncate", **options
    )
    def load(conn: Any) -> str:
        place.wait(60)
        return "SELECT id FROM raw"


def test_branches_run_side_by_side_and_what_needs_both_after_them() -> None:
    place = threading.Barrier(2)
    meeting("orders", place)
    meeting("items", place)
    declare("daily", "orders", "items")
    seen: list[str] = []
    with run_context(run_log=LOG) as context:
        outcomes = run_dag(
            current_registry(), None, context, workers=2, after=lambda outcome: seen.append(outcome.pipeline)
        )
    assert [(each.pipeline, each.status) for each in outcomes] == [
        (name, "succeeded") for name in ("orders", "items", "daily")
    ]
    assert seen[-1] == "daily"


def test_due_branches_run_side_by_side_too() -> None:
    place = threading.Barrier(2)
    meeting("orders", place)
    meeting("items", place)
    declare("daily", "orders", "items")
    at = utc_now()
    for name in ("daily", "orders", "items"):
        open_slot(name, at)
    outcomes = names(run_due(workers=3))
    assert sorted(outcomes[:2]) == [("items", "succeeded"), ("orders", "succeeded")]
    assert outcomes[2:] == [("daily", "succeeded")]


def test_two_slots_of_one_pipeline_never_run_side_by_side() -> None:
    declare("orders")
    at = utc_now()
    for number in range(3):
        open_slot("orders", at - number * MINUTE)
    outcomes = run_due(workers=3)
    assert names(outcomes) == [("orders", "succeeded")] * 3
    assert [each.slot.fire_time for each in outcomes] == [at - 2 * MINUTE, at - MINUTE, at]


def test_a_failure_in_one_branch_leaves_the_other_alone_and_is_recorded() -> None:
    declare("orders", sql="SELECT id FROM nowhere")
    declare("daily", "orders")
    declare("report", "daily")
    declare("items")
    with run_context(run_log=LOG, trigger="cli") as context:
        outcomes = run_dag(current_registry(), None, context, workers=3)
        (skipped,) = context.run_log.list("report")
    assert {each.pipeline: each.status for each in outcomes} == {
        "orders": "failed",
        "items": "succeeded",
        "daily": "not_run",
        "report": "not_run",
    }
    assert (skipped.status, skipped.error_message) == (
        "skipped",
        "orders failed, and report depends on it",
    )


def test_an_interrupt_of_one_stops_the_others_and_starts_no_more() -> None:
    at_work = threading.Event()

    @ematix.pipeline(target=Numbers, target_connection="shop", name="stops")
    def stops(conn: Any) -> str:
        assert at_work.wait(60)
        raise KeyboardInterrupt

    @ematix.pipeline(target=Numbers, target_connection="shop", name="long")
    def long(conn: Any) -> str:
        at_work.set()
        while True:  # until it is interrupted
            threading.Event().wait(0.01)

    declare("later", "long")
    with run_context(run_log=LOG) as context:
        with pytest.raises(Interrupted):
            run_dag(current_registry(), None, context, workers=2)
        assert {run.pipeline: run.status for run in context.run_log.list()} == {
            "stops": "cancelled",
            "long": "cancelled",
        }


# ------------------------------------------------------------------ one at a time


def test_a_slot_waits_for_an_older_one_that_somebody_holds() -> None:
    """As after a kill -9: no process knows yet that its run is dead."""
    declare("orders")
    now = utc_now()
    older, newer = open_slot("orders", now - 2 * MINUTE), open_slot("orders", now - MINUTE)
    with runner() as here:
        seen = here.store.get(older)
        assert seen is not None and here.store.claim(seen, "vm/366/0-1", 300) is not None
        assert [record.slot for record in here.held_slots(["orders"])] == [older]
    (waits,) = run_due()
    assert (waits.slot, waits.status) == (newer, "waiting")
    assert "is held by vm/366 until" in (waits.reason or "")
    assert status_of(newer)[0] == "waiting"


def test_a_slot_waits_for_an_older_one_that_another_was_faster_with() -> None:
    declare("orders")
    now = utc_now()
    older, newer = open_slot("orders", now - 2 * MINUTE), open_slot("orders", now - MINUTE)
    current_registry().check()
    with runner() as here:
        real = here.store.claim

        def claim(seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
            if seen.slot == older:
                assert real(seen, "vm/366/0-1", 300) is not None
            return real(seen, holder, seconds)

        here.store.claim = claim  # type: ignore[method-assign]
        (waits,) = here.run_due(MINUTE)
    assert (waits.slot, waits.status) == (newer, "waiting")
    assert "is held by vm/366 until" in (waits.reason or "")
    assert [status_of(slot)[0] for slot in (older, newer)] == ["claimed", "waiting"]


def test_a_slot_that_waits_for_its_next_attempt_holds_no_newer_one_back() -> None:
    queries = ["SELECT id FROM nowhere"]

    @ematix.pipeline(
        target=Numbers, target_connection="shop", name="orders", retry={"max_attempts": 2, "base_secs": 0}
    )
    def orders(conn: Any) -> str:
        return queries.pop() if queries else "SELECT id FROM raw"

    now = utc_now()
    older, newer = open_slot("orders", now - 2 * MINUTE), open_slot("orders", now - MINUTE)
    assert [(each.slot, each.status) for each in run_due()] == [(older, "waiting"), (newer, "succeeded")]
    assert [(each.slot, each.status) for each in run_due()] == [(older, "succeeded")]


def killed_run(slot: Slot) -> None:
    """A process that has begun a run of a slot, and is gone."""
    child = os.fork()
    if child == 0:
        try:
            with runner() as here:
                os._exit(0 if here._begin_claim(claim_of(here, slot)) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_a_run_that_was_killed_on_this_machine_is_not_waited_for() -> None:
    declare("orders")
    slot = open_slot("orders", utc_now())
    killed_run(slot)
    assert names(run_due()) == [("orders", "succeeded")]
    with runner() as here:
        record = here.store.get(slot)
    assert record is not None and (record.fence, record.deaths) == (2, 1)


def test_a_rehearsal_knows_of_a_run_that_was_killed_on_this_machine() -> None:
    declare("orders")
    slot = open_slot("orders", utc_now())
    killed_run(slot)
    with runner() as here:
        before = here.store.get(slot)
        (told,) = predict_due_runs(here, MINUTE)
        assert here.store.get(slot) == before
    assert (told.slot, told.would) == (slot, "run")


def test_a_rehearsal_asks_the_ledger_of_a_slot_whose_runs_all_died() -> None:
    declare("orders")
    slot = open_slot("orders", utc_now())
    with runner() as here:
        for number in range(3):
            record = here.store.get(slot)
            assert record is not None
            claim = here.store.claim(record, "elsewhere/1", 0)
            assert claim is not None and here.store.begin(claim, 0)
            if number == 0:
                run_declared_pipeline(here.registry.pipeline("orders"), here.context(slot))
        (told,) = predict_due_runs(here, MINUTE)
    assert (told.would, told.why) == ("succeed", ALREADY_LOADED)
    assert names(run_due()) == [("orders", "succeeded")]


def test_of_a_run_on_another_machine_nobody_here_says_that_it_is_dead() -> None:
    declare("orders")
    slot = open_slot("orders", utc_now())
    killed_run(slot)
    with runner() as here:
        record = here.store.get(slot)
        assert record is not None and record.holder is not None and holder_is_dead(record.holder)
        elsewhere = record.holder.rpartition("/")[0] + "/0123abcd-1"
        claim = Claim(slot, record.holder, record.fence, 0)
        assert here.store.retry_later(claim, 0.0, failed=False)
        record = here.store.get(slot)
        assert record is not None
        taken = here.store.claim(record, elsewhere, 300)
        assert taken is not None and here.store.begin(taken, 300)
    assert run_due() == []
    assert not holder_is_dead(new_holder()) and not holder_is_dead("nobody")


def test_a_death_that_its_scheduler_has_seen_is_followed_by_its_pause() -> None:
    declare("orders")
    slot = open_slot("orders", utc_now())
    killed_run(slot)
    with runner() as here:
        record = here.store.get(slot)
        assert record is not None and here.store.renew(Claim(slot, "", record.fence, 0), 25.0, "OOMKilled")
    assert run_due() == []


def test_a_failed_attempt_is_reported_as_failed() -> None:
    declare("orders", sql="SELECT id FROM nowhere", retry={"max_attempts": 2, "base_secs": 60})
    open_slot("orders", utc_now())
    before = utc_now() + dt.timedelta(seconds=60)
    (outcome,) = run_due()
    said = re.match(r"attempt 1 of 2 failed, the next is at (.+) UTC: ", outcome.reason or "")
    assert outcome.status == "waiting" and said is not None
    at = dt.datetime.fromisoformat(said[1]).replace(tzinfo=dt.timezone.utc)
    assert dt.timedelta(seconds=-1) <= at - before <= dt.timedelta(seconds=30)


# ------------------------------------------------------------------ a store that fails


def claim_of(here: SlotRunner, slot: Slot) -> Claim:
    record = here.store.get(slot)
    assert record is not None
    claim = here.try_claim(record)
    assert isinstance(claim, Claim)
    return claim


class Failing:
    """A method of a store that fails so often, before or after it has done its work."""

    def __init__(self, here: SlotRunner, name: str, times: int, *, after: bool = False) -> None:
        self.times, self.after, self.does = times, after, getattr(here.store, name)
        setattr(here.store, name, self)

    def __call__(self, *given: Any, **named: Any) -> Any:
        fails, self.times = self.times > 0, self.times - 1
        if fails and not self.after:
            raise ConfigError("the store is not there")
        said = self.does(*given, **named)
        if fails:
            raise ConfigError("the answer was lost")
        return said


@pytest.mark.parametrize("after", [False, True])
def test_an_end_that_the_store_did_not_get_is_sent_again(after: bool) -> None:
    declare("orders")
    slot = open_slot("orders", utc_now())
    with runner() as opened:
        here = replace(opened, sleep=lambda seconds: None)
        claim = claim_of(here, slot)
        Failing(here, "end", 2, after=after)
        assert here.run_claimed(claim).status == "succeeded"
    assert status_of(slot)[0] == "succeeded"


@pytest.mark.parametrize("after", [False, True])
def test_a_run_begins_though_only_the_answer_of_the_store_was_lost(after: bool) -> None:
    declare("orders")
    slot = open_slot("orders", utc_now())
    with runner() as here:
        claim = claim_of(here, slot)
        Failing(here, "begin", 1, after=after)
        assert here.run_claimed(claim).status == ("succeeded" if after else "lost")


def test_a_run_whose_answer_was_lost_does_not_begin_while_another_holds_its_claim() -> None:
    declare("orders")
    slot = open_slot("orders", utc_now())
    with runner() as here:
        claim = claim_of(here, slot)
        assert here.store.begin(claim, 300, "another")
        Failing(here, "begin", 1, after=True)
        assert here.run_claimed(claim).status == "lost"


def test_who_dies_while_it_skips_a_slot_has_recorded_it() -> None:
    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    declare("upstream")
    declare("orders", "upstream")
    slot = open_slot("orders", utc_now())
    with runner() as here:
        here.store.end = killed  # type: ignore[method-assign]
        record = here.store.get(slot)
        assert record is not None
        with pytest.raises(KeyboardInterrupt):
            here.try_claim(record)
        assert [run.status for run in here.run_log.list("orders")] == ["skipped"]


def test_a_slot_is_skipped_though_the_run_log_does_not_take_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(record: object) -> None:
        raise ConfigError("the run log is not there")

    declare("upstream")
    declare("orders", "upstream")
    slot = open_slot("orders", utc_now())
    with runner() as here:
        monkeypatch.setattr(here.run_log, "start_all", away)
        assert names(here.run_due(MINUTE)) == [("orders", "skipped")]
    assert status_of(slot)[0] == "skipped"
    assert "slots are skipped: the run log is not there" in caplog.text


def test_a_store_that_stays_away_loses_the_slot_and_leaves_the_others_at_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    over = threading.Event()

    @ematix.pipeline(target=Numbers, target_connection="shop", name="long")
    def long(conn: Any) -> str:
        assert over.wait(60)
        return "SELECT id FROM raw"

    declare("orders")
    at = utc_now()
    slots = [open_slot(name, at) for name in ("long", "orders")]
    current_registry().check()
    with runner() as opened:
        here = replace(opened, sleep=lambda seconds: None)
        Failing(here, "end", 4)

        def after(outcome: SlotOutcome) -> None:
            over.set()

        outcomes = here.run_due(MINUTE, after=after, workers=2)
    assert names(outcomes) == [("orders", "lost"), ("long", "succeeded")]
    assert "the store is not there" in caplog.text
    assert [status_of(slot)[0] for slot in slots] == ["succeeded", "claimed"]


def test_what_is_at_work_ends_when_the_store_fails_before_the_next() -> None:
    over = threading.Event()

    @ematix.pipeline(target=Numbers, target_connection="shop", name="a_long")
    def long(conn: Any) -> str:
        assert over.wait(60)
        return "SELECT id FROM raw"

    declare("orders")
    at = utc_now()
    slot = open_slot("a_long", at)
    open_slot("orders", at)
    with runner() as here:
        claims = here.store.claim

        def claim(*given: Any) -> Any:
            if given[0].slot.pipeline == "orders":
                over.set()
                raise ConfigError("the store is not there")
            return claims(*given)

        here.store.claim = claim  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match="not there"):
            here.run_due(MINUTE, workers=2)
    assert status_of(slot)[0] == "succeeded"


def test_an_interrupt_is_reported_even_if_the_store_fails() -> None:
    @ematix.pipeline(target=Numbers, target_connection="shop", name="stops")
    def stops(conn: Any) -> str:
        raise KeyboardInterrupt

    slot = open_slot("stops", utc_now())
    with runner() as here:
        claim = claim_of(here, slot)
        Failing(here, "retry_later", 1)
        with pytest.raises(Interrupted):
            here.run_claimed(claim)


# ------------------------------------------------------------------ one claim, several runs


def test_a_second_run_of_one_claim_does_nothing_and_leaves_the_first_alone(shop: Path) -> None:
    """As when a cloud delivers a message twice, and the second comes while the first has the lock."""
    seen: list[SlotOutcome] = []

    @ematix.pipeline(target=Numbers, target_connection="shop", name="orders")
    def orders(conn: Any) -> str:
        if not seen:
            with runner() as again:
                seen.append(again.run_claimed(claim))
        return "SELECT id FROM raw"

    slot = open_slot("orders", utc_now())
    with runner() as here:
        claim = claim_of(here, slot)
        assert here.run_claimed(claim).status == "succeeded"
    assert names(seen) == [("orders", "lost")]
    assert status_of(slot)[0] == "succeeded"


def test_a_run_that_comes_late_is_held_from_its_beginning_on() -> None:
    """Its claim had expired, and no other process had taken it over yet."""
    taken: list[object] = []

    @ematix.pipeline(target=Numbers, target_connection="shop", name="orders")
    def orders(conn: Any) -> str:
        with runner() as another:
            record = another.store.get(slot)
            assert record is not None
            taken.append(another.store.claim(record, "another", 60))
        return "SELECT id FROM raw"

    slot = open_slot("orders", utc_now())
    with runner() as here:
        record = here.store.get(slot)
        assert record is not None
        claim = here.store.claim(record, "a scheduler", 0.0)
        assert claim is not None
        assert here.run_claimed(claim).status == "succeeded"
    assert taken == [None]


def test_a_slot_that_was_given_up_before_its_last_run_loaded_it_succeeds_after_all(shop: Path) -> None:
    """As when a machine is paused for a while: its claim is lost, and it continues."""
    seen: list[bool] = []

    @ematix.pipeline(target=Numbers, target_connection="shop", name="orders")
    def orders(conn: Any) -> str:
        with runner() as another:
            assert another.store.renew(claim, 0.0)
            record = another.store.get(slot)
            assert record is not None
            taken = another.store.claim(record, "another", 60)
            assert taken is not None
            seen.append(another.store.end(taken, "gave_up", "no source"))
        return "SELECT id FROM raw"

    slot = open_slot("orders", utc_now())
    with runner() as here:
        claim = claim_of(here, slot)
        assert here.run_claimed(claim).status == "lost"
    assert status_of(slot)[0] == "waiting"
    assert names(run_due()) == [("orders", "succeeded")]
    assert (seen, execute(shop, "SELECT count(*) FROM shop__numbers")) == ([True], [(1,)])


def test_a_slot_that_is_loaded_is_not_skipped_for_what_came_after(shop: Path) -> None:
    declare("upstream")
    orders = declare("orders", "upstream")
    slot = open_slot("orders", utc_now())
    with runner() as here:
        record = here.store.get(slot)
        assert record is not None and here.store.claim(record, "dead", 0.0) is not None
    orders.sync(run_log=LOG, slot=slot.fire_time)  # and its upstream has never succeeded
    assert names(run_due()) == [("orders", "succeeded")]
    assert status_of(slot)[0] == "succeeded"


def test_whether_a_slot_is_loaded_is_asked_of_the_projects_connections() -> None:
    declare("upstream")
    orders = declare("orders", "upstream")
    slot = open_slot("orders", utc_now())
    with runner() as here:
        record = here.store.get(slot)
        assert record is not None and here.store.claim(record, "dead", 0.0) is not None
        orders.sync(run_log=LOG, slot=slot.fire_time)
        record = here.store.get(slot)
        assert record is not None
        with use_registry(Registry()):
            found = here.try_claim(record)
    assert isinstance(found, SlotOutcome) and found.status == "succeeded"


def test_the_only_attempt_of_a_slot_that_does_not_hear_of_its_commit_succeeds() -> None:
    def lose_the_connection() -> None:
        raise TargetFailed("the connection was lost")

    declare("orders")
    slot = open_slot("orders", utc_now())
    with fault_points.inject("apply.after_commit", lose_the_connection):
        assert names(run_due()) == [("orders", "succeeded")]
    assert status_of(slot)[0] == "succeeded"


def test_a_slot_of_which_some_targets_failed_has_failed_and_is_tried_again(shop: Path) -> None:
    @ematix.table(schema="shop")
    class Strict:
        id: BigInt
        name: Text

    @ematix.table(schema="shop")
    class Loose:
        id: BigInt
        name: Text | None

    @ematix.pipeline(
        targets=[Target(connection="shop", table=Loose), Target(connection="shop", table=Strict)],
        retry={"max_attempts": 2, "base_secs": 0},
        continue_on_target_failure=True,
        name="both",
    )
    def both(conn: Any) -> str:
        return "SELECT id, NULL AS name FROM raw"

    slot = open_slot("both", utc_now())
    (first,) = run_due()
    assert (first.status, first.error is not None) == ("waiting", True)
    assert first.reason is not None
    assert first.reason.startswith("attempt 1 of 2 failed, ") and ": 1 of 2 targets failed: " in first.reason
    (second,) = run_due()
    assert second.status == status_of(slot)[0] == "gave_up"
    assert execute(shop, "SELECT count(*) FROM shop__loose") == [(1,)]


def test_the_code_of_run_due_is_that_of_its_errors_where_they_agree() -> None:
    slot = Slot("orders", utc_now())
    fine = SlotOutcome(slot, "succeeded")
    locked = SlotOutcome(slot, "waiting", error=PipelineLocked("another run has it"))
    failed = SlotOutcome(slot, "waiting", error=LoadError("no"))
    assert [exit_code(each) for each in ([], [fine], [fine, locked], [locked, failed])] == [0, 0, 4, 1]


# ------------------------------------------------------------------ many that are skipped at once


def skipped_at_once(number: int) -> tuple[int, int]:
    """How many transactions, and questions, it takes to skip so many slots behind a failure, and more."""
    failed = declare(f"failed{number}", sql="SELECT id FROM nowhere").spec.name
    branches = [declare(f"branch{number}_{each}", failed).spec.name for each in range(number)]
    leaves = [declare(f"leaf{number}_{each}", name).spec.name for each, name in enumerate(branches)]
    at = utc_now()
    current_registry().check()
    counts: Counter[str] = Counter()

    def count(what: str) -> Callable[..., None]:
        return lambda *_: counts.update([what])

    with runner(frozenset([failed, *branches, *leaves])) as here:
        here.store.open([Slot(failed, at)])
        assert [each.status for each in here.run_due(MINUTE)] == ["gave_up"]
        here.store.open([Slot(name, at) for name in (*branches, *leaves)])
        sa.event.listen(sa.Engine, "commit", commits := count("transactions"))
        sa.event.listen(sa.Engine, "before_cursor_execute", asks := count("statements"))
        try:
            outcomes = here.run_due(MINUTE)
        finally:
            sa.event.remove(sa.Engine, "commit", commits)
            sa.event.remove(sa.Engine, "before_cursor_execute", asks)
        assert names(outcomes) == [(name, "skipped") for name in (*branches, *leaves)]
        recorded = [here.run_log.list(name) for name in (*branches, *leaves)]
        assert [(len(each), each[0].status) for each in recorded] == [(1, "skipped")] * 2 * number
        assert all(f"{failed} of" in (each[0].error_message or "") for each in recorded)
    return counts["transactions"], counts["statements"]


def test_what_many_skips_of_one_look_cost_does_not_grow_with_them() -> None:
    assert skipped_at_once(2) == skipped_at_once(60)


def test_a_slot_that_another_claims_meanwhile_is_not_skipped_and_holds_back_what_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare("failed", sql="SELECT id FROM nowhere")
    declare("taken", "failed")
    declare("other", "failed")
    declare("after", "taken")
    at = utc_now()
    for name in ("failed", "taken", "other", "after"):
        open_slot(name, at)
    current_registry().check()
    with runner() as here:
        claim_all = type(here.store).claim_all

        def late(store: SlotStore, seen: Sequence[SlotRecord], holder: str, seconds: float) -> list[Claim]:
            taken = store.get(Slot("taken", at))
            assert taken is not None
            if taken.fence == 0:
                assert store.claim(taken, "another", 60) is not None
            return claim_all(store, seen, holder, seconds)

        monkeypatch.setattr(type(here.store), "claim_all", late)
        outcomes = here.run_due(MINUTE)
    assert names(outcomes)[:2] == [("failed", "gave_up"), ("other", "skipped")]
    assert status_of(Slot("taken", at))[0] == "claimed"
    assert status_of(Slot("after", at))[0] == "waiting"
