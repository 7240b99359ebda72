"""Loads and replays with a gate that are killed: no row is lost or doubled, and no failing load is seen."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fault.forked_runs import MODULE as FORKED_MODULE
from tests.fault.forked_runs import ForkedRuns, forked_runs

pytestmark = pytest.mark.fault

POINTS = (
    "gate.checked",
    "gate.quarantined",
    "apply.rows_written",
    "apply.before_commit",
    "apply.after_commit",
    "runlog.before_finish",
)
REPLAY_POINTS = (
    "gate.replay_removed",
    "apply.after_commit",
    *(pytest.param(point, marks=pytest.mark.long) for point in ("gate.quarantined", "apply.before_commit")),
)
PROJECT = """
from ematix_flow import Annotated, BigInt, PostgresConnection, SQLiteConnection, ematix, pk

source = SQLiteConnection(name="source", path={source!r})
target = {target}

@ematix.table(schema="main" if target.kind == "sqlite" else "public")
class Orders:
    id: Annotated[BigInt, pk()]
    at: BigInt
    amount: BigInt

@ematix.pipeline(target=Orders, source_connection=source, target_connection=target, incremental=True,
                 watermark_column="at", expectations=[ematix.{rule}("positive", "amount > 0")])
def load(conn):
    return "SELECT id, at, amount FROM incoming"
"""


class Shop:
    """A source that grows by rows of which every third fails the rule, and the target that is loaded."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder, self.url, self.rows = folder, url, 0
        self.source = folder / "source.db"
        self.write("expect_or_drop")
        with closing(sqlite3.connect(self.source)) as database:
            database.execute("CREATE TABLE incoming (id INTEGER, at INTEGER, amount INTEGER)")

    def write(self, rule: str) -> None:
        target = (
            f'SQLiteConnection(name="target", path={str(self.source)!r})'
            if self.url is None
            else f'PostgresConnection(name="target", url={self.url!r})'
        )
        text = PROJECT.format(source=str(self.source), target=target, rule=rule)
        (self.folder / f"{FORKED_MODULE}.py").write_text(text, encoding="utf-8")

    def grow(self, count: int = 20) -> None:
        """New rows, whose first ones share the watermark of the last ones before."""
        ids = range(self.rows, self.rows + count)
        rows = [(n, (n + 5) // 10, -n - 1 if n % 3 == 0 else n) for n in ids]
        with closing(sqlite3.connect(self.source)) as database:
            database.executemany("INSERT INTO incoming VALUES (?, ?, ?)", rows)
            database.commit()
        self.rows += count

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        if self.url is not None:
            with psycopg.connect(self.url, autocommit=True) as connection:
                return connection.execute(sql).fetchall()  # type: ignore[call-overload,no-any-return]
        with closing(sqlite3.connect(self.source, timeout=30)) as database:
            return database.execute(sql).fetchall()

    def ids(self, table: str) -> list[int]:
        return [row[0] for row in self.query(f"SELECT id FROM {table} ORDER BY id")]

    def require_all_once(self, about: object) -> None:
        """Each row of the source is in the target or in quarantine, once, as the rule has it."""
        assert self.ids("orders") == [n for n in range(self.rows) if n % 3], about
        assert self.ids("orders__quarantine") == [n for n in range(self.rows) if n % 3 == 0], about


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    with forked_runs() as warm:
        yield warm


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path, request.getfixturevalue("pg_database") if request.param == "postgres" else None)


def kill_and_load(shop: Shop, runs: ForkedRuns, rounds: int, kill: Callable[[int], dict[str, Any]]) -> None:
    shop.grow()
    assert runs.run(shop.folder).code == 0
    for number in range(rounds):
        shop.grow()
        chosen = kill(number)
        ended = runs.run(shop.folder, **chosen)
        assert ended.killed or ("kill_after" in chosen and ended.code == 0), (chosen, ended)
        ended = runs.run(shop.folder)
        assert ended.code == 0, (chosen, ended)
        shop.require_all_once(chosen)


def test_a_load_that_is_killed_at_a_commit_point_loses_and_doubles_no_row(
    shop: Shop, runs: ForkedRuns
) -> None:
    kill_and_load(shop, runs, len(POINTS), lambda n: {"fault": f"{POINTS[n]}=kill"})


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.long)])
def test_a_load_that_is_killed_at_any_time_loses_and_doubles_no_row(
    shop: Shop, runs: ForkedRuns, rounds: int
) -> None:
    chance = random.Random(rounds)
    kill_and_load(shop, runs, rounds, lambda _: {"kill_after": chance.uniform(0.02, 0.5)})


@pytest.mark.parametrize("fault", ["", "gate.checked=kill"])
def test_a_reader_never_sees_a_load_that_fails_its_gate(shop: Shop, runs: ForkedRuns, fault: str) -> None:
    shop.grow()
    assert runs.run(shop.folder).code == 0
    before, seen, done = shop.ids("orders"), [], threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(shop.ids("orders"))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        shop.grow()
        if fault:  # the rows pass, and the process dies before they are committed
            assert runs.run(shop.folder, fault=fault).killed
        shop.write("expect_or_fail")
        for _ in range(2):
            ended = runs.run(shop.folder)
            assert (ended.code, ended.told["type"]) == (1, "ExpectationFailed"), ended
    finally:
        done.set()
        reader.join()
    assert seen and all(each == before for each in seen)
    shop.write("expect_or_drop")
    assert runs.run(shop.folder).code == 0
    shop.require_all_once(fault)


@pytest.mark.parametrize("point", REPLAY_POINTS)
def test_a_replay_that_is_killed_loses_and_doubles_no_row(shop: Shop, runs: ForkedRuns, point: str) -> None:
    shop.grow()
    assert runs.run(shop.folder).code == 0
    shop.write("expect_or_drop")
    text = (shop.folder / f"{FORKED_MODULE}.py").read_text()
    (shop.folder / f"{FORKED_MODULE}.py").write_text(text.replace("amount > 0", "amount > -10"))
    again = [n for n in range(20) if n % 3 == 0 and n >= 9]  # -n - 1 is -10 or less
    now = [n for n in range(20) if n not in again]
    killed = replay(shop, f"{point}=kill")
    assert killed.returncode == -9, killed.stderr
    committed = point == "apply.after_commit"
    assert len(shop.ids("orders")) == (len(now) if committed else 13)
    assert sorted(shop.ids("orders") + shop.ids("orders__quarantine")) == list(range(20))
    ended = replay(shop, "")
    assert ended.returncode == 1, ended.stderr
    assert (shop.ids("orders"), shop.ids("orders__quarantine")) == (now, again)


def replay(shop: Shop, fault: str) -> subprocess.CompletedProcess[str]:
    words = ["quarantine", "replay", "load", "-m", f"{FORKED_MODULE}.py"]
    return subprocess.run(
        [sys.executable, "-c", "import sys; from ematix_flow.cli.main import main; sys.exit(main())", *words],
        cwd=shop.folder,
        env={**os.environ, "EMATIX_FLOW_FAULT": fault},
        capture_output=True,
        text=True,
        timeout=120,
    )
