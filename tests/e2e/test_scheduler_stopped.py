"""``flow scheduler`` that is asked to stop: runs end or return their slots, and it returns its lease."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.state_stores.run_logs import open_slots
from ematix_flow.state.slots.base import Slot, SlotRecord

SLOT = Slot("slow", dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc))
PROJECT = """
import time
from pathlib import Path
from ematix_flow import BigInt, ManagedTable, SQLiteConnection, ematix

here = Path(__file__).parent
db = SQLiteConnection(name="db", path=str(here / "target.db"))

class Loaded(ManagedTable):
    __tablename__ = "loaded"
    id: BigInt

@ematix.pipeline(target=Loaded, source_connection=db, target_connection=db, schedule="0 0 29 2 *")
def slow(conn):
    (here / "began").touch()
    while not (here / "go on").exists():
        time.sleep(0.05)
    return "SELECT 1 AS id"
"""


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, str(folder / "run_log.db")
        self.store = open_slots(self.url, env={})
        self.store.open([SLOT])
        (folder / "project.py").write_text(PROJECT)
        with closing(sqlite3.connect(folder / "target.db")) as target:
            target.execute("CREATE TABLE source (id BIGINT)")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        always = ["--module=project.py", f"--run-log={self.url}", "--poll-interval=0.2"]
        with (self.folder / "scheduler.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ematix_flow", "scheduler", *always, *options],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.until((self.folder / "began").exists)
        return self.process

    def until(self, question: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            answer = question()
            if answer:
                return answer
            time.sleep(0.05)
        raise AssertionError(self.said())

    def said(self) -> str:
        return (self.folder / "scheduler.log").read_text()

    def slot(self) -> SlotRecord:
        record = self.store.get(SLOT)
        assert record is not None
        return record

    def is_led(self) -> bool:
        lease = self.store.lease("scheduler", "the test", 1)
        if lease is not None:
            self.store.release(lease)
        return lease is None


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    (tmp_path / "go on").touch()
    if project.process is not None and project.process.poll() is None:
        os.kill(project.process.pid, signal.SIGKILL)
        project.process.wait()


def test_a_run_at_work_may_end_and_another_may_lead_meanwhile(project: Project) -> None:
    scheduler = project.start()
    assert project.is_led()
    scheduler.send_signal(signal.SIGTERM)
    project.until(lambda: not project.is_led())
    assert scheduler.poll() is None and project.slot().status == "claimed"
    (project.folder / "go on").touch()
    assert scheduler.wait(60) == 0
    assert project.slot().status == "succeeded"
    assert "press again to stop at once" in project.said() and project.said().endswith("stopped\n")


def test_a_run_that_takes_longer_is_given_back(project: Project) -> None:
    scheduler = project.start("--grace", "0.1")
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(60) == 0
    record = project.slot()
    assert (record.status, record.failures, record.deaths) == ("waiting", 0, 0)
    assert record.is_due(project.store.now())
    assert "slow is still running and is stopped now" in project.said()


def test_a_second_signal_ends_it_at_once(project: Project) -> None:
    scheduler = project.start()
    scheduler.send_signal(signal.SIGTERM)
    project.until(lambda: "press again" in project.said())
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(30) == 130
    assert not project.is_led()
    project.until(lambda: project.slot().status == "waiting")  # its run was asked to stop, and gave it back


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--poll-interval", "60"], "the lease would end between two polls"),
        (["--poll-interval", "0"], "above 0"),
        (["--lease-seconds", "nan"], "above 0"),
        (["--grace", "-1"], "--grace takes a number of seconds"),
        (["--lease-seconds", "1"], "its claim would expire before it begins"),
        (["--executor", "k8s://ns?image=i&imge=x"], "Did you mean 'image'"),
    ],
)
def test_options_that_make_no_sense_are_reported(project: Project, options: list[str], told: str) -> None:
    command = [sys.executable, "-m", "ematix_flow", "scheduler", "--module=project.py", *options]
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and told in done.stderr, done.stderr
