"""Dead letters in a table of a MySQL or MariaDB server."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pymysql

from ematix_flow.backends.mysql.address import address_of
from ematix_flow.backends.mysql.connection import connect
from ematix_flow.backends.mysql.sql_engine import sql_engine
from ematix_flow.errors import CannotConnect
from ematix_flow.spec.connections import MySQLConnection
from ematix_flow.state.dead_letters import LONGEST_PAYLOAD
from ematix_flow.state.dead_letters_sql import SqlDeadLetters
from ematix_flow.state.dead_letters_tables import SCHEMA

_BESIDE_THE_PAYLOAD = 256 * 1024  # in one packet


def open_store(
    connection: MySQLConnection, schema: str | None, table: str, max_attempts: int
) -> SqlDeadLetters:
    schema = schema or SCHEMA
    return SqlDeadLetters(
        sql_engine(connection),
        f"{schema}.{table} of connection {connection.name!r}",
        schema=schema,
        table=table,
        max_attempts=max_attempts,
        longest_payload=_longest_payload(connect(address_of(connection))),
    )


def _longest_payload(session: pymysql.Connection[Any]) -> int:
    """What goes into one packet of this server's, where each byte may have to be escaped."""
    try:
        with closing(session), session.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            packet = int(cursor.fetchone()[0])
    except pymysql.MySQLError as error:
        raise CannotConnect(f"the server ended the connection at once: {error.args[-1]}") from None
    return max(1024, min(LONGEST_PAYLOAD, (packet - _BESIDE_THE_PAYLOAD) // 2))
