"""Shows what expectations found: a table of the rules, and samples of the rows that fail them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from ematix_flow.cli.output import OutputColumn, format_count, render_table
from ematix_probe.control_characters import mask_and_escape

_COLUMNS = (
    OutputColumn("target"),
    OutputColumn("expectation"),
    OutputColumn("else"),
    OutputColumn("verdict"),
    OutputColumn("failing", right=True),
    OutputColumn("checked", right=True),
    OutputColumn("quarantined", right=True),
)
_MOST_SAMPLES = 3


def expectations_text(targets: Sequence[Mapping[str, Any]], *, stream: TextIO) -> str:
    """The table for targets as a run's result or its record has them; empty without expectations."""
    found = [(target, each) for target in targets for each in target.get("expectations") or ()]
    if not found:
        return ""
    rows = [
        (
            target.get("target", ""),
            each["rule"],
            each["action"],
            each["verdict"],
            format_count(each["failing"]),
            format_count(each["checked"]),
            format_count(each["quarantined"] or None),
        )
        for target, each in found
    ]
    passed = sum(each["verdict"] == "pass" for _, each in found)
    lines = [f"expectations: {passed} of {len(found)} pass", render_table(_COLUMNS, rows, stream=stream)]
    for _, each in found:
        if each["verdict"] == "pass":
            continue
        if each["failing"] is None and each["message"]:
            lines.append(f"  {mask_and_escape(each['rule'])}: {_message(each)}")
        for sample in (each["samples"] or ())[:_MOST_SAMPLES]:
            shown = ", ".join(f"{mask_and_escape(name)}={value!r}" for name, value in sample.items())
            lines.append(f"  {mask_and_escape(each['rule'])} fails for {shown}")
    return "\n".join(lines)


def probes_text(reports: Sequence[Mapping[str, Any]]) -> str:
    """One line for each data probe of a run, and one for each of its assertions that does not pass."""
    lines = []
    for report in reports:
        found = report["assertions"]
        passed = sum(each["verdict"] == "pass" for each in found)
        name = mask_and_escape(report["probe_name"])
        lines.append(f"probe {name}: {report['verdict']}, {passed} of {len(found)} pass")
        lines += [
            f"  {each['verdict']}  {mask_and_escape(each['name'])}: {_message(each)}"
            for each in found
            if each["verdict"] != "pass"
        ]
    return "\n".join(lines)


def _message(result: Mapping[str, Any]) -> str:
    return mask_and_escape(str(result["message"]), keep="\n").replace("\n", "\n    ")
