"""A full disk, at every depth of a load: a clear error, the earlier rows, and a rerun once there is room."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.errors import FlowError
from tests.fault.databases import Database
from tests.fault.forked_runs import MODULE, run_here
from tests.services.postgres import PostgresServer, running_server
from tests.services.process import give_to, server_account

pytestmark = pytest.mark.fault

ROWS = 4_000  # of about 300 bytes, a round
FREE = (0, 16, 100, 400, 1_000, 1_700, 2_400, 3_600)  # KiB: from nothing at all to nearly enough
WIDE = "x" * 280


class Disk:
    """A small separate file system, which can be filled up to this many free bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, *, but: int) -> None:
        self._ballast.unlink(missing_ok=True)
        free = os.statvfs(self.folder)
        with self._ballast.open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, max(free.f_bavail * free.f_frsize - but, 1))

    def clear(self) -> None:
        self._ballast.unlink(missing_ok=True)


@pytest.fixture
def disk() -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system to fill")
    # not below pytest's folders: each start of another pytest makes these root's alone
    with tempfile.TemporaryDirectory(prefix="ematix-flow-disk-") as name:
        folder = Path(name)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            reason = done.stderr.strip()
            pytest.skip(f"this machine does not let us mount a small file system to fill: {reason}")
        try:
            yield Disk(folder)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


PIPELINES = """\
from typing import Annotated

from ematix_flow import BigInt, Text, ematix, pk


@ematix.connection
class source:
    kind = "sqlite"; path = {source!r}


@ematix.connection
class target:
    {target}


@ematix.table(schema="loads")
class Wide:
    id: Annotated[BigInt, pk()]
    text: Text


@ematix.pipeline(
    target=Wide,
    source_connection="source",
    target_connection="target",
    incremental=True,
    watermark_column="id",
)
def load():
    return "SELECT id, text FROM wide"
"""


def advance(folder: Path) -> int:
    """Another round of rows in the source; how many it has then."""
    with closing(sqlite3.connect(folder / "source.db", isolation_level=None)) as source:
        source.execute("CREATE TABLE IF NOT EXISTS wide (id INTEGER PRIMARY KEY, text TEXT)")
        first = source.execute("SELECT count(*) FROM wide").fetchone()[0]
        source.execute("BEGIN")
        source.executemany("INSERT INTO wide VALUES (?, ?)", [(first + i, WIDE) for i in range(ROWS)])
        source.execute("COMMIT")
        return int(first) + ROWS


def fails_clearly(folder: Path, disk: Disk, free: int, count: Callable[[], int], named: str) -> bool:
    """One round with that much room. Whether it failed; then the earlier rows are there, and later all."""
    before = count()
    rows = advance(folder)
    disk.fill(but=free * 1024)
    try:
        run_here(folder)
    except FlowError as error:
        told = f"with {free} KiB free: {error}"
        assert any(word in told for word in ("No space left", "full", "space")), told
        assert named in told, told
        assert error.next_step is not None, told
        assert any(word in error.next_step for word in ("space", "room")), told
        assert "Traceback" not in told
        disk.clear()
        assert count() == before, told
    else:
        assert count() == rows
        disk.clear()
        return False
    run_here(folder)
    assert count() == rows
    return True


def write_module(folder: Path, target: str) -> None:
    (folder / f"{MODULE}.py").write_text(PIPELINES.format(source=str(folder / "source.db"), target=target))
    advance(folder)
    run_here(folder)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_full_disk_of_a_database_in_a_file_leaves_the_earlier_rows(
    tmp_path: Path, disk: Disk, kind: str
) -> None:
    database = Database(kind, str(disk.folder / f"target.{kind}"))
    write_module(tmp_path, database.fields)
    table = database.table("loads", "wide")

    def count() -> int:
        return int(database.snapshot(f"SELECT count(DISTINCT id) FROM {table}")[0][0][0])

    failed = [fails_clearly(tmp_path, disk, free, count, str(disk.folder)) for free in FREE[:6]]
    assert failed[0]
    assert sum(failed) > 1


def test_a_full_disk_of_parquet_files_leaves_the_earlier_rows(tmp_path: Path, disk: Disk) -> None:
    import pyarrow.dataset as ds

    lake = disk.folder / "lake"
    write_module(tmp_path, f'kind = "object_store_local"; path = {str(lake)!r}; format = "parquet"')

    def count() -> int:
        return int(ds.dataset(lake / "loads" / "wide", format="parquet").count_rows())

    failed = [fails_clearly(tmp_path, disk, free, count, str(disk.folder)) for free in FREE[:3]]
    assert failed[0]


@pytest.mark.postgres
def test_a_full_disk_of_a_server_leaves_the_earlier_rows(tmp_path: Path, disk: Disk) -> None:
    own = disk.folder / "space"
    own.mkdir()
    give_to(own, server_account("postgres"))
    with running_server() as server:
        server.execute(f"CREATE TABLESPACE small LOCATION '{own}'")
        database = _in_tablespace(server)
        write_module(tmp_path, database.fields)

        def count() -> int:
            return int(database.snapshot("SELECT count(DISTINCT id) FROM loads.wide")[0][0][0])

        failed = [fails_clearly(tmp_path, disk, free, count, "PostgreSQL") for free in (0, 1_000, 2_400)]
        assert failed[0]
        server.stop()


def _in_tablespace(server: PostgresServer) -> Database:
    server.execute("CREATE DATABASE small TEMPLATE template0 TABLESPACE small")
    return Database("postgres", server.url("small"))


def test_a_full_disk_under_the_state_root_is_reported_and_the_load_is_whole(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = disk.folder / "state"
    monkeypatch.setenv("EMATIX_FLOW_STATE", str(state))
    database = Database("sqlite", str(tmp_path / "target.db"))
    disk.fill(but=0)
    write_module(tmp_path, database.fields)
    assert f"{state}/run_log.db cannot be used: database or disk is full" in caplog.text
    disk.clear()
    rows = advance(tmp_path)
    run_here(tmp_path)
    counted = database.snapshot("SELECT count(*), count(DISTINCT id) FROM loads__wide")
    assert counted == [[(rows, rows)]]


def test_the_disk_of_these_tests_does_get_full(disk: Disk) -> None:
    disk.fill(but=4096)
    with pytest.raises(OSError, match=r"No space") as raised, (disk.folder / "more").open("wb") as more:
        more.write(b"x" * 100_000)
    assert raised.value.errno == errno.ENOSPC
