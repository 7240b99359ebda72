"""Files and folders that only this user can read, for every umask and for existing files."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.backends.spool.index import SpoolIndex
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.state.dead_letters.sql import open_dead_letter_file
from ematix_flow.state.file_locks import hold_file_lock
from ematix_flow.state.local_stores import open_local_run_log_at
from ematix_flow.state.private_files import make_private_database, make_private_folders, write_private
from ematix_flow.state.runlog.base import RunLogLocation


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_below(folder: Path) -> set[tuple[bool, int]]:
    """Whether each is a folder, and its mode."""
    return {(path.is_dir(), mode(path)) for path in folder.rglob("*")}


PRIVATE = {(True, 0o700), (False, 0o600)}


def test_all_missing_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    make_private_folders(tmp_path / "a" / "b" / "c")
    assert modes_below(tmp_path) == {(True, 0o700)}


def test_a_file_that_was_open_to_others_is_closed_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    path.chmod(0o664)
    write_private(path, "new")
    assert (mode(path), path.read_text()) == (0o600, "new")


def test_a_stricter_umask_stays(tmp_path: Path) -> None:
    os.umask(0o377)
    write_private(tmp_path / "state", "x")
    assert mode(tmp_path / "state") == 0o400


def test_a_database_and_its_side_files_are_closed_with_others_that_hold_it_open(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (x)")
        assert mode(path) == mode(tmp_path / "state.db-wal") == 0o644
        make_private_database(path)
        assert modes_below(tmp_path) == {(False, 0o600)}


def test_a_database_that_a_group_writes_stays_open_to_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch()
    path.chmod(0o664)
    make_private_database(path)
    assert mode(path) == 0o660


def test_a_database_that_cannot_be_made_is_left_to_sqlite(tmp_path: Path) -> None:
    make_private_database(tmp_path / "missing" / "state.db")
    assert not (tmp_path / "missing").exists()


def test_run_log_dead_letters_spool_and_locks_are_for_this_user_alone(tmp_path: Path) -> None:
    root = tmp_path / "state"
    open_local_run_log_at(RunLogLocation("sqlite", root / "run_log.db")).close()
    open_dead_letter_file(root / "letters" / "dead_letters.db").close()
    spool = SpoolIndex(root / "streams" / "s" / "spools" / "0")
    spool.open()
    spool.close()
    with hold_file_lock(root / "locks", "p", "t", "run"):
        assert len(list((root / "locks").iterdir())) == 2
        assert modes_below(tmp_path) == PRIVATE


def test_the_journal_of_a_lake_is_private_and_the_folder_of_its_table_is_not(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "lake"))
    store.create("shop/orders/_ematix_flow/journal/1.json", "{}")
    store.create(".ematix_flow/targets/orders/1.json", "{}")
    with store.table_lock("shop/orders"):
        pass
    lake = tmp_path / "lake"
    for folder in (lake, lake / "shop", lake / "shop/orders", lake / ".ematix_flow"):
        assert mode(folder) == 0o777
    for folder in (lake / "shop/orders/_ematix_flow", *(lake / ".ematix_flow").iterdir()):
        assert mode(folder) == 0o700
        assert modes_below(folder) <= PRIVATE
