"""Runs the data probes of a pipeline: those before anything is staged, and one among the post-load steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ematix_flow.engine.planning.gates import SKIP_VARIABLE, are_checks_skipped
from ematix_flow.errors import ExpectationFailed
from ematix_flow.graph.registry import DeclaredPipeline
from ematix_flow.spec.redaction import mask

Note = Callable[[str], None]


def run_pre_probes(declared: DeclaredPipeline, note: Note) -> list[Mapping[str, Any]]:
    """Run the probes of ``transforms_pre=`` on their own sources. Raises ExpectationFailed when one fails."""
    spec = declared.spec
    if declared.pre_probes and are_checks_skipped():
        note(f"{SKIP_VARIABLE} is set: the probes {', '.join(spec.probes_pre)} do NOT run")
        return []
    reports = []
    for probe in declared.pre_probes:
        report = probe.run()
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
