"""What a place for files can do. Paths are relative to its root, with ``/``, and are ours, never a user's."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path


class Store(ABC):
    """A root under which tables lie. Picklable: tasks write staging through it; it holds no open handle."""

    @abstractmethod
    def uri(self, path: str) -> str:
        """How Spark names it."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names of the files directly in a folder, sorted; none when there is no such folder."""

    @abstractmethod
    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in a folder, sorted."""

    @abstractmethod
    def files_below(self, folder: str, without: Collection[str] = ()) -> Iterator[tuple[str, int]]:
        """Every file below a folder, as its path relative to that folder and its size.

        ``without`` are names of folders directly in it that are passed over. A file that is removed
        meanwhile may be missing.
        """

    @abstractmethod
    def read(self, path: str) -> str:
        """The text of a small file; FileNotFoundError when it is not there."""

    @abstractmethod
    def create(self, path: str, text: str) -> None:
        """Write a small file whole and durably; FileExistsError when another was first."""

    @abstractmethod
    def upload(self, local: Path, path: str) -> None:
        """Bring a finished file from this machine's disk; it is seen whole or not at all."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """A file that is not there is no error."""

    def remove_all(self, paths: Sequence[str]) -> None:
        """Many files, in this order as far as that can be told apart."""
        for path in paths:
            self.remove(path)

    @abstractmethod
    def remove_tree(self, folder: str) -> bool:
        """Everything below a folder; whether anything was there."""

    @abstractmethod
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]:
        """Hold the lock of a pipeline on a target for a whole run; PipelineLocked when it is taken."""

    @abstractmethod
    def table_lock(self, folder: str) -> AbstractContextManager[None]:
        """Wait until no other load applies to the table in that folder, and keep others out."""

    def require_locks_held(self) -> None:
        """Raise TargetFailed when a lock that this process took here is no longer its own.

        Whoever commits asks just before. A lock that the system itself keeps cannot be lost.
        """
        return

    @abstractmethod
    def check(self) -> str:
        """Reach it for real and say what it is. CannotConnect when that fails."""

    @abstractmethod
    def identity(self) -> str:
        """Equal for two stores exactly when they are the same place."""
