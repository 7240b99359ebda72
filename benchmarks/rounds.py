"""Rounds of measured processes: their order, what marks mean, and continuing an interrupted run."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.cases import APART, APART_FOR_PROBES, CONTESTANTS, FLOW, REFERENCE
from benchmarks.datasets import DATA
from benchmarks.job import Job, read_marks
from benchmarks.machine import REPOSITORY
from benchmarks.process import (
    Ended,
    compile_libraries,
    environment,
    last_words,
    measured,
    readable,
    within,
)
from benchmarks.results import Result, Run, load, save
from benchmarks.rivals import probe_rival_python, rival_python

WORK = DATA / "work"
UNFINISHED = DATA / "unfinished"
START_SECONDS = 600.0
REPEATED_BELOW_SECONDS = 300.0


def new_folder(name: str) -> Path:
    """An empty folder on the disk that holds the data."""
    WORK.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=WORK))


@dataclass(frozen=True)
class Settings:
    rows: int
    repeat: int
    limit: float
    seed: int
    contestants: tuple[str, ...] | None = None  # None: all of each case
    restart: bool = False  # measure again what an interrupted run has already measured
    folder: Path = field(default_factory=lambda: new_folder("work"))

    def chosen(self, contestants: Sequence[str]) -> list[str]:
        return [name for name in contestants if self.contestants is None or name in self.contestants]


def order(contestants: Sequence[str], rounds: int, seed: int) -> list[tuple[int, str]]:
    """Round by round, each in another order, so that a disturbance of the machine affects all equally."""
    shuffled = random.Random(seed)
    turns = []
    for number in range(1, rounds + 1):
        names = list(contestants)
        shuffled.shuffle(names)
        turns += [(number, name) for name in names]
    return turns


def settled(run: Run) -> bool:
    """Whether another round would add nothing: it is wrong, beyond the limit, or long and so precise."""
    return bool(run.problem) or run.over_limit or (run.load_seconds or 0.0) > REPEATED_BELOW_SECONDS


def all_rounds(
    empty: Result,
    names: Sequence[str],
    settings: Settings,
    turn: Callable[[str, int], Run],
    say: Callable[[str], None],
) -> Result:
    """Every contestant in every round; each run is saved at once, and a later start continues after it.

    ``empty`` says what is measured, and has no runs yet.
    """
    result = _begun(empty, settings, say)
    for number, name in order(names, settings.repeat, settings.seed):
        mine = [run for run in result.runs if run.contestant == name]
        if any(settled(run) or run.round == number for run in mine):
            continue
        say(f"  round {number} of {settings.repeat}, {CONTESTANTS[name]} …")
        run = turn(name, number)
        result = replace(result, runs=(*result.runs, run))
        save(result, UNFINISHED)
        say(f"    {outcome(run)}")
    return result


def finished(result: Result) -> None:
    """Its result is saved elsewhere now."""
    for file in UNFINISHED.glob(f"*-{result.case}.json"):
        file.unlink()


def _begun(empty: Result, settings: Settings, say: Callable[[str], None]) -> Result:
    for file in sorted(UNFINISHED.glob(f"*-{empty.case}.json")):
        found = load(file)
        same = (found.rows, found.commit, found.limit_seconds) == (
            empty.rows,
            empty.commit,
            empty.limit_seconds,
        )
        if same and not settings.restart and found.case == empty.case:
            say(f"  going on after {len(found.runs)} runs of {found.date}; --restart starts over")
            return found
    return empty


def outcome(run: Run) -> str:
    """A run in one line."""
    if run.problem:
        return f"disqualified: {run.problem}"
    if run.over_limit:
        return "stopped at the limit"
    again = "" if run.again_seconds is None else f", again {run.again_seconds:.2f} s"
    memory = f", {(run.peak_bytes or 0) / 2**20:,.0f} MB"
    return f"{run.load_seconds:.2f} s{again}, and {run.start_seconds:.1f} s to start{memory}"


# ------------------------------------------------------------------ one process


def run_job(
    name: str,
    number: int,
    job: Job,
    folder: Path,
    limit: float,
    expired: Callable[[float], bool] | None = None,
) -> Run:
    """One contestant in a new process, in its environment.

    ``expired`` says when its time is over; by default that is the limit for each load.
    """
    file = folder / "job.json"
    job.write(file)
    python = str(python_of(name))
    env = environment(folder / "state")
    if name == REFERENCE:
        env["PYTHONPATH"] = str(REPOSITORY)  # its package has the name of ours
    marks = Path(job.marks)
    command = [python, "-m", "benchmarks.contestants", name, str(file)]
    stopped = expired or _loading_at_most(limit, marks)
    ended = measured(command, folder, env, stopped, folder / "output.log")
    return timed(name, number, ended, marks)


def python_of(name: str) -> Path:
    """The interpreter of a contestant's environment, which is made if it is missing."""
    if name in APART_FOR_PROBES:
        return probe_rival_python()
    return rival_python() if name in APART else Path(sys.executable)


def _loading_at_most(limit: float, marks: Path) -> Callable[[float], bool]:
    """The limit is for each load; getting ready has a separate one."""

    def expired(started_at: float) -> bool:
        told = read_marks(marks)
        if not told:
            return time.monotonic() > started_at + START_SECONDS
        return time.monotonic() > max(mark.at for mark in told.values()) + limit

    return expired


def timed(name: str, number: int, ended: Ended, marks_file: Path) -> Run:
    """The load of a process, from its marks and its end."""
    marks = read_marks(marks_file)
    ready, loaded, again = (marks.get(mark) for mark in ("ready", "loaded", "loaded again"))
    until = None if loaded is None else loaded.at
    run = Run(name, number, peak_bytes=ended.peak_bytes(until))
    if ready is not None:
        run = replace(run, start_seconds=ready.at - ended.started_at)
    if ended.code is None and ready is None:
        return replace(run, problem=f"was not ready after {ended.seconds:.0f} s")
    if ended.code is None:
        return replace(run, over_limit=True)
    if "failed" in marks:
        return replace(run, problem=f"failed: {readable(str(marks['failed'].details['error']))}")
    if ended.code != 0 or ready is None or loaded is None:
        return replace(run, problem=f"ended with code {ended.code}: {last_words(ended.said)}")
    return replace(
        run,
        load_seconds=loaded.at - ready.at,
        total_seconds=loaded.at - ended.started_at,
        again_seconds=None if again is None else again.at - loaded.at,
        details={"first": loaded.details} | ({} if again is None else {"again": again.details}),
    )


def get_ready(names: Sequence[str], folder: Path, jar_groups: Sequence[str] = ()) -> None:
    """Create now what would otherwise be created while a contestant is measured.

    ``jar_groups`` are those with which ematix-flow starts Spark.
    """
    compile_libraries(Path(sys.executable))
    for name in names:
        python_of(name)
    if FLOW in names:
        warm_archive(folder, jar_groups)


def warm_archive(folder: Path, jar_groups: Sequence[str] = ()) -> None:
    """Create the class-data archive now: in the background it would disturb the next contestant."""
    script = f"from ematix_flow.run.context_setup import spark_starter; spark_starter()({list(jar_groups)!r})"
    env = {**environment(folder / "state"), "EMATIX_FLOW_CDS": "sync"}
    ended = measured(
        [sys.executable, "-c", script], folder, env, within(START_SECONDS), folder / "archive.log"
    )
    if ended.code != 0:
        raise RuntimeError(f"Spark did not start:\n{ended.said}")
