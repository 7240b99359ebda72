"""How fast a load goes and how long it will take, in the words of a progress bar."""

from __future__ import annotations

from collections import deque

from ematix_flow.cli.output import size
from ematix_flow.observe.listener import Progress

_WINDOW_SECONDS = 10.0


class Pace:
    """Takes what is reached, as it comes; the rate is that of the last seconds, not of the whole."""

    def __init__(self, now: float) -> None:
        self._marks = deque([(now, Progress(0))])
        self._flows = False

    def take(self, now: float, reached: Progress) -> None:
        self._marks.append((now, reached))
        if self._flows and len(self._marks) > 2 and not self._marks[0][1].rows:
            self._marks.popleft()  # the wait for the first rows says nothing of how fast they come
        self._flows = reached.rows > 0
        while len(self._marks) > 2 and now - self._marks[1][0] >= _WINDOW_SECONDS:
            self._marks.popleft()

    @property
    def reached(self) -> Progress:
        return self._marks[-1][1]

    @property
    def rows_a_second(self) -> float:
        (then, before), (now, reached) = self._marks[0], self._marks[-1]
        return (reached.rows - before.rows) / max(now - then, 0.001)

    @property
    def bytes_a_second(self) -> float:
        (then, before), (now, reached) = self._marks[0], self._marks[-1]
        return (reached.bytes - before.bytes) / max(now - then, 0.001)

    @property
    def expected_rows(self) -> int | None:
        """What the source expects; None once there are more, because it was wrong."""
        reached = self.reached
        expected = reached.expected_rows
        return expected if expected is not None and reached.rows <= expected else None

    @property
    def seconds_left(self) -> float | None:
        if self.expected_rows is None or self.rows_a_second <= 0:
            return None
        return (self.expected_rows - self.reached.rows) / self.rows_a_second

    def words(self) -> str:
        """Most telling first: a narrow terminal cuts the end off."""
        parts = [f"{self.reached.rows:,} rows, {self.rows_a_second:,.0f}/s"]
        if self.seconds_left is not None:
            parts.append(f"{clock(self.seconds_left)} left")
        if self.reached.bytes:
            parts.append(f"{size(self.reached.bytes)}, {size(self.bytes_a_second)}/s")
        return ", ".join(parts)


def clock(seconds: float) -> str:
    """``0:42``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
