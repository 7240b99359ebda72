"""One look of the scheduler at 1,000 pipelines, on a store that knows a week of hourly slots of each.

Two kinds of looks: nothing is due; and all are due, but wait for an upstream that runs. The budget is 250 ms.
"""

from __future__ import annotations

import datetime as dt
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import commit, machine_facts, versions
from benchmarks.results import Result, Run
from benchmarks.rounds import new_folder
from benchmarks.servers import Servers

if TYPE_CHECKING:
    from ematix_flow.schedule.scheduler import Scheduler
    from ematix_flow.state.slots import SlotStore

PIPELINES, HOURS, TICKS = 1_000, 168, 9
BUDGET_SECONDS = 0.25
MODULE = f"""\
from ematix_flow import BigInt, ManagedTable, ematix


class Orders(ManagedTable):
    order_id: BigInt


@ematix.pipeline(target=Orders, target_connection="warehouse", name="upstream")
def upstream(conn):
    return "SELECT 1 AS order_id"


for number in range({PIPELINES}):

    @ematix.pipeline(
        target=Orders,
        target_connection="warehouse",
        name=f"orders_{{number}}",
        schedule="@hourly",
        depends_on=[upstream],
    )
    def orders(conn):
        return "SELECT 1 AS order_id"
"""


def run_scheduler_ticks(repeat: int, say: Callable[[str], None]) -> Result:
    folder = new_folder("scheduler-tick")
    facts, about = machine_facts(), versions()
    runs: list[Run] = []
    (folder / "thousand.py").write_text(MODULE, encoding="utf-8")
    try:
        with Servers() as servers:
            for number in range(1, repeat + 1):
                postgres = servers.create("postgres", f"scheduler{number}").location
                for store, url in (("SQLite", str(folder / f"{number}.db")), ("PostgreSQL", postgres)):
                    for kind, seconds in _looks(folder, url):
                        run = Run(f"{store}: {kind}", number, 0.0, seconds, seconds)
                        runs.append(run)
                        say(f"  round {number}, {run.contestant}: {seconds * 1000:.0f} ms")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        benchmark="scheduler-tick",
        case="scheduler-tick",
        title=f"One look of the scheduler at {PIPELINES:,} pipelines with {PIPELINES * HOURS:,} slots",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=PIPELINES,
        limit_seconds=BUDGET_SECONDS,
        machine=facts,
        versions=about,
        commit=commit(),
        runs=tuple(runs),
    )


def _looks(folder: Path, url: str) -> Iterator[tuple[str, float]]:
    """The median of some looks of each kind at a new store."""
    from ematix_flow.backends.run_logs import open_slots
    from ematix_flow.state.slots import Slot

    store, now = open_slots(url, env={}, kept=True), dt.datetime.now(dt.timezone.utc)
    hour = now.replace(minute=0, second=0, microsecond=0)
    names = [f"orders_{number}" for number in range(PIPELINES)]
    for hours in range(HOURS):
        at = hour - dt.timedelta(hours=hours)
        store.open((Slot(name, at) for name in names), "skipped", "filled in")
    store.open((Slot(name, now) for name in names), "skipped", "filled in")
    scheduler = _scheduler(folder, store)
    yield "nothing is due", _median(scheduler)
    running = Slot("upstream", hour - dt.timedelta(hours=2))
    store.open([running])
    seen = store.get(running)
    assert seen is not None and store.claim(seen, "another", 3600) is not None
    store.open(Slot(name, now - dt.timedelta(seconds=1)) for name in names)
    yield "all wait for an upstream", _median(scheduler)


def _scheduler(folder: Path, store: SlotStore) -> Scheduler:
    from ematix_flow.errors import ConfigError
    from ematix_flow.graph.loading import load_module
    from ematix_flow.schedule.executors.subprocesses import SubprocessExecutor
    from ematix_flow.schedule.run_due import Runner
    from ematix_flow.schedule.scheduler import Scheduler
    from ematix_flow.state.runlog import NullRunLog

    module = str(folder / "thousand.py")
    forgets = NullRunLog("none", ConfigError("the benchmark runs nothing"))

    def nothing_runs(slot: object) -> None:
        raise AssertionError(f"{slot} was run")

    runner = Runner(load_module(module), store, forgets, nothing_runs)  # type: ignore[arg-type]
    return Scheduler(runner, SubprocessExecutor(), module)


def _median(scheduler: Scheduler) -> float:
    scheduler.tick()  # what it remembers of the schedules
    found = []
    for _ in range(TICKS):
        begin = time.perf_counter()
        started = scheduler.tick()
        found.append(time.perf_counter() - begin)
        assert not started, "the hour changed: measure again"
    return statistics.median(found)
