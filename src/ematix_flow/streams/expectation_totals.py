"""What the expectations of a running stream found, summed up over its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.spec.expectations import ExpectationResult

_WORST_LAST = ("pass", "warn", "fail", "error")


class ExpectationTotals:
    """The results by target and rule. Its size depends on the number of rules only."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, ExpectationResult]] = {}

    def add(self, target: str, results: Sequence[ExpectationResult]) -> list[ExpectationResult]:
        """Add the results of a batch. Returns those of rules that fail for the first time."""
        own, first = self._found.setdefault(target, {}), []
        for result in results:
            before = own.get(result.rule)
            own[result.rule] = result if before is None else _sum(before, result)
            if result.verdict != "pass" and (before is None or before.verdict == "pass"):
                first.append(result)
        return first

    def to_json(self) -> list[Mapping[str, Any]]:
        """One entry a target, as a run of a pipeline records them."""
        return [
            {"target": target, "expectations": [each.to_json() for each in own.values()]}
            for target, own in self._found.items()
            if own
        ]


def first_failure_note(target: str, result: ExpectationResult) -> str:
    place = "become dead letters" if result.dead_letters else "go to the quarantine table"
    aside = f", which {place}" if result.quarantined else ""
    return f"{target}: {result}{aside}; later batches are only counted"


def _sum(one: ExpectationResult, other: ExpectationResult) -> ExpectationResult:
    """Both results: all rows together, with the worse verdict and the samples of the earlier failure."""
    worse = max(one, other, key=lambda each: _WORST_LAST.index(each.verdict))
    return replace(
        worse,
        failing=_add(one.failing, other.failing),
        checked=_add(one.checked, other.checked),
        quarantined=one.quarantined + other.quarantined,
        samples=one.samples or other.samples,
    )


def _add(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
