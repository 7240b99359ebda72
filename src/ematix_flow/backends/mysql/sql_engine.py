"""A MySQL or MariaDB connection as an engine of SQLAlchemy, for tables of our own."""

from __future__ import annotations

from typing import Any

import pymysql
import sqlalchemy as sa

from ematix_flow.backends.mysql.address import parse_address
from ematix_flow.backends.mysql.connection import connect
from ematix_flow.spec.connections import MySQLConnection


def sql_engine(connection: MySQLConnection, *, kept: bool = False, seconds: float | None = None) -> sa.Engine:
    """Without a pool: such calls are rare, and a connection that is kept would be broken when one comes.

    With ``kept`` one stays open for who calls often; it is tried before each use, and made anew if broken.
    No statement waits longer than ``seconds``, if given.
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
