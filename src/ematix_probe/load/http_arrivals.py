"""The open model of a load over HTTP: requests arrive by the clock, however slow the answers are."""

from __future__ import annotations

from ematix_probe.load.answers import NOT_STARTED, Answer
from ematix_probe.load.feeders import OutOfRows
from ematix_probe.load.http_sending import HttpSending
from ematix_probe.load.loop_timer import LoopTimer
from ematix_probe.load.recording import SECOND
from ematix_probe.load.shares import ShareResult

NO_PLACE = "no place was free: see max_in_flight="


class HttpArrivals(HttpSending):
    """Arrivals by the clock. Their times follow from the profile alone; a stall delays none of them.

    An arrival that finds all places taken waits, and its wait is part of its latency. Those need no
    memory: only the number of the next one is kept.
    """

    def begin(self) -> None:
        self.number = self.share.share
        self.total = self.share.profile.arrivals
        self.blocked = False
        self.timer = LoopTimer(self.loop, self.start_due)
        self.next_time = self.share.intended_start(self.number, self.end)
        self.loop.call_later((self.end - self.now()) / SECOND + self.share.timeout, self._give_up_waiting)
        self.start_due()

    def start_due(self) -> None:
        """Start all arrivals that are due, as far as there are places, and set the timer for the next."""
        limit = self.share.max_in_flight
        while self.stopped_at is None:
            if self.number >= self.total:
                self.stop_starting(self.end)
                return
            wait = self.next_time - self.now()
            if wait > 0:
                self.blocked = False
                self.timer.wake_in(wait)
                return
            if self.in_flight >= limit:
                self.blocked = True
                return
            number, intended = self.number, self.next_time
            self.number += self.share.shares
            self.next_time = self.share.intended_start(self.number, self.end)
            if self.blocked:
                self.recorder.late += 1
            try:
                self.send(number, intended, None, self._answered)
            except OutOfRows as error:
                self.run_out(error)

    def _answered(self, n: int, answer: Answer) -> None:
        if self.blocked:
            self.start_due()
        self.check_end()

    def waiting(self, now: int) -> int:
        if not self.blocked or self.stopped_at is not None:
            return 0
        due = self.share.profile.arrivals_until(now / SECOND)
        return max(-((self.number - due) // self.share.shares), 0)

    def _give_up_waiting(self) -> None:
        """The load has ended, and some arrivals never got a place."""
        if self.stopped_at is not None:
            return
        now = self.now()
        while self.number < self.total:
            intended = self.share.intended_start(self.number, self.end)
            self.recorder.record_not_started(intended, now, NOT_STARTED, NO_PLACE)
            self.number += self.share.shares
        self.stop_starting(self.end)

    async def run(self) -> ShareResult:
        try:
            return await super().run()
        finally:
            if hasattr(self, "timer"):
                self.timer.close()
