"""The catalog of a root: finds the folder or file that a table name in SQL means."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ematix_flow.backends.objectstore.layout.source_files import (
    SourceFile,
    is_date_folder,
    unreadable_path_error,
)
from ematix_flow.backends.objectstore.layout.table_paths import DELTA_LOG, is_hidden
from ematix_flow.backends.objectstore.reading.file_tree import FileTree, FolderEntry, Parts
from ematix_flow.backends.objectstore.table.table_state import TableState
from ematix_flow.backends.stores.table_folders import path_segments
from ematix_flow.errors import SourceFailed, did_you_mean
from ematix_flow.spec.connections import format_from_path

_SHOWN, _LISTED = 20, 2_000


@dataclass(frozen=True)
class ReadableTable:
    """The files of a table. ``state`` is set for a table that this product wrote: its columns are known.

    ``folder`` is the folder above the partitions, as a URI for Spark. ``whole_folder``: the files are all
    that the folder and its partitions hold. ``nested``: some files are in other folders below it.
    ``may_gain_other_files``: files that are not part of the table may appear in the folder.
    """

    name: str
    folder: str
    files: tuple[SourceFile, ...]
    state: TableState | None = None
    whole_folder: bool = True
    nested: bool = False
    may_gain_other_files: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def fingerprint(self) -> str:
        """Changes when a file changes, appears or disappears; the key of caches of this table."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(
                f"{file.display_name}\0{file.size}\0{file.version}\n".encode(errors="surrogatepass")
            )
        return digest.hexdigest()


