"""SQLite and DuckDB files that others use at the same time, and runs that die."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import Backend
from ematix_flow.backends.duckdb import shared_connections
from ematix_flow.backends.sqlite import connection as sqlite_connection
from ematix_flow.errors import CannotConnect, PipelineLocked, SourceFailed, TargetFailed
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load
from tests.contract.embedded_setup import (
    KINDS,
    SMALL,
    backend_at,
    compute,
    named,
    read_sql,
    run_sql,
    source_of,
    target_of,
)
from tests.reading import read_table
from tests.waiting import wait_until

EACH = pytest.mark.parametrize("kind", KINDS)
COUNT = {"sqlite": "SELECT count(*) AS n FROM shop__small", "duckdb": "SELECT count(*) AS n FROM shop.small"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def backend(kind: str, path: Path) -> Backend:
    return backend_at(kind, path)


@contextmanager
def another_process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Runs until the block ends; has printed a line when it begins."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


HOLD = """
import sys, time, duckdb
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "read")
print("open", flush=True)
time.sleep(float(sys.argv[3]))
"""


# ------------------------------------------------------------------ other readers


@EACH
def test_a_reader_sees_all_old_or_all_new_rows_of_a_refresh(kind: str, backend: Backend, path: Path) -> None:
    load_rows(target_of(backend), new_load(SMALL), named(0, 2000))
    seen: list[int] = []

    def look() -> None:
        if kind == "sqlite":  # another connection, as another process would have
            seen.append(run_sql(kind, path, COUNT[kind])[0][0])
        else:  # DuckDB allows no other process; this one reads during the load
            seen.append(read_sql(backend, COUNT[kind])[0]["n"])

    for point in ("apply.began", "apply.rows_written", "apply.before_commit", "apply.after_commit"):
        with fault_points.inject(point, look):
            load_rows(target_of(backend), new_load(SMALL, "truncate"), named(0, 1500 + len(seen)))
    assert seen == [2000, 1500, 1501, 1503]


def test_a_sqlite_reader_in_a_loop_never_sees_an_empty_table(path: Path) -> None:
    backend = backend_at("sqlite", path)
    load_rows(target_of(backend), new_load(SMALL), named(0, 3000))
    counts: set[int] = set()
    stop = threading.Event()

    def watch() -> None:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            while not stop.is_set():
                counts.add(connection.execute(COUNT["sqlite"]).fetchone()[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for size in (4000, 3500, 3000):
            load_rows(target_of(backend), new_load(SMALL, "truncate"), named(0, size))
    finally:
        stop.set()
        watcher.join()
    assert counts <= {3000, 3500, 4000}


# ------------------------------------------------------------------ others are in the way


def test_a_locked_sqlite_file_is_a_clear_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_SECONDS", 0.2)
    backend = backend_at("sqlite", path)
    load_rows(target_of(backend), new_load(SMALL), named(0, 3))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TargetFailed, match=r"store\.db has been locked by another process"):
            load_rows(target_of(backend), new_load(SMALL), named(3, 6))
        with pytest.raises((SourceFailed, TargetFailed), match="locked by another process"):
            source_of(backend).describe("SELECT 1 AS one")
    assert read_table(backend, SMALL) == named(0, 3)


def test_a_sqlite_reader_that_blocks_the_commit_leaves_the_target_unchanged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_SECONDS", 0.2)
    backend = backend_at("sqlite", path)
    load_rows(target_of(backend), new_load(SMALL), named(0, 3))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute(COUNT["sqlite"]).fetchall()
        with pytest.raises(TargetFailed, match="locked by another process"):
            compute(backend, "SELECT 9 AS id, 'x' AS name", SMALL)
    assert read_table(backend, SMALL) == named(0, 3)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_duckdb_file_that_another_process_holds_names_its_pid(
    mode: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_connections, "WAIT_SECONDS", 0.3)
    backend = backend_at("duckdb", path)
    load_rows(target_of(backend), new_load(SMALL), named(0, 3))
    with another_process(HOLD, path, mode, 60) as other:
        with pytest.raises(CannotConnect, match=rf"in use by another process: pid {other.pid} "):
            load_rows(target_of(backend), new_load(SMALL), named(3, 6))
        if mode == "read":  # readers do not mind each other
            assert read_sql(backend, COUNT["duckdb"]) == [{"n": 3}]
    assert read_table(backend, SMALL) == named(0, 3)


def test_a_duckdb_file_that_is_let_go_in_time_is_waited_for(path: Path) -> None:
    backend = backend_at("duckdb", path)
    load_rows(target_of(backend), new_load(SMALL), named(0, 3))
    with another_process(HOLD, path, "write", 1):
        load_rows(target_of(backend), new_load(SMALL), named(3, 6))
    assert len(read_table(backend, SMALL)) == 6


def test_a_duckdb_connection_of_the_users_code_may_stay_open(path: Path) -> None:
    backend = backend_at("duckdb", path)
    with duckdb.connect(str(path)) as own:
        load_rows(target_of(backend), new_load(SMALL), named(0, 3))
        assert own.execute(COUNT["duckdb"]).fetchall() == [(3,)]
        assert own.execute("SELECT current_setting('autoinstall_known_extensions')").fetchall() == [(True,)]
        assert read_sql(backend, COUNT["duckdb"]) == [{"n": 3}]
    with duckdb.connect(str(path), read_only=True) as own:
        assert read_sql(backend, COUNT["duckdb"]) == [{"n": 3}]
        with pytest.raises(CannotConnect, match="open in this process"):
            load_rows(target_of(backend), new_load(SMALL), named(3, 6))


def test_a_duckdb_writer_waits_for_the_readers_of_its_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_at("duckdb", path)
    load_rows(target_of(backend), new_load(SMALL), named(0, 3))
    order: list[str] = []
    waiting, plain = threading.Event(), shared_connections._changed.wait

    def wait(seconds: float) -> bool:
        waiting.set()
        return plain(seconds)

    def write() -> None:
        load_rows(target_of(backend), new_load(SMALL), named(3, 6))
        order.append("written")

    with shared_connections.open_connection(backend.file, write=False) as reading:  # type: ignore[attr-defined]
        writer = threading.Thread(target=write)
        monkeypatch.setattr(shared_connections._changed, "wait", wait)
        writer.start()
        assert waiting.wait(60)
        order.append(f"read {reading.execute(COUNT['duckdb']).fetchall()[0][0]}")
    writer.join()
    assert order == ["read 3", "written"]


@EACH
def test_loads_of_several_threads_into_one_file_queue_up(kind: str, backend: Backend) -> None:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            table = replace(SMALL, name=f"part{number}")
            load_rows(target_of(backend), new_load(table, pipeline=f"p{number}"), named(0, 500))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [len(read_table(backend, replace(SMALL, name=f"part{n}"))) for n in range(4)] == [500] * 4


@EACH
def test_no_handle_stays_open_between_steps(kind: str, backend: Backend, path: Path) -> None:
    load_rows(target_of(backend), new_load(SMALL), named(0, 3))
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
    assert not [name for name in names if "store.db" in name]


def _is_link(descriptor: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{descriptor}")


# ------------------------------------------------------------------ the pipeline's lock, and runs that die


RUN = """
import sys
from pathlib import Path
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load
from tests.contract.embedded_setup import SMALL, backend_at, named, target_of
import uuid
target = target_of(backend_at(sys.argv[1], Path(sys.argv[2])))
with target.lock(PIPELINE, TARGET, uuid.uuid4()):
    print("locked", flush=True)
    if sys.argv[3] == "wait":
        sys.stdin.read()
    load_rows(target, new_load(SMALL, "truncate"), named(0, 7))
