"""Dead letters in a table of a SQLite database."""

from __future__ import annotations

from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.spec.connections import SQLiteConnection
from ematix_flow.state.dead_letters.sql import SqlDeadLetterStore
from ematix_flow.state.sql.sqlite import sqlite_engine


def open_store(
    connection: SQLiteConnection, schema: str | None, table: str, max_attempts: int
) -> SqlDeadLetterStore:
    """SQLite has no schemas: the schema becomes the first part of the table's name."""
    file = DatabaseFile.of("SQLite", connection.name, connection.path)
    file.require_shared("dead-letter store")
    file.require_folder()
    name = table if schema is None else f"{schema}__{table}"
    location = f"{name} of connection {connection.name!r}"
    return SqlDeadLetterStore(sqlite_engine(file.path), location, table=name, max_attempts=max_attempts)
