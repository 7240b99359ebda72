"""A reader that polls a target while loads run: it sees the rows before or after a load, never between."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import fault_points
from tests.fault.databases import Database, file_database
from tests.fault.forked_runs import ForkedRuns, forked_runs, run_here
from tests.fault.histories import BY_NAME, LOADS, History, LoadKind, Row
from tests.fault.lake_tables import DeltaFolder, FilesInBucket, IcebergFolder, LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.fault

ROUNDS = 4
Look = Callable[[], tuple[list[Row], list[Row]]]  # the rows of one snapshot, and those that break a rule
SERVERS = {
    "postgres": "pg_database",
    "mysql": "mariadb_database",
}  # kind -> the fixture that gives a database


@pytest.fixture(scope="module")
def runs() -> Iterator[ForkedRuns]:
    with forked_runs() as warm:
        yield warm


class Reader:
    """Polls in its own thread and keeps each state that it saw once."""

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
            while not self._over.wait(0.005):  # the loads need the processor as well
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


def watch(history: History, look: Look, load: Callable[[str | None], object], rounds: int = ROUNDS) -> None:
    """Round after round; every state that was seen is one that a round left, and they come in order."""
    committed = [history.must_hold(0)]
    reader = Reader(look)
    with reader.reading():
        for number in range(1, rounds):
            history.advance(number)
            load(history.slot(number))
            committed.append(history.must_hold(number))
    assert reader.looks > rounds
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
    """The loads run in their own processes, as in production."""
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
    """DuckDB allows one process at a time to open a file: reader and loads share this one."""
    database = file_database("duckdb", tmp_path)
    history = History(load, database, database)
    begin(history, tmp_path, lambda slot: run_here(tmp_path, slot))
    with sql_look(history) as look:
        watch(history, look, lambda slot: run_here(tmp_path, slot))


# ------------------------------------------------------------------ files and lakes

MADE_AT = (
    "staging.loaded",
    "apply.began",
    "apply.ledger_written",
    "apply.rows_written",
    "apply.before_commit",
    "apply.after_commit",
    "staging.dropped",
)
FILES = ("local", "s3")
LAKES = ("delta", pytest.param("iceberg", marks=pytest.mark.long))


@pytest.fixture
def table_of_files(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, str], History]:
    """A history whose target is a table of files or of a lake."""

    def make(kind: str, name: str) -> History:
        where = str(tmp_path / "lake")
        stores: dict[str, Callable[[], Database]] = {
            "local": lambda: LocalFiles(where=where),
            "delta": lambda: DeltaFolder(where=where),
            "iceberg": lambda: IcebergFolder(where=where),
            "s3": lambda: FilesInBucket(
                where=f"lake-{uuid.uuid4().hex[:8]}",
                server=request.getfixturevalue("s3"),
                bucket=request.getfixturevalue("s3_bucket"),
            ),
        }
        history = History(BY_NAME[name], file_database("sqlite", tmp_path), stores[kind]())
        history.write_module(tmp_path)
        history.create()
        return history

    return make


def engine_of(kind: str, request: pytest.FixtureRequest) -> SparkSession | None:
    """A lake needs Spark; files do not."""
    spark: SparkSession | None = None if kind in FILES else request.getfixturevalue("spark")
    return spark


@pytest.mark.parametrize("name", ["append_new", "replace_all"])
@pytest.mark.parametrize("kind", [*FILES, *LAKES])
@pytest.mark.timeout(600)
def test_a_table_of_files_appears_with_its_first_rows(
    tmp_path: Path, request: pytest.FixtureRequest, table_of_files: Any, kind: str, name: str
) -> None:
    """A reader that polls all the time, and at each step of the load, finds no table or all rows."""
    history: History = table_of_files(kind, name)
    engine = engine_of(kind, request)
    history.advance(0)
    seen: list[tuple[str, list[Row] | None]] = []

    def look(at: str = "") -> tuple[list[Row], list[Row]]:
        found = history.target.look("loads", name, history.load.query)[1]
        seen.append((at, found))
        return [], []

    reader = Reader(look)
    with ExitStack() as stack:
        for point in MADE_AT:
            stack.enter_context(fault_points.inject(point, lambda point=point: look(point) and None))
        stack.enter_context(reader.reading())
        run_here(tmp_path, history.slot(0), spark=engine)
    look("the end")
    wanted = history.must_hold(0)
    between = [(at, rows) for at, rows in seen if rows is not None and len(rows) != len(wanted)]
    assert between == []
    committed = {at for at, rows in seen if at and rows is not None}
    assert committed == {"apply.after_commit", "staging.dropped", "the end"}
    assert history.seen() == (1, wanted)


@pytest.mark.parametrize("kind", [*FILES, *LAKES])
def test_a_first_load_without_rows_makes_an_empty_table(
    tmp_path: Path, request: pytest.FixtureRequest, table_of_files: Any, kind: str
) -> None:
    history: History = table_of_files(kind, "append_all")
    run_here(tmp_path, history.slot(0), spark=engine_of(kind, request))
    assert history.target.look("loads", "append_all", history.load.query) == (1, [])


@pytest.mark.parametrize("name", ["append_all", "append_new", "replace_all"])
@pytest.mark.parametrize("kind", FILES)
def test_a_reader_of_files_sees_each_load_as_a_whole(
    tmp_path: Path, table_of_files: Any, kind: str, name: str
) -> None:
    watch_files(tmp_path, table_of_files(kind, name), None)


@pytest.mark.parametrize("name", ["replace_all", pytest.param("merge_all", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", LAKES)
@pytest.mark.timeout(600)
def test_a_reader_of_a_lake_sees_each_load_as_a_whole(
    tmp_path: Path, spark: SparkSession, table_of_files: Any, kind: str, name: str
) -> None:
    watch_files(tmp_path, table_of_files(kind, name), spark)


def watch_files(folder: Path, history: History, spark: SparkSession | None) -> None:
    def run(slot: str | None) -> None:
        run_here(folder, slot, spark=spark)

    def look() -> tuple[list[Row], list[Row]]:
        return history.target.look("loads", history.load.name, history.load.query)[1] or [], []

    history.advance(0)
    run(history.slot(0))
    watch(history, look, run, rounds=ROUNDS if spark is None else 2)
