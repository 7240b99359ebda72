"""Runs that are killed for real: at every commit point and at moments of chance; the next run is exact."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.connections import PostgresConnection
from tests.fault.databases import Database
from tests.fault.forked_runs import ForkedRuns, Outcome, forked_runs
from tests.fault.histories import LOADS, History, LoadKind
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
STAGING_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'ematix_flow_staging'"
POINTS = 2  # of them, each load and path is killed at so many: others in turn, so that all have theirs
CHANCES = 1  # and so often at a moment of chance
CHANCES_LONG = 15

Histories = Callable[[LoadKind, str], History]


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    with forked_runs() as warm:
        yield warm


@pytest.fixture
def histories(pg_database: str, postgres: PostgresServer) -> Iterator[Histories]:
    """A load on PostgreSQL: within one database, or from one database into another."""
    made: list[str] = []

    def make(load: LoadKind, path: str) -> History:
        target = Database("postgres", pg_database)
        if path == "same_db":
            return History(load, target, target)
        made.append(postgres.create_database("source"))
        return History(load, Database("postgres", postgres.url(made[-1])), target)

    yield make
    for name in made:
        postgres.drop_database(name)


class Killed:
    """One history whose runs are killed, round by round."""

    def __init__(self, history: History, runs: ForkedRuns, folder: Path) -> None:
        self.history, self.runs, self.folder, self.number = history, runs, folder, 0

    def first(self) -> None:
        """The first round, undisturbed."""
        self.history.write_module(self.folder)
        self.history.create()
        self.history.advance(0)
        self.again(0)

    def kill(self, *, fault: str = "", after: float | None = None) -> Outcome:
        """Advance the source, kill the run, look at the target, and run it to the end."""
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
        self.again(self.number)
        return ended

    def again(self, number: int) -> None:
        """To the end. The server may take a moment to notice that whoever held the lock is dead."""
        for _ in range(200):
            ended = self.runs.run(self.folder, slot=self.history.slot(number))
            if ended.code != 4:
                break
            time.sleep(0.05)
        assert ended.code == 0, ended.told
        assert self.history.seen() == (number + 1, self.history.must_hold(number))

    def finish(self) -> None:
        """A last run sweeps; nothing of any killed one is left."""
        target = open_backend(PostgresConnection(name="target", url=self.history.target.where)).target()
        assert target is not None
        target.sweep("load", self.history.label)
        with self.history.target.session() as session:
            assert session.rows(STAGING_TABLES) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", ["same_db", "copy"])
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_a_run_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, runs: ForkedRuns, histories: Histories, load: LoadKind, path: str
) -> None:
    killed = Killed(histories(load, path), runs, tmp_path)
    killed.first()
    points = (*STAGED, *APPLIED) if path == "copy" else APPLIED
    first = LOADS.index(load) * POINTS
    for turn in range(first, first + POINTS):
        assert killed.kill(fault=points[turn % len(points)]).killed
    _kill_by_chance(killed, CHANCES, seed=f"{load.name} {path}")
    killed.finish()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", ["same_db", "copy"])
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_hundreds_of_runs_that_are_killed_by_chance_lose_and_double_nothing(
    tmp_path: Path, runs: ForkedRuns, histories: Histories, load: LoadKind, path: str
) -> None:
    killed = Killed(histories(load, path), runs, tmp_path)
    killed.first()
    _kill_by_chance(killed, CHANCES_LONG, seed=str(random.randrange(1 << 32)))
    killed.finish()


def _kill_by_chance(killed: Killed, count: int, seed: str) -> None:
    """Until so many were hit while they ran: one that was over before is no kill."""
    chance = random.Random(seed)
    longest, hits = 0.5, 0
    while hits < count:
        if killed.kill(after=chance.uniform(0, longest)).killed:
            hits += 1
        else:
            longest *= 0.8
