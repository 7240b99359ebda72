"""The benchmark of stateful streams: a backlog is drained, then messages come at a steady rate.

Each run is one process. The harness sends, and polls the target from outside; at the end every row of the
target must be the expected one. A restart has a module of its kind: `stateful_restarts`.
"""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import StatefulCase
from benchmarks.job import Mark, read_marks
from benchmarks.machine import REPOSITORY, commit, machine_facts, versions
from benchmarks.process_tree import cpu_seconds
from benchmarks.results import Result, Run
from benchmarks.rivals import rival_jars, rival_versions
from benchmarks.rounds import Settings, all_rounds, get_ready
from benchmarks.servers import Servers
from benchmarks.stateful_messages import Row, Traffic
from benchmarks.stateful_restarts import run_restart
from benchmarks.stateful_runs import StatefulRun, SteadyRate, start, wrong_rows
from benchmarks.stateful_sending import send
from benchmarks.stateful_watches import POLL_SECONDS, ResultTable, state_bytes
from benchmarks.stream_loads import percentile, summed
from benchmarks.stream_messages import PARTITIONS

SENDER_START_SECONDS = 4
STATE_EVERY_SECONDS = 1.0


class _OverLimit(Exception):
    """A stage took longer than the limit."""


class _Ended(Exception):
    """The contestant's process has ended."""


def run_stateful(
    cases: Sequence[StatefulCase],
    rows: int | None,
    steady: SteadyRate,
    settings: Settings,
    say: Callable[[str], None],
) -> Iterator[Result]:
    """``rows`` replaces the number of messages of each case."""
    try:
        with Servers(commit_times=True) as servers:
            for case in cases:
                sized = replace(settings, rows=rows or case.rows)
                yield _run_case(case, steady, servers, sized, say)
    finally:
        shutil.rmtree(settings.folder, ignore_errors=True)


