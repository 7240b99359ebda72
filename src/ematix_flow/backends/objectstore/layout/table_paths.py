"""Names and paths: where under a root a table, its versions, its staging and its locks live.

A table is one folder, ``<root>/<schema>/<name>``. All of our own bookkeeping is in the hidden folder
``<root>/.ematix_flow``. Names come from declarations and from SQL and are hostile: none may lead out of
the root, into the hidden folder, or into another table.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from ematix_flow.backends.stores.table_folders import table_folder
from ematix_flow.errors import PlanError
from ematix_flow.spec.connections import format_from_path
from ematix_flow.spec.tables import TableSpec
from ematix_flow.state.private_files import make_private_folders

DELTA_LOG = "_delta_log"  # of a table whose files are not for readers of files
HIDDEN = ".ematix_flow"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def absolute_root(path: str) -> Path:
    """The connection's path, independent of later changes of the working directory."""
    return Path(os.path.abspath(os.path.expanduser(path)))


def safe_file_name(*names: str) -> str:
    """A file name for these names: readable, valid on every file system, different for different names."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", names[0]).strip("-")[:60]
    digest = hashlib.sha256(json.dumps(names).encode("ascii")).hexdigest()[:16]
    return f"{readable or 'table'}-{digest}"


@dataclass(frozen=True)
class TablePaths:
    """Where one table lives."""

    root: Path
    parts: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """What readers read: a link to the current version's data."""
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
        """Refuse a table inside another table: it would vanish with that one's next version."""
        for depth in range(1, len(self.parts)):
            above = self.root.joinpath(*self.parts[:depth])
            if above.is_symlink() and HIDDEN in Path(os.readlink(above)).parts:
                inner, outer = self.name, "/".join(self.parts[:depth])
                raise PlanError(
                    f"{inner!r} would lie inside {outer!r}, which is a table of its own",
                    next_step="choose another schema, name or prefix",
                )

    def require_own_root(self) -> None:
        """Refuse a table of another root, whose ledger and watermarks are there: they would not be seen."""
        if not self.folder.is_symlink():
            return
        version = Path(os.path.realpath(self.folder)).parent
        tables = version.parent.parent  # <root>/.ematix_flow/tables
        root = tables.parent.parent
        if tables == root / HIDDEN / "tables" and root != Path(os.path.realpath(self.root)):
            raise PlanError(
                f"{self.folder} is a table that is loaded through a connection with path {str(root)!r}",
                state=f"{self.name} is unchanged",
                next_step="load it through one connection: its ledger and watermarks lie below that path",
            )


def locate_table(root: Path, table: TableSpec) -> TablePaths:
    """The place of a declared table; PlanError for a name that cannot be a folder."""
    return TablePaths(root, table_folder(table))


def make_state_folder(root: Path, name: str) -> Path:
    """A folder of our bookkeeping, for this user alone. The hidden folder in which it lies is open to all
    that may read the tables: their versions lie in it too."""
    folder = root / HIDDEN / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_private_folders(folder, tighten=True)
    return folder


class FilePath(Protocol):
    """Where a file lies: a path of this machine, or something that is opened like one."""

    @property
    def name(self) -> str: ...

    @property
    def parent(self) -> object: ...

    def open(self, mode: Literal["rb"]) -> BinaryIO: ...


@dataclass(frozen=True)
class DataFile:
    """A data file of a table; ``name`` is its path below the table's folder, partitions included."""

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
    """Names that every reader passes over: markers such as ``_SUCCESS``, checksums, half copies."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def is_other_folder(folder: str) -> bool:
    """Whether a folder in that of a table is no partition: a load of files has no business there."""
    return folder == DELTA_LOG or ("=" not in folder and not is_hidden(folder))


def other_folders(folder: Path) -> list[str]:
    """Folders in a folder that are no partitions: tables or anything else, never rows of this one."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and is_other_folder(e.name))


def find_foreign_format(files: list[DataFile], format: str) -> DataFile | None:
    """The first file whose name says that it is of another format."""
    for file in files:
        if format_from_path(file.name) not in (None, format):
            return file
    return None
