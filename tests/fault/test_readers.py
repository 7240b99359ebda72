"""A reader that looks at a target while loads run: it sees the rows before or after, never between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fault.databases import Database, file_database
from tests.fault.forked_runs import ForkedRuns, forked_runs, run_here
from tests.fault.histories import BY_NAME, LOADS, History, LoadKind, Row

pytestmark = pytest.mark.fault

ROUNDS = 4
Look = Callable[[], tuple[list[Row], list[Row]]]  # the rows of one moment, and those that break a rule
SERVERS = {
    "postgres": "pg_database",
    "mysql": "mariadb_database",
}  # kind -> the fixture that gives a database


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    with forked_runs() as warm:
        yield warm


class Reader:
    """Looks again and again in a thread of its own; keeps what it saw, each state once."""

    def __init__(self, look: Look) -> None:
        self.seen: list[list[Row]] = []
        self.broken: list[Row] = []
        self.looks = 0
        self._look = look
        self._over = threading.Event()
        self._failure: BaseException | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        thread = threading.Thread(target=self._read)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _read(self) -> None:
        try:
            while not self._over.is_set():
                rows, broken = self._look()
                self.looks += 1
                self.broken += broken
                found = sorted(rows, key=lambda row: tuple(map(str, row)))
                if not self.seen or self.seen[-1] != found:
                    self.seen.append(found)
        except BaseException as error:
            self._failure = error


@contextmanager
def sql_look(history: History) -> Iterator[Look]:
    """By one connection that stays open."""
    load, table = history.load, history.table
    with history.target.session() as session:

        def look() -> tuple[list[Row], list[Row]]:
            with session.one_moment():
                rows = session.rows(f"SELECT {load.query} FROM {table}")
                return rows, session.rows(load.broken.format(table=table)) if load.broken else []

        yield look


def watch(history: History, look: Look, load: Callable[[str | None], object]) -> None:
    """Round after round; every state that was seen is one that a round left, and they come in order."""
    committed = [history.must_hold(0)]
    reader = Reader(look)
    with reader.reading():
        for number in range(1, ROUNDS):
            history.advance(number)
            load(history.slot(number))
            committed.append(history.must_hold(number))
    assert reader.looks > ROUNDS
    assert reader.broken == []
    order = [committed.index(rows) for rows in reader.seen]
    assert order == sorted(order)
    assert len(order) > 1


def begin(history: History, folder: Path, load: Callable[[str | None], object]) -> None:
    history.write_module(folder)
    history.create()
    history.advance(0)
    load(history.slot(0))


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
@pytest.mark.parametrize("kind", ["sqlite", *SERVERS])
def test_a_reader_of_a_database_sees_each_load_as_a_whole(
    tmp_path: Path, runs: ForkedRuns, request: pytest.FixtureRequest, kind: str, load: LoadKind
) -> None:
    """The loads run in processes of their own, as those of others would."""
    where = request.getfixturevalue(SERVERS[kind]) if kind in SERVERS else None
    database = Database(kind, where) if where else file_database(kind, tmp_path)
    history = History(load, database, database)

    def run(slot: str | None) -> None:
        ended = runs.run(tmp_path, slot=slot)
        assert ended.code == 0, ended.told

    begin(history, tmp_path, run)
    with sql_look(history) as look:
        watch(history, look, run)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_a_reader_of_duckdb_sees_each_load_as_a_whole(tmp_path: Path, load: LoadKind) -> None:
    """DuckDB lets one process at a time at a file: reader and loads share this one."""
    database = file_database("duckdb", tmp_path)
    history = History(load, database, database)
    begin(history, tmp_path, lambda slot: run_here(tmp_path, slot))
    with sql_look(history) as look:
        watch(history, look, lambda slot: run_here(tmp_path, slot))


@pytest.mark.parametrize("name", ["append_all", "append_new", "replace_all"])
def test_a_reader_of_files_sees_each_load_as_a_whole(tmp_path: Path, name: str) -> None:
    import pyarrow.dataset as ds

    lake = Database("object_store_local", str(tmp_path / "lake"))
    history = History(BY_NAME[name], file_database("sqlite", tmp_path), lake)
    begin(history, tmp_path, lambda slot: run_here(tmp_path, slot))
    columns = history.load.query.split(", ")

    def look() -> tuple[list[Row], list[Row]]:
        folder = (tmp_path / "lake" / "loads" / name).resolve()  # the version that is current now
        found = ds.dataset(folder, format="parquet").to_table(columns=columns)
        return [tuple(row.values()) for row in found.to_pylist()], []

    watch(history, look, lambda slot: run_here(tmp_path, slot))
