"""Requests to `flow web` over a long history: 1,000 pipelines with a million recorded runs.

The figure of an endpoint is the 95th percentile of its requests, one after the other over one connection,
while new runs are recorded as fast as such pipelines make them. Then 50 readers follow the live events, and
the figure is the processor time of the server in each second. Then a browser visits the pages, and the list
of runs of Dagster over as many runs.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmarks.dagster_page import NEWEST_RUN, served_by_dagster
from benchmarks.machine import commit, machine_facts, versions
from benchmarks.page_visits import (
    browser,
    seconds_of_first_paints,
    seconds_of_frames,
    seconds_of_visits,
    shows,
)
from benchmarks.process import compile_libraries, environment
from benchmarks.results import Result, Run
from benchmarks.rivals import page_rival_versions
from benchmarks.rounds import new_folder
from benchmarks.run_log import MODULE, PIPELINES, fill_run_log
from benchmarks.servers import Servers

REQUESTS, READERS, READING_SECONDS = 200, 50, 20.0
RUNS_A_SECOND = PIPELINES / 300  # each every five minutes
BUDGET_SECONDS = 0.1
FIRST_PAINT, SHOWN = "browser: first paint of the pipelines", "browser: the pipelines are shown"
RUNS_SHOWN = "browser: the newest runs are shown"
GRAPH_SHOWN = f"browser: the graph of {PIPELINES:,} pipelines is shown"
FRAMES = "browser: a frame while the graph is dragged"
DAGSTER_RUNS_SHOWN = f"{RUNS_SHOWN}, Dagster"
EVENTS = f"{READERS} readers of events: processor ms a second"
_TOKEN = "benchmark-token-0123456789"
_HEADERS = {"Authorization": f"Bearer {_TOKEN}"}
ENDPOINTS = {
    "pipelines": "/pipelines",
    "pipelines, searched": "/pipelines?search=p77",
    "pipeline": "/pipelines/p7",
    "graph": "/graph",
    "runs": "/runs",
    "runs, a later page": "/runs?after={cursor}",
    "runs, failed": "/runs?status=failed",
    "runs of a pipeline": "/runs?pipeline=p7",
    "runs, text in errors": "/runs?text=too%20long",
    "runs, text that is nowhere": "/runs?text=nowhere",
    "run": "/runs/{run}",
    "run, what ran before and after": "/runs/{run}/around",
    "run, its log": "/runs/{run}/log",
    "streams": "/streams",
    "schedule, two hours": "/schedule?from={hour_ago}&to={in_an_hour}",
    "schedule": "/schedule",
    "workflows": "/workflows",
    "connections": "/connections",
    "actions": "/actions",
}


def run_web_benchmark(
    stores: Iterable[str], runs: int, repeat: int, say: Callable[[str], None]
) -> list[Result]:
    compile_libraries(Path(sys.executable))
    return [_of_store(store, runs, repeat, say) for store in stores]


def _of_store(store: str, runs: int, repeat: int, say: Callable[[str], None]) -> Result:
    folder, facts = new_folder(f"web-{store}"), machine_facts()
    measurements: list[Run] = []
    try:
        with Servers() as servers:
            (folder / "thousand.py").write_text(MODULE.format(pipelines=PIPELINES), encoding="utf-8")
            url = fill_run_log(store, folder, servers, runs)
            say(f"  {store}: {runs:,} runs are recorded")
            with _served(folder, url) as (process, port), _new_runs(url):
                first = _seconds_of(port, "/pipelines")
                say(f"  the first list of pipelines: {first:.2f} s")
                for number in range(1, repeat + 1):
                    measurements += _round(process, port, number, say)
            (folder / "dagster").mkdir()
            with served_by_dagster(store, folder / "dagster", servers, PIPELINES, runs) as address:
                for number in range(1, repeat + 1):
                    with browser() as opened:
                        times = seconds_of_visits(opened, f"{address}/runs", shows(NEWEST_RUN))
                    measurements.append(_run(DAGSTER_RUNS_SHOWN, number, times, say))
            about = {**versions(), **servers.versions(), **page_rival_versions()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        benchmark="web",
        case=f"web-{store}",
        title=f"Requests to flow web about {PIPELINES:,} pipelines, run log in {store.capitalize()}, "
        "95th percentile",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=runs,
        limit_seconds=BUDGET_SECONDS,
        machine=facts,
        versions=about,
        commit=commit(),
        runs=tuple(measurements),
    )


def _round(
    process: subprocess.Popen[str], port: int, number: int, say: Callable[[str], None]
) -> Iterator[Run]:
    newest = _get(port, "/runs?limit=500")
    words = {"cursor": newest["next"], "run": newest["items"][100]["run_id"]}
    for name, path in ENDPOINTS.items():
        now = dt.datetime.now(dt.timezone.utc)
        words |= {"hour_ago": _time(now, -1), "in_an_hour": _time(now, 1)}
        yield _run(name, number, _times(port, path.format(**words)), say)
    yield _run(EVENTS, number, [_reading(process, port)], say)
    address = f"http://127.0.0.1:{port}"
    with browser() as opened:
        pipelines, run = shows("main a[href^='/pipelines/p']"), shows("main a[href^='/runs/']")
        graph = f"{address}/graph"
        visits = {
            FIRST_PAINT: seconds_of_first_paints(opened, address, headers=_HEADERS),
            SHOWN: seconds_of_visits(opened, address, pipelines, headers=_HEADERS),
            RUNS_SHOWN: seconds_of_visits(opened, f"{address}/runs", run, headers=_HEADERS),
            GRAPH_SHOWN: seconds_of_visits(opened, graph, shows("main canvas"), headers=_HEADERS),
            FRAMES: seconds_of_frames(opened, graph, "main canvas", headers=_HEADERS),
        }
    for name, times in visits.items():
        yield _run(name, number, times, say)


def _run(name: str, number: int, times: Iterable[float], say: Callable[[str], None]) -> Run:
    """The 95th percentile of these times."""
    ordered = sorted(times)
    seconds = ordered[int(len(ordered) * 0.95)]
    say(f"  round {number}, {name}: {1000 * seconds:.1f} ms")
    return Run(name, number, 0.0, seconds, seconds)


def _time(now: dt.datetime, hours: int) -> str:
    return (now + dt.timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _times(port: int, path: str) -> Iterator[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    # as a browser does: each part of an answer is acknowledged at once
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            connection.request("GET", f"/api/v1{path}", headers=_HEADERS)
            answer = connection.getresponse()
            body = answer.read()
            yield time.perf_counter() - began
            if answer.status != 200:
                raise RuntimeError(f"{path} answered {answer.status}: {body[:300]!r}")
    finally:
        connection.close()


def _get(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("GET", f"/api/v1{path}", headers=_HEADERS)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _seconds_of(port: int, path: str) -> float:
    began = time.perf_counter()
    _get(port, path)
    return time.perf_counter() - began


def _reading(process: subprocess.Popen[str], port: int) -> float:
    """The processor seconds of the server in each second, while many readers follow the events."""
    readers = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(READERS)]
    try:
        for reader in readers:
            reader.request("GET", "/api/v1/events", headers=_HEADERS)
            answer = reader.getresponse()
            threading.Thread(target=_read_to_end, args=(answer,), daemon=True).start()
        before, began = _processor_seconds(process.pid), time.perf_counter()
        time.sleep(READING_SECONDS)
        return (_processor_seconds(process.pid) - before) / (time.perf_counter() - began)
    finally:
        for reader in readers:
            if reader.sock is not None:
                reader.sock.shutdown(socket.SHUT_RDWR)
            reader.close()


def _read_to_end(answer: http.client.HTTPResponse) -> None:
    try:
        while answer.readline():
            pass
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        return  # the connection was closed


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _served(folder: Path, url: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A running `flow web`, and its port."""
    env = {
        **environment(folder / "state"),
        "EMATIX_FLOW_RUN_LOG_URL": url,
        "EMATIX_FLOW_WEB_TOKEN": _TOKEN,
    }
    command = [sys.executable, "-m", "ematix_flow", "web", "--module", "thousand.py", "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        for said in process.stderr:
            if said.startswith("open http"):
                break
        else:
            raise RuntimeError(f"flow web did not start: {said}")
        threading.Thread(target=_drain, args=(process.stderr,), daemon=True).start()
        yield process, int(said.strip().rstrip("/").rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(60)


def _drain(stream: IO[str]) -> None:
    for _ in stream:
        pass


@contextmanager
def _new_runs(url: str) -> Iterator[None]:
    """Record runs as fast as the pipelines make them, until the block ends."""
    from ematix_flow.backends.state_stores.run_logs import open_run_log
    from ematix_flow.spec.row_counts import RowCounts
    from ematix_flow.state.runlog.records import RunRecord

    stop = threading.Event()

    def record() -> None:
        number = 0
        with open_run_log(url, env={}, reading=True) as log:
            while not stop.wait(1 / RUNS_A_SECOND):
                one = RunRecord(uuid.uuid4().hex, f"p{number % PIPELINES}", "w:s.t", "append")
                log.start(one)
                log.finish(one.run_id, "succeeded", rows=RowCounts(read=10, inserted=10))
                number += 1

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
