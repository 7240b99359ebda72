"""Opens run logs, slots and actions by URL: a file, this process's memory, tables, objects of a bucket.

The run log must never stop a run: a log that cannot be opened is one warning. For reading it, and for
scheduling by its slots, it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from ematix_flow.errors import ConfigError, FlowError
from ematix_flow.spec.connections import (
    DuckDBConnection,
    MySQLConnection,
    PostgresConnection,
    connection_from_mapping,
    mask_url,
)
from ematix_flow.state import local_stores
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.sql import SqlActionStore
from ematix_flow.state.local_stores import open_actions_file, open_samples_file, open_slots_file
from ematix_flow.state.runlog.base import URL_VARIABLE, NullRunLog, RunLog, run_log_location, warn_once
from ematix_flow.state.runlog.sql import SqlRunLog
from ematix_flow.state.samples.base import NullSampleStore, SampleStore
from ematix_flow.state.samples.sql import SqlSampleStore
from ematix_flow.state.slots.base import SlotStore
from ematix_flow.state.slots.sql import SqlSlotStore
from ematix_flow.state.sql.failures import RUN_LOG
from ematix_flow.state.sql.sqlite import memory_engine, sqlite_engine
from ematix_flow.state.store_urls import parse_flag, split_options

SCHEMA = "ematix_flow"
SQL_SCHEMES = ("postgres", "postgresql", "mysql", "mariadb", "duckdb")
OBJECT_SCHEMES = ("s3", "gs", "gcs", "azure", "azureblob")
MAX_WAIT_SECONDS = 15.0  # for a lock or an answer of a server: recording must not hold up a load
SERVER_SCHEMES = (*SQL_SCHEMES, *OBJECT_SCHEMES)

T = TypeVar("T")


@dataclass(frozen=True)
class SqlTables:
    """The location of the tables, and the engines that reach them."""

    location: str
    engine: sa.Engine
    schema: str | None = None
    reader: sa.Engine | None = None  # for queries, where that is another engine
    maker: sa.Engine | None = None  # for creating and upgrading the tables, which may take longer
    create_tables: bool = True

    def open_store(self, kind: Callable[..., T], *, read_only: bool = False) -> T:
        """Open a run log or slots in these tables; with ``read_only`` no table is created or upgraded.

        No connection stays open when they cannot be used.
        """
        try:
            return kind(
                self.engine,
                self.location,
                schema=self.schema,
                reader=self.reader,
                maker=self.maker,
                create_tables=self.create_tables,
                read_only=read_only,
            )
        except BaseException:
            self.engine.dispose()
            raise


def open_run_log(
    url: str | None = None, *, env: Mapping[str, str], reading: bool = False, read_only: bool = False
) -> RunLog:
    """The run log at ``url``, else where the environment says, else in the state root.

    A log that cannot be opened gives one warning and a log that records nothing; with ``reading``, an error.
    A reader sends several queries, so it keeps its connection to a server open.

    With ``read_only`` nothing is created or upgraded, and a missing log is empty.
    """
    given = url or env.get(URL_VARIABLE)
    if given is None or not is_server(given):
        return local_stores.open_local_run_log(url, env=env, reading=reading, read_only=read_only)
    try:
        if _is_object_store(given):
            from ematix_flow.backends.stores.object_urls import open_object_store
            from ematix_flow.state.runlog.objects import ObjectRunLog

            return ObjectRunLog(open_object_store(given), read_only=read_only)
        return sql_tables(given, keep_open=reading, read_only=read_only).open_store(
            SqlRunLog, read_only=read_only
        )
    except FlowError as error:
        if reading:
            raise
        warn_once(mask_url(given), f"{error.what}. Runs go on, but are not recorded")
        return NullRunLog(mask_url(given), error)


def open_slots(
    url: str | None = None, *, env: Mapping[str, str], keep_open: bool = False, read_only: bool = False
) -> SlotStore:
    """The slots next to the run log. An error when they cannot be opened: scheduling needs them.

    With ``keep_open`` the connection to a server stays open between calls. With ``read_only`` nothing is
    created or upgraded, and missing slots are empty.
    """
    given = url or env.get(URL_VARIABLE)
    if given is None or not is_server(given):
        return open_slots_file(run_log_location(url, env), read_only=read_only)
    if _is_object_store(given):
        from ematix_flow.backends.stores.object_urls import open_object_store
        from ematix_flow.state.slots.objects import ObjectSlotStore

        return ObjectSlotStore(open_object_store(given), read_only=read_only)
    return sql_tables(given, keep_open=keep_open, read_only=read_only).open_store(
        SqlSlotStore, read_only=read_only
    )


def open_actions(
    url: str | None = None, *, env: Mapping[str, str], keep_open: bool = False, read_only: bool = False
) -> ActionStore:
    """The actions and holds next to the run log, as `open_slots` opens its slots."""
    given = url or env.get(URL_VARIABLE)
    if given is None or not is_server(given):
        return open_actions_file(run_log_location(url, env), read_only=read_only)
    if _is_object_store(given):
        from ematix_flow.backends.stores.object_urls import open_object_store
        from ematix_flow.state.actions.objects import ObjectActionStore

        return ObjectActionStore(open_object_store(given), read_only=read_only)
    return sql_tables(given, keep_open=keep_open, read_only=read_only).open_store(
        SqlActionStore, read_only=read_only
    )


def open_samples(
    url: str | None = None, *, env: Mapping[str, str], keep_open: bool = False, read_only: bool = False
) -> SampleStore:
    """The samples of streams next to the run log, as `open_slots` opens its slots.

    A run log in a bucket has no samples: each would be an object that is written once and rarely read.
    """
    given = url or env.get(URL_VARIABLE)
    if given is None or not is_server(given):
        return open_samples_file(run_log_location(url, env), read_only=read_only)
    if _is_object_store(given):
        return NullSampleStore(mask_url(given))
    return sql_tables(given, keep_open=keep_open, read_only=read_only).open_store(
        SqlSampleStore, read_only=read_only
    )


def is_server(url: str) -> bool:
    """Whether the URL is neither a local file nor this process's memory."""
    return _scheme(url) in SERVER_SCHEMES


