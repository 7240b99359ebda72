"""The throughput of a load and its remaining time."""

from __future__ import annotations

from collections import deque

from ematix_flow.observe.listener import Progress

_WINDOW_SECONDS = 10.0


class Throughput:
    """Computes the rate of the last seconds from the progress that is recorded."""

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, Progress(0))])
        self._has_rows = False

    def record(self, now: float, reached: Progress) -> None:
        self._samples.append((now, reached))
        if self._has_rows and len(self._samples) > 2 and not self._samples[0][1].rows:
            self._samples.popleft()  # the wait for the first rows does not count
        self._has_rows = reached.rows > 0
        while len(self._samples) > 2 and now - self._samples[1][0] >= _WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def progress(self) -> Progress:
        return self._samples[-1][1]

    @property
    def rows_per_second(self) -> float:
        (then, before), (now, reached) = self._samples[0], self._samples[-1]
        return (reached.rows - before.rows) / max(now - then, 0.001)

    @property
    def bytes_per_second(self) -> float:
        (then, before), (now, reached) = self._samples[0], self._samples[-1]
        return (reached.bytes - before.bytes) / max(now - then, 0.001)

    @property
    def expected_rows(self) -> int | None:
        """The expected number of rows; None once more rows have come than expected."""
        reached = self.progress
        expected = reached.expected_rows
        return expected if expected is not None and reached.rows <= expected else None

    @property
    def seconds_left(self) -> float | None:
        if self.expected_rows is None or self.rows_per_second <= 0:
            return None
        return (self.expected_rows - self.progress.rows) / self.rows_per_second
