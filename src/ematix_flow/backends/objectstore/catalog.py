"""The tables that can be read under a root: folders and files, found by the names that SQL gives them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.backends.objectstore.places import (
    HIDDEN,
    DataFile,
    Place,
    data_files,
    foreign_format,
    is_hidden,
    other_folders,
)
from ematix_flow.backends.objectstore.tablestate import TableState
from ematix_flow.backends.objectstore.versions import current_version
from ematix_flow.backends.stores.folders import segments
from ematix_flow.errors import SourceFailed, did_you_mean
from ematix_flow.spec.connections import format_from_path

_SHOWN, _LISTED = 20, 2_000


@dataclass(frozen=True)
class ReadableTable:
    """The files of a table. ``state`` is set for one that we wrote: its columns are known."""

    name: str
    folder: Path
    files: tuple[DataFile, ...]
    state: TableState | None = None
    whole_folder: bool = True  # every file below the folder is one of ``files``


class FilesCatalog:
    """What lies under a root. Nothing hidden is ever a table."""

    def __init__(self, root: Path, format: str) -> None:
        self._root, self._format = root, format

    def find(self, name: tuple[str, ...]) -> ReadableTable:
        """The table of this name; SourceFailed says what is there instead."""
        shown = ".".join(name)
        try:
            parts = tuple(part for piece in name for part in segments(piece))
        except ValueError as error:
            raise SourceFailed(f"{shown!r} cannot be a table of files: {error}") from error
        if self._root.is_file():
            if len(parts) == 1 and parts[0].lower() in (
                self._root.name.lower(),
                _bare(self._root.name).lower(),
            ):
                return ReadableTable(shown, self._root.parent, (self._file(self._root),), whole_folder=False)
            raise self._unknown(shown)
        if not self._root.is_dir():
            raise SourceFailed(
                f"the folder {self._root} is not there",
                next_step="check the connection's path, or run the pipeline that fills it first",
            )
        parent = self._descend(parts[:-1])
        if parent is None:
            raise self._unknown(shown)
        folder = _entry(parent, parts[-1])
        files = self._single_files(parent, parts[-1])
        if folder is not None and folder.is_file():
            files, folder = [folder], None
        if folder is not None and files:
            raise SourceFailed(
                f"{shown!r} is both the folder {folder} and the file {files[0]}",
                next_step=f"name the file in full, as in  FROM `{files[0].name}`, or move one of them",
            )
        if len(files) > 1:
            raise SourceFailed(
                f"{shown!r} may be any of {', '.join(file.name for file in files)}",
                next_step=f"name the file in full, as in  FROM `{files[0].name}`",
            )
        if files:
            return ReadableTable(shown, files[0].parent, (self._file(files[0]),), whole_folder=False)
        if folder is None:
            raise self._unknown(shown)
        return self._of_folder(shown, folder)

    def names(self) -> list[str]:
        """The tables there, as SQL names them."""
        found: list[str] = []
        if self._root.is_file():
            return [_bare(self._root.name)]
        self._list(self._root, "", found)
        return sorted(set(found))

    # -------------------------------------------------------------- finding

    def _descend(self, parts: tuple[str, ...]) -> Path | None:
        at: Path | None = self._root
        for part in parts:
            at = _entry(at, part) if at is not None else None
        return at if at is not None and at.is_dir() else None

    def _single_files(self, parent: Path, name: str) -> list[Path]:
        """Files whose name is the table's name and an extension of the format."""
        wanted = name.lower()
        with os.scandir(parent) as entries:
            found = [
                Path(entry.path)
                for entry in entries
                if entry.is_file()
                and _bare(entry.name).lower() == wanted
                and format_from_path(entry.name) == self._format
            ]
        return sorted(found)

    def _of_folder(self, name: str, folder: Path) -> ReadableTable:
        version = current_version(Place(self._root, folder.relative_to(self._root).parts))
        if version is not None:
            if version.state.layout.format != self._format:
                raise self._of_other_format(folder, version.state.layout.format, "")
            return ReadableTable(name, version.data, tuple(data_files(version.data)), version.state)
        files, others = data_files(folder), other_folders(folder)
        foreign = foreign_format(files, self._format)
        if foreign is not None:
            raise self._of_other_format(folder, str(format_from_path(foreign.name)), f" ({foreign.name})")
        if not files:
            inside = ", ".join(f"{name}.{other}" for other in others[:_SHOWN])
            raise SourceFailed(
                f"the folder {folder} holds no files yet"
                if not others
                else f"{name!r} is no table but a folder",
                next_step=f"tables in it: {inside}" if others else "run the pipeline that fills it first",
            )
        return ReadableTable(name, folder, tuple(files), whole_folder=not others)

    def _file(self, path: Path) -> DataFile:
        if format_from_path(path.name) not in (None, self._format):
            raise self._of_other_format(path.parent, str(format_from_path(path.name)), f" ({path.name})")
        return DataFile(path, path.name)

    # -------------------------------------------------------------- what is not there

    def _of_other_format(self, folder: Path, there: str, example: str) -> SourceFailed:
        return SourceFailed(
            f"the folder {folder} holds {there} files{example}, "
            f"and the connection's format is {self._format}",
            next_step=f"read it through a connection with format={there!r}",
        )

    def _unknown(self, name: str) -> SourceFailed:
        known = self.names()
        shown = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
        return SourceFailed(
            f"there is no table {name!r} in {self._root}.{did_you_mean(name, known)}",
            next_step=f"tables there: {shown}" if known else f"put {self._format} files into {self._root}",
        )

    def _list(self, folder: Path, prefix: str, found: list[str]) -> None:
        """Tables two levels deep, which is as deep as a schema and a table go."""
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if is_hidden(entry.name) or entry.name == HIDDEN or len(found) >= _LISTED:
                    continue
                if entry.is_file():
                    if format_from_path(entry.name) == self._format:
                        found.append(prefix + _bare(entry.name))
                elif entry.is_dir():
                    path = Path(entry.path)
                    if data_files(path) or not other_folders(path):
                        found.append(prefix + entry.name)
                    elif not prefix:
                        self._list(path, f"{entry.name}.", found)


def _entry(parent: Path, name: str) -> Path | None:
    """A folder or file of a folder by its name; in another case of letters if there is only one such."""
    if not parent.is_dir():
        return None
    exact = parent / name
    if exact.exists():
        return exact
    alike = [entry for entry in os.listdir(parent) if entry.lower() == name.lower()]
    return parent / alike[0] if len(alike) == 1 else None


def _bare(file_name: str) -> str:
    """The name without its extension and that of a compression."""
    name = file_name
    while format_from_path(name) is not None:
        name = name.rpartition(".")[0]
    return name