def sql_tables(url: str, *, keep_open: bool = False, read_only: bool = False) -> SqlTables:
    """The tables behind a URL. Its own options are ``create_tables`` and, where there are any, ``schema``."""
    scheme = _scheme(url)
    if scheme == "sqlite":
        place = run_log_location(url, {})
        assert place.path is not None
        return SqlTables(str(place), sqlite_engine(place.path), create_tables=place.create_tables)
    plain, own = split_options(url, ("create_tables", "schema"))
    connection, location = connection_from_mapping(RUN_LOG, {"url": plain}), mask_url(url)
    from ematix_flow.backends.registry import require_driver

    require_driver(connection, f"the run log {location}")
    create, schema = parse_flag("create_tables", own.get("create_tables")), own.get("schema") or SCHEMA
    if isinstance(connection, PostgresConnection):
        from ematix_flow.backends.postgres.sql_engine import sql_engine

        engine = sql_engine(connection, keep_open=keep_open, seconds=MAX_WAIT_SECONDS)
        return SqlTables(location, engine, schema, maker=sql_engine(connection), create_tables=create)
    if isinstance(connection, MySQLConnection):
        from ematix_flow.backends.mysql.sql_engine import sql_engine as mysql_engine

        if "schema" in own:
            raise ConfigError(
                "a run log in MySQL has no schema: there a schema is a database",
                next_step="name the database in the URL, as in mysql://user@host/database",
            )
        engine = mysql_engine(connection, keep_open=keep_open, seconds=MAX_WAIT_SECONDS)
        return SqlTables(location, engine, maker=mysql_engine(connection), create_tables=create)
    from ematix_flow.backends.duckdb.sql_engine import sql_engine as duckdb_engine
    from ematix_flow.backends.embedded.database_file import DatabaseFile

    assert isinstance(connection, DuckDBConnection)
    file = DatabaseFile.of("DuckDB", connection.name, connection.path)
    file.require_shared("run log")
    if read_only and not file.exists:
        return SqlTables(location, memory_engine())
    file.require_folder()
    reader = duckdb_engine(file, write=False)
    return SqlTables(location, duckdb_engine(file, write=True), schema, reader, create_tables=create)


def _is_object_store(url: str) -> bool:
    return _scheme(url) in OBJECT_SCHEMES


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""
