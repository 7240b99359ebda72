"""The record of every run names the code version and the engine."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import BigInt, Pipeline, SQLiteConnection, ematix, fault_points, register_connection
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.config.code_version import code_version
from ematix_flow.errors import FlowError, LoadError
from ematix_flow.graph.registry import current_registry
from ematix_flow.run.context_setup import run_context
from ematix_flow.run.dag import run_dag
from ematix_flow.run.pipeline import open_connections
from ematix_flow.run.recording import record_command
from ematix_flow.schedule.executors.base import CannotDispatch
from ematix_flow.schedule.freshness import check_freshness, report_freshness
from ematix_flow.schedule.run_due import SlotRunner
from ematix_flow.schedule.unstarted_runs import record_unstarted_run
from ematix_flow.state.slots.base import Claim, Slot
from ematix_flow.state.slots.memory import MemorySlotStore

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)
SLOT = Slot("people", NOON)


@pytest.fixture(autouse=True)
def shop(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE raw (id INTEGER)")
        connection.execute("INSERT INTO raw VALUES (1)")
    register_connection(SQLiteConnection(name="shop", path=str(tmp_path / "shop.db")))


def people(name: str = "people", sql: str = "SELECT id FROM raw", **options: Any) -> Pipeline:
    @ematix.table(schema=None, name=name)
    class People:
        id: BigInt

    @ematix.pipeline(target=People, target_connection="shop", mode="truncate", name=name, **options)
    def load(conn: Any) -> str:
        return sql

    return load


@contextmanager
def slots() -> Iterator[SlotRunner]:
    """Every holder of a claim counts as dead at once."""
    with run_context() as context:
        store = MemorySlotStore()
        yield SlotRunner(
            current_registry(),
            store,
            context.run_log,
            lambda slot: replace(context, slot=slot.fire_time),
            0.0,
        )


def pick(runner: SlotRunner) -> object:
    seen = runner.store.get(SLOT)
    assert seen is not None
    return runner.try_claim(seen)


def succeeds() -> None:
    people().sync()


def fails() -> None:
    people(sql="SELECT id FROM nowhere").sync()


def finds_a_lock() -> None:
    target = open_connections(lambda groups: pytest.fail("it needs no Spark")).target("shop")
    with target.lock("people", "shop:people", uuid.uuid4()):
        people().sync()


def is_killed() -> None:
    with fault_points.inject("apply.before_commit", "crash"), suppress(fault_points.InjectedCrash):
        people().sync()


def is_held_back() -> None:
    people("first", "SELECT id FROM nowhere")
    people(depends_on=["first"])
    with run_context() as context:
        run_dag(current_registry(), None, context)


def is_held_back_in_its_slot() -> None:
    people("first", schedule="@hourly")
    people(depends_on=["first"], schedule="@hourly")
    with slots() as runner:
        runner.store.open([Slot("first", NOON)], "gave_up", "it failed")
        runner.store.open([SLOT])
        pick(runner)


def dies_again_and_again() -> None:
    people(schedule="@hourly")
    with slots() as runner:
        runner.store.open([SLOT])
        while isinstance(claim := pick(runner), Claim):
            runner.store.begin(claim, 0.0)


def cannot_be_started() -> None:
    with run_context(slot=NOON) as context:
        record_unstarted_run(people().spec, context, CannotDispatch("no room"), attempts=0)


def is_too_old() -> None:
    spec = people(freshness_sla="1h").spec
    with run_context() as context:
        found = check_freshness(spec, context.run_log, NOON)
        assert found is not None
        report_freshness(spec, found, context.run_log, context.observers)


def is_a_command() -> None:
    with record_command("people", "shop:people", "maintain", None, people().spec.where):
        raise LoadError("no space")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (succeeds, "succeeded"),
        (fails, "failed"),
        (finds_a_lock, "locked"),
        (is_killed, "running"),
        (is_held_back, "skipped"),
        (is_held_back_in_its_slot, "skipped"),
        (dies_again_and_again, "failed"),
        (cannot_be_started, "failed"),
        (is_too_old, "failed"),
        (is_a_command, "failed"),
    ],
)
def test_a_run_is_recorded_with_its_code_and_engine(path: Callable[[], None], status: str) -> None:
    with suppress(FlowError):
        path()
    with open_run_log(env=os.environ, reading=True) as log:
        run = next(run for run in log.list() if run.pipeline.endswith("people"))
    assert (run.status, run.engine, run.code_version) == (status, "none", code_version(__file__))
