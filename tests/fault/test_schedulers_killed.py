"""Two schedulers on one store, killed and paused at random: each slot is loaded once, and none is lost.

Both are real processes, and so is every run that they start. Every change of a slot in the store is written
down by the database itself, so that the test can check every claim at the end.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from ematix_flow.backends.state_stores.run_logs import open_slots
from ematix_flow.state.slots.base import ENDED, Slot, SlotStore

pytestmark = [pytest.mark.fault, pytest.mark.slow]

ROUNDS, ROUNDS_LONG = 15, 200
PIPELINES = 5
LEASE, LEADER = 8.0, 1.0
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
PROJECT = f"""
from pathlib import Path
from ematix_flow import BigInt, ManagedTable, SQLiteConnection, ematix

db = SQLiteConnection(name="db", path=str(Path(__file__).parent / "target.db"))

for number in range({PIPELINES}):
    class Loaded(ManagedTable):
        __tablename__ = f"t{{number}}"
        id: BigInt

    @ematix.pipeline(name=f"p{{number}}", target=Loaded, target_connection=db, source_connection=db,
                     schedule="0 0 29 2 *", catchup="all", retry={{"max_attempts": 100}})
    def load(conn):
        return "SELECT id FROM source"
"""
_SEEN = "pipeline, fires_at, status, fence, holder, begun, before"
_NEW = "new.pipeline, new.fires_at, new.status, new.fence, new.holder, new.begun, old.fence"
WRITTEN_DOWN = {
    "sqlite": [
        f"CREATE TABLE seen (number INTEGER PRIMARY KEY, {_SEEN})",
        f"CREATE TRIGGER write_down AFTER UPDATE ON flow_slots "
        f"BEGIN INSERT INTO seen ({_SEEN}) VALUES ({_NEW}); END",
    ],
    "postgres": [
        "CREATE TABLE seen (number BIGSERIAL, pipeline TEXT, fires_at TIMESTAMPTZ, status TEXT, "
        "fence BIGINT, holder TEXT, begun BOOLEAN, before BIGINT)",
        f"CREATE FUNCTION write_down() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"INSERT INTO public.seen ({_SEEN}) VALUES ({_NEW}); RETURN new; END $$",
        "CREATE TRIGGER write_down AFTER UPDATE ON ematix_flow.flow_slots "
        "FOR EACH ROW EXECUTE FUNCTION write_down()",
    ],
}
Change = tuple[str, str, str, int, str | None, bool, int]


class KilledSchedulers:
    """The store, the target and two schedulers, each started again when it dies."""

    def __init__(self, kind: str, url: str, folder: Path) -> None:
        self.kind, self.url, self.folder = kind, url, folder
        self.store: SlotStore = open_slots(url, env={})
        self.slots: list[Slot] = []
        self.schedulers: list[subprocess.Popen[bytes]] = []
        self.paused: dict[int, threading.Timer] = {}
        self.logs: dict[int, Path] = {}
        (folder / "project.py").write_text(PROJECT)
        with closing(sqlite3.connect(folder / "target.db")) as target, target:
            target.execute("CREATE TABLE source (id BIGINT)")
            target.execute("INSERT INTO source VALUES (1)")
        for statement in WRITTEN_DOWN[kind]:
            self.run(statement)
        self.fire()

    def fire(self) -> None:
        """One slot more of each pipeline."""
        at = BEGIN + dt.timedelta(minutes=len(self.slots))
        new = [Slot(f"p{number}", at) for number in range(PIPELINES)]
        self.slots += new
        self.store.open(new)

    def run(self, statement: str) -> list[Change]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.url, timeout=30)) as connection, connection:
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.url) as session:
            cursor = session.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def start(self, number: int) -> subprocess.Popen[bytes]:
        times = [f"--lease-seconds={LEASE}", f"--leader-lease-seconds={LEADER}", "--poll-interval=0.3"]
        options = ["--module=project.py", "--executor=subprocess://?workers=2", *times]
        self.logs[number] = self.folder / f"scheduler-{number}-{time.monotonic_ns()}.log"
        with self.logs[number].open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ematix_flow", "scheduler", *options],
                cwd=self.folder,
                env={**os.environ, "EMATIX_FLOW_RUN_LOG_URL": self.url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def looks(self, number: int) -> bool:
        """Whether the scheduler that runs now has polled."""
        return b"this scheduler" in self.logs[number].read_bytes()

    def workers(self) -> list[int]:
        """The runs at work, of all schedulers."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    here = (process / "cwd").readlink() == self.folder
                except OSError:  # it has just ended
                    continue
                if b"run-slot" in words and here:
                    found.append(int(process.name))
        return found

    def pause(self, number: int, seconds: float) -> None:
        """A paused process keeps its locks in the store, so another thread wakes it."""
        scheduler = self.schedulers[number]
        scheduler.send_signal(signal.SIGSTOP)
        self.paused[number] = threading.Timer(seconds, scheduler.send_signal, [signal.SIGCONT])
        self.paused[number].start()

    def is_paused(self, number: int) -> bool:
        return number in self.paused and self.paused[number].is_alive()

    def left(self) -> int:
        return len(self.store.unfinished())


