"""The cold start: how long ``flow run`` takes for a copy of 1,000 rows from SQLite to DuckDB.

With the class-data archive and without it. The archive is in a separate cache, so that the time to make it
is measured too.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.machine import commit, machine_facts, versions
from benchmarks.process import compile_libraries, environment, last_words, measured, within
from benchmarks.results import Result, Run
from benchmarks.rounds import new_folder, order

ROWS = 1_000
MAKING, ARCHIVE, NO_ARCHIVE = "making", "archive", "no-archive"
MODES = {MAKING: "sync", ARCHIVE: "auto", NO_ARCHIVE: "off"}
MODULE = """\
from ematix_flow import BigInt, Double, DuckDBConnection, ManagedTable, SQLiteConnection, Text
from ematix_flow import ematix, register_connection

register_connection(SQLiteConnection(name="shop", path="shop.db"))
register_connection(DuckDBConnection(name="warehouse", path="warehouse.duckdb"))


class Orders(ManagedTable):
    order_id: BigInt
    customer: Text
    amount: Double


@ematix.pipeline(target=Orders, source_connection="shop", target_connection="warehouse")
def copy_orders(conn):
    return "SELECT order_id, customer, amount FROM orders"
"""


def run_cold_start(repeat: int, limit: float, seed: int, say: Callable[[str], None]) -> Result:
    folder = new_folder("cold-start")
    compile_libraries(Path(sys.executable))
    facts, about = machine_facts(), versions()
    runs = []
    try:
        for number, variant in [(1, MAKING), *order([ARCHIVE, NO_ARCHIVE], repeat, seed)]:
            run = _run(variant, number, folder, limit)
            runs.append(run)
            say(f"  round {number}, {variant}: {run.problem or f'{run.total_seconds:.2f} s'}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        benchmark="cold-start",
        case="cold-start",
        title="Cold `flow run`, SQLite → DuckDB",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=ROWS,
        limit_seconds=limit,
        machine=facts,
        versions=about,
        commit=commit(),
        runs=tuple(runs),
    )


def _run(variant: str, number: int, folder: Path, limit: float) -> Run:
    """A project that has never run: only the cache exists already."""
    project = folder / f"{variant}-{number}"
    write_project(project)
    env = environment(project / "state")
    env |= {"EMATIX_FLOW_CACHE": str(folder / "cache"), "EMATIX_FLOW_CDS": MODES[variant]}
    env.pop("CI", None)
    program = "from ematix_flow.cli.main import main; raise SystemExit(main())"
    command = [sys.executable, "-c", program, "run", "--module", "pipelines.py", "copy_orders"]
    ended = measured(command, project, env, within(limit), project / "output.log")
    run = Run(variant, number, 0.0, ended.seconds, ended.seconds, peak_bytes=ended.peak_bytes())
    problem = None
    if ended.code is None:
        problem = f"did not end within {limit:g} s"
    elif ended.code != 0:
        problem = f"ended with code {ended.code}: {last_words(ended.said)}"
    elif landed(project) != ROWS:
        problem = f"{landed(project)} rows arrived of {ROWS}"
    return Run(**{**vars(run), "problem": problem})


def write_project(folder: Path) -> None:
    folder.mkdir()
    (folder / "pipelines.py").write_text(MODULE, encoding="utf-8")
    connection = sqlite3.connect(folder / "shop.db")
    connection.execute("CREATE TABLE orders (order_id INTEGER PRIMARY KEY, customer TEXT, amount REAL)")
    generated = ((n, f"customer {n % 97}", n * 1.25) for n in range(ROWS))
    connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", generated)
    connection.commit()
    connection.close()


def landed(project: Path) -> int:
    import duckdb

    with duckdb.connect(str(project / "warehouse.duckdb"), read_only=True) as connection:
        found = connection.execute("SELECT count(DISTINCT order_id) FROM orders").fetchone()
    return int(found[0]) if found else 0
