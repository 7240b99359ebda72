"""Shared connections to DuckDB files: this process opens each file once.

DuckDB opens a file once per process and in one mode, and for writing in one process only. So all users in
this process share one connection, each with its own cursor. A writer waits until the readers of a read-only
connection are done, and for some time for other processes. A connection closes with its last user, which
frees the file for other processes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from ematix_flow.backends.embedded.database_file import UNCHANGED, DatabaseFile
from ematix_flow.errors import CannotConnect, FlowError, TargetFailed, Unsupported

WAIT_SECONDS = 10.0  # for another process, or for readers in this one
QUEUE_SECONDS = 600.0  # for another load in this process
_PAUSE_SECONDS = 0.1
_HOLDER = re.compile(r"Conflicting lock is held in (.*?) \(PID (\d+)\)")
_RESERVED = ("main", "temp", "system")
_OTHER_CONFIGURATION = "different configuration"


def catalog_name(path: Path) -> str:
    """DuckDB's catalog name of this file: the file name up to its first dot."""
    stem = next((part for part in path.name.split(".") if part), path.name)
    return f"{stem}_db" if stem.lower() in _RESERVED else stem


@dataclass
class _SharedConnection:
    connection: duckdb.DuckDBPyConnection
    read_only: bool
    users: int = 0
    writing: bool = False


_shared: dict[str, _SharedConnection] = {}
_changed = threading.Condition()


@contextmanager
def open_connection(file: DatabaseFile, *, write: bool) -> Iterator[duckdb.DuckDBPyConnection]:
    """A cursor on the shared connection to the file; closed at the end."""
    key, handle = _acquire(file, write)
    try:
        cursor = handle.connection.cursor()
        try:
            cursor.execute("SET TimeZone = 'UTC'")
            if not write:  # one snapshot for all reads, also on a connection that could write
                cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor
        finally:
            cursor.close()
    finally:
        _release(key, handle, write)


def _acquire(file: DatabaseFile, write: bool) -> tuple[str, _SharedConnection]:
    started = time.monotonic()
    with _changed:
        while True:
            key = file.identity()
            handle = _shared.get(key)
            waited = time.monotonic() - started
            if handle is None:
                try:
                    handle = _open(file, write)
                except duckdb.Error as error:
                    if waited >= WAIT_SECONDS or not _HOLDER.search(str(error)):
                        raise open_error(error, file, write) from error
                    _changed.wait(_PAUSE_SECONDS)
                    continue
                key = file.identity()  # a new file has its identity only now
                _shared[key] = handle
            elif write and (handle.read_only or handle.writing):
                patience = QUEUE_SECONDS if handle.writing else WAIT_SECONDS
                if waited >= patience:
                    raise _wait_error(file, patience)
                _changed.wait(_PAUSE_SECONDS)
                continue
            handle.users += 1
            handle.writing = handle.writing or write
            return key, handle


def _release(key: str, handle: _SharedConnection, wrote: bool) -> None:
    with _changed:
        handle.users -= 1
        if wrote:
            handle.writing = False
        if not handle.users:
            del _shared[key]
            handle.connection.close()
        _changed.notify_all()


def _open(file: DatabaseFile, write: bool) -> _SharedConnection:
    read_only = not write
    try:
        connection = duckdb.connect(str(file.path), read_only=read_only)
    except duckdb.ConnectionException as error:
        # the user's code has the file open in this process: share its mode
        if write or _OTHER_CONFIGURATION not in str(error):
            raise
        connection, read_only = duckdb.connect(str(file.path)), False
    (catalog,), (users,) = (
        connection.execute(sql).fetchall()[0]
        for sql in ("SELECT current_database()", "FROM duckdb_connection_count()")
    )
    if users == 1:  # no other user, which the setting would affect
        connection.execute("SET autoinstall_known_extensions = false")
    if catalog != catalog_name(file.path):
        connection.close()
        raise Unsupported(
            f"DuckDB calls the database in {file.path} {catalog!r}, which ematix-flow does not support",
            next_step="rename the file to letters and digits, as in  warehouse.duckdb",
        )
    return _SharedConnection(connection, read_only)


def open_error(error: duckdb.Error, file: DatabaseFile, write: bool) -> FlowError:
    text = str(error).split("\n")[0]
    holder = _HOLDER.search(text)
    if holder:
        what = f"{file.path} is in use by another process: pid {holder[2]} ({holder[1]})"
        step = "DuckDB allows one writing process at a time; close the file there, then run it again"
    elif _OTHER_CONFIGURATION in text:
        what = f"{file.path} is open in this process, read-only or with its own settings"
        step = "close that connection before the pipeline runs, or open it without settings"
    elif "not a valid DuckDB database" in text:
        what = f"{file.path} is not a DuckDB database"
        step = "correct the path; an empty file is not a database"
    else:
        what = f"DuckDB cannot open {file.path}: {text}"
        step = "check the path and its permissions"
    return CannotConnect(f"connection {file.connection!r}: {what}", state=_state_text(write), next_step=step)


def _wait_error(file: DatabaseFile, seconds: float) -> TargetFailed:
    return TargetFailed(
        f"{file.path} has been in use by another part of this process for {seconds:g} s",
        state=UNCHANGED,
        next_step="wait until the other load or query has ended, then run it again",
    )


def _state_text(write: bool) -> str:
    return UNCHANGED if write else "nothing was read or written"
