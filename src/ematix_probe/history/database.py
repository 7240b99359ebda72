"""What `SqlHistory` needs of a database: its tables, connections to it, and what its errors mean."""

from __future__ import annotations

from abc import ABC, abstractmethod

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ematix_probe.history.tables import HistoryTables


class HistoryDatabase(ABC):
    """A database that holds a history. No connection stays open between two pieces of work."""

    location: str
    tables: HistoryTables
    gives_ids = True  # else `SqlHistory` counts

    @property
    def exists(self) -> bool:
        """Whether there may be a history to read. A file that is missing is not made by reading it."""
        return True

    @abstractmethod
    def engine(self, *, write: bool) -> sa.Engine: ...

    def stored_version(self, connection: sa.Connection) -> int:
        """The version of the tables; 0 if there are none."""
        table = self.tables.version
        if not sa.inspect(connection).has_table(table.name, schema=table.schema):
            return 0
        return int(connection.scalar(sa.select(sa.func.max(table.c.version))) or 0)

    def write_version(self, connection: sa.Connection, version: int) -> None:
        connection.execute(sa.delete(self.tables.version))
        connection.execute(sa.insert(self.tables.version).values(version=version))

    def create(self, connection: sa.Connection) -> None:
        self.tables.metadata.create_all(connection)

    def lock_tables(self, connection: sa.Connection) -> None:
        """Until the connection is closed, no other process creates or upgrades the tables."""
        return

    def is_conflict(self, error: SQLAlchemyError) -> bool:
        """Whether another writer caused the error, so that the same transaction may succeed later."""
        return False

    def is_unreachable(self, error: SQLAlchemyError) -> bool:
        """Whether no connection could be opened."""
        return False


def database_message(error: SQLAlchemyError) -> str:
    """The message of the database, without the statement."""
    return (str(error.orig) if isinstance(error, DBAPIError) else str(error)).strip()
