"""Runs several pieces of work in parallel in this process; one Ctrl-C ends them all.

With one worker the caller's own thread does the work. More workers are threads that share one Spark. Python
delivers Ctrl-C to the main thread, which passes it on to each worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Generic, TypeVar

from ematix_flow.backends.registry import open_backend
from ematix_flow.engine.spark.session import cancel_jobs
from ematix_flow.errors import FlowError, Interrupted
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.graph.registry import Registry, use_registry
from ematix_flow.run.run_context import RunContext
from ematix_flow.spec.pipelines import ConnectionRef
from ematix_flow.spec.streams import StreamSpec

T = TypeVar("T")


class WorkerPool(Generic[T]):
    """Used by one thread, which starts work while there is room and waits for the next result."""

    def __init__(self, workers: int) -> None:
        self._workers = max(1, workers)
        self._threads: list[threading.Thread] = []
        self._results: queue.Queue[tuple[threading.Thread | None, T | None, BaseException | None]] = (
            queue.Queue()
        )
        self._busy_workers = 0

    @property
    def is_busy(self) -> bool:
        """Whether a result is still outstanding."""
        return self._busy_workers > 0

    @property
    def has_room(self) -> bool:
        return self._busy_workers < self._workers

    def start_worker(self, work: Callable[[], T]) -> None:
        self._busy_workers += 1
        if self._workers == 1:
            self._results.put((None, work(), None))
            return

        def run() -> None:
            try:
                self._results.put((thread, work(), None))
            except BaseException as error:
                self._results.put((thread, None, error))

        # a daemon thread: a second Ctrl-C does not wait for a database to answer
        thread = threading.Thread(target=run, name="ematix-flow-worker", daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait_for_next(self) -> T:
        """Wait for the next result and return it, or raise its error.

        An interrupt also ends all the others.
        """
        try:
            result, error = self._take_result()
        except KeyboardInterrupt as pressed:
            raise self._stop_all(pressed) from None
        if error is not None:
            raise self._stop_all(error)
        return result  # type: ignore[return-value]  # there is one where there is no error

    def _take_result(self) -> tuple[T | None, BaseException | None]:
        thread, result, error = self._results.get()
        self._busy_workers -= 1
        if thread is not None:
            self._threads.remove(thread)
        return result, error

    def _stop_all(self, reason: BaseException) -> BaseException:
        """Stop the others and wait for them. Returns the error of one that knows what it left behind."""
        error_to_raise = reason
        if self._threads:
            cancel_jobs()
            for thread in self._threads:
                _interrupt(thread)
        while self._busy_workers:
            _, error = self._take_result()
            if isinstance(error, Interrupted) and not isinstance(error_to_raise, Interrupted):
                error_to_raise = error
        return error_to_raise


def pipeline_jar_groups(registry: Registry, names: Iterable[str]) -> frozenset[str]:
    """Return the jar groups that any of these pipelines needs."""
    specs = (registry.pipeline(name).spec for name in names)
    return _jar_groups(registry, (each for spec in specs for each in spec.connections))


def stream_jar_groups(registry: Registry, specs: Iterable[StreamSpec]) -> frozenset[str]:
    """Return the jar groups that any of these streams needs."""
    return _jar_groups(registry, (each for spec in specs for each in spec.connections))


def _jar_groups(registry: Registry, references: Iterable[ConnectionRef]) -> frozenset[str]:
    groups: set[str] = set()
    with use_registry(registry):
        for reference in references:
            with contextlib.suppress(FlowError):  # the run of the pipeline reports what is wrong
                groups.update(open_backend(resolve_for_use(reference)).jar_groups)
    return frozenset(groups)


def with_jar_groups(context: RunContext, groups: Collection[str]) -> RunContext:
    """Return the context whose Spark starts with these jar groups: it cannot restart while a run uses it."""
    return replace(context, spark=lambda wanted: context.spark(sorted({*wanted, *groups})))


def _interrupt(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in the thread, as soon as it is back in Python code."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
        )
