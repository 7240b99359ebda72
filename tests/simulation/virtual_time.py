"""Processes and their threads in virtual time: one at a time, in an order that a seed decides.

A thread is a greenlet, so that unchanged code can be stopped in the middle of any call
that waits. A process that dies does nothing more, not even in its ``finally`` clauses.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import greenlet


class ProcessDied(BaseException):
    """SIGKILL, a power cut: nothing that its process does from now on has an effect."""


@dataclass(eq=False)
class Process:
    """A simulated process: it can die and pause, and has its own clock."""

    name: str
    clock_error: float = 0.0  # seconds that its clock is ahead
    is_alive: bool = True
    was_hurt: bool = False  # by any fault: a process without one must keep what it holds
    paused_until: float = 0.0
    is_interrupted: bool = False  # asked to stop
    threads: list[Thread] = field(default_factory=list)
    at_death: list[Callable[[], None]] = field(default_factory=list)


class Thread(greenlet.greenlet):
    """Of the process that made it."""

    def __init__(self, process: Process, work: Callable[[], object], kernel: Kernel) -> None:
        super().__init__(parent=kernel.hub)
        self.process, self.work, self.kernel = process, work, kernel
        self.turn = 0  # of all times that it was to be woken only the newest counts
        self.over = Event()
        process.threads.append(self)

    def run(self) -> None:
        try:
            self.work()
        except ProcessDied:
            pass
        finally:
            self.process.threads.remove(self)
            self.over.set()


class Event:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for thread in self._waiting:
            thread.kernel.wake(thread)
        self._waiting = []

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            thread = current()
            self._waiting.append(thread)
            thread.kernel.sleep(1e9 if timeout is None else timeout)
            if thread in self._waiting:
                self._waiting.remove(thread)
        return self._is_set


class StartedThread:
    """As `threading.Thread`, of the process that starts it."""

    def __init__(self, target: Callable[[], object], name: str = "", daemon: bool = False) -> None:
        self._target = target
        self._thread: Thread | None = None

    def start(self) -> None:
        here = current()
        self._thread = here.kernel.start(here.process, self._target)

    def join(self, timeout: float | None = None) -> None:
        assert self._thread is not None
        self._thread.over.wait(timeout)


def current() -> Thread:
    found = greenlet.getcurrent()
    assert isinstance(found, Thread)
    return found


class Kernel:
    """Keeps the virtual time, and decides which thread runs next."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.time = 0.0  # seconds since the beginning; no process can see it
        self.hub = greenlet.getcurrent()
        self._queue: list[tuple[float, int, Thread, int]] = []
        self._turns = 0

    def start(self, process: Process, work: Callable[[], object], after: float = 0.0) -> Thread:
        thread = Thread(process, work, self)
        self.wake(thread, after)
        return thread

    def wake(self, thread: Thread, after: float = 0.0) -> None:
        self._turns += 1
        thread.turn = self._turns
        heapq.heappush(self._queue, (self.time + after, self._turns, thread, self._turns))

    def sleep(self, seconds: float) -> None:
        """Called by a thread, which continues after this time, or when its process does."""
        thread = current()
        if not thread.process.is_alive:
            raise ProcessDied
        self.wake(thread, max(0.0, seconds))
        self.hub.switch()
        if not thread.process.is_alive:
            raise ProcessDied

    def step(self) -> None:
        """The next thread runs until it waits."""
        at, _, thread, turn = heapq.heappop(self._queue)
        if thread.dead or turn != thread.turn:
            return
        self.time = max(self.time, at)
        if thread.process.paused_until > self.time:
            self.wake(thread, thread.process.paused_until - self.time)
            return
        thread.switch()

    def kill(self, process: Process) -> None:
        """Its other threads never continue; the calling thread raises ProcessDied itself."""
        if not process.is_alive:
            return
        process.is_alive = False
        for told in process.at_death:
            told()
        here = greenlet.getcurrent()
        for thread in list(process.threads):
            if thread is not here:
                if thread:  # begun, and not over
                    thread.parent = here
                    thread.throw(ProcessDied)
                else:
                    process.threads.remove(thread)
                    thread.turn = -1

    def modules(self) -> tuple[SimpleNamespace, SimpleNamespace]:
        """Replaces `threading` and `time`."""
        threading = SimpleNamespace(Thread=StartedThread, Event=Event)
        return threading, SimpleNamespace(monotonic=lambda: self.time, sleep=self.sleep)
