"""SQLite engines for files that several processes write: write-ahead log, full sync, own transactions."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa

from ematix_flow.state.private_files import make_private_database

BUSY_SECONDS = 15.0
Check = Callable[[], None]


def sqlite_engine(path: Path, check: Check | None = None) -> sa.Engine:
    """Return an engine for the file. ``check`` is called before each connection, and may raise.

    The option ``writes`` makes a transaction take the write lock at once.
    """
    make_private_database(path)
    # no pool: nothing stays open between two statements, so that a fork or a second log shares no handle
    engine = _create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=sa.pool.NullPool,
        connect_args={"timeout": BUSY_SECONDS},
    )
    sa.event.listen(engine, "connect", disable_driver_transactions)
    sa.event.listen(engine, "connect", _use_write_ahead_log)
    sa.event.listen(engine, "begin", begin_transaction)
    if check is not None:
        sa.event.listen(engine, "do_connect", lambda *_: check())
    return engine


def sqlite_reader_engine(path: Path, check: Check | None = None) -> sa.Engine:
    """Return an engine that only reads an existing file, for users who may not write it or its folder.

    Without a write-ahead log next to it, the file is complete and SQLite needs no side files to read it.
    """
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return sqlite_engine(path, check)
    log = path.with_name(path.name + "-wal")

    def connect() -> sqlite3.Connection:
        if check is not None:  # an engine with a creator has no event before it
            check()
        options = "mode=ro" if log.exists() else "mode=ro&immutable=1"
        uri = f"{path.absolute().as_uri()}?{options}"
        return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)

    engine = _create_engine("sqlite://", creator=connect, poolclass=sa.pool.NullPool)
    sa.event.listen(engine, "connect", disable_driver_transactions)
    sa.event.listen(engine, "begin", begin_transaction)
    return engine


def memory_engine() -> sa.Engine:
    """Return an engine for a database in memory, which ends with the engine."""
    # one connection, which is the database; other threads wait until the pool has it back
    engine = _create_engine(
        "sqlite://",
        poolclass=sa.pool.QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=BUSY_SECONDS,
        connect_args={"check_same_thread": False},
    )
    sa.event.listen(engine, "connect", disable_driver_transactions)
    sa.event.listen(engine, "begin", begin_transaction)
    return engine


def _create_engine(url: sa.URL | str, **arguments: Any) -> sa.Engine:
    return sa.create_engine(url, hide_parameters=True, json_deserializer=orjson.loads, **arguments)


def disable_driver_transactions(connection: sqlite3.Connection, _: object) -> None:
    # the driver would begin a transaction late, and never before DDL
    connection.isolation_level = None


def begin_transaction(connection: sa.Connection) -> None:
    # a writer takes the write lock at once: upgrading a lock later fails instead of waiting
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _use_write_ahead_log(connection: sqlite3.Connection, _: object) -> None:
    # readers never wait for a writer; with full sync a commit survives a power loss
    connection.execute("PRAGMA synchronous=FULL")
    deadline = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            # if two processes create one log at once, SQLite fails one of them without waiting
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
