"""Carries out the shares of a load, in a thread of this process or in worker processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ematix_probe.errors import ProbeError
from ematix_probe.extras import require
from ematix_probe.load.checks import functions_of
from ematix_probe.load.loop_timer import clock
from ematix_probe.load.shares import Share, ShareResult, Snapshot, StopSignal
from ematix_probe.load.worker import read_frame, run_share, snapshot_from, write_frame

LEAD = 20_000_000  # nanoseconds between the last "ready" and the start

OnSnapshot = Callable[[int, Snapshot], None]
# a kind, the number of a share, a value; a signal handler may put into a simple queue at any time
Events = queue.SimpleQueue[tuple[str, int, Any]]


class WorkerDied(ProbeError):
    """A worker process of a load ended without a result."""


def run_shares(shares: Sequence[Share], on_snapshot: OnSnapshot) -> list[ShareResult]:
    """The results of all shares. The first Ctrl-C ends the load early, a second one raises."""
    run: _InThread | _InProcesses = _InThread(shares[0]) if len(shares) == 1 else _InProcesses(shares)
    with _first_interrupt(lambda: run.events.put(("interrupt", 0, None))):
        try:
            run.start()
            while True:
                kind, share, value = run.events.get()
                if kind == "snapshot":
                    on_snapshot(share, value)
                elif kind == "interrupt":
                    run.stop()
                elif kind == "failure":
                    raise value
                else:
                    run.results[share] = value
                    if len(run.results) == len(shares):
                        return [run.results[number] for number in range(len(shares))]
        finally:
            run.close()


@contextlib.contextmanager
def _first_interrupt(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` at the first Ctrl-C; from then on it does what it did before.

    Only the main thread may change that. ``tell`` must be safe at any time: it interrupts other code.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def interrupted(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        tell()

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _InThread:
    """One share in this process. A thread runs it, so that Ctrl-C reaches the main thread at any time."""

    def __init__(self, share: Share) -> None:
        self.events: Events = queue.SimpleQueue()
        self.results: dict[int, ShareResult] = {}
        self._share, self._stop = share, StopSignal()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            result = run_share(
                self._share,
                lambda: clock() + LEAD,
                lambda each: self.events.put(("snapshot", 0, each)),
                self._stop,
            )
        except BaseException as error:
            self.events.put(("failure", 0, error))
        else:
            self.events.put(("result", 0, result))

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)


class _InProcesses:
    """Each share in a worker process. They start at the same time of the machine's clock."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self.events: Events = queue.SimpleQueue()
        self.results: dict[int, ShareResult] = {}
        self._shares = shares
        self._workers: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        sent = [pickle_share(share) for share in self._shares]
        paths = [path for path in sys.path if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        for _ in self._shares:
            self._workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "ematix_probe.load.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches this process only, which then stops the workers
                )
            )
        for number, (worker, data) in enumerate(zip(self._workers, sent, strict=True)):
            assert worker.stdin is not None
            try:
                worker.stdin.write(struct.pack(">I", len(data)) + data)
                worker.stdin.flush()
            except BrokenPipeError:
                raise _failure(number, None) from None
        for number, worker in enumerate(self._workers):
            kind, value = self._read(worker)
            if kind != "ready":
                raise _failure(number, value)
        start_at = clock() + LEAD
        for number, worker in enumerate(self._workers):
            assert worker.stdin is not None
            write_frame(worker.stdin, start_at)  # type: ignore[arg-type]
            thread = threading.Thread(target=self._listen, args=(number, worker), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _read(self, worker: subprocess.Popen[bytes]) -> tuple[str, Any]:
        assert worker.stdout is not None
        frame = read_frame(worker.stdout)  # type: ignore[arg-type]
        return ("failure", None) if frame is None else (frame[0], frame[1])

    def _listen(self, number: int, worker: subprocess.Popen[bytes]) -> None:
        while True:
            kind, value = self._read(worker)
            if kind == "snapshot":
                self.events.put((kind, number, snapshot_from(value)))
            elif kind == "result":
                self.events.put((kind, number, ShareResult.from_json(value)))
                return
            else:
                self.events.put(("failure", number, _failure(number, value)))
                return

    def stop(self) -> None:
        for worker in self._workers:
            assert worker.stdin is not None
            try:
                write_frame(worker.stdin, "stop")  # type: ignore[arg-type]
            except OSError:
                continue  # it has ended

    def close(self) -> None:
        everyone_is_done = len(self.results) == len(self._shares)
        for worker in self._workers:
            if not everyone_is_done:
                worker.kill()
            if worker.stdin is not None:
                with contextlib.suppress(OSError):
                    worker.stdin.close()
        for worker in self._workers:
            worker.wait()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            if worker.stdout is not None:
                worker.stdout.close()


def _failure(number: int, value: Any) -> ProbeError:
    if value is None:
        return WorkerDied(
            f"worker process {number} of the load ended without a result",
            next_step="look above for what it wrote, or at the memory of the machine",
        )
    return WorkerDied(f"worker process {number} of the load failed: {value[0]}", state=value[1])


def pickle_share(share: Share) -> bytes:
    """The share as bytes. Functions go by their code: the user's file need not be importable."""
    functions = functions_of(share.target.checks)
    if not functions:
        return pickle.dumps(share)
    cloudpickle = require("cloudpickle", "load", "a load in several processes with functions as checks")
    modules = []
    for function in functions:
        module = sys.modules.get(getattr(function, "__module__", None) or "")
        if module is not None and module not in modules and not _is_installed(module):
            modules.append(module)
            cloudpickle.register_pickle_by_value(module)
    try:
        data: bytes = cloudpickle.dumps(share)
        return data
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_installed(module: Any) -> bool:
    return module.__name__ in sys.stdlib_module_names or "site-packages" in (
        getattr(module, "__file__", "") or ""
    )
