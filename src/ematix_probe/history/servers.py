"""A history in PostgreSQL, MySQL or MariaDB."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from ematix_probe.database_urls import split_database_url
from ematix_probe.errors import DeclarationError, HistoryError
from ematix_probe.history.database import HistoryDatabase
from ematix_probe.history.tables import history_tables
from ematix_probe.sources.mysql_address import parse_address

SCHEMA = "ematix_probe"
_SECONDS = 15  # for a connection, a lock or an answer
_LOCK = "ematix_probe history"
_POSTGRES_CONFLICTS = ("42P06", "42P07", "42710", "40001", "40P01", "23505")
_MYSQL_CONFLICTS = (1007, 1050, 1061, 1205, 1213, 1684, 3058)
_MYSQL_UNREACHABLE = (2002, 2003, 2005, 2013, 2026, 1040, 1044, 1045, 1049, 1698)


class PostgresDatabase(HistoryDatabase):
    """The tables are in the schema ``ematix_probe``, or in that of the URL's option ``schema``."""

    def __init__(self, url: str, schema: str | None) -> None:
        self._url, self.location = url, split_database_url(url).masked
        self.tables = history_tables(schema=schema or SCHEMA)

    def engine(self, *, write: bool) -> sa.Engine:
        from ematix_probe.extras import require

        psycopg = require("psycopg", "postgres", f"the history {self.location}")

        def connect() -> Any:
            return psycopg.connect(
                self._url,
                connect_timeout=_SECONDS,
                options=f"-c statement_timeout={_SECONDS}s -c timezone=UTC",
            )

        return sa.create_engine(
            "postgresql+psycopg://",
            creator=connect,
            poolclass=sa.pool.NullPool,
            hide_parameters=True,
            use_native_hstore=False,
        )

    def create(self, connection: sa.Connection) -> None:
        schema = self.tables.metadata.schema
        if schema and not sa.inspect(connection).has_schema(schema):
            connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
        super().create(connection)

    def lock_tables(self, connection: sa.Connection) -> None:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(_LOCK))))

    def is_conflict(self, error: SQLAlchemyError) -> bool:
        cause = error.orig if isinstance(error, DBAPIError) else None
        return getattr(cause, "sqlstate", None) in _POSTGRES_CONFLICTS

    def is_unreachable(self, error: SQLAlchemyError) -> bool:
        cause = error.orig if isinstance(error, DBAPIError) else None
        state = getattr(cause, "sqlstate", None)
        return cause is not None and (state is None or state[:2] in ("08", "28", "3D", "53"))


class MySQLDatabase(HistoryDatabase):
    """The tables are in the database of the URL; their names begin with ``probe_``."""

    def __init__(self, url: str) -> None:
        self.tables = history_tables("probe_")
        try:
            self._address, self.location = parse_address(url), split_database_url(url).masked
        except DeclarationError as error:  # whose URL is not shown: it may hold a password anywhere
            raise HistoryError(f"the history: {error.what}", next_step=error.next_step) from None
        if not self._address.database:
            raise HistoryError(
                f"the history {self.location} names no database",
                next_step="write  mysql://user@host/database",
            )

    def engine(self, *, write: bool) -> sa.Engine:
        from ematix_probe.extras import require
        from ematix_probe.sources.mysql import open_connection

        driver = require("pymysql", "mysql", f"the history {self.location}")
        timeouts = {"read_timeout": 2 * _SECONDS, "write_timeout": 2 * _SECONDS}
        return sa.create_engine(
            "mysql+pymysql://",
            creator=lambda: open_connection(driver, self._address, **timeouts),
            poolclass=sa.pool.NullPool,
            hide_parameters=True,
        )

    def lock_tables(self, connection: sa.Connection) -> None:
        if connection.scalar(sa.select(sa.func.get_lock(_LOCK, 60))) != 1:
            raise HistoryError(
                f"another process has been creating the tables of the history {self.location} for a minute",
                next_step="run it again when that has ended",
            )

    def is_conflict(self, error: SQLAlchemyError) -> bool:
        return isinstance(error, IntegrityError) or _mysql_code(error) in _MYSQL_CONFLICTS

    def is_unreachable(self, error: SQLAlchemyError) -> bool:
        return _mysql_code(error) in _MYSQL_UNREACHABLE


def _mysql_code(error: SQLAlchemyError) -> int | None:
    cause = error.orig if isinstance(error, DBAPIError) else None
    code = cause.args[0] if cause is not None and cause.args else None
    return code if isinstance(code, int) else None
