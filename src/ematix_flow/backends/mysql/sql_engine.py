"""A SQLAlchemy engine for a MySQL or MariaDB connection, for run logs, slots and dead letters."""

from __future__ import annotations

from typing import Any

import pymysql
import sqlalchemy as sa

from ematix_flow.backends.mysql.address import parse_address
from ematix_flow.backends.mysql.connection import connect
from ematix_flow.spec.connections import MySQLConnection


def sql_engine(connection: MySQLConnection, *, kept: bool = False, seconds: float | None = None) -> sa.Engine:
    """An engine without a pool: its calls are rare, and a pooled connection might break in between.

    With ``kept`` one connection stays open for frequent calls; it is tested before each use and replaced if
    broken. No statement waits longer than ``seconds``, if given.
    """
    address = parse_address(connection)

    def opened() -> pymysql.Connection[Any]:
        session = connect(address, seconds=seconds)
        session.autocommit(False)  # SQLAlchemy expects the driver to begin
        return session

    return sa.create_engine(
        "mysql+pymysql://",
        creator=opened,
        poolclass=sa.pool.QueuePool if kept else sa.pool.NullPool,
        pool_pre_ping=kept,
        hide_parameters=True,
    )
