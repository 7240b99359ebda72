"""Runs a stream in its own thread, stops it after a batch, and returns what it has done."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.engine.streams.stream_runner import build_stream_plan
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.observe.metrics_server import MetricsServer
from ematix_flow.observe.observer import Observers
from ematix_flow.observe.settings import Observability, open_observers
from ematix_flow.observe.stream_listener import StreamListener
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.run import signal_handlers
from ematix_flow.run.context_setup import spark_starter
from ematix_flow.run.pipeline import open_connections
from ematix_flow.run.worker_pool import stream_jar_groups
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.state.runlog.base import RunLog, project_run_log
from ematix_flow.streams.run_options import StreamRunOptions
from ematix_flow.streams.stream_stores import StreamStores
from ematix_flow.streams.supervised_stream import SupervisedStream

if TYPE_CHECKING:
    from ematix_flow.engine.spark.settings import EngineSettings

_COUNTS = (
    *("total_rows", "rows_read", "iterations", "dead_letters", "dropped", "quarantined", "empty", "late"),
    "restarts",
)


@dataclass(frozen=True)
class StreamResult:
    """What a stream did until it ended. It also works as a mapping: ``result["total_rows"]``."""

    name: str
    total_rows: int  # written to targets, counted once per target
    rows_read: int
    iterations: int
    shutdown_triggered: bool
    dead_letters: int
    dropped: int  # unreadable messages that transform_on_error="drop" ignored
    quarantined: int  # rows that failed an expectation and were set aside
    empty: int  # messages without a payload, which produce no row
    late: int  # rows of windows that were already loaded, or of joins after their partners
    restarts: int
    seconds: float

    def __getitem__(self, key: str) -> Any:
        try:
            return self.to_json()[key]
        except KeyError:
            raise KeyError(key) from None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class RunningStream:
    """A stream that runs in this process."""

    def __init__(self, name: str, run: Callable[[RunningStream], None], watch: StreamListener) -> None:
        self.name, self.watch = name, watch
        self.stop_requested = threading.Event()
        self._failure: BaseException | None = None
        self._started = time.monotonic()
        self.counts: dict[str, int] = dict.fromkeys(_COUNTS, 0)
        self._was_stopped = False
        self._seconds: float | None = None
        self._thread = threading.Thread(
            target=self._run, args=(run,), name=f"ematix-flow stream {name}", daemon=True
        )
        self._thread.start()

    def _run(self, run: Callable[[RunningStream], None]) -> None:
        try:
            run(self)
        except BaseException as error:
            self._failure = error
        finally:
            self._seconds = time.monotonic() - self._started

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop the stream after the current batch. Returns at once; call `wait` to wait for the end."""
        self._was_stopped = self._was_stopped or self.is_running
        self.stop_requested.set()

    def wait(self, timeout: float | None = None, *, handle_signals: bool = False) -> StreamResult:
        """Wait until the stream has ended, or for ``timeout`` seconds. Raises the error that ended it.

        With ``handle_signals`` SIGTERM and Ctrl-C stop it after the current batch; a second one at once.
        """
        with signal_handlers.handle_signals(self._stop_on_signal) if handle_signals else nullcontext():
            deadline = None if timeout is None else time.monotonic() + timeout
            while self._thread.is_alive() and (deadline is None or time.monotonic() < deadline):
                self._thread.join(0.2)
        if self._failure is not None:
            raise self._failure
        return self.result()

    def _stop_on_signal(self, number: int, frame: object) -> None:
        if self.stop_requested.is_set():
            raise KeyboardInterrupt
        self.stop()

    def result(self) -> StreamResult:
        """Return what the stream has done so far."""
        seconds = self._seconds if self._seconds is not None else time.monotonic() - self._started
        return StreamResult(
            name=self.name, shutdown_triggered=self._was_stopped, seconds=seconds, **self.counts
        )

    def add_counts(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] += count


def plan_stream(
    spec: StreamSpec, registry: Registry, *, engine: str | EngineSettings | None = None
) -> StreamPlan:
    """Return the plan of a stream. Changes nothing."""
    with use_registry(registry):
        return build_stream_plan(spec, open_connections(spark_starter(engine)), stream_folder_for(spec))


def start_stream(
    spec: StreamSpec,
    registry: Registry,
    options: StreamRunOptions,
    *,
    metrics: StreamMetrics | None = None,
    observers: Observers | None = None,
    together_with: Iterable[StreamSpec] = (),
) -> RunningStream:
    """Start the stream in its own thread.

    Streams that run together in one process share ``metrics`` and ``observers``. Spark starts with the jars
    of this stream and of the streams in ``together_with``.
    """
    policy = options.restart_policy()
    listener = options.watch or StreamListener()
    stream_metrics = metrics or StreamMetrics()
    if observers is None:
        Observability.resolve(os.environ).check()
    server = stream_metrics.serve(options.metrics_port) if options.metrics_port is not None else None

    def run(running: RunningStream) -> None:
        with (
            _close_server_after(server),
            use_registry(registry),
            open_run_log(options.run_log or project_run_log(os.environ), env=os.environ) as log,
            _open_observers(observers, log, stream_metrics) as run_observers,
        ):
            jars = stream_jar_groups(registry, together_with)
            stores = StreamStores.at(options.run_log or project_run_log(os.environ))
            SupervisedStream(
                spec, running, options, stream_metrics, log, run_observers, stores, jars
            ).run_supervised(policy)

    return RunningStream(spec.name, run, listener)


def run_stream(spec: StreamSpec, registry: Registry, options: StreamRunOptions) -> StreamResult:
    """Run the stream until it ends. SIGTERM and Ctrl-C stop it after the current batch."""
    return start_stream(spec, registry, options).wait(handle_signals=True)


@contextmanager
def _open_observers(given: Observers | None, log: RunLog, metrics: StreamMetrics) -> Iterator[Observers]:
    """Return the given observers, or else open this stream's own from the settings."""
    if given is not None:
        yield given
        return
    with open_observers(Observability.resolve(os.environ), log, [metrics.registry]) as observers:
        yield observers


@contextmanager
def _close_server_after(server: MetricsServer | None) -> Iterator[None]:
    try:
        yield
    finally:
        if server is not None:
            server.close()
