"""The copy benchmark: every contestant of a case, several rounds, in shuffled order, each load verified."""

from __future__ import annotations

import datetime as dt
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.cases import CONTESTANTS, Case
from benchmarks.fingerprint import Fingerprint, fingerprint
from benchmarks.job import Job, read_marks
from benchmarks.machine import commit, cores, machine_facts, versions
from benchmarks.orders import DATA
from benchmarks.places import Place, Places
from benchmarks.process import Ended, environment, last_words, measured, readable, within
from benchmarks.results import Result, Run
from benchmarks.rivals import rival_jars, rival_versions

WORK = DATA / "work"
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
    folder: Path = field(default_factory=lambda: new_folder("copy"))


def run_cases(cases: Sequence[Case], settings: Settings, say: Callable[[str], None]) -> list[Result]:
    """Measure the cases one after another; sources are filled once."""
    try:
        with Places(settings.rows, settings.folder) as places:
            return [_run_case(case, places, settings, say) for case in cases]
    finally:
        shutil.rmtree(settings.folder, ignore_errors=True)


def order(contestants: Sequence[str], rounds: int, seed: int) -> list[tuple[int, str]]:
    """Round by round, in another order each: what disturbs the machine for a while hits everyone alike."""
    shuffled = random.Random(seed)
    turns = []
    for number in range(1, rounds + 1):
        names = list(contestants)
        shuffled.shuffle(names)
        turns += [(number, name) for name in names]
    return turns


def settled(run: Run) -> bool:
    """Whether another round would add nothing: it is wrong, beyond the limit, or so long that it is sure."""
    return bool(run.problem) or run.over_limit or (run.load_seconds or 0.0) > REPEATED_BELOW_SECONDS


def _run_case(case: Case, places: Places, settings: Settings, say: Callable[[str], None]) -> Result:
    names = [n for n in case.contestants if settings.contestants is None or n in settings.contestants]
    say(f"{case.title}: filling the source with {settings.rows:,} rows")
    source = places.source(case.source)
    expected = fingerprint(source)
    if expected.rows != settings.rows:
        raise RuntimeError(f"the source holds {expected.rows:,} rows, not {settings.rows:,}")
    jars = rival_jars([case.source, case.target])
    if "flow" in names:
        warm_archive(settings.folder)
    server = places.server_version() if "postgres" in (case.source, case.target) else None
    others = {"PostgreSQL server": server, **rival_versions([case.source, case.target])}
    facts, about = machine_facts(), versions(**others)
    runs: list[Run] = []
    for number, name in order(names, settings.repeat, settings.seed):
        if any(run.contestant == name and settled(run) for run in runs):
            continue
        run = _verified_run(name, number, case, source, expected, jars, places, settings)
        runs.append(run)
        say(f"  round {number}, {CONTESTANTS[name]}: {_outcome(run)}")
    return Result(
        benchmark="copy",
        case=case.name,
        title=case.title,
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=settings.rows,
        limit_seconds=settings.limit,
        machine=facts,
        versions=about,
        commit=commit(),
        runs=tuple(runs),
    )


def _verified_run(
    name: str,
    number: int,
    case: Case,
    source: Place,
    expected: Fingerprint,
    jars: Sequence[Path],
    places: Places,
    settings: Settings,
) -> Run:
    label = f"{case.name}-{name}-{number}"
    folder = settings.folder / f"run-{label}"
    folder.mkdir()
    targets = tuple(places.target(case.target, f"{label}-{n}") for n in (1, 2))
    try:
        job = Job(source, targets, tuple(map(str, jars)), cores(), str(folder / "marks.jsonl"))
        places.settle()
        run = _run(name, number, job, folder, settings)
        loaded = [run.load_seconds, run.again_seconds]
        for target, seconds in zip(targets, loaded, strict=True):
            if run.problem is None and seconds is not None:
                run = verified(run, fingerprint(target), expected)
    finally:
        for target in targets:
            places.discard(target)
    return run


def _run(name: str, number: int, job: Job, folder: Path, settings: Settings) -> Run:
    file = folder / "job.json"
    job.write(file)
    command = [sys.executable, "-m", "benchmarks.contestants", name, str(file)]
    env = environment(folder / "state")
    marks = Path(job.marks)
    ended = measured(command, folder, env, _loading_at_most(settings.limit, marks), folder / "output.log")
    return timed(name, number, ended, marks)


def _loading_at_most(limit: float, marks: Path) -> Callable[[float], bool]:
    """The limit is for each load; getting ready has one of its own."""

    def expired(started_at: float) -> bool:
        told = read_marks(marks)
        if not told:
            return time.monotonic() > started_at + START_SECONDS
        return time.monotonic() > max(mark.at for mark in told.values()) + limit

    return expired


def timed(name: str, number: int, ended: Ended, marks_file: Path) -> Run:
    """What a process's marks and end say about its load."""
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


def verified(run: Run, landed: Fingerprint, expected: Fingerprint) -> Run:
    """Disqualify what is no copy of the source; note what arrived in another type."""
    differences = landed.differences(expected)
    if differences:
        return replace(run, problem=f"wrong result: {'; '.join(differences)}")
    return replace(run, notes=tuple(dict.fromkeys((*run.notes, *landed.retyped()))))


def warm_archive(folder: Path) -> None:
    """Let the class-data archive be made now: in the background it would disturb the next contestant."""
    script = "from ematix_flow.schedule.context import spark_starter; spark_starter()()"
    env = {**environment(folder / "state"), "EMATIX_FLOW_CDS": "sync"}
    ended = measured(
        [sys.executable, "-c", script], folder, env, within(START_SECONDS), folder / "archive.log"
    )
    if ended.code != 0:
        raise RuntimeError(f"Spark did not start:\n{ended.said}")


def _outcome(run: Run) -> str:
    if run.problem:
        return f"disqualified: {run.problem}"
    if run.over_limit:
        return "stopped at the limit"
    again = "" if run.again_seconds is None else f", again {run.again_seconds:.2f} s"
    return f"{run.load_seconds:.2f} s{again}, and {run.start_seconds:.1f} s to start"
