"""A SQLAlchemy engine for a PostgreSQL connection, for run logs, slots and dead letters."""

from __future__ import annotations

from typing import Any

import psycopg
import sqlalchemy as sa

from ematix_flow.backends.postgres.address import parse_address
from ematix_flow.backends.postgres.connection import connect
from ematix_flow.backends.postgres.timeouts import connect_with_timeout
from ematix_flow.backends.sql_servers.sql_engine import server_engine
from ematix_flow.spec.connections import PostgresConnection


def sql_engine(
    connection: PostgresConnection, *, keep_open: bool = False, seconds: float | None = None
) -> sa.Engine:
    """With ``keep_open`` one connection stays open. No statement waits longer than ``seconds``, if given."""
    address = parse_address(connection)

    def open_connection() -> psycopg.Connection[Any]:
        session = connect(address) if seconds is None else connect_with_timeout(address, seconds)
        session.autocommit = False  # SQLAlchemy expects the driver to begin
        return session

    return server_engine(
        "postgresql+psycopg://", open_connection, keep_open=keep_open, use_native_hstore=False
    )
