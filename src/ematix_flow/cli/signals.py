"""Ctrl-C, and a supervisor's polite kill: both end a command undone, recorded and explained."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_signalled = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, and in the main thread, SIGINT and SIGTERM raise KeyboardInterrupt.

    Every command runs in one, from the import of the user's module to its last line: who ends without its
    exit handlers leaves Java behind. A block within another is a part of it.

    A handler of our own for SIGINT too: PySpark would install one that talks to Java from within the
    call that it interrupts, and the load would then fail for another reason.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTERM) is not _interrupt:
        _signalled.clear()
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_requests(
    say: Callable[[str], None], told: str = "stopping after the batch at hand; once more to stop at once"
) -> Iterator[threading.Event]:
    """Within the block the first SIGINT or SIGTERM sets the event, and the second raises KeyboardInterrupt.

    For work that ends well when it is asked to. Outside of the main thread nothing sets the event.
    """
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        threading.Thread(
            target=say, args=(told,), daemon=True
        ).start()  # whoever was interrupted may hold the lock of what is written to

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def was_signalled() -> bool:
    """Whether a signal has come in the last `interruptible`.

    What is raised in answer to it may be hidden by other errors: Python itself wraps what comes while a class
    is made.
    """
    return _signalled.is_set()


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _signalled.set()
    raise KeyboardInterrupt
