"""A SQLAlchemy engine for a PostgreSQL connection, for run logs, slots and dead letters."""

from __future__ import annotations

from typing import Any

import psycopg
import sqlalchemy as sa

from ematix_flow.backends.postgres.address import parse_address
from ematix_flow.backends.postgres.connection import connect
from ematix_flow.backends.postgres.timeouts import connect_with_timeout
from ematix_flow.spec.connections import PostgresConnection


def sql_engine(
    connection: PostgresConnection, *, kept: bool = False, seconds: float | None = None
) -> sa.Engine:
    """An engine without a pool: its calls are rare, and a pooled connection might break in between.

    With ``kept`` one connection stays open for frequent calls; it is tested before each use and replaced if
    broken. No statement waits longer than ``seconds``, if given.
    """
    address = parse_address(connection)

    def opened() -> psycopg.Connection[Any]:
        session = connect(address) if seconds is None else connect_with_timeout(address, seconds)
        session.autocommit = False  # SQLAlchemy expects the driver to begin
        return session

    return sa.create_engine(
        "postgresql+psycopg://",
        creator=opened,
        poolclass=sa.pool.QueuePool if kept else sa.pool.NullPool,
        pool_pre_ping=kept,
        use_native_hstore=False,
        hide_parameters=True,
    )
