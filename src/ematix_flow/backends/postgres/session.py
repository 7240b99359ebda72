"""One psycopg connection as a `SqlSession`: explicit transactions, and errors as FlowErrors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from ematix_flow.backends.postgres.address import PostgresAddress
from ematix_flow.backends.postgres.connection import open_connection
from ematix_flow.backends.postgres.failures import commit_failure, target_failure
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql_servers.failures import UNCHANGED
from ematix_flow.errors import TargetFailed
from ematix_probe.sources.postgres_times import return_them_as_texts

_SAMPLES = "ematix_samples"
# PostgreSQL's default is for spinning disks: it would scan a whole table to find a hundredth of its keys
_CHEAP_INDEXES_SQL = (
    "SELECT set_config('random_page_cost',"
    " least(current_setting('random_page_cost')::float8, 1.1)::text, true)"
)


class PostgresSession(SqlSession):
    """Each statement outside ``begin`` and ``commit`` is a transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def execute(self, sql: str, params: Mapping[str, Any] | None = None) -> int:
        return max(self._run(sql, params).rowcount, 0)

    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        cursor = self._run(sql, params)
        try:
            return cursor.fetchall()
        except psycopg.Error as error:
            raise target_failure(error) from error

    def fetch_samples(self, sql: str) -> list[tuple[Any, ...]]:
        """In a transaction, whose savepoint also takes the setting back: it changes what a load writes."""
        self._run(f"SAVEPOINT {_SAMPLES}", None)
        try:
            self._run("SET LOCAL extra_float_digits = 1", None)
            with self.connection.cursor() as cursor:
                return_them_as_texts(cursor.adapters)
                return cursor.execute(sql.encode()).fetchall()
        except (psycopg.Error, UnicodeError) as error:
            raise target_failure(error) from error
        finally:
            self._run(f"ROLLBACK TO SAVEPOINT {_SAMPLES}", None)
            self._run(f"RELEASE SAVEPOINT {_SAMPLES}", None)

    def begin(self) -> None:
        """One snapshot for the whole transaction, so that the counted rows are the inserted rows."""
        self._run("BEGIN ISOLATION LEVEL REPEATABLE READ", None)
        self._run(_CHEAP_INDEXES_SQL, None)

    def commit(self) -> None:
        try:
            answer = self.connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            raise commit_failure(error) from error
        if answer != "COMMIT":  # the COMMIT of a failed transaction rolls back
            raise TargetFailed("PostgreSQL rolled the transaction back at its commit", state=UNCHANGED)

    def check_deferred_constraints(self) -> None:
        self._run("SET CONSTRAINTS ALL IMMEDIATE", None)

    def rollback(self) -> None:
        # the server has rolled back a broken connection; the first error is the one to report
        with suppress(psycopg.OperationalError):
            if not self.connection.closed:
                self.connection.execute("ROLLBACK")

    def _run(self, sql: str, params: Mapping[str, Any] | None) -> psycopg.Cursor[Any]:
        """Without ``params``, percent signs in ``sql`` have no meaning."""
        try:
            return self.connection.execute(sql.encode(), params)
        except psycopg.Error as error:
            raise target_failure(error) from error


@contextmanager
def open_session(address: PostgresAddress, **extra: str) -> Iterator[PostgresSession]:
    with open_connection(address, **extra) as connection:
        yield PostgresSession(connection)
