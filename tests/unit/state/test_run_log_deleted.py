"""A run log in a file that is deleted or replaced under a process: nothing starts from an empty one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.errors import CannotConnect
from ematix_flow.state.local_stores import (
    open_actions_file,
    open_local_run_log,
    open_samples_file,
    open_slots_file,
)
from ematix_flow.state.pinned_files import PinnedFile
from ematix_flow.state.runlog.base import run_log_location
from ematix_flow.state.slots.base import Slot
from ematix_flow.state.sql import sqlite
from ematix_flow.state.times import utc_now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run_log.db"


def questions(path: Path) -> list[Callable[[], object]]:
    """Each store opened at the file, and a question to it."""
    location = run_log_location(str(path), {})
    log = open_local_run_log(str(path), env={}, reading=True)
    slots, actions = open_slots_file(location), open_actions_file(location)
    samples = open_samples_file(location)
    return [
        log.list,
        slots.unfinished,
        lambda: slots.open([Slot("orders", utc_now())]),
        actions.list,
        lambda: actions.hold("schedule", "orders", by="ada"),
        lambda: samples.newest(["clicks"]),
    ]


def test_a_deleted_run_log_is_an_error_and_is_not_made_again(path: Path) -> None:
    asked = questions(path)
    for ask in asked:
        ask()
    for left in path.parent.glob("run_log.db*"):
        left.unlink()
    for ask in asked:
        with pytest.raises(CannotConnect, match="was deleted or replaced while this process used it") as gone:
            ask()
        assert str(path) in gone.value.what
        assert gone.value.state == (
            "nothing is started: without its history and its slots, what has run could run again"
        )
        assert "start this process again" in (gone.value.next_step or "")
    assert not path.exists()


def test_a_run_log_that_another_process_makes_in_place_of_a_deleted_one_is_not_taken_for_it(
    path: Path,
) -> None:
    before = questions(path)
    for left in path.parent.glob("run_log.db*"):
        left.unlink()
    for ask in questions(path):
        ask()  # a process that starts now begins with a new one
    for ask in before:
        with pytest.raises(CannotConnect, match="was deleted or replaced"):
            ask()


def test_a_run_log_that_is_put_back_is_used_again(path: Path) -> None:
    asked = questions(path)
    aside = path.with_name("aside.db")
    path.rename(aside)
    with pytest.raises(CannotConnect):
        asked[0]()
    aside.rename(path)
    for ask in asked:
        ask()


def test_a_replaced_run_log_is_an_error_also_for_who_may_only_read_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also root reads it like a user who may not write the file."""
    location = run_log_location(str(path), {})
    questions(path)[0]()
    monkeypatch.setattr(sqlite.os, "access", lambda *_: False)
    log = open_local_run_log(str(path), env={}, reading=True, read_only=True)
    slots, actions = open_slots_file(location, read_only=True), open_actions_file(location, read_only=True)
    asked = [log.list, slots.unfinished, actions.list]
    for ask in asked:
        assert not ask()
    path.rename(path.with_name("aside.db"))
    questions(path)[0]()  # another process makes a new one
    for ask in asked:
        with pytest.raises(CannotConnect, match="was deleted or replaced while this process used it"):
            ask()


def test_after_a_copy_from_a_backup_the_next_step_is_to_start_the_process_again(path: Path) -> None:
    asked = questions(path)
    shutil.copy(path, path.with_name("backup.db"))
    path.unlink()
    shutil.copy(path.with_name("backup.db"), path)
    with pytest.raises(CannotConnect, match="was deleted or replaced") as gone:
        asked[0]()
    assert (gone.value.next_step or "").startswith(
        "move the same file back (mv); or start this process again, to begin with what is there now: "
        "a copy from a backup (cp), or nothing"
    )
    for ask in questions(path):
        ask()


DESCRIPTORS = Path("/proc/self/fd")
needs_descriptors = pytest.mark.skipif(
    not DESCRIPTORS.exists(), reason="only a system with /proc lists the open files of a process"
)


@needs_descriptors
def test_a_pinned_file_is_let_go_with_its_pin(path: Path) -> None:
    path.touch()
    held = len(os.listdir(DESCRIPTORS))
    pins = [PinnedFile(path) for _ in range(10)]
    assert all(pin.is_in_place() for pin in pins)
    pins[0].close()
    pins[0].close()
    assert len(os.listdir(DESCRIPTORS)) == held + 9
    del pins
    assert len(os.listdir(DESCRIPTORS)) == held


@needs_descriptors
@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_store_holds_no_file(path: Path, read_only: bool) -> None:
    location = run_log_location(str(path), {})
    open_local_run_log(str(path), env={}, reading=True).close()
    held = len(os.listdir(DESCRIPTORS))
    stores = [
        open_local_run_log(str(path), env={}, reading=True, read_only=read_only),
        open_slots_file(location, read_only=read_only),
        open_actions_file(location, read_only=read_only),
        open_samples_file(location, read_only=read_only),
    ]
    assert len(os.listdir(DESCRIPTORS)) == held + len(stores)
    for store in stores:
        store.close()
    assert len(os.listdir(DESCRIPTORS)) == held


REUSE = """
import atexit, os, sys
from pathlib import Path

opened = []
atexit.register(lambda: [os.fstat(number) for number in opened])  # at exit it runs after later ones

from ematix_flow.state.pinned_files import PinnedFile

pins = [PinnedFile(Path(sys.argv[1])) for _ in range(10)]
os.closerange(3, 100)
opened += [os.open(sys.argv[1], os.O_RDONLY) for _ in range(97)]
"""


def test_a_process_that_closed_a_pin_by_its_number_loses_no_other_file(path: Path) -> None:
    """As a daemon does after a fork: another file may then have the number."""
    path.touch()
    done = subprocess.run(
        [sys.executable, "-c", REUSE, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


WRITE = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    sys.exit(str(error))
"""


def test_the_locks_of_a_file_survive_the_end_of_a_pin(path: Path) -> None:
    """Closing a file releases all POSIX locks of the process on it, by which SQLite keeps writers apart."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (n)")
        connection.execute("BEGIN IMMEDIATE")
        assert PinnedFile(path).is_in_place()  # and it ends here
        other = subprocess.run(
            [sys.executable, "-c", WRITE, str(path)], capture_output=True, text=True, check=False
        )
    assert (other.returncode, other.stderr.strip()) == (1, "database is locked")
