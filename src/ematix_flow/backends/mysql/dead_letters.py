"""Dead letters in a table of a MySQL or MariaDB server."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pymysql

from ematix_flow.backends.mysql.address import parse_address
from ematix_flow.backends.mysql.connection import connect
from ematix_flow.backends.mysql.sql_engine import sql_engine
from ematix_flow.errors import CannotConnect
from ematix_flow.spec.connections import MySQLConnection
from ematix_flow.state.dead_letters.base import MAX_PAYLOAD_BYTES
from ematix_flow.state.dead_letters.sql import SqlDeadLetterStore
from ematix_flow.state.dead_letters.tables import SCHEMA

_PACKET_OVERHEAD = 256 * 1024  # in one packet


def open_store(
    connection: MySQLConnection, schema: str | None, table: str, max_attempts: int
) -> SqlDeadLetterStore:
    schema = schema or SCHEMA
    return SqlDeadLetterStore(
        sql_engine(connection),
        f"{schema}.{table} of connection {connection.name!r}",
        schema=schema,
        table=table,
        max_attempts=max_attempts,
        longest_payload=_longest_payload(connect(parse_address(connection))),
    )


def _longest_payload(session: pymysql.Connection[Any]) -> int:
    """The largest payload that fits into one packet of the server when every byte is escaped."""
    try:
        with closing(session), session.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            packet = int(cursor.fetchone()[0])
    except pymysql.MySQLError as error:
        raise CannotConnect(f"the server closed the connection immediately: {error.args[-1]}") from None
    return max(1024, min(MAX_PAYLOAD_BYTES, (packet - _PACKET_OVERHEAD) // 2))
