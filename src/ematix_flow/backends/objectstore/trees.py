"""Folders and files under a root, as a catalog of tables walks them: a disk here, a bucket in `s3tree`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.backends.objectstore.places import Place
from ematix_flow.backends.objectstore.sourcefiles import (
    Found,
    Listed,
    SourceFile,
    each_file,
    local_file,
    look_into,
)
from ematix_flow.backends.objectstore.tablestate import TableState
from ematix_flow.backends.objectstore.versions import current_version
from ematix_flow.errors import SourceFailed

Parts = tuple[str, ...]
"""The folders that lead from the root to something, and its name."""


@dataclass(frozen=True)
class Entry:
    """What a folder holds."""

    name: str
    is_folder: bool


@dataclass(frozen=True)
class Managed:
    """A table that we wrote, in one version. ``exact`` is whether its folder holds nothing else, ever."""

    state: TableState
    folder: str
    files: tuple[SourceFile, ...]
    exact: bool


class Tree(ABC):
    """A root, which may also be one file."""

    @abstractmethod
    def shown(self, parts: Parts = ()) -> str:
        """As a person is told of it."""

    @abstractmethod
    def uri(self, parts: Parts) -> str:
        """How Spark names a folder."""

    @abstractmethod
    def root_file(self) -> tuple[SourceFile, str] | None:
        """The root, when it is a file, and how Spark names the folder in which it lies."""

    @abstractmethod
    def require(self) -> None:
        """SourceFailed when there is no such root."""

    @abstractmethod
    def entries(self, parts: Parts) -> Sequence[Entry]:
        """What lies directly in a folder, sorted by name, hidden or not; OSError when it cannot be read."""

    @abstractmethod
    def file(self, parts: Parts) -> SourceFile: ...

    @abstractmethod
    def look_into(self, parts: Parts, belongs: Callable[[str], bool]) -> Found:
        """The files of a folder, of its partitions (``column=value``), and of folders that ``belongs``."""

    @abstractmethod
    def each_file(self, parts: Parts, belongs: Callable[[str], bool]) -> Iterator[Listed]:
        """The same files, one by one in no order, however many they are; of a table of ours, those of its
        current version."""

    @abstractmethod
    def managed(self, parts: Parts) -> Managed | None:
        """The table of ours that a folder is; None when it is none."""


class LocalTree(Tree):
    """A folder on a disk that the driver and every worker see."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _path(self, parts: Parts) -> Path:
        return self._root.joinpath(*parts)

    def shown(self, parts: Parts = ()) -> str:
        return str(self._path(parts))

    def uri(self, parts: Parts) -> str:
        return str(self._path(parts))

    def root_file(self) -> tuple[SourceFile, str] | None:
        return (local_file(self._root), str(self._root.parent)) if self._root.is_file() else None

    def require(self) -> None:
        if not self._root.is_dir():
            raise SourceFailed(
                f"the folder {self._root} is not there",
                next_step="check the connection's path, or run the pipeline that fills it first",
            )

    def entries(self, parts: Parts) -> Sequence[Entry]:
        with os.scandir(self._path(parts)) as entries:
            found = [Entry(entry.name, entry.is_dir()) for entry in entries]
        return sorted(found, key=lambda entry: entry.name)

    def file(self, parts: Parts) -> SourceFile:
        return local_file(self._path(parts))

    def look_into(self, parts: Parts, belongs: Callable[[str], bool]) -> Found:
        return look_into(self._path(parts), belongs)

    def each_file(self, parts: Parts, belongs: Callable[[str], bool]) -> Iterator[Listed]:
        return each_file(self._path(parts), belongs)  # the folder of a table of ours is a link to its version

    def managed(self, parts: Parts) -> Managed | None:
        version = current_version(Place(self._root, parts))
        if version is None:
            return None
        files = look_into(version.data, lambda _: False).files
        return Managed(version.state, str(version.data), files, exact=True)
