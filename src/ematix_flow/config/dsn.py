"""Writes a connection as one URL, for programs that open it by other means."""

from __future__ import annotations

from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections import (
    Connection,
    DuckDBConnection,
    PostgresConnection,
    RabbitMQConnection,
    RedshiftConnection,
    SQLiteConnection,
    libpq_uri,
)


def dsn_of(connection: Connection) -> str:
    """The URL of an expanded connection, secrets included. Raises ConfigError when it has none."""
    if connection.url:
        return str(connection.url)
    if isinstance(connection, (PostgresConnection, RedshiftConnection)):
        return libpq_uri(connection)
    if isinstance(connection, (SQLiteConnection, DuckDBConnection)):
        return f"{connection.kind}://{connection.path}"
    if isinstance(connection, RabbitMQConnection):
        return str(connection.amqp_url)
    raise ConfigError(
        f"connection {connection.name!r} is of kind {connection.kind}, which is not one URL",
        next_step="use  ematix_flow.connections.resolve(name)  and its fields",
    )
