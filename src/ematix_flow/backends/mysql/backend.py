"""One MySQL or MariaDB server behind a connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ematix_flow.backends.base import Backend
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.mysql.address import parse_address
from ematix_flow.backends.mysql.connection import DriverError, open_connection
from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.mysql.failures import source_failure
from ematix_flow.backends.mysql.query_context import reach_one_server, read_query_context
from ematix_flow.backends.mysql.server import MySQLServer
from ematix_flow.backends.mysql.source import MySQLSource, prepare_statement
from ematix_flow.backends.mysql.target import MySQLTarget
from ematix_flow.backends.mysql.wire_protocol import fetch_first_rows
from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections import Connection, MySQLConnection
from ematix_flow.strategies.raw_sql import one_statement


class MySQLBackend(Backend):
    kind = "mysql"
    capabilities = Capabilities(
        source=True,
        strategies=frozenset({"append", "truncate", "merge", "scd2"}),
        transactions=True,
        same_db=True,
        parallel_read=False,  # only one session can read a snapshot
        parallel_write=True,
        concurrent_writers=True,
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        if not isinstance(connection, MySQLConnection):
            raise ConfigError(f"connection {connection.name!r} is {connection.kind}, not mysql")
        self.address = parse_address(connection)
        self.server = MySQLServer(self.address)
        dialect = MySQLDialect(self.server)
        self._source = MySQLSource(self.address, dialect)
        self._target = MySQLTarget(self.server, dialect)

    def check(self) -> str:
        facts = self.server.facts
        return f"{facts.product} {facts.version.split('-')[0]} at {self.address.label}"

    def identity(self) -> str:
        """Identifies the server: one statement can join its databases, so a load treats them as one."""
        return f"{self.kind}:{self.server.facts.identity}"

    def is_same_database(self, other: Backend) -> bool:
        if not isinstance(other, MySQLBackend) or not super().is_same_database(other):
            return False
        return reach_one_server(self.address, other.address)

    def query_context(self) -> Mapping[str, str]:
        return read_query_context(self.address)

    def source(self) -> MySQLSource:
        return self._source

    def target(self) -> MySQLTarget:
        """Always the same object: it knows which session holds a pipeline's lock."""
        return self._target

    def query(self, sql: str, limit: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Runs in a transaction that cannot write."""
        name = self.connection.name
        inner = one_statement(sql, "mysql")
        with open_connection(self.address) as connection:
            connection.query("START TRANSACTION READ ONLY")
            fields = prepare_statement(connection, name, inner, inner)
            rows: list[tuple[Any, ...]] = []
            try:
                if fields:
                    if limit is not None:  # the server need not compute more rows
                        connection.query(f"SET SESSION sql_select_limit = {int(limit)}")
                    rows = fetch_first_rows(connection, inner, limit)
            except DriverError as error:
                raise source_failure(error, name, inner) from error
        return [field.name for field in fields], rows
