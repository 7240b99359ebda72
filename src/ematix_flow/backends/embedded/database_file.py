"""The file of an embedded database: its path, and the folder next to it for staging and locks.

Staging and locks are in ``.ematix_flow`` next to the database, not in it: such a database allows one writer,
and a load must hold it only while it applies rows. Every Spark executor must see the folder. Tasks import
this module, so it imports little itself.
"""

from __future__ import annotations

import errno
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.errors import CannotConnect, DatabaseMissing, TargetFailed, Unsupported
from ematix_flow.state.state_root import next_step_for

MEMORY = ":memory:"
STATE_FOLDER = ".ematix_flow"
UNCHANGED = "the target is unchanged"


@dataclass(frozen=True)
class DatabaseFile:
    """The path of a database file, absolute and without links. The file may not exist yet."""

    product: str  # SQLite or DuckDB
    connection: str
    path: Path

    @classmethod
    def of(cls, product: str, connection: str, path: str) -> DatabaseFile:
        """A relative path is relative to the working directory."""
        if path.startswith(MEMORY):
            return cls(product, connection, Path(MEMORY))
        return cls(product, connection, Path(os.path.realpath(os.path.expanduser(path))))

    @property
    def in_memory(self) -> bool:
        return str(self.path) == MEMORY

    @property
    def exists(self) -> bool:
        return not self.in_memory and os.path.exists(self.path)

    @property
    def state_folder(self) -> Path:
        return self.path.parent / STATE_FOLDER

    def identity(self) -> str:
        """Equal for every path to one file. A database in memory equals no other."""
        if self.in_memory:
            return f"{self.product}:memory:{uuid.uuid4()}"
        try:
            found = self.path.stat()
        except OSError:
            return f"{self.product}:{self.path}"
        return f"{self.product}:{found.st_dev}:{found.st_ino}"

    def require_shared(self, what: str) -> None:
        """Refuse a database in memory: tasks cannot read it, and it ends with its process."""
        if self.in_memory:
            raise Unsupported(
                f"connection {self.connection!r} is a {self.product} database in memory, "
                f"which cannot be the {what} of a pipeline",
                next_step='give the connection the path of a file, as in  path = "data/warehouse.db"',
            )

    def require_existing(self) -> None:
        self.require_folder()
        if not self.exists:
            missing = DatabaseMissing(
                f"connection {self.connection!r}: there is no {self.product} database at {self.path}",
                next_step="correct the path, or create the database first",
            )
            missing.connection = self.connection
            raise missing
        self._require_no_folder()

    def require_folder(self) -> None:
        if not os.path.isdir(self.path.parent):  # False also without permission
            raise CannotConnect(
                f"connection {self.connection!r}: the folder {self.path.parent} of the {self.product} "
                "database does not exist or cannot be entered",
                state="nothing was read or written",
                next_step=f"create the folder, or correct the path of connection {self.connection!r}",
            )

    def require_writable(self) -> None:
        """Fail before anything is read when the file or its folder cannot be written."""
        self.require_folder()
        self._require_no_folder()
        for path in (self.path.parent, self.path):
            if os.path.exists(path) and not os.access(path, os.W_OK):
                raise self._unwritable_error(path, PermissionError(errno.EACCES, "no permission to write"))
        try:
            self.state_folder.mkdir(exist_ok=True)
        except OSError as error:
            raise self._unwritable_error(self.state_folder, error) from error

    def _require_no_folder(self) -> None:
        if os.path.isdir(self.path):
            raise CannotConnect(
                f"connection {self.connection!r}: {self.path} is a folder, not a {self.product} database",
                next_step="give the path of the file",
            )

    def _unwritable_error(self, path: Path, error: OSError) -> TargetFailed:
        step = "make the database and its folder writable; staging and locks are next to the database"
        return TargetFailed(
            f"connection {self.connection!r}: {path} cannot be written: {error.strerror or error}",
            state=UNCHANGED,
            next_step=next_step_for(error, step),
        )
