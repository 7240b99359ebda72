"""The benchmark of load probes: requests a second on one core, by ematix_probe and by its rivals.

Virtual users send one request after the other to a server that answers at once. The contestant has one core,
the server another. The server counts too: a contestant that reports more than it answered is disqualified,
as is one with an answer whose status is not 200.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import PROBE_LOAD
from benchmarks.datasets import DATA
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from benchmarks.machine import REPOSITORY, commit, machine_facts, versions
from benchmarks.process import environment
from benchmarks.results import Result, Run
from benchmarks.rivals import LOADS_SHOWN, probe_rival_versions
from benchmarks.rounds import Settings, all_rounds, get_ready, run_job

USERS, SECONDS = 32, 15.0
REQUESTS = 100_000  # a run's time is that for so many
K6, K6_VERSION = "k6", "v1.8.1"
K6_BUILD_SECONDS = 900.0


@dataclass(frozen=True)
class LoadPlan:
    users: int = USERS
    seconds: float = SECONDS


def run_probe_load(plan: LoadPlan, settings: Settings, say: Callable[[str], None]) -> Result:
    say(f"Load on a server: {plan.users} users, {plan.seconds:g} s each")
    names = settings.chosen(PROBE_LOAD)
    about = probe_rival_versions(LOADS_SHOWN)
    options = {"case": "probe-load", "users": str(plan.users), "seconds": str(plan.seconds)}
    if K6 in names:
        try:
            options[K6] = str(k6_program())
            about[K6] = K6_VERSION
        except (OSError, subprocess.SubprocessError) as problem:
            names.remove(K6)
            say(f"  without k6: it cannot be built ({problem})")
    get_ready(names, settings.folder)
    empty = Result(
        benchmark="probe-load",
        case="probe-load",
        title=f"Requests a second on one core, {plan.users} users",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=REQUESTS,
        limit_seconds=settings.limit,
        machine=machine_facts(),
        versions=versions(**about),
        commit=commit(),
        runs=(),
    )

    def turn(name: str, number: int) -> Run:
        folder = settings.folder / f"run-{name}-{number}"
        folder.mkdir()
        try:
            with running_server() as (target, stop), one_core():
                job = Job(target, (target,), (), 1, str(folder / "marks.jsonl"), options=options)
                run = run_job(name, number, job, folder, settings.limit)
                return judged(run, stop())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    try:
        return all_rounds(empty, names, settings, turn, say)
    finally:
        shutil.rmtree(settings.folder, ignore_errors=True)


def judged(run: Run, answered: int) -> Run:
    """The run with the time for `REQUESTS`; disqualified if it counts what the server did not answer."""
    if "first" not in run.details:
        return run
    found: dict[str, Any] = run.details["first"]
    problem = None
    if found["failed"]:
        problem = f"{found['failed']:,} requests failed"
    elif not found["requests"]:
        problem = "it sent no request"
    elif found["all requests"] > answered:
        problem = f"it counts {found['all requests']:,} answers, and the server sent {answered:,}"
    if problem is not None:
        return replace(run, problem=problem)
    return replace(run, load_seconds=found["seconds"] / found["requests"] * REQUESTS, details=found)


@contextlib.contextmanager
def running_server() -> Iterator[tuple[Endpoint, Callable[[], int]]]:
    """The server on the last core, and a function that ends it and returns how many requests it answered."""
    command = [sys.executable, "-m", "benchmarks.probe_load_server"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment(DATA / "state"),
    ) as server:
        assert server.stdout is not None
        os.sched_setaffinity(server.pid, {max(os.sched_getaffinity(0))})
        port = int(server.stdout.readline())

        def stop() -> int:
            return int(server.communicate()[0])

        try:
            yield Endpoint("http", f"http://127.0.0.1:{port}/"), stop
        finally:
            server.kill()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This process and those that it starts run on the first of its cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def k6_program() -> Path:
    """k6 of a pinned version: built once, from modules that Go checks by its sum database."""
    folder = DATA / f"k6-{K6_VERSION}"
    program = folder / "k6"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        go = shutil.which("go")
        if go is None:
            raise OSError("Go is not installed")
        subprocess.run(
            [go, "install", f"go.k6.io/k6@{K6_VERSION}"],
            check=True,
            timeout=K6_BUILD_SECONDS,
            capture_output=True,
            env={**os.environ, "GOBIN": str(folder)},
        )
    return program
