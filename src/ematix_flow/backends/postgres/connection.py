"""Connections through psycopg, for the process that drives a load; tasks use `bulk_connection`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from ematix_flow.backends.postgres.address import PostgresAddress, connect_error, session_settings

# the server notices a dead client machine, and frees its locks, within two minutes
_KEEPALIVE = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "6"}


@contextmanager
def open_connection(address: PostgresAddress, **extra: str) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection; closed at the end, which rolls back an open transaction."""
    with closing(connect(address, **extra)) as connection:
        yield connection


def connect(
    address: PostgresAddress, kind: type[psycopg.Connection[Any]] = psycopg.Connection, /, **extra: str
) -> psycopg.Connection[Any]:
    """An autocommit connection with the settings of every session."""
    try:
        connection = kind.connect(address.conninfo(**extra), autocommit=True)
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        raise connect_error(address, error) from error
    try:
        chosen = session_settings(connection.info.server_version) | _KEEPALIVE
        calls = ", ".join(["set_config(%s, %s, false)"] * len(chosen))
        connection.execute(f"SELECT {calls}", [part for pair in chosen.items() for part in pair])
    except BaseException:
        connection.close()
        raise
    return connection
