"""Sessions in a few lines of Python: what a stream of batches must load, and when."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.engine.streams.state.stateful_operator import state_version
from ematix_flow.spec.windows import Window
from tests.property.window_model import Event, aggregates

# id, first event, end, group, revision, aggregates, id of the session that took its rows
Loaded = tuple[str, int, int, Any, int, dict[str, Any] | None, str | None]


@dataclass
class _Session:
    rows: list[Event]
    id: str | None = None
    revision: int = 0
    pending: bool = True

    @property
    def first(self) -> int:
        return min(row[0] for row in self.rows)

    @property
    def last(self) -> int:
        return max(row[0] for row in self.rows)


@dataclass
class SessionModel:
    window: Window
    lateness_ms: int = 0
    groups: dict[Any, list[_Session]] = field(default_factory=dict)
    highest: int | None = None
    watermark: int | None = None
    late: int = 0
    batches: int = 0

    def batch(self, events: Sequence[Event]) -> list[Loaded]:
        """Lateness is judged by the batches before; sessions close by the watermark after this batch."""
        accepted = [event for event in events if not self._is_late(event)]
        self.late += len(events) - len(accepted)
        withdrawn: list[Loaded] = []
        for group in {event[1] for event in accepted}:
            withdrawn += self._add(group, [event for event in accepted if event[1] == group])
        if events:
            times = [event[0] for event in events]
            self.highest = max([*times, *([] if self.highest is None else [self.highest])])
            behind = self.highest - self.lateness_ms * 1000
            self.watermark = behind if self.watermark is None else max(behind, self.watermark)
        self.batches += 1
        return [*withdrawn, *self._load({row[-1] for row in withdrawn}, flush=False)]

    def flush(self) -> list[Loaded]:
        return self._load(set(), flush=True)

    def _add(self, group: Any, events: Sequence[Event]) -> list[Loaded]:
        stored = self.groups.get(group, [])
        pieces = [each for each in stored if not self._is_expired(each.last)]
        kept = [each for each in stored if self._is_expired(each.last)]
        for at in {event[0] for event in events}:
            pieces.append(_Session([event for event in events if event[0] == at]))
        pieces.sort(key=lambda each: (each.first, each.last, each.id is None, each.id or ""))
        parts: list[list[_Session]] = []
        first = last = 0
        for piece in pieces:
            joined = parts and piece.first - last < self._gap
            if joined and max(last, piece.last) - first <= self._longest:
                parts[-1].append(piece)
                last = max(last, piece.last)
            else:
                parts.append([piece])
                first, last = piece.first, piece.last
        withdrawn: list[Loaded] = []
        for part in parts:
            known = sorted((each for each in part if each.id), key=lambda each: (each.first, each.id))
            if len(part) == 1 and known:  # nothing came
                kept += part
                continue
            merged = _Session([row for each in part for row in each.rows])
            version = state_version(self.batches)  # sessions may begin at the same time one after the other
            named = json.dumps([group, merged.first, version], separators=(",", ":"))
            merged.id = known[0].id if known else hashlib.md5(named.encode()).hexdigest()
            merged.revision = known[0].revision if known else 0
            kept.append(merged)
            for each in known[1:]:
                if each.revision:
                    assert each.id is not None
                    end = each.last + self._gap
                    withdrawn.append((each.id, each.first, end, group, each.revision, None, merged.id))
        self.groups[group] = kept
        return withdrawn

    def _load(self, grown: set[str | None], *, flush: bool) -> list[Loaded]:
        """``grown`` are the ids of sessions that took the rows of loaded ones: both change in one load."""
        loaded: list[Loaded] = []
        for group, sessions in self.groups.items():
            for each in sessions:
                end = each.last + self._gap
                passed = self.watermark is not None and end <= self.watermark
                if each.pending and (flush or passed or each.id in grown):
                    assert each.id is not None
                    values = aggregates(each.rows)
                    loaded.append((each.id, each.first, end, group, each.revision, values, None))
                    each.revision, each.pending = each.revision + 1, False
            self.groups[group] = [each for each in sessions if not self._is_expired(each.last, 2)]
        return loaded

    def _is_late(self, event: Event) -> bool:
        at, group, _ = event
        near = [
            each for each in self.groups.get(group, []) if each.first - self._gap < at < each.last + self._gap
        ]
        for each in near:
            fits = max(at, each.last) - min(at, each.first) <= self._longest
            if fits and not self._is_expired(each.last):
                return False
        return self._is_expired(at) or bool(near)

    def _is_expired(self, last: int, gaps: int = 1) -> bool:
        if self.watermark is None:
            return False
        return last + gaps * self._gap + self.window.reopens_for * 1000 <= self.watermark

    @property
    def _gap(self) -> int:
        return (self.window.gap_ms or 0) * 1000

    @property
    def _longest(self) -> int:
        return (self.window.max_session_duration_ms or 0) * 1000
