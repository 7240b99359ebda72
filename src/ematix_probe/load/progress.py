"""The progress of a running load: a small value each second, and two ways to show it.

`LiveProgress` redraws one line on a terminal with rich; `PlainProgress` writes a line now and then elsewhere.
Both are called with a `LoadProgress` and are context managers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TextIO

from ematix_probe.duration import format_duration
from ematix_probe.load.histogram import coarse_upper_end, nearest_rank, value_at_rank
from ematix_probe.load.profile import LoadProfile
from ematix_probe.load.recording import SECOND
from ematix_probe.load.shares import Snapshot

Phase = Literal["warm-up", "measuring", "finishing"]


@dataclass(frozen=True)
class LoadProgress:
    """How a load stands. Rate and latencies are those of the last second."""

    elapsed: float
    duration: float
    phase: Phase
    target: float  # the rate of arrivals, or the number of users, that is meant now
    model: Literal["open", "closed"]
    rate: float  # answers a second
    p50_ms: float | None
    p99_ms: float | None
    errors: int  # of the measured time so far
    attempts: int
    in_flight: int
    waiting: int  # arrivals that are due and have no place

    @property
    def share_done(self) -> float:
        return min(self.elapsed / self.duration, 1.0) if self.duration else 1.0

    def line(self) -> str:
        """The progress in one line."""
        target = f"/{self.target:,.0f} req/s" if self.model == "open" else f" req/s, {self.target:,.0f} users"
        parts = [
            f"{format_duration(round(self.elapsed, 1))} of {format_duration(self.duration)}",
            self.phase,
            f"{self.rate:,.0f}{target}",
            f"p50 {_ms(self.p50_ms)}, p99 {_ms(self.p99_ms)}",
            f"{self.errors:,} errors of {self.attempts:,}",
            f"{self.in_flight:,} in flight",
        ]
        if self.waiting:
            parts.append(f"{self.waiting:,} waiting")
        return " · ".join(parts)


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def build_progress(
    snapshots: Iterable[Snapshot], profile: LoadProfile, warmup: float, seconds: float
) -> LoadProgress:
    """The progress of all processes together; ``seconds`` have passed since the last one."""
    listed = list(snapshots)
    cells: dict[int, int] = {}
    for snapshot in listed:
        for cell, count in snapshot.cells:
            cells[cell] = cells.get(cell, 0) + count
    count = sum(cells.values())

    def percentile(p: float) -> float | None:
        return coarse_upper_end(value_at_rank(cells, nearest_rank(p, count))) / 1e6 if count else None

    elapsed = max(snapshot.elapsed for snapshot in listed) / SECOND
    phase: Phase = "measuring"
    if elapsed >= profile.seconds:
        phase = "finishing"
    elif elapsed < warmup:
        phase = "warm-up"
    return LoadProgress(
        elapsed=elapsed,
        duration=profile.seconds,
        phase=phase,
        target=profile.level(elapsed),
        model=profile.model,
        rate=sum(each.completed for each in listed) / seconds if seconds > 0 else 0.0,
        p50_ms=percentile(0.5),
        p99_ms=percentile(0.99),
        errors=sum(each.all_errors for each in listed),
        attempts=sum(each.all_attempts for each in listed),
        in_flight=sum(each.in_flight for each in listed),
        waiting=sum(each.waiting for each in listed),
    )


class PlainProgress:
    """A line each ``every`` seconds, for logs."""

    def __init__(self, name: str, file: TextIO | None = None, every: float = 10.0) -> None:
        self._name, self._file, self._every = name, file, every
        self._next = 0.0

    def __call__(self, progress: LoadProgress) -> None:
        if progress.elapsed < self._next:
            return
        self._next = progress.elapsed + self._every - 0.5
        print(f"{self._name}: {progress.line()}", file=self._file or sys.stderr, flush=True)

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class LiveProgress:
    """A bar and the figures of the last second, redrawn in place."""

    def __init__(self, name: str, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.fields[name]}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[line]}", markup=False),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("", total=1.0, name=name, line="starting")

    def __call__(self, progress: LoadProgress) -> None:
        self._progress.update(self._task, completed=progress.share_done, line=progress.line())

    def __enter__(self) -> LiveProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def progress_for(name: str, file: TextIO | None = None) -> LiveProgress | PlainProgress:
    """What suits the stream, which is the standard error: a live line on a terminal, else plain lines."""
    stream = file or sys.stderr
    if stream.isatty():
        from rich.console import Console

        return LiveProgress(name, Console(file=stream))
    return PlainProgress(name, stream)
