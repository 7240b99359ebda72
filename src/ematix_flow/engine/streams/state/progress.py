"""How far event time has come in a stream: of each source, and of all of them together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

NEVER = -(2**62)  # a watermark that closes nothing


@dataclass(frozen=True)
class SourceProgress:
    """One source: its highest event time in microseconds, and whether the others do not wait for it."""

    highest: int | None = None
    is_idle: bool = False

    def after_rows(self, seen: int | None) -> SourceProgress:
        """The progress after a batch with this highest event time; None if it has no rows of the source."""
        if seen is None:
            return self
        return SourceProgress(seen if self.highest is None else max(seen, self.highest))


@dataclass(frozen=True)
class Progress:
    """The progress after a version of the state, in microseconds.

    It is a function of the rows and of recorded ticks alone, so that a repeated batch finds the same one.
    """

    sources: tuple[SourceProgress, ...] = ()
    watermark: int | None = None
    border: int | None = None  # what ends before it takes no more rows

    @property
    def highest(self) -> int | None:
        return max((each.highest for each in self.sources if each.highest is not None), default=None)

    def after_rows(self, highest: Sequence[int | None], lateness: int, retained: int) -> Progress:
        """The progress after a batch with these highest event times, one for each source."""
        known = self.sources or (SourceProgress(),) * len(highest)
        sources = tuple(each.after_rows(seen) for each, seen in zip(known, highest, strict=True))
        return replace(self, sources=sources).advance(lowest_active(sources) - lateness, retained)

    def with_idle(self, idle: Sequence[int]) -> Progress:
        """The same progress, without waiting for these sources until they bring rows again."""
        sources = tuple(
            replace(each, is_idle=each.is_idle or number in idle) for number, each in enumerate(self.sources)
        )
        return replace(self, sources=sources)

    def advance(self, watermark: int, retained: int) -> Progress:
        """The progress at a watermark. ``retained`` is how long a window takes rows after its end.

        Neither watermark nor border ever goes back, also if ``retained`` has grown.
        """
        if watermark < NEVER // 2:
            return self
        watermark = max([watermark, *([] if self.watermark is None else [self.watermark])])
        border = max([watermark - retained, *([] if self.border is None else [self.border])])
        return replace(self, watermark=watermark, border=border)

    def to_text(self) -> str:
        return json.dumps(
            [[[each.highest, each.is_idle] for each in self.sources], self.watermark, self.border]
        )

    @classmethod
    def from_text(cls, text: str) -> Progress:
        sources, watermark, border = json.loads(text)
        return cls(tuple(SourceProgress(*each) for each in sources), watermark, border)


def lowest_active(sources: Sequence[SourceProgress]) -> int:
    """The lowest highest event time of the sources that are not idle; `NEVER` if one has no rows yet."""
    active = [each.highest for each in sources if not each.is_idle]
    if not active or any(highest is None for highest in active):
        return NEVER
    return min(highest for highest in active if highest is not None)
