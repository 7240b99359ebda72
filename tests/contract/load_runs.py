"""Runs a load probe in a test, and reads its report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ematix_probe import probe
from ematix_probe.report import RunReport


def run_load(target: Any, declare: Callable[[Any], object] | None = None, **options: Any) -> RunReport:
    """The report of a load; without ``declare``, of one that asserts that there was no error."""

    def load(t: Any) -> None:
        (declare or (lambda tester: tester.metric("errors").at_most(0)))(t)

    return probe.load(target=target, **options)(load).run()


def figure(report: RunReport, name: str) -> float:
    value: float = report.metadata["summary"][name]
    return value


def messages(report: RunReport) -> list[str]:
    return [each.message for each in report.assertions]
