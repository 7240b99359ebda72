"""Runs a load probe: checks its hosts, sends the load, judges its assertions, builds the report."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ematix_probe.errors import DeclarationError, HostNotAllowed, MissingDependency, ProbeError
from ematix_probe.history.given import prepare_history
from ematix_probe.load.declaration import LoadPlan
from ematix_probe.load.hosts import AllowedHost, Endpoint, read_allowed, resolve_allowed
from ematix_probe.load.http_client import import_h2, import_parser, tls_context
from ematix_probe.load.http_target import HttpTarget
from ematix_probe.load.judging import error_result, judge_load
from ematix_probe.load.metrics import LoadOutcome
from ematix_probe.load.outcome_report import describe_outcome
from ematix_probe.load.processes import run_shares
from ematix_probe.load.progress import LoadProgress, build_progress
from ematix_probe.load.recording import SECOND
from ematix_probe.load.shares import Share, ShareResult, Snapshot
from ematix_probe.report import RunReport, worst

if TYPE_CHECKING:
    from ematix_probe.run_history import RunHistory

OnProgress = Callable[[LoadProgress], object]


def run_load_probe(
    plan: LoadPlan,
    *,
    history: RunHistory | None = None,
    allow_hosts: Iterable[str] = (),
    progress: OnProgress | None = None,
) -> RunReport:
    """The report of one run. What is declared wrongly or not allowed raises; what fails is an ``error``.

    A history that cannot be opened raises too, before anything is sent.
    """
    prepare_history(history)
    allowed = (*plan.allow_hosts, *read_allowed(allow_hosts))
    started = dt.datetime.now(dt.timezone.utc)
    metadata: dict[str, Any]
    try:
        shares = build_shares(plan, allowed)
        outcome = merge_results(plan, run_shares(shares, _ProgressReports(plan, len(shares), progress)))
    except (DeclarationError, HostNotAllowed, MissingDependency):
        raise
    except ProbeError as error:
        results = [error_result(each, index, str(error)) for index, each in enumerate(plan.assertions)]
        metadata = {"kind": "load", "target": plan.target.label, "error": str(error)}
    else:
        results = [judge_load(each, index, outcome) for index, each in enumerate(plan.assertions)]
        metadata = describe_outcome(plan, outcome, processes=len(shares))
    report = RunReport(
        plan.name,
        plan.target.label,
        None,
        worst([each.verdict for each in results]),
        results,
        started,
        dt.datetime.now(dt.timezone.utc),
        metadata,
    )
    if history is not None:
        history.record(report)
    return report


def refuse_load(plan: LoadPlan, allow_hosts: Iterable[str] = ()) -> None:
    """Raise what is declared wrongly or not allowed. What else prevents the load is found when it begins."""
    try:
        build_shares(plan, (*plan.allow_hosts, *read_allowed(allow_hosts)))
    except (DeclarationError, HostNotAllowed):
        raise
    except ProbeError:
        return


def build_shares(plan: LoadPlan, allowed: tuple[AllowedHost, ...]) -> list[Share]:
    """The shares of the processes. All that can be found wrong before the first request is found here."""
    target = plan.target.resolved()
    endpoints: tuple[Endpoint, ...]
    if isinstance(target, HttpTarget):
        parts = target.parts
        port = parts.port or (443 if parts.scheme == "https" else 80)
        endpoints = (resolve_allowed(str(parts.hostname), port, allowed, where=plan.where),)
        import_h2() if target.http2 else import_parser()
        if parts.scheme == "https":
            _check_tls(target)
    else:
        from ematix_probe.load.sql_connections import find_endpoints

        endpoints = find_endpoints(target, allowed)
    processes = min(plan.processes, plan.profile.most_processes())
    if plan.profile.model == "open":
        processes = min(processes, plan.max_in_flight)
    return [
        Share(
            target,
            endpoints,
            plan.profile,
            plan.warmup,
            plan.timeout,
            -(-plan.max_in_flight // processes),
            plan.think_time,
            plan.seed,
            number,
            processes,
        )
        for number in range(processes)
    ]


def _check_tls(target: HttpTarget) -> None:
    try:
        tls_context(target)
    except OSError as error:
        raise DeclarationError(f"http(ca_file=): {target.ca_file}: {error}", where=target.where) from None


def merge_results(plan: LoadPlan, results: list[ShareResult]) -> LoadOutcome:
    recorder = results[0].recorder
    for other in results[1:]:
        recorder.add(other.recorder)
    return LoadOutcome(
        recorder,
        plan.profile,
        max(each.elapsed for each in results) / SECOND,
        any(each.interrupted for each in results),
        next((each.ended_early for each in results if each.ended_early), None),
        sum(each.abandoned for each in results),
    )


class _ProgressReports:
    """Joins the snapshots of the processes, and reports when each has sent one."""

    def __init__(self, plan: LoadPlan, processes: int, report: OnProgress | None) -> None:
        self._plan, self._processes, self._report = plan, processes, report
        self._pending: dict[int, Snapshot] = {}
        self._last = 0

    def __call__(self, share: int, snapshot: Snapshot) -> None:
        if self._report is None:
            return
        if share in self._pending:  # another process is late, or has ended
            self._flush()
        self._pending[share] = snapshot
        if len(self._pending) == self._processes:
            self._flush()

    def _flush(self) -> None:
        assert self._report is not None
        newest = max(each.elapsed for each in self._pending.values())
        seconds = (newest - self._last) / SECOND
        self._report(build_progress(self._pending.values(), self._plan.profile, self._plan.warmup, seconds))
        self._last, self._pending = newest, {}
