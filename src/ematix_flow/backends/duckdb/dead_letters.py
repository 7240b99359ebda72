"""Dead letters in a table of a DuckDB database."""

from __future__ import annotations

from ematix_flow.backends.duckdb.sql_engine import sql_engine
from ematix_flow.backends.embedded import DatabaseFile
from ematix_flow.spec.connections import DuckDBConnection
from ematix_flow.state.dead_letters_sql import SqlDeadLetters
from ematix_flow.state.dead_letters_tables import SCHEMA


def open_store(
    connection: DuckDBConnection, schema: str | None, table: str, max_attempts: int
) -> SqlDeadLetters:
    file = DatabaseFile.of("DuckDB", connection.name, connection.path)
    file.require_shared("dead-letter store")
    file.require_folder()
    schema = schema or SCHEMA
    return SqlDeadLetters(
        sql_engine(file, write=True),
        f"{schema}.{table} of connection {connection.name!r}",
        schema=schema,
        table=table,
        max_attempts=max_attempts,
        reader=sql_engine(file, write=False),
    )
