"""The processes of `flow` that answer requests for plans and ledgers end with the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ematix_flow.state.file_locks import process_is_alive
from ematix_flow.web.answers import Refused
from ematix_flow.web.command_process import CommandProcesses
from tests.unit.web.conftest import READER, Reply, Serve, Served
from tests.waiting import wait_until

WAITING = """
import os, pathlib, time
gate = pathlib.Path("gate")
if gate.exists():
    pathlib.Path(f"started-{os.getpid()}").touch()
while gate.exists():
    time.sleep(0.05)
"""


@pytest.fixture
def gate(serve: Serve, tmp_path: Path) -> Iterator[Path]:
    """While this file is there, a process that reads the module of the server waits, and leaves its id."""
    module = next(tmp_path.glob("pipelines_*.py"))
    module.write_text(WAITING + module.read_text(encoding="utf-8"), encoding="utf-8")
    path = tmp_path / "gate"
    yield path
    path.unlink(missing_ok=True)


def started(gate: Path) -> list[int]:
    """The ids of the processes that have come to the gate."""
    return [int(each.name.partition("-")[2]) for each in gate.parent.glob("started-*")]


@contextmanager
def asking(served: Served, *paths: str) -> Iterator[list[Reply]]:
    """Ask for these at the same time as the block runs; the answers are there when it has ended."""
    replies: list[Reply] = []

    def ask(path: str) -> None:
        replies.append(served.get(path, token=READER, timeout=300))

    readers = [threading.Thread(target=ask, args=(path,)) for path in paths]
    for reader in readers:
        reader.start()
    try:
        yield replies
    finally:
        for reader in readers:
            reader.join()


def test_a_server_that_stops_ends_what_answers_a_request(serve: Serve, gate: Path) -> None:
    served = serve()
    run = served.add_run("orders")
    gate.touch()
    with asking(served, "/pipelines/totals/plan", f"/runs/{run.run_id}/ledger") as replies:
        wait_until(lambda: len(started(gate)) == 2)
        served.stop()
    assert [reply.status for reply in replies] == [503, 503]
    whats = sorted(reply.json["error"]["what"] for reply in replies)
    assert whats == [
        "flow plan totals gave no answer: the server stops",
        f"flow runs show {run.run_id[:8]} --ledger gave no answer: the server stops",
    ]
    assert not any(process_is_alive(pid) for pid in started(gate))
    wait_until(lambda: not any("ematix-flow-slow" in each.name for each in threading.enumerate()))


def test_nothing_is_started_after_the_end_of_the_server() -> None:
    commands = CommandProcesses()
    commands.close()
    with pytest.raises(Refused) as refused:
        commands.run(["--version"], "flow --version", 60)
    assert refused.value.error.what == "flow --version gave no answer: the server stops"
