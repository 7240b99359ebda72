"""How long a stream needs to continue with a large state: one key for each message, in one open window.

A first process takes the messages and stops. One more message is sent, and a second process starts with the
state: from its local files, or, for a state in PostgreSQL, on a machine without them. At the end a message
closes the window, and every key must be in the target, so the whole state was there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.endpoint import Endpoint
from benchmarks.job import Job, Mark, read_marks
from benchmarks.process_tree import cpu_seconds
from benchmarks.results import Run
from benchmarks.stateful_messages import BEGIN, HOUR, Views
from benchmarks.stateful_runs import StatefulRun, start, wrong_rows
from benchmarks.stateful_sending import send
from benchmarks.stateful_watches import POLL_SECONDS, ResultTable, state_bytes

STATE_IN_POSTGRES = "flow-postgres-state"


def run_restart(run: StatefulRun) -> Run:
    traffic = Views(run.settings.rows, pages=run.settings.rows)
    topics, target = run.topics(traffic), run.empty_target()
    store = run.servers.create("postgres", f"state-{run.number}") if run.name == STATE_IN_POSTGRES else None
    options = {"window": str(HOUR), **({"state store": store.location} if store else {})}
    bootstrap = run.servers.server("kafka").bootstrap
    send(bootstrap, topics, traffic.messages(0, traffic.rows))
    run.servers.settle()
    try:
        fill = run.job(topics, target, "fill", **options, **{"awaited messages": str(traffic.rows)})
        filled = _until_committed(run, fill)
        if filled.over_limit:
            return replace(filled, over_limit=False, problem="took no part: its first process was too slow")
        if filled.problem is not None:
            return filled
        held = state_bytes(run.folder)
        if store is not None:
            shutil.rmtree(run.folder / "state")
        send(bootstrap, topics, traffic.messages(0, 1))  # the first view comes again
        run.servers.settle()
        again = run.job(topics, target, "restart", **options, **{"awaited messages": "1"})
        ended, figures, problem = _restarted(run, again, traffic, topics, target)
        if problem is not None:
            return replace(ended, problem=problem)
        if ended.problem is not None or ended.over_limit:
            return ended
        marks = read_marks(Path(again.marks))
        taken = _times(marks)
        return replace(
            ended,
            load_seconds=taken,
            total_seconds=taken + (ended.start_seconds or 0.0),
            details={
                "fill seconds": _times(read_marks(Path(fill.marks))),
                **figures,
                "state bytes": held,
            },
        )
    finally:
        for endpoint in (target, store):
            if endpoint is not None:
                run.servers.drop(endpoint)


def _times(marks: dict[str, Mark]) -> float:
    """Seconds from when the process was ready until it had committed the awaited messages."""
    return marks["messages committed"].at - marks["ready"].at


def _until_committed(run: StatefulRun, job: Job) -> Run:
    """Run a job until it has committed its messages, and stop it."""
    with ThreadPoolExecutor(1) as pool:
        running = start(run, job, pool)
        is_over = _wait_for_commit(run, job, running.run.done) is None
        ended = running.stop()
    return replace(ended, over_limit=True, problem=None) if is_over else ended


def _wait_for_commit(run: StatefulRun, job: Job, has_ended: Callable[[], bool]) -> float | None:
    """The processor time from when the process was ready until its messages were committed, or it ended.

    None if that takes longer than the limit.
    """
    began, marks = time.monotonic(), dict[str, Mark]()
    spent: list[float] = []
    while "messages committed" not in marks and not has_ended():
        if time.monotonic() > began + run.settings.limit:
            return None
        time.sleep(POLL_SECONDS)
        marks = read_marks(Path(job.marks))
        if "ready" not in marks:  # the limit is for the load
            began = time.monotonic()
        else:
            spent.append(cpu_seconds(marks["ready"].details["pid"]))
    return spent[-1] - spent[0] if spent else 0.0


def _restarted(
    run: StatefulRun, job: Job, traffic: Views, topics: list[str], target: Endpoint
) -> tuple[Run, dict[str, float], str | None]:
    """The second process, what was measured, and what is wrong with the rows."""
    table = ResultTable(target.location, run.case.stream)
    try:
        with ThreadPoolExecutor(1) as pool:
            running = start(run, job, pool)
            spent = _wait_for_commit(run, job, running.run.done)
            is_over = spent is None
            closed_at, began = 0.0, time.time()
            send(job.source.location, topics, traffic.closing(BEGIN + 3 * HOUR), hurried=True)
            while not is_over and table.count() < traffic.rows and not running.run.done():
                is_over = time.time() > began + run.settings.limit
                time.sleep(POLL_SECONDS)
            if table.count() >= traffic.rows:
                closed_at = table.last_commit()
            ended = running.stop()
        if is_over:
            return replace(ended, over_limit=True, problem=None), {}, None
        if ended.problem is not None:
            return ended, {}, None
        counted = {(key, BEGIN, 2 if key == 0 else 1) for key in range(traffic.rows)}
        figures = {"close seconds": closed_at - began, "processor seconds": spent or 0.0}
        return ended, figures, wrong_rows(table.rows(), counted)
    finally:
        table.close()
