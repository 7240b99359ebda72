"""One pipeline started by several processes at once: one loads, the others are refused and change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.state.local_stores import open_local_run_log
from tests.fault.databases import Database, file_database
from tests.fault.forked_runs import MODULE, ForkedRuns, forked_runs
from tests.fault.histories import BY_NAME, History

pytestmark = pytest.mark.fault

PROGRAM = "import sys; from ematix_flow.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    with forked_runs() as warm:
        yield warm


def within(database: Database, load: str, folder: Path) -> History:
    history = History(BY_NAME[load], database, database)
    history.write_module(folder)
    history.create()
    return history


def race(history: History, runs: ForkedRuns, folder: Path, rounds: int) -> None:
    """The run that loads waits until all others have ended: exactly one loads, the others are refused."""
    for number in range(rounds):
        history.advance(number)
        count = 2 + number % 7
        ended = runs.race(folder, count, gate=True)
        codes = sorted(outcome.code for outcome in ended)
        assert codes == [0, *[4] * (count - 1)], [outcome.told for outcome in ended]
        for outcome in ended:
            assert outcome.code == 0 or outcome.told["type"] == "PipelineLocked"
        winner = next(outcome for outcome in ended if outcome.code == 0)
        assert winner.status == "succeeded"
        assert history.seen() == (number + 1, history.must_hold(number))
    with open_local_run_log(env=os.environ, reading=True) as log:
        records = log.list(limit=10_000)
    tally = [record.status for record in records]
    assert tally.count("succeeded") == rounds
    assert tally.count("locked") == len(tally) - rounds == sum(1 + n % 7 for n in range(rounds))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [14, pytest.param(300, marks=pytest.mark.long)])
def test_of_processes_that_start_at_once_one_loads_and_the_others_are_refused_on_postgres(
    tmp_path: Path, pg_database: str, runs: ForkedRuns, rounds: int
) -> None:
    history = within(Database("postgres", pg_database), "merge_new", tmp_path)
    race(history, runs, tmp_path, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_of_processes_that_start_at_once_one_loads_and_the_others_are_refused_on_a_file(
    tmp_path: Path, runs: ForkedRuns, kind: str
) -> None:
    history = within(file_database(kind, tmp_path), "merge_new", tmp_path)
    race(history, runs, tmp_path, rounds=12)


@pytest.mark.slow
def test_of_processes_that_start_at_once_one_loads_and_the_others_are_refused_on_mariadb(
    tmp_path: Path, mariadb_database: str, runs: ForkedRuns
) -> None:
    history = within(Database("mysql", mariadb_database), "merge_new", tmp_path)
    race(history, runs, tmp_path, rounds=12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "sqlite", "duckdb"])
@pytest.mark.parametrize("load", ["append_all", "merge_all", "versions_of_states"])
def test_a_slot_that_several_processes_run_as_they_come_is_loaded_once(
    tmp_path: Path, runs: ForkedRuns, request: pytest.FixtureRequest, kind: str, load: str
) -> None:
    if kind == "postgres":
        database = Database(kind, request.getfixturevalue("pg_database"))
    else:
        database = file_database(kind, tmp_path)
    history = within(database, load, tmp_path)
    for number in range(3):
        history.advance(number)
        ended = runs.race(tmp_path, 4, slot=history.slot(number), gate=False)
        told = [outcome.told for outcome in ended]
        assert {outcome.code for outcome in ended} <= {0, 4}, told
        assert [outcome.status for outcome in ended].count("succeeded") == 1, told
        assert history.seen() == (number + 1, history.must_hold(number))


@pytest.mark.slow
def test_of_commands_that_start_at_once_one_loads_and_the_others_exit_with_4(
    tmp_path: Path, pg_database: str
) -> None:
    database = Database("postgres", pg_database)
    history = within(database, "merge_new", tmp_path)
    history.advance(0)
    with database.session() as holder:
        holder.execute("BEGIN")
        holder.execute(
            "LOCK TABLE state_growing"
        )  # the winner cannot continue, so that all others find it running
        commands = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "run", "load", "--module", MODULE],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(4)
        ]
        try:
            deadline = time.monotonic() + 120
            while sum(c.poll() is None for c in commands) > 1 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert sorted(c.poll() or 0 for c in commands) == [0, 4, 4, 4]
            holder.execute("COMMIT")
        finally:
            for command in commands:
                if sum(c.poll() is None for c in commands) > 1:
                    command.kill()
            ended = [(*command.communicate(timeout=60), command.returncode) for command in commands]
    assert sorted(code for _, _, code in ended) == [0, 4, 4, 4], ended
    for _, err, code in ended:
        assert (code == 4) == ("is already loading" in err), err
        assert "Traceback" not in err
    assert history.seen() == (1, history.must_hold(0))
