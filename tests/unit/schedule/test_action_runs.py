"""The runs of an action: what an earlier run or an earlier process of it has loaded is not loaded again."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import (
    BigInt,
    Pipeline,
    SQLiteConnection,
    Target,
    Text,
    ematix,
    fault_points,
    register_connection,
)
from ematix_flow.errors import LoadError
from ematix_flow.graph.registry import current_registry
from ematix_flow.run.context_setup import run_context
from ematix_flow.run.loading import lock_targets
from ematix_flow.run.pipeline import open_connections
from ematix_flow.schedule.actions.action_runs import ActionRuns
from ematix_flow.schedule.actions.carrying_out import ActionEnd
from ematix_flow.state.actions.memory import MemoryActionStore
from ematix_flow.state.actions.records import ActionKind, ActionRecord
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.memory import MemorySlotStore
from tests.unit.run.sqlite_file import execute

DEATHS = ("apply.began", "apply.before_commit", "apply.after_commit", "runlog.before_finish")


@ematix.table(schema="mart")
class Loose:
    id: BigInt
    name: Text | None


@ematix.table(schema="mart")
class Strict:
    id: BigInt
    name: Text


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    execute(path, "CREATE TABLE people (id INTEGER, name TEXT)")
    execute(path, "INSERT INTO people VALUES (1, 'Ada'), (2, NULL)")
    register_connection(SQLiteConnection(name="shop", path=str(path)))
    return path


@pytest.fixture
def store() -> Iterator[MemoryActionStore]:
    yield MemoryActionStore()


def declare(**options: Any) -> Pipeline:
    targets = [Target(connection="shop", table=Loose), Target(connection="shop", table=Strict)]

    @ematix.pipeline(**{"targets": targets, "name": "both", **options})
    def both(conn: Any) -> str:
        return "SELECT id, name FROM people"

    return both


def fix(path: Path) -> None:
    execute(path, "UPDATE people SET name = 'Grace' WHERE id = 2")


def counts(path: Path) -> tuple[int, int]:
    loose, strict = (
        int(execute(path, f"SELECT count(*) FROM mart__{table}")[0][0])
        if execute(path, f"SELECT 1 FROM sqlite_master WHERE name = 'mart__{table}'")
        else 0
        for table in ("loose", "strict")
    )
    return loose, strict


def records() -> tuple[RunRecord, ...]:
    with open_local_run_log(env=os.environ, reading=True) as log:
        return log.list("both")


def claim(store: MemoryActionStore, kind: ActionKind = "run", subject: str = "both") -> ActionRecord:
    """Claim the action, also from a process that died with it."""
    action, _ = store.request(kind, subject, {}, by="ada", via="web")
    store.renew(action, 0.0)
    claimed = store.claim(action, "process", 60)
    assert claimed is not None and store.begin(claimed, 60)
    return claimed


def carry_out(action: ActionRecord) -> ActionEnd:
    with run_context(trigger="web") as context:
        runs = ActionRuns(current_registry(), replace(context, sleep=lambda seconds: None), MemorySlotStore)
        return runs.restart(action) if action.kind == "restart" else runs.run(action)


def test_an_action_loads_only_the_target_that_an_earlier_run_left_out(
    database: Path, store: MemoryActionStore
) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    fix(database)
    first = claim(store)
    assert carry_out(first).status == "done"
    assert counts(database) == (2, 2)
    assert records()[0].batch == records()[1].batch
    assert store.end(first, "done", "both succeeded")
    assert carry_out(claim(store)).status == "done"  # nothing is left: a second one loads all
    assert counts(database) == (4, 4)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", DEATHS)
def test_an_action_that_finishes_an_older_batch_is_done_once_though_its_processes_die(
    database: Path, store: MemoryActionStore, point: str, times: int
) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    fix(database)
    for _ in range(times):
        with fault_points.inject(point, "crash") as fault, contextlib.suppress(fault_points.InjectedCrash):
            carry_out(claim(store))
        assert fault.has_fired or counts(database) == (2, 2)  # else there was nothing left to do
    ended = carry_out(claim(store))
    assert ended.status == "done", ended.outcome
    assert counts(database) == (2, 2)
    # the end of the action was not recorded: the next process finds that all is done
    assert carry_out(claim(store)).status == "done"
    assert counts(database) == (2, 2)


@pytest.mark.parametrize("point", DEATHS)
@pytest.mark.parametrize("nth", [1, 2])
def test_an_action_that_loads_every_target_is_done_once_though_its_process_dies(
    database: Path, store: MemoryActionStore, point: str, nth: int
) -> None:
    declare()
    fix(database)
    with fault_points.inject(point, "crash", nth), contextlib.suppress(fault_points.InjectedCrash):
        carry_out(claim(store))
    assert carry_out(claim(store)).status == "done"
    assert counts(database) == (2, 2)


def test_an_action_that_is_taken_over_keeps_its_batch_though_another_run_came_between(
    database: Path, store: MemoryActionStore
) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    fix(database)
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject("runlog.before_finish", "crash"):
        carry_out(claim(store))
    declare().sync()
    assert counts(database) == (4, 4)
    assert carry_out(claim(store)).status == "done"
    assert counts(database) == (4, 4)


def test_a_restart_that_is_taken_over_after_a_newer_run_is_done(
    database: Path, store: MemoryActionStore
) -> None:
    with pytest.raises(LoadError):
        declare().sync()
    (failed,) = records()
    carry_out(claim(store, "restart", failed.run_id))  # it fails again
    fix(database)
    assert carry_out(claim(store, "restart", failed.run_id)).status == "done"  # and is not recorded
    restarted = records()[0]
    declare().sync()
    ended = carry_out(claim(store, "restart", failed.run_id))
    assert (ended.status, ended.run_ids) == ("done", (restarted.run_id,)), ended.outcome
    assert counts(database) == (4, 4)


# ------------------------------------------------------------------ a pipeline that an earlier process holds


def declare_chain() -> None:
    """Declare ``held`` and ``broken``; ``after_held`` depends on the one, ``after_both`` on both."""
    upstreams: dict[str, tuple[str, ...]] = {
        "broken": (),
        "held": (),
        "after_held": ("held",),
        "after_both": ("held", "broken"),
    }
    for name, depends_on in upstreams.items():
        table = "nowhere" if name == "broken" else "people"

        @ematix.pipeline(
            name=name,
            targets=[Target(connection="shop", table=Loose)],
            depends_on=depends_on,
            retry={"max_attempts": 1},
        )
        def load(conn: Any, table: str = table) -> str:
            return f"SELECT id, name FROM {table}"


def test_a_takeover_repeats_what_was_locked_and_what_did_not_run_because_of_it(
    database: Path, store: MemoryActionStore
) -> None:
    declare_chain()
    action, _ = store.request(
        "run", "held", {"select": ["broken", "after_held", "after_both"]}, by="ada", via="web"
    )
    died = store.claim(action, "died", 0)
    assert died is not None and store.begin(died, 0)
    claimed = store.claim(died, "process", 60)
    assert claimed is not None
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            held.close()

    with ExitStack() as held, run_context(trigger="web") as context:
        spec = current_registry().pipeline("held").spec
        connections = open_connections(context.spark)
        assert not lock_targets(spec, connections, uuid.uuid4(), held)
        ended = ActionRuns(current_registry(), replace(context, sleep=sleep), MemorySlotStore).run(claimed)
    assert pauses == [5, 10, 20]
    assert ended.outcome.startswith("2 of 4 pipelines did not succeed; broken: ")
    with open_local_run_log(env=os.environ, reading=True) as log:
        statuses = {name: [run.status for run in log.list(name)] for name in current_registry().pipelines}
        (reason,) = {run.error_message for run in log.list("after_both")[:1]}
    assert statuses["held"] == ["succeeded", "locked", "locked", "locked"]
    assert statuses["broken"] == ["failed"]
    assert statuses["after_held"] == ["succeeded", "skipped"]
    assert statuses["after_both"] == ["skipped", "skipped"]
    assert reason == "broken failed, and after_both depends on it"
