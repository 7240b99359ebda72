"""Run logs and slots by URL: a file, this process's memory, or tables of a database server.

What every run writes must never stop it: a log that cannot be opened is one warning. Who reads it, or
schedules by its slots, needs it.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from ematix_flow.backends.embedded import DatabaseFile
from ematix_flow.errors import ConfigError, FlowError
from ematix_flow.spec.connections import (
    DuckDBConnection,
    MySQLConnection,
    PostgresConnection,
    connection_from_mapping,
)
from ematix_flow.spec.redaction import mask
from ematix_flow.state import runlog
from ematix_flow.state.runlog import NullRunLog, RunLog, run_log_location, warn_once
from ematix_flow.state.runlog_sql import SqlRunLog, open_slots_file
from ematix_flow.state.slots import SlotStore
from ematix_flow.state.slots_sql import SqlSlots
from ematix_flow.state.sql_failures import own_words

SCHEMA = "ematix_flow"
SERVERS = ("postgres", "postgresql", "mysql", "mariadb", "duckdb")


class _Tables:
    """Where the tables are, and how they are reached."""

    def __init__(self, url: str) -> None:
        self.location = mask(url)
        self.schema: str | None = None
        self.reader: sa.Engine | None = None
        connection = connection_from_mapping("run_log", {"url": url})
        if isinstance(connection, PostgresConnection):
            from ematix_flow.backends.postgres.sql_engine import sql_engine

            self.engine, self.schema = sql_engine(connection), SCHEMA
        elif isinstance(connection, MySQLConnection):
            from ematix_flow.backends.mysql.sql_engine import sql_engine as mysql_engine

            self.engine = mysql_engine(connection)
        else:
            from ematix_flow.backends.duckdb.sql_engine import sql_engine as duckdb_engine

            assert isinstance(connection, DuckDBConnection)
            file = DatabaseFile.of("DuckDB", connection.name, connection.path)
            file.require_shared("run log")
            file.require_folder()
            self.engine, self.schema = duckdb_engine(file, write=True), SCHEMA
            self.reader = duckdb_engine(file, write=False)


def open_run_log(url: str | None = None, *, env: Mapping[str, str], reading: bool = False) -> RunLog:
    """The run log at ``url``, else where the environment says, else in the state root.

    A log that cannot be opened is one warning and a log that forgets; with ``reading``, an error.
    """
    given = url or env.get(runlog.URL_VARIABLE)
    if given is None or not is_server(given):
        return runlog.open_run_log(url, env=env, reading=reading)
    try:
        return _opened(given)
    except FlowError as error:
        if reading:
            raise
        warn_once(mask(given), f"{error.what}. Runs go on, but are not recorded")
        unavailable = error if isinstance(error, ConfigError) else ConfigError(error.what)
        return NullRunLog(mask(given), unavailable)


def open_slots(url: str | None = None, *, env: Mapping[str, str]) -> SlotStore:
    """The slots in the same place. An error when they cannot be had: nothing is scheduled without them."""
    given = url or env.get(runlog.URL_VARIABLE)
    if given is None or not is_server(given):
        return open_slots_file(run_log_location(url, env))
    tables = _Tables(given)
    try:
        return SqlSlots(tables.engine, tables.location, schema=tables.schema, reader=tables.reader)
    except SQLAlchemyError as error:
        raise _unavailable(tables.location, error) from error


def is_server(url: str) -> bool:
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme in SERVERS


def _opened(url: str) -> RunLog:
    tables = _Tables(url)
    try:
        return SqlRunLog(tables.engine, tables.location, schema=tables.schema, reader=tables.reader)
    except SQLAlchemyError as error:
        raise _unavailable(tables.location, error) from error


def _unavailable(location: str, error: SQLAlchemyError) -> ConfigError:
    return ConfigError(
        f"the run log {location} cannot be used: {own_words(error)}",
        next_step="check that the server is there and that the user may create tables",
    )