@pytest.fixture(params=["sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KilledSchedulers]:
    kind = str(request.param)
    url = str(tmp_path / "run_log.db") if kind == "sqlite" else request.getfixturevalue("pg_database")
    stage = KilledSchedulers(kind, url, tmp_path)
    yield stage
    for timer in stage.paused.values():
        timer.join()
    for scheduler in stage.schedulers:
        scheduler.kill()
        scheduler.wait()
    for pid in stage.workers():
        os.kill(pid, signal.SIGKILL)
    while stage.workers():
        time.sleep(0.05)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(ROUNDS_LONG, marks=pytest.mark.long)])
def test_schedulers_that_are_killed_and_paused_lose_and_double_no_slot(
    stage: KilledSchedulers, rounds: int
) -> None:
    chance = random.Random(20260329)
    stage.schedulers = [stage.start(0), stage.start(1)]
    done: Counter[str] = Counter()
    while sum(done.values()) < rounds or min(done["killed"], done["paused"], done["run killed"]) < 3:
        time.sleep(chance.uniform(0.0, 0.5))
        if stage.left() < PIPELINES:  # there is always something to lose
            stage.fire()
        happened = disturb(stage, chance.randrange(2), chance)
        if happened:
            done[happened] += 1
    deadline = time.monotonic() + 180
    while stage.left() and time.monotonic() < deadline:
        time.sleep(0.2)
    check(stage, done)
    end_well(stage)


def disturb(stage: KilledSchedulers, number: int, chance: random.Random) -> str | None:
    """Kill something that is at work, or pause it for a while; None when there is nothing."""
    scheduler = stage.schedulers[number]
    kind = chance.choice(["killed", "paused", "run killed"])
    workers = stage.workers()
    if kind == "run killed" and workers:
        try:
            os.kill(chance.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return None
        return kind
    if stage.is_paused(number) or not stage.looks(number):
        return None
    if kind == "paused":
        stage.pause(number, chance.uniform(0.0, 3 * LEADER))
        return kind
    scheduler.kill()
    scheduler.wait()
    stage.schedulers[number] = stage.start(number)
    return "killed"


def check(stage: KilledSchedulers, done: Counter[str]) -> None:
    told = "\n".join(log.read_text()[-3_000:] for log in stage.logs.values())
    for slot in stage.slots:
        record = stage.store.get(slot)
        assert record is not None and record.status == "succeeded", f"{record} after {done}\n{told}"
    per_pipeline = Counter(slot.pipeline for slot in stage.slots)
    with closing(sqlite3.connect(stage.folder / "target.db")) as target:
        for pipeline, count in per_pipeline.items():
            table = pipeline.replace("p", "t")
            assert target.execute(f"SELECT count(*) FROM {table}").fetchone() == (count,), pipeline
        batches = target.execute("SELECT pipeline, count(*) FROM ematix_flow__ledger GROUP BY pipeline")
        assert dict(batches.fetchall()) == dict(per_pipeline)
    changes = stage.run(f"SELECT {_SEEN} FROM seen ORDER BY number")
    one_holder_at_a_time(changes)
    ends = Counter((pipeline, at) for pipeline, at, status, *_ in changes if status in ENDED)
    assert len(ends) == len(stage.slots) and set(ends.values()) == {1}


def one_holder_at_a_time(changes: list[Change]) -> None:
    """The process that made a claim, until a run begins it; then that run."""
    holders: dict[tuple[str, str, int, bool], str] = {}
    for pipeline, at, status, fence, holder, begun, before in changes:
        assert fence in (before, before + 1)
        if status != "claimed":
            continue
        assert holder is not None
        first = holders.setdefault((pipeline, at, fence, bool(begun)), holder)
        assert first == holder, f"{pipeline} of {at}: {first} and {holder} both hold claim {fence}"


def end_well(stage: KilledSchedulers) -> None:
    """Both stop when they are asked to."""
    for number, scheduler in enumerate(stage.schedulers):
        deadline = time.monotonic() + 60
        while not stage.looks(number) and time.monotonic() < deadline:
            time.sleep(0.05)
        scheduler.send_signal(signal.SIGTERM)
    assert [scheduler.wait(60) for scheduler in stage.schedulers] == [0, 0]
