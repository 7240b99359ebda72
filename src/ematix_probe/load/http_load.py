"""Runs one process's share of a load over HTTP: arrivals by the clock, or virtual users."""

from __future__ import annotations

import asyncio
from typing import Any

from ematix_probe.load.answers import NOT_STARTED, Answer
from ematix_probe.load.checks import Check, Response
from ematix_probe.load.feeders import OutOfRows
from ematix_probe.load.http_client import CookieJar, HttpClient
from ematix_probe.load.http_requests import RequestRenderer
from ematix_probe.load.http_target import HttpTarget
from ematix_probe.load.recording import SECOND
from ematix_probe.load.shares import (
    FAREWELL,
    PAUSE_AFTER_REFUSAL,
    REFUSALS,
    Publish,
    Ready,
    Share,
    ShareResult,
    StopSignal,
    take_snapshot,
)
from ematix_probe.load.templates import TemplateError
from ematix_probe.load.timer import LoopTimer, clock


def run_http_share(share: Share, ready: Ready, publish: Publish, stop: StopSignal) -> ShareResult:
    """Prepare the share, ask ``ready`` for the time of `clock` at which the load begins, and carry it out."""
    loop = new_loop()
    try:
        kind = _OpenLoad if share.profile.model == "open" else _ClosedLoad
        load = kind(loop, share, publish, stop)
        load.start_at = ready()
        return loop.run_until_complete(load.run())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: it takes half the time of asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made


class _HttpLoad:
    """What both models share: sending, judging of answers, progress, the end."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, share: Share, publish: Publish, stop: StopSignal
    ) -> None:
        self.loop, self.share, self.start_at = loop, share, 0
        self.publish, self.stop_signal = publish, stop
        self.target: HttpTarget = share.target
        self.recorder = share.recorder
        self.end = self.recorder.end
        self.client = HttpClient(loop, self.target, share.endpoints[0], share.timeout)
        self.renderer = RequestRenderer(self.target)
        feeder = self.target.feeder
        self.row_of = None if feeder is None else feeder.open(share.share, share.shares)
        self.constant = self.renderer.constant
        self.has_status_check = self.target.has_status_check
        self.checks = self.target.checks
        self.in_flight = 0
        self.stopped_at: int | None = None
        self.interrupted = False
        self.ended_early: str | None = None
        self.done = asyncio.Event()
        self.failure: BaseException | None = None

    def now(self) -> int:
        return clock() - self.start_at

    async def run(self) -> ShareResult:
        self.loop.set_exception_handler(self._on_failure)
        self.stop_signal.call(self._ask_for_interrupt)
        self.loop.call_later(max(-self.now(), 0) / SECOND, self._begin)
        await self.done.wait()
        abandoned = self.in_flight
        self.client.close()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.recorder.connections = self.client.opened
        elapsed = self.end if self.stopped_at is None else max(min(self.stopped_at, self.end), 0)
        return ShareResult(self.recorder, elapsed, self.interrupted, self.ended_early, abandoned)

    def _on_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault of this program must end the load, not hang it."""
        if isinstance(context.get("exception"), Exception) and self.failure is None:
            self.failure = context["exception"]
            self.done.set()

    def _begin(self) -> None:
        if not self.done.is_set():
            self.loop.call_later(1, self._report, 1)
            self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def _report(self, second: int) -> None:
        if self.done.is_set():
            return
        now = self.now()
        self.publish(take_snapshot(self.recorder, now, self.in_flight, self.waiting(now)))
        following = max(now // SECOND, second) + 1
        self.loop.call_later((following * SECOND - now) / SECOND, self._report, following)

    def waiting(self, now: int) -> int:
        return 0

    def _ask_for_interrupt(self) -> None:
        self.loop.call_soon_threadsafe(self.interrupt)

    def interrupt(self) -> None:
        """Start nothing more, and wait a second for what is in flight."""
        if not self.done.is_set():
            self.interrupted = True
            self.stop_starting()
            self.loop.call_later(FAREWELL / SECOND, self.done.set)

    def stop_starting(self, at: int | None = None) -> None:
        if self.stopped_at is None:
            self.stopped_at = self.now() if at is None else at
        self.check_end()

    def run_out(self, error: OutOfRows) -> None:
        self.ended_early = str(error)
        self.stop_starting()

    def check_end(self) -> None:
        if self.stopped_at is not None and self.in_flight == 0:
            self.done.set()

    def send(self, n: int, intended: int, jar: CookieJar | None, then: Any) -> None:
        """Send request ``n``; ``then(n, answer)`` is called after it was counted."""
        request = self.constant
        if request is None:
            assert self.row_of is not None
            row = self.row_of(n)
            try:
                request = self.renderer.render(row)
            except TemplateError as error:
                answer = Answer(error="template", detail=str(error))
                self.in_flight += 1
                self.loop.call_soon(self._count, n, intended, self.now(), answer, then)
                return
        self.in_flight += 1
        if self.in_flight > self.recorder.most_in_flight:
            self.recorder.most_in_flight = self.in_flight
        started = self.now()
        self.client.send(request, lambda answer: self._count(n, intended, started, answer, then), jar)

    def _count(self, n: int, intended: int, started: int, answer: Answer, then: Any) -> None:
        finished = self.now()
        self.in_flight -= 1
        error, detail = answer.error, answer.detail
        if error is None and (self.checks or not 200 <= answer.status < 300):
            error, detail = self._judge(answer)
        self.recorder.record(intended, started, finished, answer.status, error, detail, answer.size)
        then(n, answer)

    def _judge(self, answer: Answer) -> tuple[str | None, str]:
        if not self.has_status_check and not 200 <= answer.status < 300:
            return f"status {answer.status}", ""
        response = Response(
            answer.status,
            [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in answer.headers],
            answer.body,
        )
        return judge(self.checks, response)


def judge(checks: tuple[Check, ...], answer: Any) -> tuple[str | None, str]:
    """The kind and the words of the first check that the answer fails."""
    for each in checks:
        try:
            failure = each.failure(answer)
        except Exception as error:  # a body that cannot be unpacked
            failure = f"{type(error).__name__}: {error}"
        if failure is not None:
            return f"check: {each.name}", failure
    return None, ""


class _OpenLoad(_HttpLoad):
    """Arrivals by the clock. Their times follow from the profile alone; a stall delays none of them.

    An arrival that finds all places taken waits, and its wait is part of its latency. Those need no
    memory: only the number of the next one is kept.
    """

    def begin(self) -> None:
        self.number = self.share.share
        self.total = self.share.profile.arrivals
        self.blocked = False
        self.timer = LoopTimer(self.loop, self.start_due)
        self.next_time = self._time_of(self.number)
        self.loop.call_later((self.end - self.now()) / SECOND + self.share.timeout, self._give_up_waiting)
        self.start_due()

    def _time_of(self, number: int) -> int:
        return min(round(self.share.profile.arrival_time(number) * SECOND), self.end - 1)

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
            self.next_time = self._time_of(self.number)
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
            self.recorder.record_not_started(
                self._time_of(self.number), now, NOT_STARTED, "no place was free: see max_in_flight="
            )
            self.number += self.share.shares
        self.stop_starting(self.end)

    async def run(self) -> ShareResult:
        try:
            return await super().run()
        finally:
            if hasattr(self, "timer"):
                self.timer.close()


class _ClosedLoad(_HttpLoad):
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
