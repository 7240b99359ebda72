"""Ctrl-C, and a supervisor's polite kill: both end a command undone, recorded and explained."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, and in the main thread, SIGINT and SIGTERM raise KeyboardInterrupt.

    A handler of our own for SIGINT too: PySpark would install one that talks to Java from within the
    call that it interrupts, and the load would then fail for another reason.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
