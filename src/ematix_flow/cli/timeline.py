"""The stages of a run as bars along its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ematix_flow.cli.output import OutputColumn, write_table

_WIDTH = 40
_FULL, _BROKEN = "█", "▒"


def write_timeline(metrics: Mapping[str, Any]) -> bool:
    """One line a stage; false when nothing is known of any."""
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
    """At least one mark wide; one that did not end is drawn broken."""
    begin = min(_WIDTH - 1, int(_WIDTH * float(stage["at"]) / total))
    end = max(begin + 1, round(_WIDTH * (float(stage["at"]) + float(stage["seconds"])) / total))
    return " " * begin + (_FULL if stage.get("ended", True) else _BROKEN) * (end - begin)


def _recorded_stages(metrics: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """As they were recorded; of runs before that was done, one after the other."""
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