"""


def _process(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "src")])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@EACH
def test_a_second_process_of_the_pipeline_is_locked_out_until_the_first_dies(
    kind: str, backend: Backend, path: Path
) -> None:
    first = _process(RUN, kind, path, "wait")
    try:
        assert first.stdout is not None
        first.stdout.readline()
        with (
            pytest.raises(PipelineLocked, match=str(first.pid)),
            target_of(backend).lock(PIPELINE, TARGET, uuid.uuid4()),
        ):
            pass
    finally:
        first.kill()
        first.communicate()
    with target_of(backend).lock(PIPELINE, TARGET, uuid.uuid4()):
        pass


@EACH
@pytest.mark.fault
@pytest.mark.parametrize(
    ("point", "survives"),
    [("apply.rows_written", False), ("apply.before_commit", False), ("apply.after_commit", True)],
)
def test_a_killed_load_is_there_whole_or_not_at_all(
    kind: str, backend: Backend, path: Path, point: str, survives: bool
) -> None:
    load_rows(target_of(backend), new_load(SMALL), named(100, 103))
    before = len(target_of(backend).ledger(PIPELINE, TARGET))
    killed = _process(RUN, kind, path, "load", EMATIX_FLOW_FAULT=f"{point}=kill")
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert read_table(backend, SMALL) == (named(0, 7) if survives else named(100, 103))
    assert len(target_of(backend).ledger(PIPELINE, TARGET)) == before + survives
    with target_of(backend).lock(PIPELINE, TARGET, uuid.uuid4()):
        assert len(target_of(backend).sweep_staging(PIPELINE, TARGET)) == 1
        load_rows(target_of(backend), new_load(SMALL, "truncate"), named(0, 9))
    assert len(read_table(backend, SMALL)) == 9
    assert not any((path.parent / ".ematix_flow" / "staging").iterdir())


LONG = """
import sys
from pathlib import Path
from tests.contract.embedded_setup import backend_at, target_of
counted = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(i) FROM n",
    "duckdb": "SELECT sum(a.i * b.i) FROM range(10000000) a (i), range(10000000) b (i)",
}[sys.argv[1]]
target = target_of(backend_at(sys.argv[1], Path(sys.argv[2])))
target.run_sql("CREATE TABLE t (x BIGINT)")
print("begun", flush=True)
target.run_sql(f"INSERT INTO t {counted}")
"""


def _cpu_ticks(pid: int) -> int:
    """User time of the process, in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


@EACH
@pytest.mark.fault
def test_ctrl_c_ends_a_long_statement(kind: str, path: Path) -> None:
    process = _process(LONG, kind, path)
    assert process.stdout is not None
    process.stdout.readline()
    begun = _cpu_ticks(process.pid)
    wait_until(lambda: _cpu_ticks(process.pid) > begun + 50)  # half a second inside the statement
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in errors
    assert run_sql(kind, path, "SELECT count(*) FROM t") == [(0,)]


# ------------------------------------------------------------------ no permission


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="gives up root's rights for a moment")
@EACH
def test_a_folder_without_permission_is_refused_before_anything(kind: str, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    backend = backend_at(kind, closed / "store.db")
    os.seteuid(65534)
    try:
        with (
            pytest.raises(TargetFailed, match=r"closed.* cannot be written: Permission denied"),
            target_of(backend).lock(PIPELINE, TARGET, uuid.uuid4()),
        ):
            pass
    finally:
        os.seteuid(0)
    assert list(closed.iterdir()) == []
