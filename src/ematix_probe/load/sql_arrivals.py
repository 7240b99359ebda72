"""The open model of a load on a database: statements arrive by the clock, however slow the answers are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from ematix_probe.load.recording import SECOND
from ematix_probe.load.sql_sending import SqlSending

POOL = 10


class SqlArrivals(SqlSending):
    """As many threads as connections; each takes the next arrival and waits for its time."""

    def connections(self) -> int:
        return min(self.target.pool or POOL, self.share.max_in_flight)

    def threads(self) -> list[Callable[[], None]]:
        self.numbers = itertools.count(self.share.share, self.share.shares)
        self.taken = 0
        return [self._work] * self.connections()

    def never_begun(self) -> Iterator[int]:
        with self.lock:
            first = next(self.numbers)
        numbers = range(first, self.share.profile.arrivals, self.share.shares)
        return (self.share.intended_start(number, self.end) for number in numbers)

    def _work(self) -> None:
        total = self.share.profile.arrivals
        last_start = self.end + round(self.share.timeout * SECOND)
        while not self.stopping.is_set():
            with self.lock:
                number = next(self.numbers)
                self.taken = max(self.taken, number)
            if number >= total:
                return
            intended = self.share.intended_start(number, self.end)
            now = self.now()
            if now > last_start:
                self.count_not_started(intended)
                continue
            if intended < now:
                with self.lock:
                    self.recorder.late += 1
            elif not self.wait_until(intended):
                return
            # a thread for each connection: one is always free
            self.attempt(intended, self.values(number), self.pool.take(self.share.timeout))

    def waiting(self, now: int) -> int:
        due = self.share.profile.arrivals_until(now / SECOND)
        return max(-((self.taken + 1 - due) // self.share.shares), 0)
