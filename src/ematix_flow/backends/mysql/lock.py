"""The pipeline's lock: a user lock of the session that also commits, gone when it closes."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ematix_flow.backends import held_sessions
from ematix_flow.backends.held_sessions import HeldSession, session_name
from ematix_flow.backends.mysql.address import APPLICATION, Address
from ematix_flow.backends.mysql.session import MySQLSession, open_session
from ematix_flow.errors import FlowError, PipelineLocked

# without the PROCESS privilege the list shows only the sessions of the same user
_HOLDER = """
SELECT ID, USER, SUBSTRING_INDEX(HOST, ':', 1), TIME FROM information_schema.PROCESSLIST WHERE ID = %(id)s
"""


def lock_name(pipeline: str, target: str) -> str:
    """At most 64 characters, which is all that a lock's name may have."""
    named = json.dumps([pipeline, target]).encode()
    return f"{APPLICATION}:{hashlib.blake2b(named, digest_size=20).hexdigest()}"


@contextmanager
def pipeline_lock(
    address: Address, pipeline: str, target: str, run_id: uuid.UUID
) -> Iterator[HeldSession[MySQLSession]]:
    """Hold the lock; the session that holds it is given, so that the load can commit in it."""
    name = lock_name(pipeline, target)
    with open_session(address, program=session_name(APPLICATION, run_id)) as session:
        if session.fetch("SELECT GET_LOCK(%(name)s, 0)", {"name": name})[0][0] != 1:
            raise _locked(session, name, pipeline, target)
        session.execute(f"SET SESSION wait_timeout = {int(held_sessions.LEASE_SECONDS)}")
        held = HeldSession(session)
        with held.keep_alive(lambda: session.fetch("SELECT 1")):
            yield held
        # closed, the server would free it some time later, and refuse a run that follows at once
        with suppress(FlowError):  # a connection that is gone frees it too
            session.fetch("SELECT RELEASE_LOCK(%(name)s)", {"name": name})


def _locked(session: MySQLSession, name: str, pipeline: str, target: str) -> PipelineLocked:
    state = "this run changed nothing"
    step = "wait for the other run to end"
    holder = session.fetch("SELECT IS_USED_LOCK(%(name)s)", {"name": name})[0][0]
    if holder is not None:
        who = _who(session, int(holder))
        state = f"it is held by {who}server session {holder}; {state}"
        step += (
            "; if its process is gone, the server ends the session "
            f"{held_sessions.LEASE_SECONDS} s after its last heartbeat, or at once with  KILL {holder}"
        )
    return PipelineLocked(f"pipeline {pipeline!r} is already loading {target}", state=state, next_step=step)


def _who(session: MySQLSession, holder: int) -> str:
    try:
        found = session.fetch(_HOLDER, {"id": holder})
    except FlowError:
        return ""
    if not found:
        return ""
    _, user, host, seconds = found[0]
    return f"user {user!r} from {host}, silent for {seconds} s, "
