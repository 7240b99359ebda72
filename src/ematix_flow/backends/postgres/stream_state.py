"""The states of streams in two tables of a PostgreSQL database.

One row for each query of a stream says which process owns it and how far it is; the parts hold a full copy
of the state and the changes after it. What the bytes mean is decided by the engine. A process that another
one has replaced as the owner cannot write any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from ematix_flow.backends.postgres.address import parse_address
from ematix_flow.backends.postgres.connection import connect
from ematix_flow.backends.postgres.diagnosis import diagnose
from ematix_flow.errors import CannotConnect, EngineError, FlowError, PipelineLocked
from ematix_flow.spec.connections import PostgresConnection
from ematix_flow.state.stream_states import StateEntry, StatePart

ENTRIES, PARTS = "ematix_stream_state", "ematix_stream_state_parts"
_TRIES = 4
_PAUSE_SECONDS = 0.5
_UNCHANGED = "the batch is not loaded; it comes again with the next start"

T = TypeVar("T")


class PostgresStreamStates:
    """The states in ``schema``. Tables that are missing are created. Used by one thread at a time."""

    def __init__(self, connection: PostgresConnection, schema: str) -> None:
        self._address, self.schema = parse_address(connection), schema
        self.location = f"{self._address.label}, schema {schema}"
        self._entries, self._parts = sql.Identifier(schema, ENTRIES), sql.Identifier(schema, PARTS)
        self._session: psycopg.Connection[Any] | None = None
        self._was_open = False

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    # -------------------------------------------------------------- one query of a stream

    def read(self, stream: str, query: str) -> StateEntry | None:
        """The entry of a query; None if there is none. Creates nothing."""

        def select(session: psycopg.Connection[Any]) -> StateEntry | None:
            return self._select(session, stream, query) if self._has_tables(session) else None

        return self._run(select)

    def read_all(self, stream: str) -> dict[str, StateEntry]:
        """The entries of all queries of a stream. Creates nothing."""

        def select(session: psycopg.Connection[Any]) -> dict[str, StateEntry]:
            if not self._has_tables(session):
                return {}
            found = session.execute(
                sql.SQL("SELECT query FROM {} WHERE stream = %s ORDER BY query").format(self._entries),
                [stream],
            ).fetchall()
            entries = {query: self._select(session, stream, query) for (query,) in found}
            return {query: entry for query, entry in entries.items() if entry is not None}

        return self._run(select)

    def claim(self, stream: str, query: str, owner: str) -> StateEntry | None:
        """Make ``owner`` the only one that can write, and return the entry as it was before.

        An earlier owner that is in the middle of a write finishes it first.
        """

        def take(session: psycopg.Connection[Any]) -> StateEntry | None:
            if not self._has_tables(session):
                self._create_tables(session)
            with session.transaction():
                session.execute(
                    sql.SQL(
                        "INSERT INTO {} (stream, query, owner) VALUES (%s, %s, '') ON CONFLICT DO NOTHING"
                    ).format(self._entries),
                    [stream, query],
                )
                before = self._select(session, stream, query, lock=True)
                session.execute(
                    sql.SQL("UPDATE {} SET owner = %s WHERE stream = %s AND query = %s").format(
                        self._entries
                    ),
                    [owner, stream, query],
                )
            return before

        return self._run(take)

    def write(
        self, stream: str, query: str, entry: StateEntry, parts: Sequence[StatePart], *, is_copy: bool
    ) -> None:
        """Store a version: the entry and the parts of this version, in one transaction.

        A full copy replaces all parts. Changes replace those of the same version and of later ones.
        Raises PipelineLocked if ``entry.owner`` is no longer the owner.
        """
        assert entry.version is not None

        def store(session: psycopg.Connection[Any]) -> None:
            with session.transaction():
                self._update(session, stream, query, entry)
                older = sql.SQL("") if is_copy else sql.SQL(" AND version >= %(version)s")
                session.execute(
                    sql.SQL("DELETE FROM {} WHERE stream = %(stream)s AND query = %(query)s{}").format(
                        self._parts, older
                    ),
                    {"stream": stream, "query": query, "version": entry.version},
                )
                with session.cursor() as cursor:
                    cursor.executemany(
                        sql.SQL(
                            "INSERT INTO {} (stream, query, version, table_name, kind, number, data) "
                            "VALUES (%s, %s, %s, %s, %s, %s, %b)"
                        ).format(self._parts),
                        [
                            (stream, query, each.version, each.table, each.kind, each.number, each.data)
                            for each in parts
                        ],
                    )

        self._run(store)

    def write_entry(self, stream: str, query: str, entry: StateEntry) -> None:
        """Store the entry of the version that is already there."""

        def store(session: psycopg.Connection[Any]) -> None:
            with session.transaction():
                self._update(session, stream, query, entry)

        self._run(store)

    def versions(self, stream: str, query: str) -> dict[int, int]:
        """The versions that have parts, lowest first, and the bytes of each."""
        statement = sql.SQL(
            "SELECT version, sum(octet_length(data)) FROM {} WHERE stream = %s AND query = %s "
            "GROUP BY version ORDER BY version"
        )

        def select(session: psycopg.Connection[Any]) -> dict[int, int]:
            found = session.execute(statement.format(self._parts), [stream, query]).fetchall()
            return {version: int(size) for version, size in found}

        return self._run(select)

    def parts(self, stream: str, query: str) -> Iterator[StatePart]:
        """The parts in the order in which they were written, each read when it is needed."""
        names = sql.SQL(
            "SELECT version, table_name, kind, number FROM {} WHERE stream = %s AND query = %s "
            "ORDER BY version, table_name, kind, number"
        ).format(self._parts)
        listed = self._run(lambda session: session.execute(names, [stream, query]).fetchall())
        one = sql.SQL(
            "SELECT data FROM {} WHERE stream = %s AND query = %s AND version = %s AND table_name = %s "
            "AND kind = %s AND number = %s"
        ).format(self._parts)
        for version, table, kind, number in listed:
            data = self._part_data(one, [stream, query, version, table, kind, number])
            yield StatePart(version, table, kind, number, data)

    def _part_data(self, statement: sql.Composed, values: Sequence[object]) -> bytes:
        def select(session: psycopg.Connection[Any]) -> bytes:
            row = session.execute(statement, values, binary=True).fetchone()
            if row is None:
                raise _replaced_error()
            return bytes(row[0])

        return self._run(select)

    # -------------------------------------------------------------- tables and statements

    def _select(
        self, session: psycopg.Connection[Any], stream: str, query: str, *, lock: bool = False
    ) -> StateEntry | None:
        statement = "SELECT owner, version, facts, checkpoint, columns, status FROM {} "
        statement += f"WHERE stream = %s AND query = %s{' FOR UPDATE' if lock else ''}"
        row = session.execute(sql.SQL(statement).format(self._entries), [stream, query]).fetchone()
        return None if row is None else StateEntry(*row)

    def _update(self, session: psycopg.Connection[Any], stream: str, query: str, entry: StateEntry) -> None:
        found = session.execute(
            sql.SQL(
                "UPDATE {} SET version = %s, facts = %s, checkpoint = %s, "
                "columns = %s, status = %s, changed_at = now() "
                "WHERE stream = %s AND query = %s AND owner = %s"
            ).format(self._entries),
            [
                entry.version,
                entry.facts,
                entry.checkpoint,
                entry.columns,
                entry.status,
                stream,
                query,
                entry.owner,
            ],
        )
        if found.rowcount != 1:
            raise _replaced_error()

    def _has_tables(self, session: psycopg.Connection[Any]) -> bool:
        if session.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self.schema]).fetchone() is None:
            raise EngineError(
                f"the state store {self._address.label} has no schema {self.schema!r}",
                state="nothing was loaded",
                next_step=f'run  CREATE SCHEMA "{self.schema}"  there, or set another schema= in StateStore',
            )
        found = session.execute(
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname IN (%s, %s)",
            [self.schema, ENTRIES, PARTS],
        ).fetchone()
        return found == (2,)

    def _create_tables(self, session: psycopg.Connection[Any]) -> None:
        with session.transaction():
            session.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"{self.schema}.{ENTRIES}"])
            session.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (stream text NOT NULL, query text NOT NULL, "
                    "owner text NOT NULL, version bigint, facts text, checkpoint text, "
                    "columns text, status text, changed_at timestamptz NOT NULL DEFAULT now(), "
                    "PRIMARY KEY (stream, query))"
                ).format(self._entries)
            )
            session.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (stream text NOT NULL, query text NOT NULL, "
                    "version bigint NOT NULL, table_name text NOT NULL, kind text NOT NULL, "
                    "number integer NOT NULL, data bytea NOT NULL, "
                    "PRIMARY KEY (stream, query, version, table_name, kind, number))"
                ).format(self._parts)
            )

    def _run(self, action: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Call ``action``, again with a new connection if the connection breaks: it can be repeated."""
        for tries_left in reversed(range(_TRIES)):
            try:
                if self._session is None:
                    self._session = connect(self._address)
                    self._was_open = True
                return action(self._session)
            except CannotConnect:
                if not tries_left or not self._was_open:
                    raise
            except psycopg.Error as error:
                lost = diagnose(error).connection_lost
                if not lost or not tries_left:
                    self._discard_session()
                    raise self._error(error) from error
            self._discard_session()
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _discard_session(self) -> None:
        with suppress(psycopg.Error):
            self.close()
        self._session = None

    def _error(self, error: psycopg.Error) -> FlowError:
        found = diagnose(error)
        if found.connection_lost:
            return CannotConnect(
                f"the state store {self._address.label} does not answer: {found.message}",
                state=_UNCHANGED,
                next_step="check that the server runs and can be reached, then start the stream again",
            )
        step = found.hint or "check the server's log"
        if found.state == "42501":
            step = (
                f"GRANT USAGE, CREATE on schema {self.schema} and SELECT, INSERT, UPDATE, DELETE on "
                f"{ENTRIES} and {PARTS} to {self._address.user or 'the user of the url'}"
            )
        elif found.state == "53100":
            step = "free space on the server's disk, then start the stream again"
        elif found.state == "25006":
            step = "connect to the primary: this server takes no writes"
        return EngineError(
            f"the state store {self._address.label} refused: {found.sentence}",
            state=_UNCHANGED,
            next_step=step,
        )


def _replaced_error() -> PipelineLocked:
    return PipelineLocked(
        "another process has taken over this stream and its state in Postgres",
        state="this process changed nothing after that; the other one continues with the same batch",
        next_step="run each stream once; give a second deployment another name= or another schema= in "
        "StateStore(…)",
    )
