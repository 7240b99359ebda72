"""A SQLAlchemy engine for a MySQL or MariaDB connection, for run logs, slots and dead letters."""

from __future__ import annotations

from typing import Any

import pymysql
import sqlalchemy as sa

from ematix_flow.backends.mysql.address import parse_address
from ematix_flow.backends.mysql.connection import connect
from ematix_flow.backends.sql_servers.sql_engine import server_engine
from ematix_flow.spec.connections import MySQLConnection


def sql_engine(
    connection: MySQLConnection, *, keep_open: bool = False, seconds: float | None = None
) -> sa.Engine:
    """With ``keep_open`` one connection stays open. No statement waits longer than ``seconds``, if given."""
    address = parse_address(connection)

    def open_connection() -> pymysql.Connection[Any]:
        session = connect(address, seconds=seconds)
        session.autocommit(False)  # SQLAlchemy expects the driver to begin
        return session

    return server_engine("mysql+pymysql://", open_connection, keep_open=keep_open)
