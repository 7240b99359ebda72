"""Folders and files under a root, as a catalog of tables walks them: a disk here, a bucket in `s3tree`."""

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
from ematix_flow.backends.objectstore.writing.table_state import TableState
from ematix_flow.errors import SourceFailed

Parts = tuple[str, ...]
"""The folders that lead from the root to something, and its name."""


@dataclass(frozen=True)
class FolderEntry:
    """What a folder holds."""

    name: str
    is_folder: bool


@dataclass(frozen=True)
class OwnTable:
    """A table that we wrote, in one version. ``exact`` is whether its folder holds nothing else, ever."""

    state: TableState
    folder: str
    files: tuple[SourceFile, ...]
    is_exclusive: bool


class FileTree(ABC):
    """A root, which may also be one file."""

    @abstractmethod
    def display_name(self, parts: Parts = ()) -> str:
        """As a person is told of it."""

    @abstractmethod
    def uri(self, parts: Parts) -> str:
        """How Spark names a folder."""

    @abstractmethod
    def root_file(self) -> tuple[SourceFile, str] | None:
        """The root, when it is a file, and how Spark names the folder in which it lies."""

    @abstractmethod
    def require_root(self) -> None:
        """SourceFailed when there is no such root."""

    @abstractmethod
    def entries(self, parts: Parts) -> Sequence[FolderEntry]:
        """What lies directly in a folder, sorted by name, hidden or not; OSError when it cannot be read."""

    @abstractmethod
    def source_file(self, parts: Parts) -> SourceFile: ...

    @abstractmethod
    def inspect_folder(self, parts: Parts, belongs: Callable[[str], bool]) -> FolderContent:
        """The files of a folder, of its partitions (``column=value``), and of folders that ``belongs``."""

    @abstractmethod
    def iterate_files(self, parts: Parts, belongs: Callable[[str], bool]) -> Iterator[ListedFile]:
        """The same files, one by one in no order, however many they are; of a table of ours, those of its
        current version."""

    @abstractmethod
    def own_table(self, parts: Parts) -> OwnTable | None:
        """The table of ours that a folder is; None when it is none."""


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
                f"the folder {self._root} is not there",
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
        )  # the folder of a table of ours is a link to its version

    def own_table(self, parts: Parts) -> OwnTable | None:
        version = current_version(TablePaths(self._root, parts))
        if version is None:
            return None
        files = inspect_folder(version.data, lambda _: False).files
        return OwnTable(version.state, str(version.data), files, is_exclusive=True)
