"""One look of the scheduler at 1,000 pipelines, on a store that knows a week of hourly slots of each.

Three looks: nothing is due; all are due and wait for an upstream that runs; all are due and are started, by
an executor that does nothing. Runs are never the scheduler's own work, so that is the whole of it.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable

from benchmarks.machine import commit, machine_facts, versions
from benchmarks.results import Result, Run
from benchmarks.rounds import new_folder
from benchmarks.servers import Servers

PIPELINES, HOURS = 1_000, 168
TICKS = 5
QUIET, HELD, STARTED = "nothing is due", "all wait for an upstream", "100 are started"
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
_CHUNK = 50_000


def run_scheduler_ticks(repeat: int, say: Callable[[str], None]) -> Result:
    folder = new_folder("scheduler-tick")
    facts, about = machine_facts(), versions()
    runs: list[Run] = []
    try:
        with Servers() as servers:
            for store in STORES:
                url = str(folder / "run_log.db")
                if store == "postgres":
                    url = servers.create("postgres", "scheduler").location
                for number in range(1, repeat + 1):
                    for kind, seconds in _measured(url, first=number == 1):
                        run = Run(f"{STORES[store]}: {kind}", number, 0.0, seconds, seconds)
                        runs.append(run)
                        say(f"  round {number}, {run.contestant}: {seconds * 1000:.0f} ms")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        benchmark="scheduler-tick",
        case="scheduler-tick",
        title=f"One look of the scheduler at {PIPELINES:,} pipelines",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=PIPELINES,
        limit_seconds=0.25,
        machine=facts,
        versions=about,
        commit=commit(),
        runs=tuple(runs),
    )
