"""A join in a few lines of Python: what a stream of batches must load, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.spec.joins import Join

Event = tuple[int, int, Any, int]  # 0 of the left, 1 of the right source; event time in µs; key; row number
Joined = tuple[int | None, int | None]  # row numbers of the left and of the right row


@dataclass
class _Row:
    at: int
    key: Any
    number: int
    matched: bool = False


@dataclass
class JoinModel:
    join: Join
    lateness_ms: int = 0
    rows: tuple[list[_Row], list[_Row]] = field(default_factory=lambda: ([], []))
    highest: list[int | None] = field(default_factory=lambda: [None, None])
    watermark: int | None = None
    late: list[int] = field(default_factory=list)  # of the last batch

    def batch(self, events: Sequence[Event]) -> list[Joined]:
        """A row finds all partners of this batch, and those that still wait. Nothing else makes it late."""
        border, new = self.border, ([], [])  # type: tuple[int | None, tuple[list[_Row], list[_Row]]]
        for side, at, key, number in events:
            new[side].append(_Row(at, key, number))
        pairs: list[Joined] = []
        for left in (*self.rows[0], *new[0]):
            for right in (*self.rows[1], *new[1]):
                if (left in new[0] or right in new[1]) and self._is_pair(left, right):
                    left.matched = right.matched = True
                    pairs.append((left.number, right.number))
        self.late = []
        for side in (0, 1):
            for row in new[side]:
                is_behind = border is not None and row.at < border and self._has_ended(side, row, border)
                is_late = is_behind and not row.matched and row.key is not None
                if is_late:
                    self.late.append(row.number)
                if not (is_late and self.join.late_data == "dlq"):
                    self.rows[side].append(row)
        for side, at, _, _ in events:
            known = self.highest[side]
            self.highest[side] = at if known is None else max(at, known)
        left_highest, right_highest = self.highest
        if events and left_highest is not None and right_highest is not None:
            self.advance(min(left_highest, right_highest) - self.lateness_ms * 1000)
        return [*pairs, *self.remove_ended()]

    def advance(self, watermark: int) -> None:
        self.watermark = watermark if self.watermark is None else max(watermark, self.watermark)

    def remove_ended(self) -> list[Joined]:
        """The rows without a partner that no partner can find any more."""
        alone: list[Joined] = []
        for side, kept in ((0, self.join.keeps_left), (1, self.join.keeps_right)):
            gone = [
                row for row in self.rows[side] if row.key is None or self._has_ended(side, row, self.border)
            ]
            self.rows[side][:] = [row for row in self.rows[side] if row not in gone]
            numbers = [row.number for row in gone if kept and not row.matched]
            alone += [(number, None) if side == 0 else (None, number) for number in numbers]
        return alone

    @property
    def border(self) -> int | None:
        return None if self.watermark is None else self.watermark - self.join.reopens_for * 1000

    def _is_pair(self, left: _Row, right: _Row) -> bool:
        delta = right.at - left.at
        near = self.join.min_delta * 1000 <= delta <= self.join.max_delta * 1000
        return near and left.key is not None and left.key == right.key

    def _has_ended(self, side: int, row: _Row, border: int | None) -> bool:
        last = row.at + self.join.max_delta * 1000 if side == 0 else row.at - self.join.min_delta * 1000
        return border is not None and last < border
