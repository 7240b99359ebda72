"""Windows in a few lines of Python: what a stream of batches must load, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.spec.windows import Window

Event = tuple[int, Any, int | None]  # event time in microseconds, group, value
Loaded = tuple[int, Any, int, dict[str, Any]]  # window start, group, revision, aggregates


@dataclass
class _Group:
    rows: list[Event] = field(default_factory=list)
    revision: int = 0
    pending: bool = False


@dataclass
class WindowModel:
    window: Window
    lateness_ms: int = 0
    groups: dict[tuple[int, Any], _Group] = field(default_factory=dict)
    highest: int | None = None
    watermark: int | None = None
    late: int = 0

    def batch(self, events: Sequence[Event]) -> list[Loaded]:
        """Lateness is judged by the batches before; windows close by the watermark after this batch."""
        for event in events:
            open_starts = [start for start in self._starts(event[0]) if not self._is_expired(start)]
            self.late += not open_starts
            for start in open_starts:
                group = self.groups.setdefault((start, event[1]), _Group())
                group.rows.append(event)
                group.pending = True
        times = [event[0] for event in events]
        if times:
            self.highest = max([*times, *([] if self.highest is None else [self.highest])])
            behind = self.highest - self.lateness_ms * 1000
            self.watermark = behind if self.watermark is None else max(behind, self.watermark)
        return self._load(flush=False)

    def flush(self) -> list[Loaded]:
        return self._load(flush=True)

    def _load(self, *, flush: bool) -> list[Loaded]:
        loaded: list[Loaded] = []
        for (start, name), group in sorted(self.groups.items(), key=lambda item: str(item[0])):
            passed = self.watermark is not None and start + self._duration <= self.watermark
            if group.pending and (flush or passed):
                loaded.append((start, name, group.revision, aggregates(group.rows)))
                group.revision, group.pending = group.revision + 1, False
        self.groups = {key: group for key, group in self.groups.items() if not self._is_expired(key[0])}
        return loaded

    @property
    def _duration(self) -> int:
        return self.window.duration_ms * 1000

    def _is_expired(self, start: int) -> bool:
        if self.watermark is None:
            return False
        return start + self._duration + self.window.reopens_for * 1000 <= self.watermark

    def _starts(self, at: int) -> Iterator[int]:
        hop = self.window.hop * 1000
        start = at // hop * hop
        while start + self._duration > at:
            yield start
            start -= hop


def aggregates(rows: Sequence[Event]) -> dict[str, Any]:
    filled = sorted((at, value) for at, _, value in rows if value is not None)
    values = [value for _, value in filled]
    return {
        "count": len(rows),
        "count_col": len(values),
        "sum": sum(values) if values else None,
        "avg": sum(values) / len(values) if values else None,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "first": filled[0][1] if filled else None,
        "last": filled[-1][1] if filled else None,
        "count_distinct": len(set(values)),
    }
