"""One contestant in one round of the benchmark of stateful streams: folder, topics, target and process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cases import StatefulCase
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from benchmarks.machine import cores
from benchmarks.results import Run
from benchmarks.rounds import Settings, run_job
from benchmarks.servers import Servers
from benchmarks.stateful_messages import TRAFFIC, WINDOW, Row, Traffic
from benchmarks.stateful_watches import TABLES
from benchmarks.stream_loads import ENDING_SECONDS
from benchmarks.stream_messages import PARTITIONS

RATE, SECONDS = 1_000, 40.0


@dataclass(frozen=True)
class SteadyRate:
    """What comes after the backlog where latency is measured: messages a second, for so many seconds."""

    rate: int = RATE
    seconds: float = SECONDS


@dataclass(frozen=True)
class StatefulRun:
    """One contestant in one round, and what it needs."""

    name: str
    number: int
    case: StatefulCase
    steady: SteadyRate
    servers: Servers
    jars: tuple[Path, ...]
    settings: Settings
    folder: Path

    def traffic(self) -> Traffic:
        return TRAFFIC[self.case.stream](self.settings.rows)

    def topics(self, traffic: Traffic) -> list[str]:
        broker = self.servers.server("kafka")
        return [broker.create_topic(f"in{number}", PARTITIONS) for number in range(traffic.topics)]

    def empty_target(self) -> Endpoint:
        """A database; for contestants that create no table, with the table and its key."""
        endpoint = self.servers.create("postgres", f"{self.case.name}-{self.name}-{self.number}")
        if not self.name.startswith("flow"):
            self.servers.execute(endpoint, TABLES[self.case.stream])
        return endpoint

    def job(self, topics: Sequence[str], target: Endpoint, part: str = "run", **options: str) -> Job:
        source = Endpoint("kafka", self.servers.server("kafka").bootstrap)
        told = {
            "case": "stateful",
            "stream": self.case.stream,
            "topic": ",".join(topics),
            "stop": str(self.folder / f"{part}-stop"),
            "window": str(WINDOW),
            **options,
        }
        return Job(
            source,
            (target,),
            tuple(map(str, self.jars)),
            cores(),
            str(self.folder / f"{part}-marks.jsonl"),
            rows=self.settings.rows,
            options=told,
        )


@dataclass
class Running:
    """The process of a job, in a thread; it ends some time after ``stop``."""

    run: Future[Run]
    stop_file: Path
    stopped_at: list[float] = field(default_factory=list)

    def stop(self) -> Run:
        self.stop_file.touch()
        self.stopped_at.append(time.monotonic())
        return self.run.result()


def start(run: StatefulRun, job: Job, pool: ThreadPoolExecutor) -> Running:
    stopped: list[float] = []

    def expired(started_at: float) -> bool:
        return bool(stopped) and time.monotonic() > stopped[0] + ENDING_SECONDS

    future = pool.submit(run_job, run.name, run.number, job, run.folder, run.settings.limit, expired)
    return Running(future, Path(job.options["stop"]), stopped)


def wrong_rows(found: Sequence[Row], expected: set[Row]) -> str | None:
    """What is wrong with the rows of a target, in one line; None if they are the expected ones."""
    rows = set(found)
    if len(found) == len(rows) and rows == expected:
        return None
    example = next(iter(rows ^ expected), None)
    return (
        f"wrong result: {len(expected - rows):,} of {len(expected):,} rows are missing and"
        f" {len(found) - len(rows & expected):,} are wrong, as {example}"
    )
