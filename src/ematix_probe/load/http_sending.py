"""What both models of a load over HTTP share: sending, judging of answers, progress, the end."""

from __future__ import annotations

import asyncio
from typing import Any

from ematix_probe.load.answers import Answer
from ematix_probe.load.checks import Response, judge
from ematix_probe.load.feeders import OutOfRows
from ematix_probe.load.http_client import CookieJar, HttpClient
from ematix_probe.load.http_requests import RequestRenderer
from ematix_probe.load.http_target import HttpTarget
from ematix_probe.load.loop_timer import clock
from ematix_probe.load.recording import SECOND
from ematix_probe.load.shares import (
    FAREWELL,
    Publish,
    Share,
    ShareResult,
    StopSignal,
    take_snapshot,
)
from ematix_probe.load.templates import TemplateError


class HttpSending:
    """Sends the requests of one share. A subclass says when, from `begin` on."""

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
