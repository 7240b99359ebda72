"""The server session that holds a pipeline's lock: which process owns it, and its heartbeats.

A server does not always notice that a client died, because a proxy may keep the connection open. Therefore
the session's name contains its process id and machine, so that another process on that machine can see that
the owner is dead. The server also ends a session that was silent for `LEASE_SECONDS`; a thread sends
heartbeats as long as the process lives. The load commits in the same session, so an ended session cannot
commit.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.state.file_locks import machine_id, process_is_alive

LEASE_SECONDS = 300
HEARTBEAT_SECONDS = 60.0
_PROCESS = re.compile(r" run [0-9a-f]{8} pid (\d+) on ([0-9a-f]{12})$")

S = TypeVar("S", bound=SqlSession)


def session_name(application: str, run_id: uuid.UUID) -> str:
    """For example ``ematix-flow run 1a2b3c4d pid 4711 on 9f86d081884c``: short enough for every server."""
    name = f"{application} run {str(run_id)[:8]}"
    return f"{name} pid {os.getpid()} on {_machine()}" if machine_id() else name


def is_process_gone(name: str) -> bool:
    """Whether a session of this name belongs to a process of this machine that has ended."""
    found = _PROCESS.search(name)
    if found is None or not machine_id() or found[2] != _machine():
        return False
    return not process_is_alive(int(found[1]))


def _machine() -> str:
    return hashlib.blake2b(machine_id().encode(), digest_size=6).hexdigest()


class LockSession(Generic[S]):
    """A session that one thread uses at a time; `keep_alive` sends heartbeats when no thread uses it."""

    def __init__(self, session: S) -> None:
        self._session = session
        self._free = threading.RLock()
        self.heartbeats = 0

    @contextmanager
    def use(self) -> Iterator[S]:
        with self._free:
            yield self._session

    @contextmanager
    def keep_alive(self, beat: Callable[[], object]) -> Iterator[None]:
        """Call ``beat`` every `HEARTBEAT_SECONDS` while the block runs."""
        over = threading.Event()

        def send() -> None:
            while not over.wait(HEARTBEAT_SECONDS):
                if not self._free.acquire(blocking=False):
                    continue  # in use, which keeps the session alive too
                try:
                    beat()
                except Exception:
                    return  # the session is gone: its next use raises the error
                finally:
                    self._free.release()
                self.heartbeats += 1

        thread = threading.Thread(target=send, name="lock-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
