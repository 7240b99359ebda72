"""The pipeline's lock: an advisory lock of the session that also commits; it ends with the session."""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ematix_flow.backends.postgres.address import APPLICATION, IDLE_TIMEOUT_SINCE, PostgresAddress
from ematix_flow.backends.postgres.session import PostgresSession, open_session
from ematix_flow.backends.sql_servers import lock_session
from ematix_flow.backends.sql_servers.lock_session import LockSession, is_process_gone, session_name
from ematix_flow.errors import FlowError, PipelineLocked

_log = logging.getLogger(__name__)
_TERMINATE_SECONDS = 10.0  # that a server takes at most to end a session
_PAUSE_SECONDS = 0.05
_TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
WHERE pid = %(pid)s AND application_name = %(name)s
"""
_HOLDER = """
SELECT l.pid, a.application_name, host(a.client_addr), a.usename,
       to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'
FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND l.classid::bigint = %(high)s AND l.objid::bigint = %(low)s
"""


def lock_key(pipeline: str, target: str) -> int:
    """A signed 64-bit number for this pipeline on this target."""
    named = json.dumps([pipeline, target]).encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big", signed=True)


@contextmanager
def pipeline_lock(
    address: PostgresAddress, pipeline: str, target: str, run_id: uuid.UUID
) -> Iterator[LockSession[PostgresSession]]:
    """Hold the lock. It yields the session that holds it, so that the load commits in that session."""
    key = lock_key(pipeline, target)
    with open_session(address, application_name=session_name(APPLICATION, run_id)) as session:
        if not _try_lock(session, key) and not (
            _end_dead_holder(session, key) and _wait_for_lock(session, key)
        ):
            raise _locked_error(session, key, pipeline, target)
        _set_lease(session)
        held = LockSession(session)
        with held.keep_alive(lambda: session.fetch("SELECT 1")):
            yield held
        # after a mere close the server would free it later, and refuse a run that follows immediately
        with suppress(FlowError):  # a lost connection frees it too
            session.fetch("SELECT pg_advisory_unlock(%(key)s)", {"key": key})


def _try_lock(session: PostgresSession, key: int) -> bool:
    return bool(session.fetch("SELECT pg_try_advisory_lock(%(key)s)", {"key": key})[0][0])


def _wait_for_lock(session: PostgresSession, key: int) -> bool:
    """Take the lock once the holder's session has ended, which takes the server some time."""
    patience = time.monotonic() + _TERMINATE_SECONDS
    while not _try_lock(session, key):
        if time.monotonic() > patience:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _end_dead_holder(session: PostgresSession, key: int) -> bool:
    """End the session that holds the lock if its process ran on this machine and has ended."""
    for pid, application, *_ in _holders(session, key):
        if not application or not is_process_gone(application):
            return False
        try:
            session.fetch(_TERMINATE, {"pid": pid, "name": application})
        except FlowError:
            return False  # without the privilege to end it, the server's lease ends it later
        _log.warning("ended server process %s, which held the lock for a process that is gone", pid)
    return True


def _set_lease(session: PostgresSession) -> None:
    """Let the server end the session when it is silent for too long."""
    names = ["idle_in_transaction_session_timeout"]
    if session.connection.info.server_version >= IDLE_TIMEOUT_SINCE:
        names.append("idle_session_timeout")
    for name in names:
        lease = {"name": name, "lease": f"{lock_session.LEASE_SECONDS}s"}
        session.fetch("SELECT set_config(%(name)s, %(lease)s, false)", lease)


def _holders(session: PostgresSession, key: int) -> list[tuple[Any, ...]]:
    unsigned = key & 0xFFFF_FFFF_FFFF_FFFF
    return session.fetch(_HOLDER, {"high": unsigned >> 32, "low": unsigned & 0xFFFF_FFFF})


def _locked_error(session: PostgresSession, key: int, pipeline: str, target: str) -> PipelineLocked:
    holders = _holders(session, key)
    state = "this run changed nothing"
    step = "wait for the other run to end"
    if holders:
        pid, application, client, user, since = holders[0]
        who = [application or "another user"]
        known = {"as": user, "from": client, "since": since}
        who += [f"{word} {value}" for word, value in known.items() if value]
        state = f"it is held by {' '.join(who)} (server process {pid}); {state}"
        step += (
            "; if its process is gone, the server ends the session "
            f"{lock_session.LEASE_SECONDS} s after its last heartbeat, or at once with  "
            f"SELECT pg_terminate_backend({pid})"
        )
    return PipelineLocked(f"pipeline {pipeline!r} is already loading {target}", state=state, next_step=step)
