"""The users of Spark in this process: Spark is never restarted while a run or a stream uses it.

A run registers with `using_spark`; it uses Spark from its first session until it ends. The lock is the
session's own, so that no run begins to use Spark during a restart.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ematix_flow.errors import EngineError

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
lock = threading.RLock()
_ended = threading.Condition(lock)


@dataclass(eq=False)
class _SparkUser:
    name: str
    is_endless: bool  # a stream: waiting for its end could take forever


_current: ContextVar[_SparkUser | None] = ContextVar("ematix_flow_spark_user", default=None)
_holders: list[_SparkUser] = []


@contextmanager
def using_spark(what: str, *, is_endless: bool = False) -> Iterator[None]:
    """Note that ``what`` uses Spark within the block, and in threads that copy its context.

    A block within another is a part of that one.
    """
    if _current.get() is not None:
        yield
        return
    user = _SparkUser(what, is_endless)
    before = _current.set(user)
    try:
        yield
    finally:
        _current.reset(before)
        with lock:
            if user in _holders:
                _holders.remove(user)
            _ended.notify_all()


def hold_session() -> None:
    """Note that the run of this context holds the session. Call it with the lock held."""
    user = _current.get()
    if user is not None and user not in _holders:
        _holders.append(user)


def wait_for_others(wanted: str, is_needed: Callable[[], bool]) -> None:
    """Wait until no other run uses Spark, or until ``is_needed`` returns False.

    EngineError when waiting would not end: for a stream, or when this run uses Spark itself. Called with the
    lock held, which is released while waiting.
    """
    user, has_warned = _current.get(), False
    while is_needed():
        others = [each for each in _holders if each is not user]
        if not others:
            return
        if user is None or user in _holders or any(each.is_endless for each in others):
            raise spark_in_use_error([each.name for each in others], wanted)
        if not has_warned:
            names = ", ".join(each.name for each in others)
            _log.warning("%s waits until %s ends: Spark must restart for %s", user.name, names, wanted)
            has_warned = True
        _ended.wait(_POLL_SECONDS)  # in short waits, so that Ctrl-C works


def spark_in_use_error(by: Sequence[str], wanted: str) -> EngineError:
    return EngineError(
        f"Spark is used by {', '.join(by)}, and would have to restart for {wanted}",
        state="what uses Spark goes on undisturbed; nothing was started",
        next_step="start them by one command (flow consume, flow run --workers), which gives Spark the jars "
        "of all of them, name the others as together_with= of .start(), or run it in a separate process",
    )
