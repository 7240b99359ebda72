"""Runs of a declared pipeline in their own processes, by the dozen: forked from one that is warm.

A fork starts in milliseconds, so that a test can afford hundreds of processes which are killed, or which
start the same pipeline at once. Each runs the whole of `run_declared_pipeline`; only Spark is not started:
what would be its tasks runs in the process itself.
"""

from __future__ import annotations

import datetime as dt
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STUCK_AFTER = 90.0
MODULE = "faulted_pipelines"
_OF_A_TEST = ("HOME", "EMATIX_FLOW_STATE")  # what is separate in each test


@dataclass(frozen=True)
class Outcome:
    """How a process ended: its exit code as ``flow run`` has it, minus the signal that killed it."""

    code: int
    told: dict[str, Any]

    @property
    def status(self) -> str | None:
        status: str | None = self.told.get("status")
        return status

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class ForkedRuns:
    """The test's side. Orders go to the warm process as lines of JSON, answers come back the same way.

    What is run is the pipeline ``load`` that the file ``faulted_pipelines.py`` in ``folder`` declares.
    """

    def __init__(self, orders: IO[str], answers: IO[str]) -> None:
        self._orders, self._answers = orders, answers

    def run(
        self,
        folder: Path,
        *,
        slot: str | None = None,
        fault: str = "",
        kill_after: float | None = None,
        kill_when: Path | None = None,
    ) -> Outcome:
        """One run; killed at a commit point by ``fault``, after so many seconds, or once a file is there."""
        order: dict[str, Any] = {"slot": slot, "fault": fault, "kill_after": kill_after}
        if kill_when is not None:
            order["kill_when"] = str(kill_when)
        return self._ask(folder, {**order, "count": 1, "gate": False})[0]

    def race(self, folder: Path, count: int, *, slot: str | None = None, gate: bool) -> list[Outcome]:
        """Start this many at once. With ``gate`` the loading run continues after all others have ended."""
        order = {"slot": slot, "fault": "", "kill_after": None}
        return self._ask(folder, {**order, "count": count, "gate": gate})

    def _ask(self, folder: Path, order: dict[str, Any]) -> list[Outcome]:
        here = {"folder": str(folder), "env": {name: os.environ[name] for name in _OF_A_TEST}}
        self._orders.write(json.dumps({**order, **here}) + "\n")
        self._orders.flush()
        line = self._answers.readline()
        assert line, "the process that forks runs is gone"
        return [Outcome(code, told) for code, told in json.loads(line)]


