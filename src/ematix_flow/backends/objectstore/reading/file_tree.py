"""The folders and files under a root, as the catalog walks them: the interface, and its form for a disk."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.backends.objectstore.layout.source_files import (
    FolderContent,
    ListedFile,
    SourceFile,
    inspect_folder,
    iterate_files,
    local_file,
)
from ematix_flow.backends.objectstore.layout.table_paths import TablePaths
from ematix_flow.backends.objectstore.storage.local_versions import current_version
from ematix_flow.backends.objectstore.table.table_state import TableState
from ematix_flow.errors import SourceFailed

Parts = tuple[str, ...]
"""The folders that lead from the root to something, and its name."""


@dataclass(frozen=True)
class FolderEntry:
    """An entry of a folder."""

    name: str
    is_folder: bool


@dataclass(frozen=True)
class OwnTable:
    """A table that this product wrote, in one version. ``is_exclusive``: its folder holds no other files."""

    state: TableState
    folder: str
    files: tuple[SourceFile, ...]
    is_exclusive: bool


class FileTree(ABC):
    """The folders and files under a root. The root may also be one file."""

    @abstractmethod
    def display_name(self, parts: Parts = ()) -> str:
        """The path, as error messages show it."""

    @abstractmethod
    def uri(self, parts: Parts) -> str:
        """The URI of a folder for Spark."""

    @abstractmethod
    def root_file(self) -> tuple[SourceFile, str] | None:
        """If the root is a file: the file, and the URI of its folder."""

    @abstractmethod
    def require_root(self) -> None:
        """Fail with SourceFailed if the root does not exist."""

    @abstractmethod
    def entries(self, parts: Parts) -> Sequence[FolderEntry]:
        """The entries of a folder, including hidden ones, sorted by name; OSError if it cannot be read."""

    @abstractmethod
    def source_file(self, parts: Parts) -> SourceFile: ...

    @abstractmethod
    def inspect_folder(self, parts: Parts, belongs: Callable[[str], bool]) -> FolderContent:
        """The files of a folder, of its partitions (``column=value``), and of folders for which ``belongs``
        is true."""

    @abstractmethod
    def iterate_files(self, parts: Parts, belongs: Callable[[str], bool]) -> Iterator[ListedFile]:
        """Yield the same files one by one, in no order. Of a table that this product wrote: the files of its
        current version."""

    @abstractmethod
    def own_table(self, parts: Parts) -> OwnTable | None:
        """The table in this folder, if this product wrote it; None otherwise."""


class LocalFileTree(FileTree):
    """A folder on a disk that the driver and every worker see."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _path(self, parts: Parts) -> Path:
        return self._root.joinpath(*parts)

    def display_name(self, parts: Parts = ()) -> str:
        return str(self._path(parts))

    def uri(self, parts: Parts) -> str:
        return str(self._path(parts))

    def root_file(self) -> tuple[SourceFile, str] | None:
        return (local_file(self._root), str(self._root.parent)) if self._root.is_file() else None

    def require_root(self) -> None:
        if not self._root.is_dir():
            raise SourceFailed(
                f"the folder {self._root} does not exist",
                next_step="check the connection's path, or run the pipeline that fills it first",
            )

    def entries(self, parts: Parts) -> Sequence[FolderEntry]:
        with os.scandir(self._path(parts)) as entries:
            found = [FolderEntry(entry.name, entry.is_dir()) for entry in entries]
        return sorted(found, key=lambda entry: entry.name)

    def source_file(self, parts: Parts) -> SourceFile:
        return local_file(self._path(parts))

    def inspect_folder(self, parts: Parts, belongs: Callable[[str], bool]) -> FolderContent:
        return inspect_folder(self._path(parts), belongs)

    def iterate_files(self, parts: Parts, belongs: Callable[[str], bool]) -> Iterator[ListedFile]:
        return iterate_files(
            self._path(parts), belongs
        )  # the folder of an own table is a link to its version

    def own_table(self, parts: Parts) -> OwnTable | None:
        version = current_version(TablePaths(self._root, parts))
        if version is None:
            return None
        files = inspect_folder(version.data, lambda _: False).files
        return OwnTable(version.state, str(version.data), files, is_exclusive=True)
