"""The pipeline's lock: a user lock of the session that also commits; it ends with the session."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ematix_flow.backends.mysql.address import APPLICATION, MySQLAddress
from ematix_flow.backends.mysql.lock_owner_files import (
    files_of_dead_owners,
    new_owner_lock,
    record_lock_owner,
)
from ematix_flow.backends.mysql.session import MySQLSession, open_session
from ematix_flow.backends.sql_servers import lock_session
from ematix_flow.backends.sql_servers.lock_session import LockSession, session_name
from ematix_flow.errors import FlowError, PipelineLocked

_KILL_SECONDS = 10  # that a server takes at most to end a session
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
    """Hold the lock. It yields the session that holds it, so that the load commits in that session."""
    name, program, own = lock_name(pipeline, target), session_name(APPLICATION, run_id), new_owner_lock()
    with open_session(address, program=program) as session:
        if not _try_lock(session, name) and not (
            _end_dead_holder(session, name) and _try_lock(session, name, _KILL_SECONDS)
        ):
            raise _locked_error(session, name, pipeline, target)
        session.execute(f"SET SESSION wait_timeout = {int(lock_session.LEASE_SECONDS)}")
        _try_lock(session, own)
        held = LockSession(session)
        with record_lock_owner(name, own, program), held.keep_alive(lambda: session.fetch("SELECT 1")):
            yield held
        # after a mere close the server would free it later, and refuse a run that follows immediately
        with suppress(FlowError):  # a lost connection frees it too
            session.fetch("SELECT RELEASE_LOCK(%(name)s)", {"name": name})


def _try_lock(session: MySQLSession, name: str, seconds: int = 0) -> bool:
    found = session.fetch("SELECT GET_LOCK(%(name)s, %(seconds)s)", {"name": name, "seconds": seconds})
    return bool(found[0][0] == 1)


def _holder_of(session: MySQLSession, name: str) -> int | None:
    """The id of the session that holds a lock."""
    found = session.fetch("SELECT IS_USED_LOCK(%(name)s)", {"name": name})[0][0]
    return None if found is None else int(found)


def _end_dead_holder(session: MySQLSession, name: str) -> bool:
    """End the session that holds the lock if its process ran on this machine and has ended."""
    holder = _holder_of(session, name)
    for note in files_of_dead_owners(name) if holder is not None else ():
        if _holder_of(session, note.owner_lock) != holder:
            continue  # a file of another server, or of a session that has ended too
        try:
            session.execute(f"KILL {holder}")
        except FlowError:
            return False  # without the privilege to end it, the server's lease ends it later
        _log.warning("ended server session %s, which held the lock for a process that is gone", holder)
        return True
    return False


def _locked_error(session: MySQLSession, name: str, pipeline: str, target: str) -> PipelineLocked:
    state = "this run changed nothing"
    step = "wait for the other run to end"
    holder = _holder_of(session, name)
    if holder is not None:
        who = _holder_text(session, holder)
        state = f"it is held by {who}server session {holder}; {state}"
        step += (
            "; if its process is gone, the server ends the session "
            f"{lock_session.LEASE_SECONDS} s after its last heartbeat, or at once with  KILL {holder}"
        )
    return PipelineLocked(f"pipeline {pipeline!r} is already loading {target}", state=state, next_step=step)


def _holder_text(session: MySQLSession, holder: int) -> str:
    try:
        found = session.fetch(_HOLDER, {"id": holder})
    except FlowError:
        return ""
    if not found:
        return ""
    _, user, host, seconds = found[0]
    return f"user {user!r} from {host}, silent for {seconds} s, "
