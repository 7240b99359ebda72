"""Runs the data probes of a pipeline: those before anything is staged, and one among the post-load steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ematix_flow.engine.planning.gates import SKIP_VARIABLE, are_checks_skipped
from ematix_flow.errors import ExpectationFailed
from ematix_flow.graph.registry import DeclaredPipeline
from ematix_probe.redaction import mask

Note = Callable[[str], None]
_log = logging.getLogger(__name__)


def run_pre_probes(declared: DeclaredPipeline, note: Note) -> list[Mapping[str, Any]]:
    """Run the probes of ``transforms_pre=`` on their own sources. Raises ExpectationFailed when one fails."""
    spec = declared.spec
    if declared.pre_probes and are_checks_skipped():
        note(f"{SKIP_VARIABLE} is set: the probes {', '.join(spec.probes_pre)} do NOT run")
        return []
    reports = []
    for probe in declared.pre_probes:
        report = run_probe(probe)
        reports.append(report_json(report))
        problems = describe_problems(report)
        if report.verdict in ("fail", "error"):
            raise ExpectationFailed(
                f"the probe {report.probe_name!r} fails, which runs before the load: {problems}",
                where=spec.where,
                state="nothing was loaded; the target is unchanged",
                next_step=f"correct what it looks at, {report.subject}; then  flow run {spec.name}",
            )
        if problems:
            note(f"the probe {report.probe_name!r} warns: {problems}")
    return reports


def run_probe(probe: Any) -> Any:
    """The report of a data probe; its history is the one that ``EMATIX_PROBE_HISTORY`` names, if any.

    When the run cannot be recorded, its results count all the same, and a warning is logged.
    """
    from ematix_probe.errors import ProbeError
    from ematix_probe.history.forgiving import ForgivingHistory
    from ematix_probe.history.given import history_of_environment

    try:
        history = history_of_environment()
    except ProbeError as error:
        raise ExpectationFailed(
            f"the history of probes cannot be used: {error.what}",
            state="no probe ran",
            next_step=error.next_step or "correct EMATIX_PROBE_HISTORY",
        ) from None
    if history is None:
        return probe.run()
    forgiving = ForgivingHistory(history)
    report = probe.run(history=forgiving)
    for name, problem in forgiving.errors:
        _log.warning("the run of the probe %r is not recorded: %s", name, problem.what)
    return report


def report_json(report: Any) -> Mapping[str, Any]:
    """The report of a probe for results and the run log, without samples of rows."""
    found = report.to_dict()
    for each in found["assertions"]:
        each.pop("samples", None)
    return dict(found)


def describe_problems(report: Any) -> str:
    """The assertions that do not pass, as one line; empty if all pass."""
    problems: Sequence[Any] = [each for each in report.assertions if each.verdict != "pass"]
    return mask("; ".join(f"{each.name}: {each.message}" for each in problems))
