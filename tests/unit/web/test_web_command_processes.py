"""The processes of `flow` that answer requests for plans and ledgers: shared, and ended with the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ematix_flow.state.file_locks import process_is_alive
from ematix_flow.web import runs
from ematix_flow.web.answers import Refused
from ematix_flow.web.command_process import CommandProcesses
from ematix_flow.web.endpoints import Call
from ematix_flow.web.site import Site
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


def test_requests_for_the_same_ledger_share_one_process(
    serve: Serve, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They also leave a thread for others, although there are only two."""
    found: list[str] = []
    ledger_run = runs.ledger_run

    def noted(site: Site, call: Call) -> str:
        found.append(ledger_run(site, call))
        return found[-1]

    monkeypatch.setattr(runs, "ledger_run", noted)
    served = serve()
    run = served.add_run("gone")
    gate.touch()
    with asking(served, *(f"/runs/{run.run_id[:length]}/ledger" for length in (32, 32, 12, 8))) as replies:
        wait_until(lambda: len(found) == 4)
        assert served.send("POST", "/api/v1/connections/shop/check").status == 200
        wait_until(lambda: started(gate))
        gate.unlink()
    assert found == [run.run_id] * 4
    assert [reply.status for reply in replies] == [200] * 4
    assert len({reply.body for reply in replies}) == 1
    assert len(started(gate)) == 1


def test_a_ledger_is_read_again_for_a_later_request(serve: Serve, gate: Path) -> None:
    served = serve()
    run = served.add_run("gone")
    for count in (1, 2):
        gate.touch()
        with asking(served, f"/runs/{run.run_id}/ledger"):
            wait_until(lambda count=count: len(started(gate)) == count)
            gate.unlink()


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
