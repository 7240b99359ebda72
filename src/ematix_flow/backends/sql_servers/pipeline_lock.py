"""The lock of a pipeline on a database server, held by the session in which the load commits.

A server provides a `ServerLock` in its own SQL. This module takes it, ends a dead holder, sends heartbeats,
and builds the error when another run holds it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass

from ematix_flow.backends.sql_servers import lock_session
from ematix_flow.backends.sql_servers.lock_session import LockSession, S
from ematix_flow.errors import FlowError, PipelineLocked

_ENDING_SECONDS = 10  # the server takes at most this long to end a session
_CLOSING_SECONDS = 1  # and this long to notice that a run which failed a moment ago has closed its session


@dataclass(frozen=True)
class LockHolder:
    """The session that holds a lock, as a person reads it, and the statement that ends it."""

    text: str
    end_statement: str


class ServerLock(ABC):
    """The lock of one pipeline, on one open session."""

    @abstractmethod
    def take(self, wait_seconds: int = 0) -> bool:
        """Take the lock if it is free within that time."""

    @abstractmethod
    def end_dead_holder(self) -> bool:
        """End the session that holds the lock if its process ran on this machine and has ended."""

    @abstractmethod
    def set_lease(self, seconds: int) -> None:
        """Let the server end this session when it is silent for that long."""

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def holder(self) -> LockHolder | None:
        """The session that holds the lock now."""

    def record_owner(self) -> AbstractContextManager[None]:
        """Record this process as the owner, on a server that does not show the names of sessions."""
        return nullcontext()


@contextmanager
def hold_lock(lock: ServerLock, session: S, pipeline: str, target: str) -> Iterator[LockSession[S]]:
    """Hold the lock. It yields the session that holds it, so that the load commits in that session."""
    if not lock.take():
        wait_seconds = _ENDING_SECONDS if lock.end_dead_holder() else _CLOSING_SECONDS
        if not lock.take(wait_seconds):
            raise _locked_error(lock.holder(), pipeline, target)
    lock.set_lease(lock_session.LEASE_SECONDS)
    held = LockSession(session)
    with lock.record_owner(), held.keep_alive(lambda: session.fetch("SELECT 1")):
        yield held
    # after a mere close the server would free it later, and refuse a run that follows immediately
    with suppress(FlowError):  # a lost connection frees it too
        lock.release()


def _locked_error(holder: LockHolder | None, pipeline: str, target: str) -> PipelineLocked:
    state = "this run changed nothing"
    step = "wait for the other run to end"
    if holder is not None:
        state = f"it is held by {holder.text}; {state}"
        step += (
            f"; if its process is gone, the server ends the session {lock_session.LEASE_SECONDS} s "
            f"after its last heartbeat, or at once with  {holder.end_statement}"
        )
    return PipelineLocked(f"pipeline {pipeline!r} is already loading {target}", state=state, next_step=step)
