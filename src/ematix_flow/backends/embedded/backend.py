"""An embedded database as a backend: what SQLite and DuckDB share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager

from ematix_flow.backends.base import Backend
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.spec.connections import Connection, DuckDBConnection, SQLiteConnection


class EmbeddedBackend(Backend):
    """One database file."""

    product: str  # SQLite or DuckDB
    version: str  # of the library

    def __init__(self, connection: Connection) -> None:
        assert isinstance(connection, SQLiteConnection | DuckDBConnection)
        super().__init__(connection)
        self.file = DatabaseFile.of(self.product, connection.name, connection.path)

    @abstractmethod
    def open_file(self) -> AbstractContextManager[object]:
        """Open the existing file for reading."""

    def check(self) -> str:
        product = f"{self.product} {self.version}"
        if self.file.in_memory:
            return f"{product}, in memory"
        if not self.file.exists:
            self.file.require_folder()
            return f"{product}, {self.file.path} (does not exist yet; the first load creates it)"
        with self.open_file():
            return f"{product}, {self.file.path}"

    def identity(self) -> str:
        return self.file.identity()

    def query_context(self) -> Mapping[str, str]:
        """Another hard link to the file has another catalog name and another journal."""
        return {"file": str(self.file.path)}
