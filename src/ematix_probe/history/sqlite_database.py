"""A history in an SQLite file: the one of ``ematix-probe run --history history.db``."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from ematix_probe.errors import HistoryError
from ematix_probe.history.database import HistoryDatabase
from ematix_probe.history.tables import history_tables

_BUSY_SECONDS = 30.0
_V1_COLUMNS = {"id", "probe_name", "table_name", "schema_name", "verdict", "started_at", "finished_at"}


class SqliteDatabase(HistoryDatabase):
    """Its tables are called ``runs`` and ``assertions``, and ``user_version`` is their version."""

    def __init__(self, path: Path) -> None:
        self._path, self.location = path, f"sqlite://{path}"
        self.tables = history_tables()

    @property
    def exists(self) -> bool:
        return self._path.exists() and self._path.stat().st_size > 0

    def engine(self, *, write: bool) -> sa.Engine:
        if write:
            if not self._path.parent.is_dir():
                raise HistoryError(
                    f"the history {self.location} cannot be made: there is no folder {self._path.parent}",
                    next_step="make the folder, or name another file",
                )
            with suppress(OSError):  # for this user only; if that fails, SQLite says why
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(self._path)),
            poolclass=sa.pool.NullPool,
            connect_args={"timeout": _BUSY_SECONDS},
            hide_parameters=True,
        )
        sa.event.listen(engine, "connect", _take_over_transactions)
        # a writer takes the write lock at once: upgrading a lock later fails instead of waiting
        begin = "BEGIN IMMEDIATE" if write else "BEGIN"
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        return engine

    def stored_version(self, connection: sa.Connection) -> int:
        version = int(connection.exec_driver_sql("PRAGMA user_version").scalar() or 0)
        names = {row[1] for row in connection.exec_driver_sql("PRAGMA table_info(runs)")}
        if names and not names >= _V1_COLUMNS:
            raise HistoryError(
                f"the file {self.location} has a table 'runs' that is not a history",
                state="the file is unchanged",
                next_step="name another file",
            )
        return (version or 1) if names else 0

    def write_version(self, connection: sa.Connection, version: int) -> None:
        connection.exec_driver_sql(f"PRAGMA user_version = {version:d}")

    def create(self, connection: sa.Connection) -> None:
        self.tables.metadata.create_all(connection, tables=[self.tables.runs, self.tables.assertions])


def _take_over_transactions(connection: sqlite3.Connection, _: object) -> None:
    # the driver would begin a transaction late, and never before DDL
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
