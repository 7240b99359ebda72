"""The stream benchmark: a backlog is drained, then messages come one by one, then at steady rates.

Each run is one process: the one that drained the backlog also receives what follows. The harness sends, and
polls the target from outside; at the end it counts and sums up the messages that arrived.
"""

from __future__ import annotations

import datetime as dt
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import REFERENCE, StreamCase
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job, read_marks
from benchmarks.machine import REPOSITORY, commit, cores, machine_facts, versions
from benchmarks.results import Result, Run
from benchmarks.rivals import SHARED, rival_jars, rival_versions
from benchmarks.rounds import Settings, all_rounds, get_ready, run_job
from benchmarks.servers import Servers
from benchmarks.stream_messages import (
    PARTITIONS,
    POSTGRES_TABLE,
    TEXT_NOTE,
    Send,
    message,
    send_all,
    sender,
    sums,
)
from benchmarks.stream_watches import POLL_SECONDS, PostgresWatch, Watch, watch

ROWS, RATES, SECONDS, SINGLES = 500_000, (1_000, 10_000), 20.0, 50
ENDING_SECONDS = 60.0
LONGEST_GAP = 0.5  # seconds between the arrival of a message and the next one


@dataclass(frozen=True)
class Pace:
    """What comes after the backlog: so many messages one by one, then each rate for so many seconds."""

    rates: tuple[int, ...] = RATES
    seconds: float = SECONDS
    singles: int = SINGLES


class _OverLimit(Exception):
    """A stage took longer than the limit."""


class _Ended(Exception):
    """The contestant's process has ended."""


def run_streams(
    cases: Sequence[StreamCase], pace: Pace, settings: Settings, say: Callable[[str], None]
) -> Iterator[Result]:
    try:
        with Servers() as servers:
            for case in cases:
                yield _run_case(case, pace, servers, settings, say)
    finally:
        shutil.rmtree(settings.folder, ignore_errors=True)


