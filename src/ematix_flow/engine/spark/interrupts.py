"""Ctrl-C during Java calls: cancels the jobs and raises KeyboardInterrupt where it is safe.

PySpark's own handler asks Java from the very thread whose answer it interrupts. That breaks the
connection, and the program sees some Py4J error instead. Here another thread cancels the jobs; the
interrupted call then returns by itself, and raises KeyboardInterrupt when it does. A second Ctrl-C does
not wait for that.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

_pending = threading.Event()


def handle_interrupts(context: SparkContext, before: Any) -> None:
    """Replace PySpark's signal handler.

    If the program had set its own handler ``before``, restore that one.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # not the main thread: PySpark could not set a handler either
    if before is not signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
        return
    _wrap_py4j_answers()
    _pending.clear()

    def cancel() -> None:
        with contextlib.suppress(Exception):  # the interrupt is raised in any case
            context.cancelAllJobs()

    def interrupted(number: int, frame: FrameType | None) -> None:
        waiting_for_java = _is_in_py4j(frame) and not _pending.is_set()
        threading.Thread(target=cancel, name="spark-cancel", daemon=True).start()
        if waiting_for_java:
            _pending.set()
            return
        _pending.clear()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupted)


def restore_interrupts() -> None:
    """Restore Python's own handler after Spark has stopped."""
    if threading.current_thread() is not threading.main_thread():
        return
    current = signal.getsignal(signal.SIGINT)
    if getattr(current, "__module__", None) == __name__:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _pending.clear()


def was_interrupted(error: BaseException, before: BaseException | None = None) -> bool:
    """Whether Ctrl-C caused the error: cleaning up after Ctrl-C may fail and hide it.

    ``before`` is an error that was being handled when the work began: it and its causes do not count.
    """
    seen: list[BaseException | None] = [before]
    cause: BaseException | None = error
    while cause is not None and cause not in seen:  # an error that is raised twice may be its own cause
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def _is_in_py4j(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        frame = frame.f_back
    return False


def _wrap_py4j_answers() -> None:
    """Wrap the one function of Py4J that every answer of Java passes through."""
    from py4j import java_gateway, protocol  # type: ignore[import-untyped]

    original = protocol.get_return_value
    if getattr(original, "__module__", None) == __name__:
        return

    def get_return_value(*arguments: Any, **named: Any) -> Any:
        try:
            return original(*arguments, **named)
        finally:
            if _pending.is_set() and threading.current_thread() is threading.main_thread():
                _pending.clear()
                raise KeyboardInterrupt

    protocol.get_return_value = get_return_value
    java_gateway.get_return_value = get_return_value
