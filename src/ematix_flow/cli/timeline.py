"""Draws the stages of a run as bars on a time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ematix_flow.cli.output import OutputColumn, write_table

_WIDTH = 40
_FULL, _BROKEN = "█", "▒"


def write_timeline(metrics: Mapping[str, Any]) -> bool:
    """Write one line per stage; returns False when no stage is recorded."""
    stages = _recorded_stages(metrics)
    if not stages:
        return False
    total = max(float(stage["at"]) + float(stage["seconds"]) for stage in stages) or 1.0
    rows = [
        (stage["target"], stage["stage"], f"{stage['seconds']:.2f}", _bar(stage, total)) for stage in stages
    ]
    write_table(
        (
            OutputColumn("target"),
            OutputColumn("stage"),
            OutputColumn("seconds", right=True),
            OutputColumn("time"),
        ),
        rows,
    )
    return True


def _bar(stage: Mapping[str, Any], total: float) -> str:
    """The bar of a stage, at least one character wide. A stage that did not end has another pattern."""
    begin = min(_WIDTH - 1, int(_WIDTH * float(stage["at"]) / total))
    end = max(begin + 1, round(_WIDTH * (float(stage["at"]) + float(stage["seconds"])) / total))
    return " " * begin + (_FULL if stage.get("ended", True) else _BROKEN) * (end - begin)


def _recorded_stages(metrics: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The recorded stages. Old runs recorded only durations: their stages are drawn one after the other."""
    found = metrics.get("stages")
    if isinstance(found, list):
        return found
    made: list[dict[str, Any]] = []
    at = 0.0
    for target in metrics.get("targets", ()):
        for stage, seconds in target.get("seconds", {}).items():
            made.append({"target": target.get("target"), "stage": stage, "at": at, "seconds": seconds})
            at += seconds
    return made
