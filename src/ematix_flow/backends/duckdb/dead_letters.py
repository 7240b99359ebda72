"""Dead letters in a table of a DuckDB database."""

from __future__ import annotations

from ematix_flow.backends.duckdb.sql_engine import sql_engine
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.spec.connections import DuckDBConnection
from ematix_flow.state.dead_letters.sql import SqlDeadLetterStore
from ematix_flow.state.dead_letters.tables import SCHEMA


def open_store(
    connection: DuckDBConnection, schema: str | None, table: str, max_attempts: int
) -> SqlDeadLetterStore:
    file = DatabaseFile.of("DuckDB", connection.name, connection.path)
    file.require_shared("dead-letter store")
    file.require_folder()
    schema = schema or SCHEMA
    return SqlDeadLetterStore(
        sql_engine(file, write=True),
        f"{schema}.{table} of connection {connection.name!r}",
        schema=schema,
        table=table,
        max_attempts=max_attempts,
        reader=sql_engine(file, write=False),
    )
