"""The workers of one test run share a server, and it is gone when the run is over or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SHARING = """
import os, time
from pathlib import Path

def test_the_server_answers(postgres, pg_database):
    worker = os.environ["PYTEST_XDIST_WORKER"]
    assert postgres.execute("SELECT 1") == [(1,)]
    Path({folder!r}, f"{{worker}}.txt").write_text(f"{{postgres.pid}} {{postgres.folder}}")
    time.sleep({seconds})

def test_nobody_stops_it(postgres):
    try:
        postgres.stop()
    except Exception as refused:
        assert "shared by the whole run" in str(refused)
    else:
        raise AssertionError("it was stopped")
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """A run of two workers that take every test each."""
    (folder / "test_sharing.py").write_text(SHARING.format(folder=str(folder), seconds=seconds))
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--numprocesses=2", "--dist=each", "-q"]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={folder}", str(folder / "test_sharing.py")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def servers(folder: Path, process: subprocess.Popen[str]) -> set[tuple[int, str]]:
    """Process id and folder of the servers that the workers use, once both do."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        found = [path.read_text().split() for path in folder.glob("gw*.txt")]
        if len(found) == 2 and all(len(words) == 2 for words in found):
            return {(int(pid), where) for pid, where in found}
        time.sleep(0.1)
    raise AssertionError(process.communicate()[0])


def gone(pid: int, within: float = 30) -> bool:
    deadline = time.monotonic() + within
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.postgres
@pytest.mark.slow
def test_workers_share_a_server_that_ends_with_the_run(tmp_path: Path) -> None:
    with start(tmp_path, seconds=3) as run:
        ((pid, where),) = servers(tmp_path, run)
        told, _ = run.communicate(timeout=120)
    assert run.returncode == 0, told
    assert gone(pid)
    assert not Path(where).exists()


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.fault
def test_a_run_that_is_killed_leaves_no_server(tmp_path: Path) -> None:
    with start(tmp_path, seconds=60) as run:
        ((pid, _),) = servers(tmp_path, run)
        run.send_signal(signal.SIGKILL)
    assert gone(pid)
