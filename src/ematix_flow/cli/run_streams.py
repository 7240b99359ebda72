"""Runs several streams in one process: starts, watches and stops them together, and reports their results."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.output import OutputColumn, format_count, status_column, write_json, write_table
from ematix_flow.cli.signals import stop_requests
from ematix_flow.errors import FlowError

if TYPE_CHECKING:
    from ematix_flow.api.streaming import StreamingPipeline
    from ematix_flow.cli.stream_views import StreamView
    from ematix_flow.streams.running_stream import RunningStream, StreamResult

_POLL_SECONDS = 0.2
_COUNTS = ("total_rows", "iterations", "dead_letters", "restarts")


@dataclass(frozen=True)
class StreamOutcome:
    """How one stream ended: with a result or with an error."""

    name: str
    result: StreamResult | None = None
    error: BaseException | None = None

    @property
    def status(self) -> str:
        if self.result is None:
            return "failed" if self.error is not None else "not run"
        return "stopped" if self.result.shutdown_triggered else "succeeded"

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "status": self.status}
        if self.result is not None:
            found.update(self.result.to_json())
            found["seconds"] = round(self.result.seconds, 3)
        if self.error is not None:
            known = (
                self.error
                if isinstance(self.error, FlowError)
                else FlowError(_unexpected_error_text(self.error))
            )
            found["error"] = known.to_json()
        return found


class _StreamWaiter(threading.Thread):
    """Waits for one stream, so that the main thread can handle signals and the screen."""

    def __init__(self, name: str, running: RunningStream) -> None:
        super().__init__(name=f"wait for {name}", daemon=True)
        self.stream, self.running = name, running
        self.outcome = StreamOutcome(name)

    def run(self) -> None:
        try:
            self.outcome = StreamOutcome(self.stream, self.running.wait(handle_signals=False))
        except BaseException as error:  # the main thread reports it
            self.outcome = StreamOutcome(self.stream, error=error)


def run_streams(
    pipelines: Sequence[StreamingPipeline],
    view: StreamView,
    start: Callable[[StreamingPipeline], RunningStream],
) -> list[StreamOutcome]:
    """Start the streams and wait for all of them. Ctrl-C or SIGTERM stops them after their current batch.

    A stream that fails does not stop the others. If one cannot start, those before it stop, and its error
    is raised.
    """
    waiters: list[_StreamWaiter] = []
    with view.display(), stop_requests(view.note) as asked:
        try:
            for pipeline in pipelines:
                if asked.is_set():
                    break
                waiters.append(_StreamWaiter(pipeline.name, start(pipeline)))
                waiters[-1].start()
        except BaseException:
            _stop_streams(waiters)
            for waiter in waiters:
                waiter.join()
            raise
        _wait_for_streams(waiters, view, asked, tell=len(pipelines) > 1)
    ended = {waiter.stream: waiter.outcome for waiter in waiters}
    return [ended.get(pipeline.name, StreamOutcome(pipeline.name)) for pipeline in pipelines]


def _wait_for_streams(
    waiters: Sequence[_StreamWaiter], view: StreamView, asked: threading.Event, *, tell: bool
) -> None:
    alive, stopped = list(waiters), False
    while alive:
        if asked.is_set() and not stopped:
            stopped = True
            _stop_streams(waiters)
        alive[0].join(_POLL_SECONDS)
        view.tick()
        for waiter in [waiter for waiter in alive if not waiter.is_alive()]:
            alive.remove(waiter)
            if tell and isinstance(waiter.outcome.error, FlowError):
                view.failed(waiter.stream, waiter.outcome.error)


def _stop_streams(waiters: Sequence[_StreamWaiter]) -> None:
    for waiter in waiters:
        waiter.running.stop()


def report_streams(outcomes: Sequence[StreamOutcome], *, as_json: bool, quiet: bool = False) -> int:
    """Write the results to stdout and return the exit code. The error of a single stream is raised."""
    for outcome in outcomes:
        if outcome.error is not None and (len(outcomes) == 1 or not isinstance(outcome.error, FlowError)):
            raise outcome.error
    if as_json:
        found = [outcome.to_json() for outcome in outcomes]
        write_json(found[0] if len(found) == 1 else found)
    elif not quiet:
        write_table(_COLUMNS, [_row(outcome) for outcome in outcomes], stream=sys.stdout)
    return 1 if any(outcome.error is not None for outcome in outcomes) else 0


_COLUMNS = (
    OutputColumn("stream"),
    status_column(),
    OutputColumn("rows", right=True),
    OutputColumn("batches", right=True),
    OutputColumn("dead letters", right=True),
    OutputColumn("restarts", right=True),
    OutputColumn("seconds", right=True),
)


def _row(outcome: StreamOutcome) -> tuple[object, ...]:
    result = outcome.result
    if result is None:
        return (outcome.name, outcome.status, "", "", "", "", "")
    counts = (format_count(getattr(result, key)) for key in _COUNTS)
    return (outcome.name, outcome.status, *counts, f"{result.seconds:.1f}")


def _unexpected_error_text(error: BaseException) -> str:
    return f"unexpected {type(error).__name__}: {error}"
