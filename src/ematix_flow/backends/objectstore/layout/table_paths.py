"""Paths under a local root: a table's folder, its versions, its staging and its locks.

A table is one folder, ``<root>/<schema>/<name>``. All internal files are in the hidden folder
``<root>/.ematix_flow``. Names come from declarations and SQL and are not trusted: none may lead out of the
root, into the hidden folder, or into another table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from ematix_flow.backends.stores.table_folders import table_folder
from ematix_flow.errors import PlanError
from ematix_flow.spec.connections import format_from_path
from ematix_flow.spec.generated_names import distinct_file_name
from ematix_flow.spec.tables import TableSpec
from ematix_flow.state.private_files import make_private_folders

DELTA_LOG = "_delta_log"  # marks a Delta table, whose files cannot be read directly
HIDDEN = ".ematix_flow"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def absolute_root(path: str) -> Path:
    """The connection's path as an absolute path, so that a later change of the working directory does not
    matter."""
    return Path(os.path.abspath(os.path.expanduser(path)))


def safe_file_name(*names: str) -> str:
    """A file name for these names: readable, valid on every file system, and unique."""
    return distinct_file_name(*names, default="table", digits=16)


@dataclass(frozen=True)
class TablePaths:
    """The paths of one table."""

    root: Path
    parts: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder that readers read: a link to the data of the current version."""
        return self.root.joinpath(*self.parts)

    @property
    def name(self) -> str:
        return "/".join(self.parts)

    @property
    def file_stem(self) -> str:
        return safe_file_name(self.name)

    @property
    def versions_folder(self) -> Path:
        """The folder of the table's versions."""
        return self.root / HIDDEN / "tables" / self.file_stem

    def require_separate(self) -> None:
        """Refuse a table inside another table: the next version of the outer table would remove it."""
        for depth in range(1, len(self.parts)):
            above = self.root.joinpath(*self.parts[:depth])
            if above.is_symlink() and HIDDEN in Path(os.readlink(above)).parts:
                inner, outer = self.name, "/".join(self.parts[:depth])
                raise PlanError(
                    f"{inner!r} would be inside {outer!r}, which is another table",
                    next_step="choose another schema, name or prefix",
                )

    def require_own_root(self) -> None:
        """Refuse a table that belongs to another root: its ledger and watermarks are stored there."""
        if not self.folder.is_symlink():
            return
        version = Path(os.path.realpath(self.folder)).parent
        tables = version.parent.parent  # <root>/.ematix_flow/tables
        root = tables.parent.parent
        if tables == root / HIDDEN / "tables" and root != Path(os.path.realpath(self.root)):
            raise PlanError(
                f"{self.folder} is a table that is loaded through a connection with path {str(root)!r}",
                state=f"{self.name} is unchanged",
                next_step="load it through one connection: its ledger and watermarks are below that path",
            )


def locate_table(root: Path, table: TableSpec) -> TablePaths:
    """The paths of a declared table; PlanError if its name cannot be a folder."""
    return TablePaths(root, table_folder(table))


def make_state_folder(root: Path, name: str) -> Path:
    """Create an internal folder that only this user may read. The hidden folder above it can be read by
    everyone who may read the tables, because it also holds their versions."""
    folder = root / HIDDEN / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_private_folders(folder, tighten=True)
    return folder


class FilePath(Protocol):
    """The location of a file: a local path, or an object with the same ``open``."""

    @property
    def name(self) -> str: ...

    @property
    def parent(self) -> object: ...

    def open(self, mode: Literal["rb"]) -> BinaryIO: ...


@dataclass(frozen=True)
class DataFile:
    """A data file of a table. ``name`` is its path below the table's folder, including partitions."""

    path: FilePath
    name: str

    @property
    def local_path(self) -> Path:
        assert isinstance(self.path, Path), f"{self.path} is not on this machine"
        return self.path


def data_files(folder: Path) -> list[DataFile]:
    """The data files of a folder and of its partition folders (``column=value``), in a stable order."""
    return sorted(_walk(folder, ""), key=lambda file: file.name)


def _walk(folder: Path, above: str) -> Iterator[DataFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                if "=" in entry.name:
                    yield from _walk(Path(entry.path), f"{above}{entry.name}/")
            else:
                yield DataFile(Path(entry.path), above + entry.name)


def is_hidden(name: str) -> bool:
    """Whether readers ignore this name: markers such as ``_SUCCESS``, checksums, incomplete copies."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def is_other_folder(folder: str) -> bool:
    """Whether a folder inside a table's folder is not a partition; loads leave it alone."""
    return folder == DELTA_LOG or ("=" not in folder and not is_hidden(folder))


def other_folders(folder: Path) -> list[str]:
    """The folders in a folder that are not partitions: other tables or anything else, never rows of this
    table."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and is_other_folder(e.name))


def find_foreign_format(files: list[DataFile], format: str) -> DataFile | None:
    """The first file whose extension is of another format."""
    for file in files:
        if format_from_path(file.name) not in (None, format):
            return file
    return None
