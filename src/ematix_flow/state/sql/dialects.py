"""What differs between the databases of state stores: the clock, and an insert of new keys only."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa

CLOCKS = {"postgresql": "SELECT clock_timestamp()", "mysql": "SELECT UTC_TIMESTAMP(6)"}


def dialect_name(engine: sa.Engine) -> str:
    """Return the name of the dialect; MariaDB's is MySQL's."""
    return "mysql" if engine.dialect.name == "mariadb" else engine.dialect.name


def server_time(connection: sa.Connection, dialect: str) -> dt.datetime:
    """Return the time of the server's clock. Only servers have one: see `CLOCKS`."""
    found: dt.datetime = connection.execute(sa.text(CLOCKS[dialect])).scalar_one()
    return found.astimezone(dt.timezone.utc) if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)


def insert_if_new(table: sa.Table, dialect: str) -> Any:
    """Return an insert that does nothing if a key exists; its row count shows that."""
    insert: Any
    if dialect == "mysql":
        insert = sa.insert(table).prefix_with("IGNORE")
    elif dialect in ("sqlite", "duckdb"):
        insert = sa.insert(table).prefix_with("OR IGNORE")
    else:
        from sqlalchemy.dialects import postgresql  # imported only here: the import is slow

        insert = postgresql.insert(table).on_conflict_do_nothing()
    return insert.execution_options(preserve_rowcount=True)


def is_readable_by_postgres(document: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Whether PostgreSQL's functions accept a JSON value: one odd character is enough to refuse it."""
    return sa.not_(sa.cast(document, sa.Text).regexp_match(r"\\u(0000|d[89a-f])"))
