"""The folders and files of a bucket, as the catalog walks them.

A bucket has only keys: a folder is a common prefix of keys. Of a table that this product wrote, exactly the
files of its newest manifest are read, so that a load in progress is never visible.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from ematix_flow.backends.objectstore.layout.source_files import FolderContent, ListedFile, SourceFile
from ematix_flow.backends.objectstore.layout.table_paths import is_hidden
from ematix_flow.backends.objectstore.reading.file_tree import FileTree, FolderEntry, OwnTable, Parts
from ematix_flow.backends.objectstore.storage.s3_table_storage import S3TableStorage, S3Version
from ematix_flow.backends.stores.s3_store import S3Object, S3Store
from ematix_flow.backends.stores.table_folders import literal_path
from ematix_flow.errors import SourceFailed, TargetFailed

_LOOKS = 5
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(frozen=True)
class S3SourceFile(SourceFile):
    """An object of a bucket. ``path`` is its path in the store."""

    store: S3Store
    path: str

    @property
    def uri(self) -> str:
        return literal_path(self.store.uri(self.path))

    def open(self) -> BinaryIO:
        with _as_source_failures():
            return self.store.open(self.path)


class S3FileTree(FileTree):
    """The files under a store's root."""

    def __init__(self, store: S3Store) -> None:
        self._store = store

    def display_name(self, parts: Parts = ()) -> str:
        return self.uri(parts)

    def uri(self, parts: Parts) -> str:
        return self._store.uri("/".join(parts))

    def root_file(self) -> tuple[SourceFile, str] | None:
        self._store.require_reachable()  # fails first if the bucket cannot be reached
        above = self._store.parent_store()
        if above is None:
            return None
        store, name = above
        try:
            with _as_source_failures():
                found = store.object_at(name)
        except FileNotFoundError:
            return None
        return S3FileTree(store)._source_file(found, name), store.uri("")

    def require_root(self) -> None:
        return

    def entries(self, parts: Parts) -> Sequence[FolderEntry]:
        folder = "/".join(parts)
        with _as_source_failures():
            found = [FolderEntry(name, False) for name in self._store.names(folder)]
            found += [FolderEntry(name, True) for name in self._store.folders(folder)]
        return sorted(found, key=lambda entry: entry.name)

    def source_file(self, parts: Parts) -> SourceFile:
        with _as_source_failures():
            found = self._store.object_at("/".join(parts))
        return self._source_file(found, "/".join(parts))

    def inspect_folder(self, parts: Parts, belongs: Callable[[str], bool]) -> FolderContent:
        files: list[SourceFile] = []
        others: set[str] = set()
        nested = False
        for found in self._unmanaged_objects(parts):
            *folders, name = found.path.split("/")
            if is_hidden(name) or any(is_hidden(folder) for folder in folders):
                continue
            strange = [folder for folder in folders if "=" not in folder and not belongs(folder)]
            if strange:
                others |= {folders[0]} & {strange[0]}
                continue
            files.append(self._source_file(found, "/".join((*parts, found.path)), found.path))
            nested = nested or any("=" not in folder for folder in folders)
        return FolderContent(tuple(sorted(files, key=lambda file: file.name)), tuple(sorted(others)), nested)

    def iterate_files(self, parts: Parts, belongs: Callable[[str], bool]) -> Iterator[ListedFile]:
        # before the listing: files that a load adds meanwhile are not in this version
        _, version = self._current_version(S3TableStorage(self._store, parts))
        ours = None if version is None else frozenset(version.state.files)
        if ours is None and self._newest_version(parts) is not None:
            return  # a first load has begun
        with _as_source_failures():
            for found in self._store.iterate_below("/".join(parts)):
                is_row = found.path in ours if ours is not None else _is_table_file(found.path, belongs)
                if is_row:
                    modified = (found.modified - _EPOCH) // dt.timedelta(microseconds=1) * 1_000
                    yield ListedFile(found.path, found.size, found.etag.strip('"'), modified)

    def own_table(self, parts: Parts) -> OwnTable | None:
        home, seen = S3TableStorage(self._store, parts), 0
        for _ in range(_LOOKS):
            home, version = self._current_version(home)
            if version is None:
                return None
            there = {found.path: found for found in self._objects_below(parts)}
            missing = sorted(set(version.state.files) - set(there))
            if not missing:
                files = (
                    self._source_file(there[name], "/".join((*parts, name)), name)
                    for name in sorted(version.state.files)
                )
                return OwnTable(version.state, self.uri(parts), tuple(files), is_exclusive=False)
            if version.number == seen:
                raise SourceFailed(
                    f"the table {home.display_name} has lost its file {missing[0]}: "
                    "its manifest lists the file, but it is not in the bucket",
                    next_step="restore the file from a backup or an older object version, "
                    "or load the table again with mode='truncate'",
                )
            seen = version.number  # a load may have replaced it since: try again
        raise SourceFailed(
            f"the files of {home.display_name} change faster than they can be listed",
            next_step="run it again when fewer loads write to this table",
        )

    def _current_version(self, home: S3TableStorage) -> tuple[S3TableStorage, S3Version | None]:
        """The version of a table and its storage, which may be under another root."""
        with _as_source_failures():
            version = home.current_version()
            if version is None:
                home = home.storage_in_other_root() or home
                version = home.current_version()
        return home, version

    def _newest_version(self, parts: Parts) -> S3Version | None:
        """The version of the newest manifest, even of a first load that has not committed."""
        home = S3TableStorage(self._store, parts)
        with _as_source_failures():
            return home.newest_version() or (home.storage_in_other_root() or home).newest_version()

    def _unmanaged_objects(self, parts: Parts) -> list[S3Object]:
        """The objects below a folder that this product did not write; none while a first load is running."""
        for _ in range(_LOOKS):
            found = self._objects_below(parts)
            newest = self._newest_version(parts)  # after the listing: a load that begins later is not in it
            if newest is None:
                return found
            ours = [each for each in found if each.path in newest.state.files]
            if len(ours) == len(newest.state.files):
                return ours
        raise SourceFailed(
            f"the files of {self.display_name(parts)} change faster than they can be listed",
            next_step="run it again when fewer loads write to this table",
        )

    def _objects_below(self, parts: Parts) -> list[S3Object]:
        with _as_source_failures():
            return self._store.objects_below("/".join(parts))

    def _source_file(self, listed: S3Object, path: str, name: str | None = None) -> S3SourceFile:
        version = int(hashlib.sha256(listed.etag.encode()).hexdigest()[:15], 16)
        shown = self._store.uri(path)
        return S3SourceFile(name or path.rpartition("/")[2], shown, listed.size, version, self._store, path)


def _is_table_file(path: str, belongs: Callable[[str], bool]) -> bool:
    """Whether an object below a table's folder is a file of the table."""
    *folders, name = path.split("/")
    return not is_hidden(name) and all(
        not is_hidden(folder) and ("=" in folder or belongs(folder)) for folder in folders
    )


@contextmanager
def _as_source_failures() -> Iterator[None]:
    """Raise failures in the block as SourceFailed."""
    try:
        yield
    except TargetFailed as error:
        raise SourceFailed(error.what, next_step=error.next_step) from error
