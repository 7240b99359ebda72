"""Files in the state folder that name the process of this machine that holds a pipeline's lock.

MariaDB does not show the name of another session. Therefore a session that holds a pipeline's lock takes a
second user lock with a random name, and records that name and its process in a file. A run that finds the
pipeline locked looks for files of processes that have ended, and asks the server who holds the second lock:
if one session holds both locks, it is the session of the dead process.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.backends.mysql.address import APPLICATION
from ematix_flow.backends.sql_servers.lock_session import is_process_gone
from ematix_flow.errors import ConfigError
from ematix_flow.state.private_files import write_private
from ematix_flow.state.state_root import private_directory, state_root

FOLDER = "mysql_locks"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LockOwnerFile:
    """``owner_lock`` is the second lock of a session; ``session_name`` contains its process id."""

    path: Path
    owner_lock: str
    session_name: str


def new_owner_lock() -> str:
    return f"{APPLICATION}:{uuid.uuid4().hex}"


@contextmanager
def record_lock_owner(lock: str, own: str, name: str) -> Iterator[None]:
    """Keep the file while the block runs. Without it, the lock of a killed run is freed later."""
    path = _folder() / f"{lock.rpartition(':')[2]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        for left in files_of_dead_owners(lock):  # their sessions have ended: this session holds the lock
            left.path.unlink(missing_ok=True)
        private_directory(path.parent, tighten=True)
        write_private(path, json.dumps({"own": own, "name": name}))
    except (OSError, ConfigError) as error:
        _log.debug("the owner of the lock %s is not recorded: %s", lock, error)
    try:
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.debug("the owner file of the lock %s stays: %s", lock, error)


def files_of_dead_owners(lock: str) -> list[LockOwnerFile]:
    """The files of processes of this machine that have ended."""
    found = []
    for path in sorted(_folder().glob(f"{lock.rpartition(':')[2]}-*")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            note = LockOwnerFile(path, str(value["own"]), str(value["name"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.debug(
                "%s is not a lock owner file: %s", path, error
            )  # it is being written, or the disk was full
            continue
        if is_process_gone(note.session_name):
            found.append(note)
    return found


def _folder() -> Path:
    return state_root(os.environ) / FOLDER
