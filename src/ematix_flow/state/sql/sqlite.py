"""A SQLite file that several processes write to: write-ahead log, full sync, and transactions of ours."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import orjson
import sqlalchemy as sa

from ematix_flow.state.private_files import make_private_database

BUSY_SECONDS = 15.0


def sqlite_engine(path: Path) -> sa.Engine:
    """The option ``writes`` makes its transaction take the write lock at once."""
    make_private_database(path)
    # no pool: nothing stays open between two statements, so a fork or a second log cannot share a handle
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=sa.pool.NullPool,
        connect_args={"timeout": BUSY_SECONDS},
        hide_parameters=True,
        json_deserializer=orjson.loads,
    )
    sa.event.listen(engine, "connect", disable_driver_transactions)
    sa.event.listen(engine, "connect", _use_write_ahead_log)
    sa.event.listen(engine, "begin", begin_transaction)
    return engine


def memory_engine() -> sa.Engine:
    """A database of this process, gone with the engine."""
    # one connection, which is the database; a thread that wants it waits for the pool to have it back
    engine = sa.create_engine(
        "sqlite://",
        poolclass=sa.pool.QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=BUSY_SECONDS,
        connect_args={"check_same_thread": False},
        hide_parameters=True,
    )
    sa.event.listen(engine, "connect", disable_driver_transactions)
    sa.event.listen(engine, "begin", begin_transaction)
    return engine


def disable_driver_transactions(connection: sqlite3.Connection, _: object) -> None:
    # the driver would begin late, and never before DDL
    connection.isolation_level = None


def begin_transaction(connection: sa.Connection) -> None:
    # a writer takes the write lock at once: a lock that is upgraded later fails instead of waiting
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _use_write_ahead_log(connection: sqlite3.Connection, _: object) -> None:
    # readers then never wait for a writer; full sync makes a commit outlive the machine's power
    connection.execute("PRAGMA synchronous=FULL")
    deadline = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            # two processes that create one log at once: SQLite fails one of them without waiting
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
