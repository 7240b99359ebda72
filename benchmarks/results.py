"""What was measured, as values with a JSON round trip, and what follows from it: best, median, ratios."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Run:
    """One process and its loads. Seconds and bytes are None when it did not get that far."""

    contestant: str
    round: int
    start_seconds: float | None = None  # from the process's start until it is ready to load
    load_seconds: float | None = None  # from there until the rows are committed and visible
    total_seconds: float | None = None  # from the process's start until then
    again_seconds: float | None = None  # a second load in the same process, into another target
    peak_bytes: int | None = None  # until the end of the first load
    problem: str | None = None  # why it is disqualified
    over_limit: bool = False  # it was stopped: it takes longer than the limit
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """All runs of one case, and the circumstances."""

    benchmark: str
    case: str
    title: str
    date: str
    rows: int
    limit_seconds: float
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    commit: str
    runs: tuple[Run, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Result:
        runs = tuple(Run(**{**run, "notes": tuple(run["notes"])}) for run in content["runs"])
        return cls(**{**content, "runs": runs})

    @property
    def contestants(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.contestant for run in self.runs))


@dataclass(frozen=True)
class Standing:
    """One contestant in a case. Without ``best`` it has no time, and ``problem`` or the limit says why."""

    contestant: str
    runs: int
    best: float | None = None
    median: float | None = None
    start: float | None = None
    total: float | None = None
    again: float | None = None
    peak_bytes: int | None = None
    problem: str | None = None
    over_limit: bool = False
    notes: tuple[str, ...] = ()


def standing(result: Result, contestant: str) -> Standing:
    """Best and median over all repetitions; one wrong repetition disqualifies all of them."""
    runs = [run for run in result.runs if run.contestant == contestant]
    notes = tuple(dict.fromkeys(note for run in runs for note in run.notes))
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    problem = next((run.problem for run in runs if run.problem), None)
    if problem or any(run.over_limit for run in runs):
        over = problem is None
        peak = max(peaks, default=None) if over else None
        return Standing(contestant, len(runs), problem=problem, over_limit=over, peak_bytes=peak, notes=notes)
    loads = [run.load_seconds for run in runs if run.load_seconds is not None]
    starts = [run.start_seconds for run in runs if run.start_seconds is not None]
    totals = [run.total_seconds for run in runs if run.total_seconds is not None]
    agains = [run.again_seconds for run in runs if run.again_seconds is not None]
    return Standing(
        contestant,
        len(runs),
        best=min(loads),
        median=statistics.median(loads),
        start=statistics.median(starts),
        total=statistics.median(totals),
        again=min(agains, default=None),
        peak_bytes=max(peaks, default=None),
        notes=notes,
    )


def standings(result: Result) -> list[Standing]:
    """The fastest first; then those stopped at the limit, then the disqualified ones."""
    found = [standing(result, contestant) for contestant in result.contestants]
    return sorted(found, key=lambda s: (s.problem is not None, s.over_limit, s.best or 0.0))


def ratio(standing: Standing, reference: Standing | None) -> float | None:
    """How many times the reference's best time this one took; above 1 is slower."""
    if reference is None or reference.best is None or standing.best is None:
        return None
    return standing.best / reference.best


def save(result: Result, folder: Path) -> Path:
    """As ``<date>-<case>.json``; a second run on the same day replaces the first."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result.date[:10]}-{result.case}.json"
    file.write_text(json.dumps(result.to_json(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return file


def load(file: Path) -> Result:
    return Result.from_json(json.loads(file.read_text(encoding="utf-8")))


def newest(folder: Path) -> list[Result]:
    """The latest result of each case, in the order of the cases' names."""
    latest: dict[str, Result] = {}
    for file in sorted(folder.glob("*.json")):
        result = load(file)
        if result.case not in latest or latest[result.case].date < result.date:
            latest[result.case] = result
    return [latest[case] for case in sorted(latest)]
