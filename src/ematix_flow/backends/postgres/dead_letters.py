"""Dead letters in a table of a PostgreSQL database."""

from __future__ import annotations

from typing import Any

import psycopg
import sqlalchemy as sa

from ematix_flow.backends.postgres.address import address_of
from ematix_flow.backends.postgres.control import connect
from ematix_flow.spec.connections import PostgresConnection
from ematix_flow.state.dead_letters_sql import SqlDeadLetters
from ematix_flow.state.dead_letters_tables import SCHEMA


def open_store(
    connection: PostgresConnection, schema: str | None, table: str, max_attempts: int
) -> SqlDeadLetters:
    address = address_of(connection)

    def opened() -> psycopg.Connection[Any]:
        session = connect(address)
        session.autocommit = False  # SQLAlchemy expects the driver to begin
        return session

    # no pool: letters are rare, and a connection that is kept would be broken when one comes
    engine = sa.create_engine(
        "postgresql+psycopg://",
        creator=opened,
        poolclass=sa.pool.NullPool,
        use_native_hstore=False,
        hide_parameters=True,
    )
    schema = schema or SCHEMA
    location = f"{schema}.{table} of connection {connection.name!r}"
    return SqlDeadLetters(engine, location, schema=schema, table=table, max_attempts=max_attempts)
