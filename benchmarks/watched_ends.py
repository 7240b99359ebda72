"""How much later a command ends if its alerts, metrics and spans cannot be sent. The budget is five seconds.

The run fails, so that it sends alerts. Two alerters, a Pushgateway and a collector all hang, refuse or
respond with status 500. A run without them is the reference.
"""

from __future__ import annotations

import datetime as dt
import shutil
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.machine import commit, machine_facts, versions
from benchmarks.process import environment, last_words, measured, within
from benchmarks.results import Result, Run
from benchmarks.rounds import new_folder, order

BUDGET_SECONDS = 5.0
UNWATCHED = "no receivers"
MODULE = """\
from ematix_flow import BigInt, ManagedTable, SQLiteConnection, ematix

shop = SQLiteConnection(name="shop", path="shop.db")


class Orders(ManagedTable):
    order_id: BigInt


@ematix.pipeline(target=Orders, target_connection=shop, source_connection=shop)
def orders(conn):
    return "SELECT order_id FROM nowhere"
"""


def run_watched_ends(repeat: int, limit: float, seed: int, say: Callable[[str], None]) -> Result:
    folder = new_folder("watched-end")
    facts, about = machine_facts(), versions()
    (folder / "pipelines.py").write_text(MODULE, encoding="utf-8")
    sqlite3.connect(folder / "shop.db").close()
    runs: list[Run] = []
    try:
        for variant in (UNWATCHED, "all refuse"):  # reads the libraries before the measured runs
            _run(variant, 0, folder, limit)
        for number, variant in order([UNWATCHED, *_SERVERS], repeat, seed):
            run = _run(variant, number, folder, limit)
            runs.append(run)
            say(f"  round {number}, {variant}: {run.problem or f'{run.total_seconds:.2f} s'}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        benchmark="watched-end",
        case="watched-end",
        title="`flow run` to its end, with alerters, metrics and traces whose receivers fail",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=0,
        limit_seconds=BUDGET_SECONDS,
        machine=facts,
        versions=about,
        commit=commit(),
        runs=tuple(held_to_the_budget(runs)),
    )


def held_to_the_budget(runs: list[Run]) -> Iterator[Run]:
    """A command has a problem if it ends more than five seconds after the slowest one without receivers."""
    unwatched = [run.total_seconds for run in runs if run.contestant == UNWATCHED]
    slowest = max((seconds for seconds in unwatched if seconds is not None), default=None)
    for run in runs:
        later = None if slowest is None or run.total_seconds is None else run.total_seconds - slowest
        too_late = run.problem is None and later is not None and later > BUDGET_SECONDS
        yield replace(run, problem=f"ended {later:.1f} s later") if too_late else run


def _run(variant: str, number: int, folder: Path, limit: float) -> Run:
    command = [sys.executable, "-m", "ematix_flow", "run", "--module", "pipelines.py", "orders"]
    with _server(variant) as port:
        if port is not None:
            command += [
                *("--alerter", f"webhook+http://localhost:{port}/in"),
                *("--alerter", f"slack://localhost:{port}/in?insecure=1"),
                *("--metrics", f"prometheus+push://127.0.0.1:{port}"),
                *("--traces", f"otel+otlp+http://127.0.0.1:{port}"),
            ]
        state = environment(folder / f"{variant}-{number}".replace(" ", "-"))
        ended = measured(command, folder, state, within(limit), folder / "output.log")
    run = Run(variant, number, 0.0, ended.seconds, ended.seconds, peak_bytes=ended.peak_bytes())
    if ended.code is None:
        return replace(run, problem=f"did not end within {limit:g} s")
    complaints = ended.said.count("could not report a run")
    if (ended.code, complaints) != (1, 0 if port is None else 4):
        return replace(run, problem=f"ended with code {ended.code}: {last_words(ended.said)}")
    return run


@contextmanager
def _server(variant: str) -> Iterator[int | None]:
    if variant == UNWATCHED:
        yield None
        return
    with _SERVERS[variant]() as port:
        yield port


@contextmanager
def _hanging() -> Iterator[int]:
    """It accepts connections and never reads from them."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield server.getsockname()[1]


@contextmanager
def _refusing() -> Iterator[int]:
    with socket.socket() as taken:  # bound so that no other process listens there
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def _broken() -> Iterator[int]:
    class Answers500(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_error(500)

        do_POST = do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers500)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


_SERVERS = {"all hang": _hanging, "all refuse": _refusing, "all answer 500": _broken}
