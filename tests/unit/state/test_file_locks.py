"""One pipeline, one target, one run at a time."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ematix_flow.errors import ConfigError, PipelineLocked, TargetFailed
from ematix_flow.state import file_locks
from ematix_flow.state.file_locks import hold_file_lock

HOLDER = """
import sys
from pathlib import Path
from ematix_flow.state.file_locks import hold_file_lock
with hold_file_lock(Path(sys.argv[1]), "orders", "dw.orders", "run-of-child"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding_child(directory: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_holder_knows_itself_and_leaves_the_lock_free(tmp_path: Path) -> None:
    with hold_file_lock(tmp_path / "locks", "orders", "dw.orders", "r1") as lock:
        assert (lock.pipeline, lock.target, lock.run_id) == ("orders", "dw.orders", "r1")
        assert (lock.pid, lock.host) == (os.getpid(), socket.gethostname())
    with hold_file_lock(tmp_path / "locks", "orders", "dw.orders", "r2"):
        pass


def test_a_second_process_is_refused_with_the_holder_of_the_lock(tmp_path: Path) -> None:
    with (
        holding_child(tmp_path) as process,
        pytest.raises(PipelineLocked) as caught,
        hold_file_lock(tmp_path, "orders", "dw.orders", "r1"),
    ):
        pytest.fail("the lock was held twice")
    error = caught.value
    assert error.exit_code == 4
    assert "'orders' is already running into 'dw.orders'" in error.what
    assert f"run run-of-child (pid {process.pid} on {socket.gethostname()}), since 20" in error.what
    assert "untouched" in str(error.state)
    assert "flow runs list --pipeline orders" in str(error.next_step)


def test_a_killed_holder_leaves_the_lock_free_at_once(tmp_path: Path) -> None:
    with holding_child(tmp_path) as process:
        process.kill()
        process.wait(timeout=30)
        with hold_file_lock(tmp_path, "orders", "dw.orders", "r1") as lock:
            assert lock.run_id == "r1"


def test_the_lock_is_free_after_an_error_in_the_block(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), hold_file_lock(tmp_path, "orders", "dw.orders", "r1"):
        raise RuntimeError
    with hold_file_lock(tmp_path, "orders", "dw.orders", "r2"):
        pass


def test_the_same_thread_cannot_take_the_lock_again(tmp_path: Path) -> None:
    with hold_file_lock(tmp_path, "orders", "dw.orders", "r1"):
        with (
            pytest.raises(PipelineLocked, match="run r1"),
            hold_file_lock(tmp_path, "orders", "dw.orders", "r2"),
        ):
            pass
        with (
            pytest.raises(PipelineLocked, match="run r1"),
            hold_file_lock(tmp_path, "orders", "dw.orders", "r3"),
        ):
            pass


def test_another_thread_cannot_take_the_lock(tmp_path: Path) -> None:
    refused: list[PipelineLocked] = []

    def second() -> None:
        try:
            with hold_file_lock(tmp_path, "orders", "dw.orders", "r2"):
                pass
        except PipelineLocked as error:
            refused.append(error)

    with hold_file_lock(tmp_path, "orders", "dw.orders", "r1"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(refused) == 1


def test_a_lock_may_be_released_by_another_thread_than_took_it(tmp_path: Path) -> None:
    held = hold_file_lock(tmp_path, "orders", "dw.orders", "r1")
    held.__enter__()
    thread = threading.Thread(target=held.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with hold_file_lock(tmp_path, "orders", "dw.orders", "r2"):
        pass


def test_other_pipelines_and_other_targets_run_at_the_same_time(tmp_path: Path) -> None:
    with (
        hold_file_lock(tmp_path, "orders", "dw.orders", "r1"),
        hold_file_lock(tmp_path, "orders", "lake.orders", "r1"),
        hold_file_lock(tmp_path, "payments", "dw.orders", "r1"),
        hold_file_lock(tmp_path, "ord", "ersdw.orders", "r1"),
    ):
        pass


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "a/b\\c:d*?",
        "漢字 \U0001f600",
        "x" * 300,
        "",
        ".",
        "a\0b",
        "\udc80",
        "$(rm -rf)",
        "CON",
    ],
)
def test_any_name_can_be_locked_inside_the_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with hold_file_lock(folder, name, name, "r1"):
        assert len(list(folder.iterdir())) == 2
        with pytest.raises(PipelineLocked) as caught, hold_file_lock(folder, name, name, "r2"):
            pass
        assert "run r1" in caught.value.what
    assert [path.name for path in tmp_path.iterdir()] == ["locks"]
    assert [path.suffix for path in folder.iterdir()] == [".lock"]


def test_names_that_look_alike_in_a_file_name_are_different_locks(tmp_path: Path) -> None:
    with hold_file_lock(tmp_path, "a/b", "t", "r1"), hold_file_lock(tmp_path, "a-b", "t", "r2"):
        pass
    with hold_file_lock(tmp_path, "x" * 300, "t", "r1"), hold_file_lock(tmp_path, "x" * 301, "t", "r2"):
        pass


@pytest.mark.parametrize("found", ["", "{", "[]", '{"pid": "many"}', "dead"])
def test_an_unreadable_or_outdated_word_on_the_holder_is_not_repeated(found: str, tmp_path: Path) -> None:
    with hold_file_lock(tmp_path, "orders", "dw.orders", "r1") as lock:
        (holder,) = tmp_path.glob("*.holder.json")
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait(timeout=30)
        holder.write_text(json.dumps({**lock.to_json(), "pid": gone.pid}) if found == "dead" else found)
        with (
            pytest.raises(PipelineLocked, match="another process"),
            hold_file_lock(tmp_path, "orders", "dw.orders", "r2"),
        ):
            pass


def test_a_folder_that_cannot_hold_locks_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = pytest.raises(ConfigError, match="cannot make the folder")
    with refused, hold_file_lock(tmp_path / "file", "orders", "dw.orders", "r1"):
        pass


def test_a_full_disk_is_a_failure_of_the_run_and_no_wrong_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_locks, "write_private", full)
    with (
        pytest.raises(TargetFailed, match="No space left on device") as failed,
        hold_file_lock(tmp_path, "p", "t", "run"),
    ):
        pass
    assert failed.value.exit_code == 1 and "the target is untouched" in str(failed.value)