def _run_case(
    case: StatefulCase, steady: SteadyRate, servers: Servers, settings: Settings, say: Callable[[str], None]
) -> Result:
    kinds = ["kafka", "postgres"]
    say(f"{case.title}: starting the servers")
    for kind in kinds:
        servers.server(kind)
    names = settings.chosen(case.contestants)
    jars = rival_jars(kinds)
    get_ready(names, settings.folder, ["kafka"])
    empty = Result(
        benchmark="stateful-restart" if case.restart else "stateful",
        case=f"stateful-{case.name}",
        title=f"Stateful stream, {case.title}",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=settings.rows,
        limit_seconds=settings.limit,
        machine=machine_facts(),
        versions=versions(**servers.versions(), **rival_versions(kinds)),
        commit=commit(),
        runs=(),
    )

    def turn(name: str, number: int) -> Run:
        folder = settings.folder / f"run-{case.name}-{name}-{number}"
        folder.mkdir()
        run = run_restart if case.restart else _run
        try:
            return run(StatefulRun(name, number, case, steady, servers, tuple(jars), settings, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return all_rounds(empty, names, settings, turn, say)


def _run(run: StatefulRun) -> Run:
    traffic = run.traffic()
    topics, target = run.topics(traffic), run.empty_target()
    job = run.job(topics, target)
    send(job.source.location, topics, traffic.messages(0, traffic.rows))
    send(job.source.location, topics, traffic.closing(traffic.stage_end()))
    table = ResultTable(target.location, run.case.stream)
    run.servers.settle()
    try:
        with ThreadPoolExecutor(1) as pool:
            running = start(run, job, pool)
            course = _Course(run, traffic, topics, table, running.run, marks_file=Path(job.marks))
            over = False
            try:
                course.go()
            except _OverLimit:
                over = True
            except _Ended:
                pass  # the run contains the reason
            finally:
                ended = running.stop()
        if over:
            return replace(ended, problem=None, over_limit=True)
        if ended.problem is not None or ended.over_limit:
            return ended
        return _judged(ended, course, read_marks(Path(job.marks)))
    finally:
        table.close()
        run.servers.drop(target)


@dataclass
class _Course:
    """The stages that one contestant goes through, and what was measured in them."""

    run: StatefulRun
    traffic: Traffic
    topics: Sequence[str]
    table: ResultTable
    running: Future[Run]
    drained: float = 0.0  # when the last row of the backlog was committed, in seconds since 1970
    latencies: list[float] = field(default_factory=list)
    state: list[int] = field(default_factory=list)  # its size in bytes, sampled
    expected: set[Row] = field(default_factory=set)
    marks_file: Path = Path()
    processor: list[tuple[float, float]] = field(default_factory=list)  # when, and seconds of it so far

    def go(self) -> None:
        self._wait(self.traffic)
        self._sample_processor(self.traffic)
        self.drained = self.table.last_commit()
        if self.run.case.latency:
            self._steadily()
        self.state.append(state_bytes(self.run.folder))
        self._wait_for_report()

    def _wait_for_report(self) -> None:
        """Spark reports a batch some time after its rows are visible."""
        began = time.monotonic()
        while "first batch" not in read_marks(self.marks_file):
            if self.running.done():
                raise _Ended
            if time.monotonic() > began + self.run.settings.limit:
                raise _OverLimit
            time.sleep(POLL_SECONDS)

    def _steadily(self) -> None:
        steady = self.run.steady
        began = (int(time.time()) + SENDER_START_SECONDS) * 1_000
        count = round(steady.rate * steady.seconds)
        self.traffic = replace(self.traffic, began=began, rate=steady.rate, steady=count)
        bootstrap = self.run.servers.server("kafka").bootstrap
        told = [self.run.case.stream, bootstrap, ",".join(self.topics), self.traffic.rows, began]
        command = [sys.executable, "-m", "benchmarks.stateful_sending", *map(str, told)]
        subprocess.run([*command, str(steady.rate), str(count)], cwd=REPOSITORY, check=True)
        send(bootstrap, self.topics, self.traffic.closing(self.traffic.stage_end()), hurried=True)
        self._wait(self.traffic)
        last = self.traffic.event_time(self.traffic.rows + count - 1)
        self.latencies = self.table.latencies(self.traffic.rows, began, last)

    def _wait(self, traffic: Traffic) -> None:
        """Until the target has as many rows as it must have after this stage."""
        self.expected = traffic.expected()
        awaited = len(self.expected)
        if self.run.case.stream == "cdc":  # rows are also changed and deleted: the last changes are awaited
            awaited = PARTITIONS * (2 if traffic.steady else 1)
        began, sampled = time.monotonic(), 0.0
        while self.table.count() < awaited:
            if self.running.done():
                raise _Ended
            if "ready" not in read_marks(self.marks_file):  # the limit is for the load
                began = time.monotonic()
            if time.monotonic() > began + self.run.settings.limit:
                raise _OverLimit
            if time.monotonic() > sampled + STATE_EVERY_SECONDS:
                self.state.append(state_bytes(self.run.folder))
                sampled = time.monotonic()
            self._sample_processor(traffic)
            time.sleep(POLL_SECONDS)

    def _sample_processor(self, traffic: Traffic) -> None:
        """While the backlog is drained."""
        ready = None if traffic.steady else read_marks(self.marks_file).get("ready")
        if ready is not None:
            self.processor.append((time.monotonic(), cpu_seconds(ready.details["pid"])))

    def processor_seconds(self, began: float) -> float:
        """From the last sample before a time until the end of the backlog."""
        before = [spent for at, spent in self.processor if at <= began]
        return self.processor[-1][1] - before[-1] if before else 0.0

    def figures(self, began: float, visible: float, told: Mapping[str, Any]) -> dict[str, Any]:
        """What was measured. ``told`` are the contestant's reports of its batches."""
        found: dict[str, Any] = {
            "backlog": {
                kind: summed([batch for batch in told[kind] if batch["began"] <= visible])
                for kind in ("batches", "phases")
                if told.get(kind)
            },
            "processor seconds": self.processor_seconds(began),
            "state bytes": {"most": max(self.state, default=0), "at the end": self.state[-1]},
            "bytes next to the target": self.table.other_bytes(),
        }
        if self.latencies:
            found["latency"] = {
                str(self.run.steady.rate): {f"p{p}": percentile(self.latencies, p) for p in (50, 95, 99)}
            }
        return found


def _judged(run: Run, course: _Course, marks: Mapping[str, Mark]) -> Run:
    """The run with the times that the harness measured; disqualified if a row is not the expected one."""
    problem = wrong_rows(course.table.rows(), course.expected)
    if problem is not None:
        return replace(run, problem=problem)
    visible = course.drained - time.time() + time.monotonic()
    began = marks["first batch"].details["began"]
    process_began = marks["ready"].at - (run.start_seconds or 0.0)
    return replace(
        run,
        load_seconds=visible - began,
        total_seconds=visible - process_began,
        details=course.figures(began, visible, run.details["first"]),
    )