@contextmanager
def forked_runs() -> Iterator[ForkedRuns]:
    """A process that keeps warm what runs import."""
    root = Path(__file__).resolve().parents[2]
    paths = [str(root), *filter(None, sys.path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fault.forked_runs"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            yield ForkedRuns(process.stdin, process.stdout)
        finally:
            process.stdin.close()


# ------------------------------------------------------------------ the warm process


class TasksHere:
    """The parts of a Spark session that the copy path needs; it runs tasks one by one in this process."""

    conf = SimpleNamespace(get=lambda key, default: default, set=lambda key, value: None)

    def range(self, _start: int, end: int, _step: int, _partitions: int) -> TasksHere:
        self._numbers = range(end)
        return self

    def mapInArrow(self, task: Callable[[Iterable[Any]], Iterable[Any]], _schema: str) -> TasksHere:
        self._task = task
        return self

    def collect(self) -> list[dict[str, Any]]:
        import pyarrow as pa

        out: list[dict[str, Any]] = []
        for number in self._numbers:
            for answer in self._task([pa.RecordBatch.from_pydict({"id": [number]})]):
                out += answer.to_pylist()
        return out


def run_here(
    folder: Path,
    slot: str | None = None,
    before_apply: Callable[[], None] | None = None,
    spark: SparkSession | None = None,
) -> dict[str, Any]:
    """The whole run in this process; without Spark, unless a session is given."""
    from ematix_flow import fault_points
    from ematix_flow.graph.registry import Registry, use_registry
    from ematix_flow.run.pipeline import run_declared_pipeline
    from ematix_flow.run.run_context import RunContext
    from ematix_flow.state.local_stores import open_local_run_log
    from ematix_flow.state.runlog.base import project_run_log

    with ExitStack() as stack:
        if before_apply is not None:
            stack.enter_context(fault_points.inject("apply.began", before_apply))
        log = stack.enter_context(open_local_run_log(project_run_log(os.environ), env=os.environ))
        moment = dt.datetime.fromisoformat(slot) if slot else None
        engine: Any = TasksHere() if spark is None else spark
        context = RunContext(log, lambda _: engine, slot=moment)
        registry = stack.enter_context(use_registry(Registry()))
        exec(compile((folder / f"{MODULE}.py").read_text(), MODULE, "exec"), {"__name__": MODULE})
        return run_declared_pipeline(registry.pipelines["load"], context).to_json()


def _child(order: dict[str, Any], start: int, gate: int) -> tuple[int, dict[str, Any]]:
    from ematix_flow import fault_points
    from ematix_flow.errors import FlowError

    os.read(start, 1)  # nothing comes: it is closed when all are there
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    fault_points.arm_from_setting(order["fault"])
    known = set(sys.modules)
    wait = (lambda: void(os.read(gate, 1))) if order["gate"] else None
    try:
        told = run_here(Path(order["folder"]), order["slot"], wait)
        found = {name for name in set(sys.modules) - known if getattr(sys.modules[name], "__spec__", None)}
        return 0, {**told, "imported": sorted(found)}
    except FlowError as error:
        return error.exit_code, error.to_json()
    except BaseException:
        return 1, {"what": traceback.format_exc()}


def void(_: object) -> None:
    """Ignores the result of a lambda."""


@dataclass
class _Running:
    pid: int
    answer: int
    said: bytes = b""
    code: int | None = None


def _fork(order: dict[str, Any], start: int, gate: int, ours: tuple[int, int]) -> _Running:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Running(pid, reading)
    for end in (*ours, reading):  # a gate opens when no process holds its other end
        os.close(end)
    code, told = _child(order, start, gate)
    os.write(writing, json.dumps(told).encode()[:60_000])
    os._exit(code)


def _carry_out(order: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    start_in, start_out = os.pipe()
    gate_in, gate_out = os.pipe()
    ours = (start_out, gate_out)
    children = [_fork(order, start_in, gate_in, ours) for _ in range(order["count"])]
    os.close(start_in)
    os.close(gate_in)
    os.close(start_out)
    if order["kill_after"] is not None:
        time.sleep(order["kill_after"])
        os.kill(children[0].pid, signal.SIGKILL)  # not yet waited for: its number is still its own
    if "kill_when" in order:
        until = time.monotonic() + STUCK_AFTER
        while not os.path.exists(order["kill_when"]) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(children[0].pid, signal.SIGKILL)
    deadline = time.monotonic() + STUCK_AFTER
    open_gate: int | None = gate_out
    while any(child.code is None for child in children):
        running = [child for child in children if child.code is None]
        if open_gate is not None and len(running) <= 1:
            os.close(open_gate)
            open_gate = None
        ready, _, _ = select.select([c.answer for c in running], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            for child in running:
                os.kill(child.pid, signal.SIGKILL)
                child.said = b'{"what": "it was stuck"}'
        for child in running:
            if child.answer in ready or not ready:
                _hear(child)
    if open_gate is not None:
        os.close(open_gate)
    return [(child.code or 0, json.loads(child.said or b"{}")) for child in children]


def _hear(child: _Running) -> None:
    """A part of its answer, or its end."""
    said = os.read(child.answer, 65_536)
    child.said += said
    if not said:
        os.close(child.answer)
        child.code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def main() -> None:
    for name in ("ematix_flow.run.pipeline", "ematix_flow.state.runlog.sql"):
        importlib.import_module(name)
    for line in sys.stdin:
        answers = _carry_out(json.loads(line))
        print(json.dumps(answers), flush=True)
        for name in answers[0][1].get("imported", ()):  # what one run needed, the next ones find here
            with suppress(ImportError):  # some exist only once their neighbour made them
                importlib.import_module(name)
        gc.freeze()  # existing objects are not collected again, and their pages stay shared


if __name__ == "__main__":
    main()
