"""The connections of one process's share of a load on a database: opened when they are needed, and shared."""

from __future__ import annotations

import queue
import threading

from ematix_probe.load.shares import Share
from ematix_probe.load.sql_connections import (
    DuckDBConnection,
    DuckDBDatabase,
    MySQLConnection,
    PostgresConnection,
    SqlConnection,
    SQLiteConnection,
)


class NoFreeConnection(Exception):
    """All connections of the pool stayed taken."""


class ConnectionPool:
    """Connections that are opened when they are needed, and again when they break."""

    def __init__(self, share: Share, size: int) -> None:
        self._share = share
        self._free: queue.SimpleQueue[SqlConnection | None] = queue.SimpleQueue()
        for _ in range(size):
            self._free.put(None)
        self._all: set[SqlConnection] = set()
        self._lock = threading.Lock()
        self._database: DuckDBDatabase | None = None
        self.opened = 0

    def take(self, seconds: float) -> SqlConnection | None:
        """A free connection, or None for the right to open one; NoFreeConnection after ``seconds``."""
        try:
            return self._free.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            raise NoFreeConnection from None

    def give_back(self, connection: SqlConnection | None) -> None:
        if connection is not None and connection.is_broken:
            self._discard(connection)
            connection = None
        self._free.put(connection)

    def open(self) -> SqlConnection:
        target, endpoints, timeout = self._share.target, self._share.endpoints, self._share.timeout
        opened: SqlConnection
        if target.dialect == "postgres":
            opened = PostgresConnection(target, endpoints, timeout)
        elif target.dialect == "mysql":
            opened = MySQLConnection(target, endpoints, timeout)
        elif target.dialect == "sqlite":
            opened = SQLiteConnection(target, endpoints, timeout)
        else:
            with self._lock:
                if self._database is None:
                    self._database = DuckDBDatabase(target)
            opened = DuckDBConnection(self._database)
        with self._lock:
            self._all.add(opened)
            self.opened += 1
        return opened

    def _discard(self, connection: SqlConnection) -> None:
        with self._lock:
            self._all.discard(connection)
        connection.close()

    def close(self) -> None:
        with self._lock:
            everything, self._all = self._all, set()
        for connection in everything:
            connection.close()
        if self._database is not None:
            self._database.connection.close()
