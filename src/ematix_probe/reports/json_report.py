"""Writes reports as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ematix_probe.redaction import mask_all
from ematix_probe.report import RunReport, as_json
from ematix_probe.reports.files import write_file


def report_json(report: RunReport) -> dict[str, Any]:
    """The report as JSON holds it, masked."""
    found: dict[str, Any] = mask_all(as_json(report.to_dict()))
    return found


def write_report(report: RunReport, path: str | Path) -> None:
    write_file(path, _text(report_json(report)))


def write_json(reports: Sequence[RunReport], path: str | Path) -> None:
    write_file(path, _text([report_json(report) for report in reports]))


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
