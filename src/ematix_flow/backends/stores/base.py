"""The interface of a file store. Paths are relative to its root, with ``/``, and never come from a user."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, ClassVar


class Store(ABC):
    """A root with tables below it. Tasks write staging through it, so it is picklable and holds no open
    handle."""

    locks_expire: ClassVar[bool] = False  # whether a process that is only slow may lose a lock

    @abstractmethod
    def uri(self, path: str) -> str:
        """The URI for Spark."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names of the files directly in a folder, sorted; empty if there is no such folder."""

    @abstractmethod
    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in a folder, sorted."""

    @abstractmethod
    def files_below(self, folder: str, without: Collection[str] = ()) -> Iterator[tuple[str, int]]:
        """Every file below a folder: its path relative to the folder, and its size.

        ``without`` are names of folders directly in it to skip. A file that is removed at the same
        time may be missing.
        """

    def has_file(self, path: str) -> bool:
        """Whether there is a file at this path."""
        folder, _, name = path.rpartition("/")
        return name in self.names(folder)

    @abstractmethod
    def read(self, path: str) -> str:
        """The text of a small file; FileNotFoundError if it does not exist."""

    @abstractmethod
    def open(self, path: str) -> IO[bytes]:
        """Open a seekable file for reading; FileNotFoundError if it does not exist."""

    @abstractmethod
    def create(self, path: str, text: str, *, durable: bool = True) -> None:
        """Write a small file atomically; FileExistsError if it already exists.

        Without ``durable`` a loss of power may lose it, until another file of its folder is durable.
        """

    @abstractmethod
    def upload(self, local: Path, path: str) -> None:
        """Move a finished local file into the store; readers see all of it or nothing."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file. A missing file is not an error."""

    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove many files, in this order where the store allows it."""
        for path in paths:
            self.remove(path)

    @abstractmethod
    def remove_tree(self, folder: str) -> bool:
        """Remove everything below a folder; return whether there was anything."""

    @abstractmethod
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]:
        """Hold the lock of a pipeline on a target for a whole run; PipelineLocked if another run holds it."""

    @abstractmethod
    def table_lock(self, folder: str) -> AbstractContextManager[None]:
        """Hold the lock of the table in that folder. Waits until no other load applies to it."""

    def require_locks_held(self) -> None:
        """Raise TargetFailed if this process has lost a lock of this store.

        Called just before a commit. A lock that the operating system keeps cannot be lost.
        """
        return

    @abstractmethod
    def check(self) -> str:
        """Connect to the store and describe it. CannotConnect if that fails."""

    @abstractmethod
    def identity(self) -> str:
        """A text that is equal for two stores exactly when they are the same location."""
