"""A file to read: its location, its URI for Spark, and how this process opens it.

All readers use a `SourceFile`, so they do not depend on where the file is stored.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

from ematix_flow.backends.objectstore.layout.table_paths import is_hidden
from ematix_flow.backends.stores.table_folders import literal_path
from ematix_flow.errors import SourceFailed

# date folders, as programs write them: 2026/11/15, 2026-11-15, 20261115T10
_DATED = re.compile(r"\d{1,4}|\d{4}-\d{2}(-\d{2})?([T_ -]\d{2}(-?\d{2}){0,2})?|\d{6}|\d{8}(T?\d{2,6})?")


@dataclass(frozen=True)
class SourceFile(ABC):
    """A file of a table. ``name`` is its path below the table's folder; ``version`` changes when the file
    changes."""

    name: str
    display_name: str  # as error messages show it
    size: int
    version: int

    is_local: ClassVar[bool] = False  # whether this process can read all of it cheaply

    @property
    @abstractmethod
    def uri(self) -> str:
        """The URI for Spark, without any glob pattern."""

    @abstractmethod
    def open(self) -> BinaryIO: ...


@dataclass(frozen=True)
class LocalFile(SourceFile):
    """A file on a disk that the driver and every worker see."""

    is_local: ClassVar[bool] = True

    @property
    def uri(self) -> str:
        return literal_path(self.display_name)

    def open(self) -> BinaryIO:
        return Path(self.display_name).open("rb")


def local_file(path: Path, name: str | None = None) -> LocalFile:
    """Describe a local file; SourceFailed if it cannot be read."""
    try:
        facts = path.stat()
    except OSError as error:
        raise unreadable_path_error(path, error) from error
    return LocalFile(name or path.name, str(path), facts.st_size, facts.st_mtime_ns)


def unreadable_path_error(path: Path | str, error: OSError) -> SourceFailed:
    """The error for a file or folder that the system cannot read."""
    return SourceFailed(
        f"cannot read {path}: {error.strerror or error}",
        next_step="give this user the right to read it"
        if isinstance(error, PermissionError)
        else "check that it exists and that the disk works",
    )


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a listing. ``name`` is its path below the listed folder."""

    name: str
    size: int
    version: str
    modified: int  # nanoseconds since 1970


@dataclass(frozen=True)
class FolderContent:
    """The content of a table's folder: its files, and folders that are not part of the table."""

    files: tuple[SourceFile, ...]
    other_folders: tuple[str, ...]
    has_nested_files: bool  # whether some files are in folders that are not partitions


def inspect_folder(folder: Path, belongs: Callable[[str], bool]) -> FolderContent:
    """The files of a folder, of its partitions (``column=value``), and of folders for which ``belongs`` is
    true."""
    files: list[LocalFile] = []
    others: list[str] = []
    nested = False
    waiting = [(folder, "")]
    while waiting:
        path, above = waiting.pop()
        inside = any("=" not in part for part in above.split("/")[:-1])
        for entry in _sorted_entries(path):
            if not entry.is_dir():
                files.append(local_file(Path(entry.path), above + entry.name))
                nested = nested or inside
            elif "=" in entry.name or belongs(entry.name):
                waiting.append((Path(entry.path), f"{above}{entry.name}/"))
            elif not above:
                others.append(entry.name)
    return FolderContent(tuple(sorted(files, key=lambda file: file.name)), tuple(sorted(others)), nested)


def iterate_files(folder: Path, belongs: Callable[[str], bool]) -> Iterator[ListedFile]:
    """Yield the same files one by one, in no order. A file that is removed meanwhile is skipped."""
    waiting: list[tuple[Path, str, frozenset[tuple[int, int]]]] = [(folder, "", frozenset())]
    while waiting:
        path, above, over = waiting.pop()
        try:
            facts = path.stat()
            entries = _scan_folder(path)
        except OSError as error:
            if above and isinstance(error, FileNotFoundError):
                continue
            raise unreadable_path_error(path, error) from error
        here = (facts.st_dev, facts.st_ino)
        if here in over:  # a circular link
            continue
        for entry in entries:
            if entry.is_dir():
                if "=" in entry.name or belongs(entry.name):
                    waiting.append((Path(entry.path), f"{above}{entry.name}/", over | {here}))
            elif entry.is_file():
                try:
                    facts = entry.stat()
                except FileNotFoundError:
                    continue
                version = f"{facts.st_size}-{facts.st_mtime_ns}"
                yield ListedFile(above + entry.name, facts.st_size, version, facts.st_mtime_ns)


def _sorted_entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return _scan_folder(folder)
    except OSError as error:
        raise unreadable_path_error(folder, error) from error


def _scan_folder(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not is_hidden(entry.name)]


def is_date_folder(name: str) -> bool:
    """Whether a folder's name is a date or a part of one. Such folders belong to the table above them."""
    return _DATED.fullmatch(name) is not None
