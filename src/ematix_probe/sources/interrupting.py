"""Lets Ctrl-C end a statement of SQLite or DuckDB, whose C code sees no signal before it is done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_WAIT = 0.5  # seconds: a wait without limit would see no Ctrl-C on Windows
_AGAIN = 0.05


def run_interruptibly(statement: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Run the statement in a thread, while the main thread waits. Ctrl-C there interrupts the statement.

    KeyboardInterrupt is raised when the statement has ended; a second Ctrl-C does not wait for that. Signals
    reach the main thread alone, so that a statement of another thread runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        return statement()
    results: list[T] = []
    errors: list[BaseException] = []
    begun, done = threading.Lock(), threading.Event()  # ``begun``: it runs, or it never will

    def work() -> None:
        if not begun.acquire(blocking=False):
            return
        try:
            results.append(statement())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    try:  # Ctrl-C may also come while the thread starts
        threading.Thread(target=work, name="statement", daemon=True).start()
        while not done.wait(_WAIT):
            pass
    except KeyboardInterrupt:
        if not begun.acquire(blocking=False):
            interrupt()
            while not done.wait(_AGAIN):  # it may have begun after the interrupt
                interrupt()
        raise
    if errors:
        raise errors[0]
    return results[0]