def _run_case(
    case: StreamCase, pace: Pace, servers: Servers, settings: Settings, say: Callable[[str], None]
) -> Result:
    kinds = [case.source, case.target]
    say(f"{case.title}: starting the servers")
    for kind in kinds:
        if kind != "delta":
            servers.server(kind)
    names = settings.chosen(case.contestants)
    jars = rival_jars(kinds)
    get_ready(names, settings.folder, sorted({kind for kind in kinds if kind in SHARED}))
    empty = Result(
        benchmark="streams",
        case=f"stream-{case.name}",
        title=f"Stream, {case.title}",
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
        try:
            return _run(name, number, case, pace, servers, jars, settings, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return all_rounds(empty, names, settings, turn, say)


def _run(
    name: str,
    number: int,
    case: StreamCase,
    pace: Pace,
    servers: Servers,
    jars: Sequence[Path],
    settings: Settings,
    folder: Path,
) -> Run:
    broker = servers.server(case.source)
    if case.source == "kafka":
        source, topic = Endpoint("kafka", broker.bootstrap), broker.create_topic("in", PARTITIONS)
    else:
        source, topic = Endpoint("rabbitmq", broker.url()), broker.create_queue("in")
    send_all(source.kind, source.location, topic, 0, settings.rows)
    target, out = _empty_target(case, servers, folder, name, number)
    stop = folder / "stop"
    options = {"case": "streams", "topic": topic, "out": out, "stop": str(stop)}
    options["exactly once"] = "yes" if case.exactly_once else ""
    marks = folder / "marks.jsonl"
    job = Job(
        source, (target,), tuple(map(str, jars)), cores(), str(marks), rows=settings.rows, options=options
    )
    servers.settle()
    ending: list[float] = []

    def expired(started_at: float) -> bool:
        return bool(ending) and time.monotonic() > ending[0] + ENDING_SECONDS

    watcher = watch(target, out)
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run_job, name, number, job, folder, settings.limit, expired)
            course = _Course(source, topic, watcher, running, settings.limit)
            over = False
            try:
                course.go(settings.rows, pace, settings.seed)
            except _OverLimit:
                over = True
            except _Ended:
                pass  # the run contains the reason
            finally:
                stop.touch()
                ending.append(time.monotonic())
            run = running.result()
        if over:
            return replace(run, problem=None, over_limit=True, details=course.figures({}))
        if run.problem is not None or run.over_limit:
            return run
        return _judged(run, course, watcher, read_marks(marks)["first batch"].details["began"])
    finally:
        watcher.close()
        if target.kind == "postgres":
            servers.drop(target)


def _empty_target(
    case: StreamCase, servers: Servers, folder: Path, name: str, number: int
) -> tuple[Endpoint, str]:
    """Where rows go, and the topic, if it is one. A table in PostgreSQL exists before, for everyone."""
    if case.target == "kafka":
        broker = servers.server("kafka")
        return Endpoint("kafka", broker.bootstrap), broker.create_topic("out", PARTITIONS)
    if case.target == "delta":
        return Endpoint("delta", str(folder / "lake")), ""
    endpoint = servers.create("postgres", f"{case.name}-{name}-{number}")
    as_text = POSTGRES_TABLE.replace("timestamptz", "text")
    servers.execute(endpoint, as_text if name == REFERENCE else POSTGRES_TABLE)
    return endpoint, ""


@dataclass
class _Course:
    """The stages that one contestant goes through, and when each began and ended."""

    source: Endpoint
    topic: str
    watcher: Watch
    running: Future[Run]
    limit: float
    sent: int = 0
    stages: dict[str, tuple[float, float]] = field(default_factory=dict)
    ids: dict[str, tuple[int, int]] = field(default_factory=dict)

    def go(self, rows: int, pace: Pace, seed: int) -> None:
        self._stage("drain", rows, lambda: None)
        gaps = random.Random(seed)
        with sender(self.source.kind, self.source.location, self.topic, hurried=True) as send:
            for number in range(pace.singles):
                time.sleep(gaps.uniform(0, LONGEST_GAP))
                self._stage(f"single {number}", 1, lambda: self._send_one(send))
        for rate in pace.rates:
            self._steadily(rate, round(rate * pace.seconds))

    def _stage(self, name: str, count: int, send: Callable[[], None]) -> None:
        began, first = time.monotonic(), self.sent
        self.sent += count
        send()
        while self.watcher.poll() < self.sent:
            if self.running.done():
                raise _Ended
            if time.monotonic() > began + self.limit:
                raise _OverLimit
            time.sleep(POLL_SECONDS)
        self.stages[name], self.ids[name] = (began, time.monotonic()), (first, self.sent)

    def _send_one(self, send: Send) -> None:
        send(self.sent - 1, message(self.sent - 1, time.time_ns() // 1_000_000))

    def _steadily(self, rate: int, count: int) -> None:
        command = [sys.executable, "-m", "benchmarks.stream_messages", self.source.kind, self.source.location]
        command += [self.topic, str(self.sent), str(count), str(rate)]
        sending: list[subprocess.Popen[bytes]] = []
        try:
            self._stage(f"{rate}", count, lambda: sending.append(subprocess.Popen(command, cwd=REPOSITORY)))
        finally:
            for process in sending:
                process.kill()
                process.wait()

    def figures(self, details: Mapping[str, Any]) -> dict[str, Any]:
        """Latencies of each stage that ended, and the time of a batch in it."""
        singles = [name for name in self.ids if name.startswith("single")]
        steady = [name for name in self.ids if name.isdigit()]
        groups = {"1": singles} if singles else {}
        groups |= {name: [name] for name in steady}
        found: dict[str, Any] = {"latency": {}, "batches": {}}
        for group, names in {"drain": ["drain"], **groups}.items():
            if group != "drain":
                taken = sorted(t for name in names for t in self.watcher.latencies(*self.ids[name]))
                found["latency"][group] = {f"p{p}": percentile(taken, p) for p in (50, 95, 99)}
            spans = [self.stages[name] for name in names if name in self.stages]
            found["batches"][group] = {
                kind: summed([b for b in details.get(kind, ()) if _within(b["began"], spans)])
                for kind in ("batches", "phases")
                if details.get(kind)
            }
        return found


def _judged(run: Run, course: _Course, watcher: Watch, began: float) -> Run:
    """The run with the times that the harness measured; disqualified if wrong rows arrived."""
    arrived, expected = watcher.sums(), sums(course.sent)
    if arrived != expected:
        said = "rows, sum of ids, sum of cents"
        return replace(run, problem=f"wrong result: {arrived} arrived of {expected} ({said})")
    started, visible = course.stages["drain"]
    return replace(
        run,
        load_seconds=visible - began,
        total_seconds=visible - started,
        details=course.figures(run.details["first"]),
        notes=(TEXT_NOTE,) if run.contestant == REFERENCE and isinstance(watcher, PostgresWatch) else (),
    )


def summed(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    for batch in batches:
        for name, taken in batch["seconds"].items():
            seconds[name] = seconds.get(name, 0.0) + taken
    rows = sum(batch["rows"] for batch in batches)
    return {"batches": len(batches), "rows": rows, "seconds": seconds}


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that at least so many percent do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _within(moment: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(began <= moment <= ended for began, ended in spans)
