"""Counts what a load did: histograms, errors by kind, statuses, a row a second. Bounded for any duration.

All times are nanoseconds since the load began. An attempt belongs to the warm-up or to the measured time,
and to a row of the series, by its intended start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ematix_probe.load.histogram import COARSE_SHIFT, Histogram
from ematix_probe.redaction import mask

SECOND = 1_000_000_000
MOST_ROWS = 600  # of the series: beyond, a row stands for 2, 4, 8 … seconds
MOST_KINDS = 50  # of errors
OTHER_KIND = "other errors"
MESSAGES_OF_A_KIND = 3


class SeriesRow:
    """One stretch of the series. ``cells`` counts latencies in coarse cells."""

    __slots__ = ("attempts", "cells", "completed", "errors", "highest", "started")

    def __init__(self) -> None:
        self.attempts = self.errors = self.completed = self.started = self.highest = 0
        self.cells: dict[int, int] = {}

    def add(self, other: SeriesRow) -> None:
        self.attempts += other.attempts
        self.errors += other.errors
        self.completed += other.completed
        self.started += other.started
        self.highest = max(self.highest, other.highest)
        for cell, count in other.cells.items():
            self.cells[cell] = self.cells.get(cell, 0) + count

    def to_json(self) -> list[Any]:
        counts = [self.attempts, self.errors, self.completed, self.started, self.highest]
        return [*counts, sorted(self.cells.items())]

    @classmethod
    def from_json(cls, value: list[Any]) -> SeriesRow:
        row = cls()
        row.attempts, row.errors, row.completed, row.started, row.highest = value[:5]
        row.cells = {cell: count for cell, count in value[5]}
        return row


class Recorder:
    """The counts of one process; `add` merges those of another."""

    def __init__(self, begin: int, end: int) -> None:
        """``begin``: the end of the warm-up. ``end``: the end of the load."""
        self.begin, self.end = begin, end
        self.latency = Histogram()  # of good answers, from the intended start
        self.service = Histogram()  # of good answers, from the real start
        self.failed_latency = Histogram()
        self.start_delay = Histogram()
        self.statuses: dict[int, int] = {}
        self.errors: dict[str, int] = {}
        self.messages: dict[str, list[str]] = {}
        self.attempts = 0
        self.failures = 0
        self.started = 0  # before the end
        self.completed = 0  # before the end, and after the warm-up
        self.late = 0  # starts that had to wait for a free place
        self.not_started = 0
        self.warmup_attempts = 0
        self.size = 0
        self.most_in_flight = 0
        self.connections = 0
        self.row_seconds = 1
        self.rows: list[SeriesRow] = []
        self.recent = RecentCounts()

    def record(
        self,
        intended: int,
        started: int,
        finished: int,
        status: int,
        error: str | None,
        detail: str,
        size: int,
    ) -> None:
        """Count one attempt that ended."""
        recent = self.recent
        recent.completed += 1
        rows, row_time = self.rows, SECOND * self.row_seconds
        in_time = finished < self.end
        last = (finished if in_time else self.end - 1) // row_time
        if last >= len(rows):
            self._grow(last)
            rows, row_time = self.rows, SECOND * self.row_seconds
        row = rows[intended // row_time]
        row.attempts += 1
        if in_time:
            rows[finished // row_time].completed += 1
        if started < self.end:
            rows[started // row_time].started += 1
        latency = finished - intended
        measured = intended >= self.begin
        if error is None:
            if measured:
                cell = self.latency.record(latency) >> COARSE_SHIFT
                self.service.record(finished - started)
            else:
                shift = latency.bit_length() - 11
                cell = (latency if shift <= 0 else (shift << 10) + (latency >> shift)) >> COARSE_SHIFT
            row.cells[cell] = row.cells.get(cell, 0) + 1
            if latency > row.highest:
                row.highest = latency
            recent.cells[cell] = recent.cells.get(cell, 0) + 1
        else:
            row.errors += 1
            recent.errors += 1
            if measured:
                self._count_error(error, detail)
                self.failed_latency.record(latency)
        if in_time and finished >= self.begin:
            self.completed += 1
        if not measured:
            self.warmup_attempts += 1
            return
        self.attempts += 1
        if started < self.end:
            self.started += 1
        self.start_delay.record(started - intended)
        self.size += size
        if status:
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def record_not_started(self, intended: int, until: int, kind: str, detail: str) -> None:
        """Count an arrival that was due and could not be started before the load had to end."""
        self._grow(intended // (SECOND * self.row_seconds))
        row = self.rows[intended // (SECOND * self.row_seconds)]
        row.attempts += 1
        row.errors += 1
        self.recent.errors += 1
        if intended < self.begin:
            self.warmup_attempts += 1
            return
        self.attempts += 1
        self.not_started += 1
        self._count_error(kind, detail)
        self.failed_latency.record(until - intended)

    def _count_error(self, kind: str, detail: str) -> None:
        self.failures += 1
        if kind not in self.errors and len(self.errors) >= MOST_KINDS:
            kind = OTHER_KIND
        self.errors[kind] = self.errors.get(kind, 0) + 1
        if detail:
            known = self.messages.setdefault(kind, [])
            if len(known) < MESSAGES_OF_A_KIND and (text := mask(detail)[:300]) not in known:
                known.append(text)

    def _grow(self, number: int) -> None:
        """Make room for a row; join each two rows into one when there are too many."""
        while number >= MOST_ROWS:
            self._join_pairs()
            number //= 2
        while len(self.rows) <= number:
            self.rows.append(SeriesRow())

    def _join_pairs(self) -> None:
        joined = []
        for even in range(0, len(self.rows), 2):
            row = self.rows[even]
            if even + 1 < len(self.rows):
                row.add(self.rows[even + 1])
            joined.append(row)
        self.rows = joined
        self.row_seconds *= 2

    def add(self, other: Recorder) -> None:
        """Take in the counts of another process."""
        for name in ("latency", "service", "failed_latency", "start_delay"):
            getattr(self, name).add(getattr(other, name))
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for status, count in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + count
        for kind, count in other.errors.items():
            if kind not in self.errors and len(self.errors) >= MOST_KINDS:
                kind = OTHER_KIND
            self.errors[kind] = self.errors.get(kind, 0) + count
        for kind, texts in other.messages.items():
            known = self.messages.setdefault(kind, [])
            known += [text for text in texts if text not in known][: MESSAGES_OF_A_KIND - len(known)]
        while self.row_seconds < other.row_seconds:
            self._join_pairs()
        while other.row_seconds < self.row_seconds:
            other._join_pairs()
        self._grow(len(other.rows) - 1)
        for row, added in zip(self.rows, other.rows, strict=False):
            row.add(added)

    def to_json(self) -> dict[str, Any]:
        return {
            "begin": self.begin,
            "end": self.end,
            **{name: getattr(self, name).to_json() for name in _HISTOGRAMS},
            **{name: getattr(self, name) for name in _COUNTS},
            "statuses": sorted(self.statuses.items()),
            "errors": self.errors,
            "messages": self.messages,
            "row_seconds": self.row_seconds,
            "rows": [row.to_json() for row in self.rows],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Recorder:
        made = cls(value["begin"], value["end"])
        for name in _HISTOGRAMS:
            setattr(made, name, Histogram.from_json(value[name]))
        for name in _COUNTS:
            setattr(made, name, value[name])
        made.statuses = {status: count for status, count in value["statuses"]}
        made.errors, made.messages = dict(value["errors"]), dict(value["messages"])
        made.row_seconds = value["row_seconds"]
        made.rows = [SeriesRow.from_json(row) for row in value["rows"]]
        return made


_HISTOGRAMS = ("latency", "service", "failed_latency", "start_delay")
_COUNTS = (
    "attempts",
    "failures",
    "started",
    "completed",
    "late",
    "not_started",
    "warmup_attempts",
    "size",
    "most_in_flight",
    "connections",
)


class RecentCounts:
    """What happened since the last snapshot."""

    __slots__ = ("cells", "completed", "errors")

    def __init__(self) -> None:
        self.completed = self.errors = 0
        self.cells: dict[int, int] = {}
