"""The pipeline's lock: a session-level advisory lock on a connection of its own, gone when it closes."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ematix_flow.backends.postgres.address import APPLICATION, Address
from ematix_flow.backends.postgres.session import PostgresSession, open_session
from ematix_flow.errors import FlowError, PipelineLocked

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
    address: Address, pipeline: str, target: str, run_id: uuid.UUID
) -> Iterator[PostgresSession]:
    """Hold the lock; the session that holds it is given, so that the load can commit in it."""
    key = lock_key(pipeline, target)
    name = f"{APPLICATION} run {str(run_id)[:8]}"
    with open_session(address, application_name=name) as session:
        if not session.fetch("SELECT pg_try_advisory_lock(%(key)s)", {"key": key})[0][0]:
            raise _locked(session, key, pipeline, target)
        yield session
        # closed, the server would free it some time later, and refuse a run that follows at once
        with suppress(FlowError):  # a connection that is gone frees it too
            session.fetch("SELECT pg_advisory_unlock(%(key)s)", {"key": key})


def _locked(session: PostgresSession, key: int, pipeline: str, target: str) -> PipelineLocked:
    unsigned = key & 0xFFFF_FFFF_FFFF_FFFF
    holders = session.fetch(_HOLDER, {"high": unsigned >> 32, "low": unsigned & 0xFFFF_FFFF})
    state = "this run changed nothing"
    step = "wait for the other run to end"
    if holders:
        pid, application, client, user, since = holders[0]
        who = [application or "another user"]
        known = {"as": user, "from": client, "since": since}
        who += [f"{word} {value}" for word, value in known.items() if value]
        state = f"it is held by {' '.join(who)} (server process {pid}); {state}"
        step += f"; if it is dead:  SELECT pg_terminate_backend({pid})"
    return PipelineLocked(f"pipeline {pipeline!r} is already loading {target}", state=state, next_step=step)
