"""What a run of a probe found: results of assertions, and the report of them all."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["pass", "warn", "fail", "error"]
VERDICTS: tuple[Verdict, ...] = ("pass", "warn", "fail", "error")  # from good to bad


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a run: its worst one; ``pass`` without any."""
    return max(verdicts, key=VERDICTS.index, default="pass")


@dataclass(frozen=True)
class AssertionResult:
    """The result of one assertion.

    ``failing`` and ``checked`` count rows, where the assertion looks at rows. ``measures`` are the figures
    that the verdict rests on, by name (``row_count``, ``null_share``, ``p99`` …): history and drift use them.
    ``samples`` are up to ten failing rows: their key and the columns that the assertion looks at.
    """

    assertion_index: int
    verdict: Verdict
    message: str
    name: str
    kind: str = ""
    failing: int | None = None
    checked: int | None = None
    measures: Mapping[str, float | int | str | None] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()

    @property
    def share(self) -> float | None:
        """The share of the checked rows that failed."""
        if self.failing is None or self.checked is None:
            return None
        return self.failing / self.checked if self.checked else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "share": self.share,
            "measures": {name: as_json(value) for name, value in self.measures.items()},
            "samples": [{name: as_json(value) for name, value in row.items()} for row in self.samples],
        }


@dataclass(frozen=True)
class RunReport:
    """One run of one probe, of data or of load."""

    probe_name: str
    table: str
    schema: str | None
    verdict: Verdict
    assertions: Sequence[AssertionResult]
    started_at: dt.datetime
    finished_at: dt.datetime
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """What was probed, for people: ``schema.table``, a query's text, a URL."""
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def duration_seconds(self) -> float:
        return (self.finished_at - self.started_at).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        return {
            "probe_name": self.probe_name,
            "table": self.table,
            "schema": self.schema,
            "verdict": self.verdict,
            "started_at": self.started_at.isoformat(),
            "finished_at": self.finished_at.isoformat(),
            "duration_seconds": self.duration_seconds,
            "assertions": [each.to_dict() for each in self.assertions],
            "metadata": dict(self.metadata),
        }

    def write_json(self, path: str | Path) -> None:
        """Write this report as one JSON object."""
        from ematix_probe.reports.json_report import write_report

        write_report(self, path)

    def write_junit(self, path: str | Path) -> None:
        write_junit([self], path)


def write_json(reports: Sequence[RunReport], path: str | Path) -> None:
    """Write a JSON list of the reports."""
    from ematix_probe.reports import json_report

    json_report.write_json(reports, path)


def write_junit(reports: Sequence[RunReport], path: str | Path) -> None:
    """Write the reports as JUnit's XML, which CI servers read: a test suite for each, a case an assertion."""
    from ematix_probe.reports import junit

    junit.write_junit(reports, path)


def report_from_dict(value: Mapping[str, Any]) -> RunReport:
    """The report that `RunReport.to_dict` wrote; values of samples stay as JSON holds them."""
    known = {each.name for each in dataclasses.fields(AssertionResult)}
    results = [
        AssertionResult(**{name: each[name] for name in each if name in known})
        for each in value["assertions"]
    ]
    return RunReport(
        value["probe_name"],
        value["table"],
        value["schema"],
        value["verdict"],
        results,
        dt.datetime.fromisoformat(value["started_at"]),
        dt.datetime.fromisoformat(value["finished_at"]),
        value["metadata"],
    )


def as_json(value: Any) -> Any:
    """A value of a row or a measure as JSON holds it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, (dt.date, dt.datetime, dt.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return str(value)
