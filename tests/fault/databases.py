"""The databases that fault tests load, used through their drivers only, without code of the product."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Database:
    """One database: ``where`` is a URL, or the path of a file."""

    kind: str
    where: str

    @property
    def fields(self) -> str:
        """The body of a ``@ematix.connection`` class."""
        name = "url" if "://" in self.where else "path"
        more = '; format = "parquet"' if self.kind == "object_store_local" else ""
        return f"kind = {self.kind!r}; {name} = {self.where!r}{more}"

    def table(self, schema: str, name: str) -> str:
        """How SQL names it. SQLite has no schemas, and MySQL's are databases."""
        return f"{schema}__{name}" if self.kind == "sqlite" else f"{schema}.{name}"

    def execute(self, *statements: str) -> None:
        with self.session() as session:
            for statement in statements:
                session.execute(statement)

    def fill(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows of numbers and times."""
        with self.session() as session:
            for first in range(0, len(rows), 500):
                shown = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows[first : first + 500])
                session.execute(f"INSERT INTO {table} VALUES {shown}")

    def snapshot(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        """The rows of each query, all from one snapshot."""
        with self.session() as session, session.one_moment():
            return [session.rows(query) for query in queries]

    def look(self, schema: str, name: str, query: str) -> tuple[int, list[tuple[Any, ...]] | None]:
        """How many batches the ledger holds and the table's rows, in one snapshot; None: no table."""
        if not self.exists(schema, name):
            return 0, None
        ledger, table = self.table("ematix_flow", "ledger"), self.table(schema, name)
        counted, rows = self.snapshot(f"SELECT count(*) FROM {ledger}", f"SELECT {query} FROM {table}")
        return int(counted[0][0]), rows

    def left_behind(self, schema: str, name: str) -> list[str]:
        """What no run needs any more in the database: tables of staging."""
        with self.session() as session:
            if self.kind == "sqlite":
                found = session.rows("SELECT name FROM sqlite_master WHERE name LIKE 'ematix_flow_staging%'")
            else:
                tables = "SELECT table_name FROM information_schema.tables"
                found = session.rows(f"{tables} WHERE table_schema LIKE 'ematix_flow_staging%'")
        staged = Path(self.where).parent.rglob("staging/*") if "://" not in self.where else ()
        return [name for (name,) in found] + [str(path) for path in staged]

    def exists(self, schema: str, name: str) -> bool:
        with self.session() as session:
            return session.exists(self.table(schema, name))

    @contextmanager
    def session(self) -> Iterator[Session]:
        with closing(_connect(self)) as connection:
            yield Session(self.kind, connection)


class Session:
    """One open connection, every statement its own transaction unless ``one_moment`` is on."""

    def __init__(self, kind: str, connection: Any) -> None:
        self._kind = kind
        self._connection = connection

    def execute(self, statement: str) -> Any:
        if self._kind == "mysql":
            cursor = self._connection.cursor()
            cursor.execute(statement)
            return cursor
        return self._connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(map(_plain, row)) for row in self.execute(query).fetchall()]

    def exists(self, table: str) -> bool:
        schema, _, name = table.rpartition(".")
        if self._kind == "sqlite":
            return bool(self.rows(f"SELECT 1 FROM sqlite_master WHERE name = '{name}'"))
        tables = "SELECT 1 FROM information_schema.tables WHERE"
        return bool(self.rows(f"{tables} table_schema = '{schema}' AND table_name = '{name}'"))

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        begin = {
            "postgres": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            "mysql": "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        }
        self.execute(begin.get(self._kind, "BEGIN"))
        try:
            yield
        finally:
            self.execute("COMMIT")


def _connect(database: Database) -> Any:
    if database.kind == "postgres":
        import psycopg

        return psycopg.connect(database.where, autocommit=True, connect_timeout=10)
    if database.kind == "sqlite":
        return sqlite3.connect(database.where, isolation_level=None, timeout=30, check_same_thread=False)
    if database.kind == "duckdb":
        import duckdb

        return duckdb.connect(database.where)
    import pymysql

    at = urlsplit(database.where)
    return pymysql.connect(
        host=at.hostname or "",
        port=at.port or 3306,
        user=unquote(at.username or ""),
        password=unquote(at.password or ""),
        database=at.path.strip("/"),
        charset="utf8mb4",
        autocommit=True,
    )


def _literal(value: Any) -> str:
    return f"'{value:%Y-%m-%d %H:%M:%S}'" if isinstance(value, dt.datetime) else str(value)


def _plain(value: Any) -> Any:
    """Times without a zone and booleans as integers, for every driver."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and len(value) >= 19 and value[4:5] == value[7:8] == "-":
        value = dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return value


def file_database(kind: str, folder: Path, name: str = "one") -> Database:
    return Database(kind, str(folder / f"{name}.{kind}"))
