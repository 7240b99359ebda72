"""Runs that are killed for real: at every commit point and at random times; the next run is exact.

Each store is killed in each strategy that it has. Lakes, which need Spark, are killed in test_lake_killed.py.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.fault.databases import Database, file_database
from tests.fault.forked_runs import ForkedRuns, Outcome, forked_runs
from tests.fault.histories import BY_NAME, LOADS, History, LoadKind
from tests.fault.lake_tables import FilesInBucket, LocalFiles
from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.fault

APPLIED = (
    "apply.began",
    "apply.rows_written",
    "apply.ledger_written",
    "apply.before_commit",
    "apply.after_commit",
    "runlog.before_finish",
)
STAGED = ("staging.created", "task.staged", "staging.loaded", "staging.dropped")
PUBLISHED = ("files.version_written", "files.before_publish", "files.after_publish")
POINTS = 2  # of them, each load and path is killed at so many: others in turn, so that all have theirs
CHANCES = 1  # kills at a random time
CHANCES_LONG = 15
DATABASES = ("postgres", "mysql", "sqlite", "duckdb")
# The load's code is the same on each database: SQLite and Postgres are killed in every load on every path,
# the others in every load on one of the paths, which still takes them through every point. The number is
# where each begins among the points.
BY_TURNS = {"mysql": 1, "duckdb": 0}
FILES = ("object_store_local", "object_store_s3")
FILE_LOADS = tuple(BY_NAME[name] for name in ("append_all", "append_new", "replace_all"))


class Histories(Protocol):
    def __call__(self, kind: str, load: LoadKind, path: str, folder: Path = ...) -> History: ...


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    with forked_runs() as warm:
        yield warm


@pytest.fixture
def histories(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Histories]:
    """A load into a store: within one database, or from another database into it."""
    made: list[str] = []

    def make(kind: str, load: LoadKind, path: str, folder: Path = tmp_path) -> History:
        target = _store(kind, request, folder)
        if path == "same_db":
            return History(load, target, target)
        if kind != "postgres":
            return History(load, file_database("sqlite", folder, "source"), target)
        server: PostgresServer = request.getfixturevalue("postgres")
        made.append(server.create_database("source"))
        return History(load, Database("postgres", server.url(made[-1])), target)

    yield make
    for name in made:
        request.getfixturevalue("postgres").drop_database(name)


def _store(kind: str, request: pytest.FixtureRequest, folder: Path) -> Database:
    if kind == "object_store_local":
        return LocalFiles(where=str(folder / "lake"))
    if kind == "object_store_s3":
        server, bucket = request.getfixturevalue("s3"), request.getfixturevalue("s3_bucket")
        return FilesInBucket(where=f"lake-{uuid.uuid4().hex[:8]}", server=server, bucket=bucket)
    servers = {"postgres": "pg_database", "mysql": "mariadb_database", "mysql 8": "mysql_database"}
    if kind in servers:
        return Database(kind.split()[0], request.getfixturevalue(servers[kind]))
    return file_database(kind, folder, "target")


class Killed:
    """One history whose runs are killed, round by round."""

    def __init__(self, history: History, runs: ForkedRuns, folder: Path) -> None:
        self.history, self.runs, self.folder, self.number = history, runs, folder, -1

    def first(self, fault: str = "") -> None:
        """The first round, which makes the table; undisturbed unless it is killed too."""
        self.history.write_module(self.folder)
        self.history.create()
        if fault:
            assert self.kill(fault=fault).killed
        else:
            self.number = 0
            self.history.advance(0)
            self.again(0)

    def kill(self, *, fault: str = "", after: float | None = None) -> Outcome:
        """Advance the source, kill the run, check the target, and run it to the end."""
        self.number += 1
        self.history.advance(self.number)
        slot = self.history.slot(self.number)
        ended = self.runs.run(
            self.folder, slot=slot, fault=f"{fault}=kill" if fault else "", kill_after=after
        )
        about = f"round {self.number} of {self.history.load.name}: {fault or after}, {ended}"
        assert ended.killed or (after is not None and ended.code == 0), about
        batches, rows = self.history.seen()
        assert batches in (self.number, self.number + 1), about
        assert rows == self.history.must_hold(batches - 1), about
        # in MySQL to create a table is a commit: there, a reader may find it empty
        assert self.history.is_there() == (batches > 0) or self.history.target.kind == "mysql", about
        self.again(self.number)
        return ended

    def again(self, number: int) -> None:
        """Run to the end. The server may take some time to notice that the holder of the lock is dead."""
        for _ in range(200):
            ended = self.runs.run(self.folder, slot=self.history.slot(number))
            if ended.code != 4:
                break
            time.sleep(0.05)
        assert ended.code == 0, ended.told
        assert self.history.seen() == (number + 1, self.history.must_hold(number))

    def finish(self) -> None:
        """The run after the last killed one has removed all that any of them had left.

        A server that still executes a statement of a killed run holds its staging table: the next run does
        not wait for it, and the run after that removes the table.
        """
        if self.history.target.left_behind("loads", self.history.load.name):
            self.number += 1
            self.history.advance(self.number)
            self.again(self.number)
        assert self.history.target.left_behind("loads", self.history.load.name) == []


def _kill_at_points(killed: Killed, points: tuple[str, ...], turn: int) -> None:
    """At a few of the points, the first one while the table is made; others with the next turn."""
    chosen = [points[(turn * POINTS + n) % len(points)] for n in range(POINTS)]
    killed.first(chosen[0])
    for fault in chosen[1:]:
        assert killed.kill(fault=fault).killed


def loads_to_kill() -> Iterator[Any]:
    for kind, (turn, load), path in itertools.product(
        (*DATABASES, "mysql 8"), enumerate(LOADS), ("same_db", "copy")
    ):
        is_long = kind == "mysql 8" or (kind in BY_TURNS and path != ("copy", "same_db")[turn % 2])
        marks = [pytest.mark.long] if is_long else []
        yield pytest.param(kind, load, path, id=f"{kind}-{load.name}-{path}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "load", "path"), list(loads_to_kill()))
def test_a_run_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, runs: ForkedRuns, histories: Histories, kind: str, load: LoadKind, path: str
) -> None:
    killed = Killed(histories(kind, load, path), runs, tmp_path)
    points = (*STAGED, *APPLIED) if path == "copy" else APPLIED
    first = BY_TURNS.get(kind, DATABASES.index(kind) if kind in DATABASES else 0)
    _kill_at_points(killed, points, turn=LOADS.index(load) + first)
    _kill_by_chance(killed, CHANCES, seed=f"{load.name} {path}")
    killed.finish()


@pytest.mark.parametrize("load", FILE_LOADS, ids=lambda load: load.name)
@pytest.mark.parametrize("kind", FILES)
def test_a_load_of_files_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, runs: ForkedRuns, histories: Histories, kind: str, load: LoadKind
) -> None:
    points = (*STAGED, *APPLIED, *PUBLISHED)
    share = points[FILE_LOADS.index(load) :: len(FILE_LOADS)]
    killed = Killed(histories(kind, load, "copy"), runs, tmp_path)
    killed.first(share[0])
    for fault in share[1:]:
        assert killed.kill(fault=fault).killed
    _kill_by_chance(killed, CHANCES, seed=f"{load.name} {kind}")
    killed.finish()


@pytest.mark.parametrize("kind", FILES)
def test_a_first_load_of_files_that_is_killed_shows_no_table_or_all_rows(
    tmp_path: Path, runs: ForkedRuns, histories: Histories, kind: str
) -> None:
    """At each point, into its own table; the next run makes it with all rows."""
    for number, fault in enumerate((*STAGED, *APPLIED, *PUBLISHED)):
        folder = tmp_path / str(number)
        folder.mkdir()
        load = FILE_LOADS[number % len(FILE_LOADS)]
        killed = Killed(histories(kind, load, "copy", folder), runs, folder)
        killed.first(fault)
        killed.finish()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", ["same_db", "copy"])
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
@pytest.mark.parametrize("kind", DATABASES)
def test_hundreds_of_runs_that_are_killed_by_chance_lose_and_double_nothing(
    tmp_path: Path, runs: ForkedRuns, histories: Histories, kind: str, load: LoadKind, path: str
) -> None:
    killed = Killed(histories(kind, load, path), runs, tmp_path)
    killed.first()
    _kill_by_chance(killed, CHANCES_LONG, seed=str(random.randrange(1 << 32)))
    killed.finish()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("load", FILE_LOADS, ids=lambda load: load.name)
@pytest.mark.parametrize("kind", FILES)
def test_dozens_of_loads_of_files_that_are_killed_by_chance_lose_and_double_nothing(
    tmp_path: Path, runs: ForkedRuns, histories: Histories, kind: str, load: LoadKind
) -> None:
    killed = Killed(histories(kind, load, "copy"), runs, tmp_path)
    killed.first()
    _kill_by_chance(killed, CHANCES_LONG, seed=str(random.randrange(1 << 32)))
    killed.finish()


def _kill_by_chance(killed: Killed, count: int, seed: str) -> None:
    """Repeat until this many were killed while they ran: a run that had ended does not count."""
    chance = random.Random(seed)
    longest, hits = 0.5, 0
    while hits < count:
        if killed.kill(after=chance.uniform(0, longest)).killed:
            hits += 1
        else:
            longest *= 0.8
