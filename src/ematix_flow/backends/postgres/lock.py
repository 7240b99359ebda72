"""The pipeline's lock: an advisory lock of the session that also commits; it ends with the session."""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ematix_flow.backends.postgres.address import APPLICATION, IDLE_TIMEOUT_SINCE, PostgresAddress
from ematix_flow.backends.postgres.session import PostgresSession, open_session
from ematix_flow.backends.sql_servers.lock_session import LockSession, is_process_gone, session_name
from ematix_flow.backends.sql_servers.pipeline_lock import LockHolder, ServerLock, hold_lock
from ematix_flow.errors import FlowError

_log = logging.getLogger(__name__)
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
    with open_session(address, application_name=session_name(APPLICATION, run_id)) as session:
        lock = _AdvisoryLock(session, lock_key(pipeline, target))
        with hold_lock(lock, session, pipeline, target) as held:
            yield held


class _AdvisoryLock(ServerLock):
    def __init__(self, session: PostgresSession, key: int) -> None:
        self._session, self._key = session, key

    def take(self, wait_seconds: int = 0) -> bool:
        deadline = time.monotonic() + wait_seconds
        while not self._try():
            if time.monotonic() > deadline or not wait_seconds:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def _try(self) -> bool:
        found = self._session.fetch("SELECT pg_try_advisory_lock(%(key)s)", {"key": self._key})
        return bool(found[0][0])

    def end_dead_holder(self) -> bool:
        for pid, application, *_ in self._holders():
            if not application or not is_process_gone(application):
                return False
            try:
                self._session.fetch(_TERMINATE, {"pid": pid, "name": application})
            except FlowError:
                return False  # without the privilege to end it, the server's lease ends it later
            _log.warning("ended server process %s, which held the lock for a process that is gone", pid)
        return True

    def set_lease(self, seconds: int) -> None:
        names = ["idle_in_transaction_session_timeout"]
        if self._session.connection.info.server_version >= IDLE_TIMEOUT_SINCE:
            names.append("idle_session_timeout")
        for name in names:
            lease = {"name": name, "lease": f"{seconds}s"}
            self._session.fetch("SELECT set_config(%(name)s, %(lease)s, false)", lease)

    def release(self) -> None:
        self._session.fetch("SELECT pg_advisory_unlock(%(key)s)", {"key": self._key})

    def holder(self) -> LockHolder | None:
        holders = self._holders()
        if not holders:
            return None
        pid, application, client, user, since = holders[0]
        words = [application or "another user"]
        known = {"as": user, "from": client, "since": since}
        words += [f"{word} {value}" for word, value in known.items() if value]
        return LockHolder(f"{' '.join(words)} (server process {pid})", f"SELECT pg_terminate_backend({pid})")

    def _holders(self) -> list[tuple[Any, ...]]:
        unsigned = self._key & 0xFFFF_FFFF_FFFF_FFFF
        return self._session.fetch(_HOLDER, {"high": unsigned >> 32, "low": unsigned & 0xFFFF_FFFF})
