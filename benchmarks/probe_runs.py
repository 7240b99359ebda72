"""The benchmark of data probes: ten assertions over one table, by ematix_probe and by its rivals.

Each run is one process that checks the same rows twice. What it found must be right; see `probe_data`.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cases import ProbeCase
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from benchmarks.machine import commit, cores, machine_facts, versions
from benchmarks.probe_data import delta_folder, fill_postgres, parquet_folder, wrong_figures
from benchmarks.results import Result, Run
from benchmarks.rivals import probe_rival_versions, rival_jars
from benchmarks.rounds import Settings, all_rounds, get_ready, run_job
from benchmarks.servers import Servers


def run_probes(
    cases: Sequence[ProbeCase], settings: Settings, say: Callable[[str], None]
) -> Iterator[Result]:
    try:
        with Servers() as servers:
            for case in cases:
                yield _run_case(case, servers, settings, say)
    finally:
        shutil.rmtree(settings.folder, ignore_errors=True)


def _run_case(case: ProbeCase, servers: Servers, settings: Settings, say: Callable[[str], None]) -> Result:
    names = settings.chosen(case.contestants)
    say(f"{case.title}: {settings.rows:,} rows")
    source = _source(case.source, settings.rows, servers)
    jars = rival_jars([case.source]) if case.source == "delta" else []
    get_ready(names, settings.folder)
    about = {**servers.versions(), **probe_rival_versions()}
    empty = Result(
        benchmark="probes",
        case=f"probes-{case.name}",
        title=f"Ten assertions, {case.title}",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=settings.rows,
        limit_seconds=settings.limit,
        machine=machine_facts(),
        versions=versions(**about),
        commit=commit(),
        runs=(),
    )
    options = {"case": "probes"}
    if case.source == "postgres":
        options["server pid"] = str(servers.server("postgres").pid)

    def turn(name: str, number: int) -> Run:
        folder = settings.folder / f"run-{case.name}-{name}-{number}"
        folder.mkdir()
        marks = str(folder / "marks.jsonl")
        told = tuple(map(str, jars))
        job = Job(source, (source, source), told, cores(), marks, rows=settings.rows, options=options)
        try:
            servers.settle()
            return judged(run_job(name, number, job, folder, settings.limit), settings.rows)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return all_rounds(empty, names, settings, turn, say)


def judged(run: Run, rows: int) -> Run:
    """The run, disqualified if a figure of one of its checks is wrong."""
    for details in run.details.values():
        problem = wrong_figures(details["found"], rows)
        if problem is not None:
            return replace(run, problem=problem)
    return run


def _source(kind: str, rows: int, servers: Servers) -> Endpoint:
    if kind == "postgres":
        endpoint = servers.create("postgres", "probes")
        fill_postgres(endpoint.location, rows)
        return endpoint
    folder: Path = (delta_folder if kind == "delta" else parquet_folder)(rows)
    return Endpoint(kind, str(folder))
