"""One PostgreSQL database behind a connection."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import psycopg

from ematix_flow.backends.base import Backend
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.postgres.address import parse_address
from ematix_flow.backends.postgres.connection import open_connection
from ematix_flow.backends.postgres.describe import prepare_statement
from ematix_flow.backends.postgres.dialect import MAX_IDENTIFIER_BYTES
from ematix_flow.backends.postgres.failures import source_failure
from ematix_flow.backends.postgres.query_context import read_query_context
from ematix_flow.backends.postgres.source import PostgresSource
from ematix_flow.backends.postgres.target import PostgresTarget
from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections import Connection, PostgresConnection

# the server's own identity: one server has many addresses
_FACTS = """
SELECT extract(epoch FROM pg_postmaster_start_time())::numeric(20, 6)::text,
       (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())::text,
       pg_is_in_recovery()::text, has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')
"""
_CLUSTER = "SELECT system_identifier::text FROM pg_catalog.pg_control_system()"


class PostgresBackend(Backend):
    kind = "postgres"
    capabilities = Capabilities(
        source=True,
        strategies=frozenset({"append", "truncate", "merge", "scd2"}),
        transactions=True,
        same_db=True,
        parallel_read=True,
        concurrent_writers=True,
        parallel_write=True,
        max_identifier_bytes=MAX_IDENTIFIER_BYTES,
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        if not isinstance(connection, PostgresConnection):
            raise ConfigError(f"connection {connection.name!r} is {connection.kind}, not postgres")
        self.address = parse_address(connection)
        self._source = PostgresSource(self.address)
        self._target = PostgresTarget(self.address)
        self._identity: str | None = None

    def check(self) -> str:
        with open_connection(self.address) as connection:
            version = connection.info.parameter_status("server_version") or "of unknown version"
        return f"PostgreSQL {version.split(' ')[0]} at {self.address.label}"

    def identity(self) -> str:
        if self._identity is None:
            with open_connection(self.address) as connection:
                *facts, may_ask = connection.execute(_FACTS).fetchall()[0]
                if may_ask:
                    facts += connection.execute(_CLUSTER).fetchall()[0]
            self._identity = ":".join([self.kind, *facts])
        return self._identity

    def query_context(self) -> Mapping[str, str]:
        with open_connection(self.address) as connection:
            return read_query_context(connection)

    def source(self) -> PostgresSource:
        return self._source

    def target(self) -> PostgresTarget:
        """Always the same object: it knows which session holds a pipeline's lock."""
        return self._target

    def query(self, sql: str, limit: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Runs in a transaction that cannot write."""
        with open_connection(self.address) as connection:
            connection.execute("BEGIN READ ONLY")
            columns = prepare_statement(connection, self.connection.name, sql, sql)
            try:
                rows = list(islice(connection.cursor().stream(sql.encode()), limit)) if columns else []
            except psycopg.Error as error:
                raise source_failure(error, self.connection.name, sql) from error
        return [name for name, _, _ in columns], rows
