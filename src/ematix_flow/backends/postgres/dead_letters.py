"""Dead letters in a table of a PostgreSQL database."""

from __future__ import annotations

from ematix_flow.backends.postgres.sql_engine import sql_engine
from ematix_flow.spec.connections import PostgresConnection
from ematix_flow.state.dead_letters.sql import SqlDeadLetterStore
from ematix_flow.state.dead_letters.tables import SCHEMA


def open_store(
    connection: PostgresConnection, schema: str | None, table: str, max_attempts: int
) -> SqlDeadLetterStore:
    schema = schema or SCHEMA
    location = f"{schema}.{table} of connection {connection.name!r}"
    return SqlDeadLetterStore(
        sql_engine(connection), location, schema=schema, table=table, max_attempts=max_attempts
    )