class FilesCatalog:
    """The tables under a root. Hidden files and folders are never tables."""

    def __init__(self, tree: FileTree, format: str) -> None:
        self._tree, self._format = tree, format

    def find(self, name: tuple[str, ...]) -> ReadableTable:
        """Return the table of this name. SourceFailed lists what the root has instead."""
        shown = ".".join(name)
        try:
            parts = tuple(part for piece in name for part in path_segments(piece))
        except ValueError as error:
            raise SourceFailed(f"{shown!r} cannot be a table of files: {error}") from error
        try:
            return self._find(shown, parts)
        except OSError as error:
            raise unreadable_path_error(error.filename or self._tree.display_name(), error) from error

    def names(self) -> list[str]:
        """The names of the tables, as written in SQL."""
        only = self._tree.root_file()
        if only is not None:
            return [_name_without_extension(only[0].name)]
        found: list[str] = []
        self._collect_names((), "", found)
        return sorted(set(found))

    # -------------------------------------------------------------- finding

    def _find(self, shown: str, parts: Parts) -> ReadableTable:
        only = self._tree.root_file()
        if only is not None:
            file, folder = only
            if shown.lower() in (file.name.lower(), _name_without_extension(file.name).lower()):
                return self._file_table(shown, file, folder)
            raise self._unknown_table_error(shown)
        self._tree.require_root()
        candidates = self._candidates(parts)
        if not candidates and len(parts) > 1:  # FROM events.csv, without quotes
            candidates = self._candidates((*parts[:-2], f"{parts[-2]}.{parts[-1]}"))
        if not candidates:
            raise self._unknown_table_error(shown)
        if len(candidates) > 1:
            choices = " and ".join(
                f"the {'folder' if is_folder else 'file'} {self._tree.display_name(found)}"
                for found, is_folder in candidates
            )
            raise SourceFailed(
                f"{shown!r} may be {choices}",
                next_step=f"name one in full, as in  FROM `{candidates[-1][0][-1]}`, or move one of them",
            )
        found, is_folder = candidates[0]
        if is_folder:
            return self._folder_table(shown, found)
        return self._file_table(shown, self._tree.source_file(found), self._tree.uri(found[:-1]))

    def _candidates(self, parts: Parts) -> list[tuple[Parts, bool]]:
        """The entries that the name may mean, and whether each is a folder: first entries of exactly that
        name, else entries with that name and an extension."""
        parent: Parts = ()
        for part in parts[:-1]:
            folders = [entry for entry in _entries_named(self._tree.entries(parent), part) if entry.is_folder]
            if not folders:
                return []
            parent = (*parent, folders[0].name)
        entries = self._tree.entries(parent)
        exact = _entries_named(entries, parts[-1])
        if len(exact) == 1 and not exact[0].is_folder:
            return [((*parent, exact[0].name), False)]
        named = [
            entry
            for entry in entries
            if not is_hidden(entry.name)
            and _name_without_extension(entry.name).lower() == parts[-1].lower() != entry.name.lower()
        ]
        extended = [entry for entry in named if format_from_path(entry.name) == self._format]
        if named and not exact and not extended:
            there, example = str(format_from_path(named[0].name)), f" ({named[0].name})"
            raise self.other_format_error(self._tree.display_name(parent), there, example)
        return [((*parent, entry.name), entry.is_folder) for entry in (*exact, *extended)]

    def _file_table(self, name: str, file: SourceFile, folder: str) -> ReadableTable:
        if format_from_path(file.name) not in (None, self._format):
            raise self.other_format_error(folder, str(format_from_path(file.name)), f" ({file.name})")
        return ReadableTable(name, folder, (file,), whole_folder=False)

    def _folder_table(self, name: str, parts: Parts) -> ReadableTable:
        folder, own = self._tree.display_name(parts), self._tree.own_table(parts)
        if own is not None:
            if own.state.layout.format != self._format:
                raise self.other_format_error(folder, own.state.layout.format, "")
            return ReadableTable(
                name,
                own.folder,
                own.files,
                own.state,
                whole_folder=own.is_exclusive,
                may_gain_other_files=not own.is_exclusive,
            )
        self.require_no_lake(folder, parts)
        found = self._tree.inspect_folder(parts, self.is_part_of_table)
        self.require_format(folder, found.files)
        if not found.files:
            raise self._no_table_error(name, folder, found.other_folders)
        whole = not found.other_folders
        return ReadableTable(name, self._tree.uri(parts), found.files, None, whole, found.has_nested_files)

    def is_part_of_table(self, name: str) -> bool:
        """Whether a folder is part of the table above it: a date folder, or a folder such as
        ``part.parquet/``."""
        return is_date_folder(name) or format_from_path(name) == self._format

    # -------------------------------------------------------------- what is not there

    def require_no_lake(self, folder: str, parts: Parts) -> None:
        """Refuse the folder of a lake table: its files include those of earlier versions."""
        folders = {entry.name for entry in self._tree.entries(parts) if entry.is_folder}
        if DELTA_LOG in folders:
            raise SourceFailed(
                f"{folder} is a Delta table, and its files still hold rows that were deleted",
                next_step="read it through a delta_local or delta_s3 connection",
            )
        if "metadata" in folders:
            files = self._tree.entries((*parts, "metadata"))
            if any(entry.name.endswith(".metadata.json") for entry in files):
                raise SourceFailed(
                    f"{folder} is an Iceberg table, and its files still hold rows that were deleted",
                    next_step="read it through an iceberg connection",
                )

    def require_format(self, folder: str, files: Sequence[SourceFile]) -> None:
        for file in files:
            there = format_from_path(file.name)
            if there not in (None, self._format):
                raise self.other_format_error(folder, str(there), f" ({file.name})")

    def _no_table_error(self, name: str, folder: str, others: Sequence[str]) -> SourceFailed:
        if not others:
            step = "run the pipeline that fills it first"
            return SourceFailed(f"the folder {folder} holds no files yet", next_step=step)
        inside = ", ".join(f"{name}.{other}" for other in others[:_SHOWN])
        return SourceFailed(f"{name!r} is a folder, not a table", next_step=f"tables in it: {inside}")

    def other_format_error(self, folder: str, there: str, example: str) -> SourceFailed:
        return SourceFailed(
            f"the folder {folder} holds {there} files{example}, "
            f"and the connection's format is {self._format}",
            next_step=f"read it through a connection with format={there!r}",
        )

    def _unknown_table_error(self, name: str) -> SourceFailed:
        known, root = self.names(), self._tree.display_name()
        shown = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
        return SourceFailed(
            f"there is no table {name!r} in {root}.{did_you_mean(name, known)}",
            next_step=f"tables there: {shown}" if known else f"put {self._format} files into {root}",
        )

    def _collect_names(self, parts: Parts, prefix: str, found: list[str]) -> None:
        """Collect table names two levels deep: schema and table."""
        for entry in self._tree.entries(parts):
            if is_hidden(entry.name) or len(found) >= _LISTED:
                continue
            if not entry.is_folder:
                if format_from_path(entry.name) == self._format:
                    found.append(prefix + _name_without_extension(entry.name))
                continue
            inside = self._readable_entries((*parts, entry.name))
            if prefix or not inside or any(self._holds_rows(other) for other in inside):
                found.append(prefix + entry.name)
            else:
                self._collect_names((*parts, entry.name), f"{entry.name}.", found)

    def _readable_entries(self, parts: Parts) -> list[FolderEntry]:
        """The entries of a folder; none if this user may not read it."""
        try:
            return [entry for entry in self._tree.entries(parts) if not is_hidden(entry.name)]
        except OSError:
            return []

    def _holds_rows(self, entry: FolderEntry) -> bool:
        """Whether this entry makes its folder a table."""
        return not entry.is_folder or "=" in entry.name or self.is_part_of_table(entry.name)


def _entries_named(entries: Sequence[FolderEntry], name: str) -> list[FolderEntry]:
    """The entries of this name. If there are none: the one entry whose name differs in case only."""
    exact = [entry for entry in entries if entry.name == name]
    alike = [entry for entry in entries if entry.name.lower() == name.lower()]
    return exact or (alike if len(alike) == 1 else [])


def _name_without_extension(file_name: str) -> str:
    """The file name without its format and compression extensions."""
    name = file_name
    while format_from_path(name) is not None:
        name = name.rpartition(".")[0]
    return name
