"""The copy benchmark: every contestant of a case, several rounds, in shuffled order, each load verified."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cases import Case
from benchmarks.datasets import ORDERS, Dataset
from benchmarks.endpoint import Endpoint
from benchmarks.fingerprint import Fingerprint, fingerprint
from benchmarks.job import Job
from benchmarks.machine import commit, cores, machine_facts, versions
from benchmarks.results import Result, Run
from benchmarks.rivals import SHARED, rival_jars, rival_versions
from benchmarks.rounds import Settings, all_rounds, get_ready, run_job
from benchmarks.sources_and_targets import SourcesAndTargets

AGAIN_BELOW_ROWS = 3_000_000  # for a larger table, a second load in the same process shows nothing more


def run_cases(
    cases: Sequence[Case], dataset: Dataset, settings: Settings, say: Callable[[str], None]
) -> Iterator[Result]:
    """Measure the cases one after another; sources are filled once."""
    try:
        with SourcesAndTargets(dataset, settings.rows, settings.folder) as endpoints:
            for case in cases:
                yield _run_case(case, dataset, endpoints, settings, say)
    finally:
        shutil.rmtree(settings.folder, ignore_errors=True)


def _run_case(
    case: Case, dataset: Dataset, endpoints: SourcesAndTargets, settings: Settings, say: Callable[[str], None]
) -> Result:
    names = settings.chosen(case.contestants)
    say(f"{case.title}: filling the source with {settings.rows:,} rows of {dataset.name}")
    source = endpoints.source(case.source)
    expected = fingerprint(source, dataset)
    if expected.rows != settings.rows:
        raise RuntimeError(f"the source holds {expected.rows:,} rows, not {settings.rows:,}")
    jars = rival_jars([case.source, case.target])
    get_ready(names, settings.folder, [kind for kind in (case.source, case.target) if kind in SHARED])
    if case.target in ("postgres", "mysql"):
        endpoints.servers.server(case.target)
    others = {**endpoints.servers.versions(), **rival_versions([case.source, case.target])}
    empty = Result(
        benchmark="copy",
        case=case.name if dataset is ORDERS else f"{case.name}-{dataset.name}",
        title=f"{case.title}, {dataset.name}",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=settings.rows,
        limit_seconds=settings.limit,
        machine=machine_facts(),
        versions=versions(**others),
        commit=commit(),
        runs=(),
    )

    def turn(name: str, number: int) -> Run:
        return _verified_run(name, number, case, dataset, source, expected, jars, endpoints, settings)

    return all_rounds(empty, names, settings, turn, say)


def _verified_run(
    name: str,
    number: int,
    case: Case,
    dataset: Dataset,
    source: Endpoint,
    expected: Fingerprint,
    jars: Sequence[Path],
    endpoints: SourcesAndTargets,
    settings: Settings,
) -> Run:
    label = f"{case.name}-{name}-{number}"
    folder = settings.folder / f"run-{label}"
    folder.mkdir()
    loads = (1, 2) if settings.rows < AGAIN_BELOW_ROWS else (1,)
    targets = tuple(endpoints.target(case.target, f"{label}-{n}") for n in loads)
    marks = str(folder / "marks.jsonl")
    try:
        job = Job(source, targets, tuple(map(str, jars)), cores(), marks, dataset.name, settings.rows)
        endpoints.servers.settle()
        run = run_job(name, number, job, folder, settings.limit)
        loaded = [run.load_seconds, run.again_seconds]
        for target, seconds in zip(targets, loaded, strict=False):
            if run.problem is None and seconds is not None:
                run = verified(run, fingerprint(target, dataset), expected, dataset)
    finally:
        for target in targets:
            endpoints.discard(target)
        shutil.rmtree(folder, ignore_errors=True)
    return run


def verified(run: Run, landed: Fingerprint, expected: Fingerprint, dataset: Dataset) -> Run:
    """Disqualify a target that is not a copy of the source; note columns that have another type."""
    differences = landed.differences(expected)
    if differences:
        return replace(run, problem=f"wrong result: {'; '.join(differences)}")
    return replace(run, notes=tuple(dict.fromkeys((*run.notes, *landed.retyped(dataset)))))
