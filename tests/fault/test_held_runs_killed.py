"""A process that is killed while its run is held: the next run is held too, and nothing is loaded twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log
from ematix_flow.state.actions.records import Hold
from tests.unit.run.sqlite_file import execute
from tests.waiting import wait_until

pytestmark = pytest.mark.fault

# a run that lasts until it is to be held or a file is there, and is watched from its start on
PROGRAM = """
import sys, time
from pathlib import Path

import ematix_flow.run.run_watcher
from ematix_flow.run.run_control import _at_work
from ematix_flow import BigInt, SQLiteConnection, ematix, register_connection

ematix_flow.run.run_watcher.INTERVAL_SECONDS = 0.05
folder = Path(sys.argv[1])
register_connection(SQLiteConnection(name="shop", path=str(folder / "shop.db")))


@ematix.table(schema=None)
class Numbers:
    n: BigInt


def work(conn):
    (folder / "at_work").touch()
    while not (_at_work[0].is_held or (folder / "go").exists()):
        time.sleep(0.02)


@ematix.pipeline(
    target=Numbers,
    target_connection="shop",
    name="numbers",
    transforms_post=[work, "INSERT INTO trace VALUES (1)"],
)
def numbers(conn):
    return "SELECT n FROM raw"


numbers.sync()
"""


def held() -> Hold | None:
    with open_actions(env=os.environ) as store:
        found = store.find_hold("run", "numbers")
    return found if found is not None and found.held_run is not None else None


def start(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.Popen([sys.executable, str(folder / "program.py"), str(folder)], cwd=folder)


def test_the_run_after_a_killed_one_that_was_held_waits_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_URL", f"sqlite://{tmp_path}/log.db")
    execute(tmp_path / "shop.db", "CREATE TABLE raw (n INTEGER)")
    execute(tmp_path / "shop.db", "CREATE TABLE trace (n INTEGER)")
    execute(tmp_path / "shop.db", "INSERT INTO raw VALUES (1)")
    first = start(tmp_path)
    wait_until((tmp_path / "at_work").exists)
    with open_actions(env=os.environ) as store:
        store.hold("run", "numbers", by="ada")
    before = wait_until(held)
    assert before.held_at == "before the post-load step INSERT INTO trace VALUES (1)"
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    (tmp_path / "go").touch()
    second = start(tmp_path)
    try:
        found = wait_until(lambda: now if (now := held()) and now.held_run != before.held_run else None)
        assert found.held_at == "before prepare into shop:numbers"
        assert execute(tmp_path / "shop.db", "SELECT count(*) FROM numbers") == [(1,)]
        with open_actions(env=os.environ) as store:
            store.release("run", "numbers")
        assert second.wait(60) == 0
    finally:
        if second.poll() is None:
            second.kill()
            second.wait(60)
    with open_run_log(env=os.environ, reading=True) as log:
        assert [run.status for run in log.list("numbers")] == ["succeeded", "interrupted"]
