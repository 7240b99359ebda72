"""Handles SIGINT and SIGTERM: a command that they end undoes its work, records it and reports it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from ematix_flow.run.signal_handlers import handle_signals

_REPEAT_SECONDS = 0.05  # after the code that ignored it
_signalled = threading.Event()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, in the main thread, SIGINT and SIGTERM raise KeyboardInterrupt.

    Every command runs in such a block, from the import of the user's module to its end: a process that ends
    without its exit handlers leaves Java running. Blocks may be nested.

    SIGINT gets this handler too, because PySpark's own handler would call Java from within the interrupted
    call, and the load would fail for another reason.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is not _interrupt:
        _signalled.clear()
    with handle_signals(_interrupt), _repeat_ignored():
        yield


@contextmanager
def _repeat_ignored() -> Iterator[None]:
    """Repeat a signal whose KeyboardInterrupt Python ignored, as in a ``__del__`` or a callback of a weak
    reference."""
    before = sys.unraisablehook

    def repeat(ignored: sys.UnraisableHookArgs) -> None:
        if isinstance(ignored.exc_value, KeyboardInterrupt) and _signalled.is_set():
            again = threading.Timer(_REPEAT_SECONDS, _signal_again)
            again.daemon = True
            again.start()
        else:
            before(ignored)

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def stop_requests(
    say: Callable[[str], None], message: str = "stopping after the current batch; press again to stop at once"
) -> Iterator[threading.Event]:
    """Within the block, the first SIGINT or SIGTERM sets the event and the second raises KeyboardInterrupt.

    For work that stops cleanly on request. Outside the main thread nothing sets the event.
    """
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        threading.Thread(
            target=say, args=(message,), daemon=True
        ).start()  # in a thread, because the interrupted code may hold the lock of the output

    with handle_signals(ask):
        yield asked


def was_signalled() -> bool:
    """Whether a signal has arrived in the last `interruptible` block.

    Other errors may hide the KeyboardInterrupt: Python wraps an exception that is raised while it creates a
    class.
    """
    return _signalled.is_set()


def _signal_again() -> None:
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # the block has not ended
        os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _signalled.set()
    raise KeyboardInterrupt
