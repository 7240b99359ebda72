"""The version of a store's tables, in a table with one row."""

from __future__ import annotations

import sqlalchemy as sa

from ematix_flow.state.sql.column_types import UtcDateTime
from ematix_flow.state.times import utc_now


def version_table(name: str, metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("migrated_at", UtcDateTime, nullable=False),
    )


def stored_version(connection: sa.Connection, table: sa.Table, schema: str | None) -> int:
    """Return the version of the tables; 0 if there are none."""
    if not sa.inspect(connection).has_table(table.name, schema=schema):
        return 0
    return connection.scalar(sa.select(sa.func.max(table.c.version))) or 0


def write_version(connection: sa.Connection, table: sa.Table, version: int) -> None:
    connection.execute(sa.delete(table))
    connection.execute(sa.insert(table).values(version=version, migrated_at=utc_now()))


def make_schema(connection: sa.Connection, schema: str | None) -> None:
    if schema is not None and not sa.inspect(connection).has_schema(schema):
        connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
