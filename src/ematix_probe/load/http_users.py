"""The closed model of a load over HTTP: virtual users, each with one request at a time."""

from __future__ import annotations

from ematix_probe.load.answers import Answer
from ematix_probe.load.feeders import OutOfRows
from ematix_probe.load.http_client import CookieJar
from ematix_probe.load.http_sending import HttpSending
from ematix_probe.load.recording import SECOND
from ematix_probe.load.shares import PAUSE_AFTER_REFUSAL, REFUSALS


class HttpUsers(HttpSending):
    """Virtual users: each sends a request, waits for the answer, thinks, and sends the next."""

    def begin(self) -> None:
        most = int(self.share.profile.peak + 0.5)
        self.iterations = self.share.share
        users = range(self.share.share, most, self.share.shares)
        jars = self.target.keep_cookies
        self.loop.call_later((self.end - self.now()) / SECOND, self.stop_starting, self.end)
        for user in users:
            self._next(user, CookieJar() if jars else None)

    def _next(self, user: int, jar: CookieJar | None) -> None:
        now = self.now()
        if self.stopped_at is not None or now >= self.end:
            self.check_end()
            return
        active = self.share.profile.next_activity(user, now / SECOND)
        if active is None:
            return
        wait = round(active * SECOND) - now
        if wait > 0:
            self.loop.call_later(wait / SECOND, self._next, user, jar)
            return
        number = self.iterations
        self.iterations += self.share.shares
        try:
            self.send(number, now, jar, lambda n, answer: self._answered(user, jar, n, answer))
        except OutOfRows as error:
            self.run_out(error)

    def _answered(self, user: int, jar: CookieJar | None, n: int, answer: Answer) -> None:
        pause = self.share.thinking_seconds(n)
        if answer.error in REFUSALS:
            pause = max(pause, PAUSE_AFTER_REFUSAL)
        if pause > 0 and self.stopped_at is None:
            self.loop.call_later(pause, self._next, user, jar)
        else:
            self._next(user, jar)
        self.check_end()
