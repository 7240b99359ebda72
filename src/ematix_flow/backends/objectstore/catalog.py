"""The tables that can be read under a root: folders and files, found by the names that SQL gives them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.backends.objectstore.places import HIDDEN, Place, is_hidden
from ematix_flow.backends.objectstore.sourcefiles import (
    SourceFile,
    cannot_look,
    is_dated,
    local_file,
    look_into,
)
from ematix_flow.backends.objectstore.tablestate import TableState
from ematix_flow.backends.objectstore.versions import current_version
from ematix_flow.backends.stores.folders import segments
from ematix_flow.errors import SourceFailed, did_you_mean
from ematix_flow.spec.connections import format_from_path

_SHOWN, _LISTED = 20, 2_000


@dataclass(frozen=True)
class ReadableTable:
    """The files of a table. ``state`` is set for one that we wrote: its columns are known.

    ``folder`` is what partitions lie below, as Spark names it. ``whole_folder`` is whether the files
    are all that lies in it and its partitions, ``nested`` whether some lie in other folders below it.
    """

    name: str
    folder: str
    files: tuple[SourceFile, ...]
    state: TableState | None = None
    whole_folder: bool = True
    nested: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


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
        try:
            return self._find(shown, parts)
        except OSError as error:
            raise cannot_look(Path(error.filename or self._root), error) from error

    def names(self) -> list[str]:
        """The tables there, as SQL names them."""
        found: list[str] = []
        if self._root.is_file():
            return [_bare(self._root.name)]
        self._list(self._root, "", found)
        return sorted(set(found))

    # -------------------------------------------------------------- finding

    def _find(self, shown: str, parts: tuple[str, ...]) -> ReadableTable:
        if self._root.is_file():
            if shown.lower() in (self._root.name.lower(), _bare(self._root.name).lower()):
                return self._of_file(shown, self._root)
            raise self._unknown(shown)
        if not self._root.is_dir():
            raise SourceFailed(
                f"the folder {self._root} is not there",
                next_step="check the connection's path, or run the pipeline that fills it first",
            )
        candidates = self._candidates(parts)
        if not candidates and len(parts) > 1:  # FROM events.csv, without quotes
            candidates = self._candidates((*parts[:-2], f"{parts[-2]}.{parts[-1]}"))
        if not candidates:
            raise self._unknown(shown)
        if len(candidates) > 1:
            told = " and ".join(f"the {'folder' if path.is_dir() else 'file'} {path}" for path in candidates)
            raise SourceFailed(
                f"{shown!r} may be {told}",
                next_step=f"name one in full, as in  FROM `{candidates[-1].name}`, or move one of them",
            )
        return (
            self._of_folder(shown, candidates[0])
            if candidates[0].is_dir()
            else self._of_file(shown, candidates[0])
        )

    def _candidates(self, parts: tuple[str, ...]) -> list[Path]:
        """What the name may mean: an entry of that name, else those which have an extension besides."""
        parent: Path | None = self._root
        for part in parts[:-1]:
            parent = _entry(parent, part) if parent is not None else None
        if parent is None or not parent.is_dir():
            return []
        exact = _entry(parent, parts[-1])
        if exact is not None and exact.is_file():
            return [exact]
        named = [
            parent / entry
            for entry in sorted(os.listdir(parent))
            if not is_hidden(entry)
            and _bare(entry).lower() == parts[-1].lower() != entry.lower()
            and format_from_path(entry) == self._format
        ]
        return [exact, *named] if exact is not None else named

    def _of_file(self, name: str, path: Path) -> ReadableTable:
        if format_from_path(path.name) not in (None, self._format):
            raise self._of_other_format(path.parent, str(format_from_path(path.name)), f" ({path.name})")
        return ReadableTable(name, str(path.parent), (local_file(path),), whole_folder=False)

    def _of_folder(self, name: str, folder: Path) -> ReadableTable:
        version = current_version(Place(self._root, folder.relative_to(self._root).parts))
        if version is not None:
            if version.state.layout.format != self._format:
                raise self._of_other_format(folder, version.state.layout.format, "")
            files = look_into(version.data, lambda _: False).files
            return ReadableTable(name, str(version.data), files, version.state)
        found = look_into(folder, self._belongs)
        self._require_format(folder, found.files)
        if not found.files:
            raise self._no_table(name, folder, found.others)
        whole = not found.others
        return ReadableTable(name, str(folder), found.files, None, whole, found.nested)

    def _belongs(self, name: str) -> bool:
        """Whether a folder is a part of the table above it: by its date, or as ``part.parquet/``."""
        return is_dated(name) or format_from_path(name) == self._format

    # -------------------------------------------------------------- what is not there

    def _require_format(self, folder: Path, files: Sequence[SourceFile]) -> None:
        for file in files:
            there = format_from_path(file.name)
            if there not in (None, self._format):
                raise self._of_other_format(folder, str(there), f" ({file.name})")

    def _no_table(self, name: str, folder: Path, others: Sequence[str]) -> SourceFailed:
        if not others:
            step = "run the pipeline that fills it first"
            return SourceFailed(f"the folder {folder} holds no files yet", next_step=step)
        inside = ", ".join(f"{name}.{other}" for other in others[:_SHOWN])
        return SourceFailed(f"{name!r} is no table but a folder", next_step=f"tables in it: {inside}")

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
                    inside = list(_some_names(Path(entry.path)))
                    if prefix or not inside or any(self._holds_rows(name, is_dir) for name, is_dir in inside):
                        found.append(prefix + entry.name)
                    else:
                        self._list(Path(entry.path), f"{entry.name}.", found)

    def _holds_rows(self, name: str, is_folder: bool) -> bool:
        """Whether an entry makes the folder in which it lies a table."""
        return not is_folder or "=" in name or self._belongs(name)


def _some_names(folder: Path) -> list[tuple[str, bool]]:
    """Names in a folder, and whether each is a folder; none where this user may not look."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries if not is_hidden(entry.name)]
    except OSError:
        return []


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
