"""The changes benchmark: changed rows from one PostgreSQL database into an existing table.

A target is made once for each size and copied for each load, so that everyone starts from the same table,
in PostgreSQL indexed by key, analysed, vacuumed. ematix-flow's was loaded by ematix-flow itself, and dlt's
Delta table by dlt: both keep files or tables next to it, without which they do not load into it.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import changing, changing_lake
from benchmarks.cases import APART, CONTESTANTS, FLOW, ChangeCase
from benchmarks.changing import Size
from benchmarks.datasets import DATED_ORDERS
from benchmarks.endpoint import Endpoint
from benchmarks.fingerprint import Fingerprint, fingerprint
from benchmarks.job import Job
from benchmarks.machine import commit, cores, machine_facts, versions
from benchmarks.results import Result, Run
from benchmarks.rivals import SHARED, rival_jars, rival_versions
from benchmarks.rounds import Settings, all_rounds, get_ready, run_job
from benchmarks.servers import Servers
from benchmarks.sources_and_targets import folder_target

PUBLISHED = (Size(10_000, 1_000_000), Size(100_000, 1_000_000), Size(100_000, 10_000_000))
_CURRENT = {"dlt": "valid_to IS NULL"}


@dataclass(frozen=True)
class Fixture:
    """The databases and tables that are made once for a strategy and a size."""

    source: Endpoint
    prepared: dict[str, Endpoint]  # `_kept_by` of a contestant -> the target before the changes
    expected: tuple[int, str]
    fingerprint: Fingerprint | None = None  # of the source, if the target is not a database


def published(case: ChangeCase) -> tuple[Size, ...]:
    """The sizes that are measured by default. In a lake, one row in a hundred changes."""
    return tuple(size for size in PUBLISHED if case.target == "postgres" or size.changes * 100 == size.rows)


def run_changes(
    cases: Sequence[ChangeCase], sizes: Sequence[Size] | None, settings: Settings, say: Callable[[str], None]
) -> Iterator[Result]:
    """Measure them one after another; the databases of a size are dropped before the next."""
    try:
        with Servers() as servers:
            for size in sizes or PUBLISHED:
                wanted = [case for case in cases if sizes or size in published(case)]
                if not wanted:
                    continue
                before = changing.base(servers, size.rows)
                source = changing.source(servers, before, size)
                for case in wanted:
                    yield _run_case(case, size, before, source, servers, settings, say)
                for endpoint in (before, source):
                    servers.drop(endpoint)
    finally:
        shutil.rmtree(settings.folder, ignore_errors=True)


def _run_case(
    case: ChangeCase,
    size: Size,
    before: Endpoint,
    source: Endpoint,
    servers: Servers,
    settings: Settings,
    say: Callable[[str], None],
) -> Result:
    names = settings.chosen(case.contestants)
    kinds = ["postgres", case.target]
    jars = rival_jars(kinds)
    get_ready(names, settings.folder, [kind for kind in kinds if kind in SHARED])
    empty = Result(
        benchmark="changes",
        case=f"{case.name}-{size.changes}-into-{size.rows}",
        title=f"{case.title} of {size.changes:,} changes into {size.rows:,} rows",
        date=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        rows=size.changes,
        limit_seconds=settings.limit,
        machine=machine_facts(),
        versions=versions(**servers.versions(), **rival_versions(kinds)),
        commit=commit(),
        runs=(),
    )
    say(f"{empty.title}: making the targets as they were before")
    with ExitStack() as stack:
        prepared = {
            name: _prepared(name, case, size, before, servers, settings)
            for name in dict.fromkeys(_kept_by(name, case) for name in names)
        }
        for endpoint in prepared.values():
            stack.callback(_drop, endpoint, servers)
        landed = None if case.target == "postgres" else fingerprint(source, DATED_ORDERS)
        fixture = Fixture(source, prepared, changing.checksum(servers, source), landed)

        def turn(name: str, number: int) -> Run:
            return _verified_run(name, number, case, size, fixture, jars, servers, settings)

        return all_rounds(empty, names, settings, turn, say)


def _kept_by(name: str, case: ChangeCase) -> str:
    """Whose table a contestant loads: its own if its tables have a special form, else one for all others."""
    if name in APART and case.target != "postgres":
        return "dlt"
    return name if name == FLOW or (case.strategy == "scd2" and name == "dlt") else ""


def _copy(template: Endpoint, label: str, servers: Servers, settings: Settings) -> Endpoint:
    if template.kind == "postgres":
        return servers.copy(template, label)
    return changing_lake.copy(template, settings.folder / f"target-{label}")


def _drop(endpoint: Endpoint, servers: Servers) -> None:
    if endpoint.kind == "postgres":
        servers.drop(endpoint)
    else:
        shutil.rmtree(Path(endpoint.location).parent)


def _prepared(
    kept_by: str, case: ChangeCase, size: Size, before: Endpoint, servers: Servers, settings: Settings
) -> Endpoint:
    if kept_by == FLOW and case.target == "postgres":
        return _loaded_by_flow(case, size, before, servers, settings)
    if case.target != "postgres" and kept_by:
        endpoint = folder_target(case.target, settings.folder / f"{kept_by}-{case.name}-{size.rows}")
        options = {"case": case.name, "strategy": case.strategy} if kept_by == FLOW else {}
        _load_before(kept_by, before, endpoint, {**options, "from": changing.TABLE}, size, settings)
        return endpoint
    if case.target != "postgres":
        return changing_lake.base(settings.folder / f"plain-{case.name}-{size.rows}", size.rows)
    if kept_by == "dlt":
        return changing.versions_of_dlt(servers, before)
    if case.strategy == "scd2":
        return changing.versions_by_hand(servers, before)
    return servers.copy(before, "plain")


def _loaded_by_flow(
    case: ChangeCase, size: Size, before: Endpoint, servers: Servers, settings: Settings
) -> Endpoint:
    """The same rows, loaded by the same pipeline, with its table, its ledger and its watermark."""
    endpoint = servers.copy(before, f"flow-{case.name}")
    servers.execute(endpoint, f"ALTER TABLE {changing.TABLE} RENAME TO base")
    options = {"case": case.name, "strategy": case.strategy, "from": "base"}
    _load_before(FLOW, endpoint, endpoint, options, size, settings)
    servers.execute(endpoint, "DROP TABLE base")
    servers.execute(endpoint, "VACUUM ANALYZE")
    return endpoint


def _load_before(
    name: str, source: Endpoint, target: Endpoint, options: Mapping[str, str], size: Size, settings: Settings
) -> None:
    folder = settings.folder / f"prepare-{name}-{target.kind}-{size.rows}"
    folder.mkdir(parents=True)
    marks = str(folder / "marks.jsonl")
    job = Job(source, (target,), (), cores(), marks, rows=size.rows, options=options)
    run = run_job(name, 0, job, folder, limit=7200.0)
    if run.problem or run.over_limit:
        why = run.problem or "it took too long"
        raise RuntimeError(f"{CONTESTANTS[name]} could not make its table: {why}")
    shutil.rmtree(folder, ignore_errors=True)


def _verified_run(
    name: str,
    number: int,
    case: ChangeCase,
    size: Size,
    fixture: Fixture,
    jars: Sequence[Path],
    servers: Servers,
    settings: Settings,
) -> Run:
    label = f"{case.name}-{name}-{number}"
    folder = settings.folder / f"run-{label}"
    folder.mkdir()
    target = _copy(fixture.prepared[_kept_by(name, case)], label, servers, settings)
    options = {
        "case": case.name,
        "strategy": case.strategy,
        "from": changing.TABLE,
        "after": size.after,
    }
    marks = str(folder / "marks.jsonl")
    try:
        job = Job(
            fixture.source, (target,), tuple(map(str, jars)), cores(), marks, rows=size.rows, options=options
        )
        servers.settle()
        run = run_job(name, number, job, folder, settings.limit)
        if run.problem is None and run.load_seconds is not None:
            run = replace(run, problem=_wrong(name, case, size, fixture, servers, target))
    finally:
        _drop(target, servers)
        shutil.rmtree(folder, ignore_errors=True)
    return run


def _wrong(
    name: str, case: ChangeCase, size: Size, fixture: Fixture, servers: Servers, target: Endpoint
) -> str | None:
    """Why the target differs from the expected result, as text."""
    if fixture.fingerprint is not None:
        differences = fingerprint(target, DATED_ORDERS).differences(fixture.fingerprint)
        return f"wrong result: {'; '.join(differences)}" if differences else None
    current = "true" if case.strategy == "merge" else _CURRENT.get(name, "is_current")
    found = changing.checksum(servers, target, current)
    if found[0] != fixture.expected[0]:
        return f"wrong result: {found[0]:,} rows hold now, and {fixture.expected[0]:,} are in the source"
    if found != fixture.expected:
        return "wrong result: the rows that hold now have other values than those of the source"
    if case.strategy == "scd2":
        closed = servers.execute(target, f"SELECT count(*) FROM {changing.TABLE} WHERE NOT ({current})")
        if closed[0][0] != size.updates:
            return f"wrong result: {closed[0][0]:,} versions are closed, of {size.updates:,} that ended"
    return None
