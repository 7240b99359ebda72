"""The pipeline's lock: a user lock of the session that also commits; it ends with the session."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from ematix_flow.backends.mysql.address import APPLICATION, MySQLAddress
from ematix_flow.backends.mysql.lock_owner_files import (
    files_of_dead_owners,
    new_owner_lock,
    record_lock_owner,
)
from ematix_flow.backends.mysql.session import MySQLSession, open_session
from ematix_flow.backends.sql_servers.lock_session import LockSession, session_name
from ematix_flow.backends.sql_servers.pipeline_lock import LockHolder, ServerLock, hold_lock
from ematix_flow.errors import FlowError

_log = logging.getLogger(__name__)
# without the PROCESS privilege the list contains only the user's own sessions
_HOLDER = """
SELECT ID, USER, SUBSTRING_INDEX(HOST, ':', 1), TIME FROM information_schema.PROCESSLIST WHERE ID = %(id)s
"""


def lock_name(pipeline: str, target: str) -> str:
    """At most 64 characters, the limit of a lock's name."""
    named = json.dumps([pipeline, target]).encode()
    return f"{APPLICATION}:{hashlib.blake2b(named, digest_size=20).hexdigest()}"


@contextmanager
def pipeline_lock(
    address: MySQLAddress, pipeline: str, target: str, run_id: uuid.UUID
) -> Iterator[LockSession[MySQLSession]]:
    program = session_name(APPLICATION, run_id)
    with open_session(address, program=program) as session:
        lock = _UserLock(session, lock_name(pipeline, target), program)
        with hold_lock(lock, session, pipeline, target) as held:
            yield held


class _UserLock(ServerLock):
    def __init__(self, session: MySQLSession, name: str, program: str) -> None:
        self._session, self._name, self._program = session, name, program

    def take(self, wait_seconds: int = 0) -> bool:
        return _take(self._session, self._name, wait_seconds)

    def end_dead_holder(self) -> bool:
        holder = _holder_of(self._session, self._name)
        for file in files_of_dead_owners(self._name) if holder is not None else ():
            if _holder_of(self._session, file.owner_lock) != holder:
                continue  # a file of another server, or of a session that has ended too
            try:
                self._session.execute(f"KILL {holder}")
            except FlowError:
                return False  # without the privilege to end it, the server's lease ends it later
            _log.warning("ended server session %s, which held the lock for a process that is gone", holder)
            return True
        return False

    def set_lease(self, seconds: int) -> None:
        self._session.execute(f"SET SESSION wait_timeout = {int(seconds)}")

    @contextmanager
    def record_owner(self) -> Iterator[None]:
        owner_lock = new_owner_lock()
        _take(self._session, owner_lock)
        with record_lock_owner(self._name, owner_lock, self._program):
            yield

    def release(self) -> None:
        self._session.fetch("SELECT RELEASE_LOCK(%(name)s)", {"name": self._name})

    def holder(self) -> LockHolder | None:
        holder = _holder_of(self._session, self._name)
        if holder is None:
            return None
        return LockHolder(f"{self._user_of(holder)}server session {holder}", f"KILL {holder}")

    def _user_of(self, holder: int) -> str:
        try:
            found = self._session.fetch(_HOLDER, {"id": holder})
        except FlowError:
            return ""
        if not found:
            return ""
        _, user, host, seconds = found[0]
        return f"user {user!r} from {host}, silent for {seconds} s, "


def _take(session: MySQLSession, name: str, seconds: int = 0) -> bool:
    found = session.fetch("SELECT GET_LOCK(%(name)s, %(seconds)s)", {"name": name, "seconds": seconds})
    return bool(found[0][0] == 1)


def _holder_of(session: MySQLSession, name: str) -> int | None:
    """The id of the session that holds a lock."""
    found = session.fetch("SELECT IS_USED_LOCK(%(name)s)", {"name": name})[0][0]
    return None if found is None else int(found)
