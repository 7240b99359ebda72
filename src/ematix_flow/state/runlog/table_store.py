"""What the stores in the tables of a run log share: how they open and close, transactions, and the clock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

import sqlalchemy as sa

from ematix_flow.state.runlog.tables import empty_memory_database, open_run_log_tables
from ematix_flow.state.sql.dialects import CLOCKS, dialect_name, server_time
from ematix_flow.state.sql.failures import run_log_connection
from ematix_flow.state.times import utc_now


class RunLogTableStore:
    """A store in the database behind ``engine``; creates or migrates the tables of the run log at once.

    ``schema`` holds the tables; ``reader`` is the engine for queries and ``maker`` the one that creates and
    upgrades the tables, if they are other ones. Without ``create_tables`` they must exist. With ``read_only``
    they stay as they are: a store without tables is empty. ``clock`` is for tests; the default is the
    server's clock, or this machine's for a file.
    """

    since: ClassVar[int]  # the version of the run log from which on the store has every column

    def __init__(
        self,
        engine: sa.Engine,
        location: str,
        clock: Callable[[], dt.datetime] | None = None,
        *,
        schema: str | None = None,
        reader: sa.Engine | None = None,
        maker: sa.Engine | None = None,
        create_tables: bool = True,
        read_only: bool = False,
    ) -> None:
        self.location = location
        self._engine, self._reader, version = open_run_log_tables(
            engine,
            location,
            schema=schema,
            reader=reader,
            maker=maker,
            create_tables=create_tables,
            read_only=read_only,
        )
        if version < self.since:
            self._refuse_older(version)
            self._dispose()
            self._engine = self._reader = empty_memory_database().execution_options()
        self._dialect = dialect_name(self._engine)
        self._own_clock = clock or (None if self._dialect in CLOCKS else utc_now)

    def _refuse_older(self, version: int) -> None:
        """Raise an error if tables of this older version must not count as missing; 0: there are none."""

    def close(self) -> None:
        """Close the store. It can be opened again."""
        if not self.location.startswith("memory://"):  # its data ends with the engine
            self._dispose()

    def now(self) -> dt.datetime:
        """Return the time of the store's clock."""
        if self._own_clock:
            return self._own_clock()
        with self._read_connection() as connection:
            return self._now(connection)

    def _dispose(self) -> None:
        self._engine.dispose()
        self._reader.dispose()

    def _now(self, connection: sa.Connection) -> dt.datetime:
        return self._own_clock() if self._own_clock else server_time(connection, self._dialect)

    def _read_connection(self) -> AbstractContextManager[sa.Connection]:
        return run_log_connection(self._reader, self.location)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with run_log_connection(self._engine, self.location) as connection, connection.begin():
            yield connection
