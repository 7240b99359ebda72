"""Folders and files of a bucket, as a catalog of tables walks them.

A bucket knows keys alone: a folder is what keys have in common. Of a table that we wrote, exactly the files
of its newest manifest are read, so that a load in progress is never seen.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from ematix_flow.backends.objectstore.places import is_hidden
from ematix_flow.backends.objectstore.s3home import S3Home, S3Version
from ematix_flow.backends.objectstore.sourcefiles import Found, Listed, SourceFile
from ematix_flow.backends.objectstore.trees import Entry, Managed, Parts, Tree
from ematix_flow.backends.stores.folders import literal_path
from ematix_flow.backends.stores.s3 import S3Object, S3Store
from ematix_flow.errors import SourceFailed, TargetFailed

_LOOKS = 5
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(frozen=True)
class S3SourceFile(SourceFile):
    """An object; ``path`` is its path in the store."""

    store: S3Store
    path: str

    @property
    def uri(self) -> str:
        return literal_path(self.store.uri(self.path))

    def open(self) -> BinaryIO:
        with _reading():
            return self.store.open(self.path)


class S3Tree(Tree):
    """What lies under a store's root."""

    def __init__(self, store: S3Store) -> None:
        self._store = store

    def shown(self, parts: Parts = ()) -> str:
        return self.uri(parts)

    def uri(self, parts: Parts) -> str:
        return self._store.uri("/".join(parts))

    def root_file(self) -> tuple[SourceFile, str] | None:
        self._store.reach()  # the first that is asked of it
        above = self._store.above()
        if above is None:
            return None
        store, name = above
        try:
            with _reading():
                found = store.object_at(name)
        except FileNotFoundError:
            return None
        return S3Tree(store)._file(found, name), store.uri("")

    def require(self) -> None:
        return

    def entries(self, parts: Parts) -> Sequence[Entry]:
        folder = "/".join(parts)
        with _reading():
            found = [Entry(name, False) for name in self._store.names(folder)]
            found += [Entry(name, True) for name in self._store.folders(folder)]
        return sorted(found, key=lambda entry: entry.name)

    def file(self, parts: Parts) -> SourceFile:
        with _reading():
            found = self._store.object_at("/".join(parts))
        return self._file(found, "/".join(parts))

    def look_into(self, parts: Parts, belongs: Callable[[str], bool]) -> Found:
        files: list[SourceFile] = []
        others: set[str] = set()
        nested = False
        for found in self._plain(parts):
            *folders, name = found.path.split("/")
            if is_hidden(name) or any(is_hidden(folder) for folder in folders):
                continue
            strange = [folder for folder in folders if "=" not in folder and not belongs(folder)]
            if strange:
                others |= {folders[0]} & {strange[0]}
                continue
            files.append(self._file(found, "/".join((*parts, found.path)), found.path))
            nested = nested or any("=" not in folder for folder in folders)
        return Found(tuple(sorted(files, key=lambda file: file.name)), tuple(sorted(others)), nested)

    def each_file(self, parts: Parts, belongs: Callable[[str], bool]) -> Iterator[Listed]:
        # before the listing: what a load brings meanwhile is none of this version
        _, version = self._current(S3Home(self._store, parts))
        ours = None if version is None else frozenset(version.state.files)
        if ours is None and self._newest(parts) is not None:
            return  # a first load has begun
        with _reading():
            for found in self._store.each_below("/".join(parts)):
                is_row = found.path in ours if ours is not None else _is_row(found.path, belongs)
                if is_row:
                    modified = (found.modified - _EPOCH) // dt.timedelta(microseconds=1) * 1_000
                    yield Listed(found.path, found.size, found.etag.strip('"'), modified)

    def managed(self, parts: Parts) -> Managed | None:
        home, seen = S3Home(self._store, parts), 0
        for _ in range(_LOOKS):
            home, version = self._current(home)
            if version is None:
                return None
            there = {found.path: found for found in self._below(parts)}
            missing = sorted(set(version.state.files) - set(there))
            if not missing:
                files = (
                    self._file(there[name], "/".join((*parts, name)), name)
                    for name in sorted(version.state.files)
                )
                return Managed(version.state, self.uri(parts), tuple(files), exact=False)
            if version.number == seen:
                raise SourceFailed(
                    f"the table {home.shown} has lost its file {missing[0]}: "
                    "its manifest names it, and it is not in the bucket",
                    next_step="bring the file back from a backup or an older version of it, "
                    "or load the table anew with mode='truncate'",
                )
            seen = version.number  # a load may have replaced it since; look again
        raise SourceFailed(
            f"the files of {home.shown} change faster than they can be listed",
            next_step="run it again when fewer loads run into this table",
        )

    def _current(self, home: S3Home) -> tuple[S3Home, S3Version | None]:
        """The version of a table, and the home in which it is: it may be that below another root."""
        with _reading():
            version = home.current()
            if version is None:
                home = home.elsewhere() or home
                version = home.current()
        return home, version

    def _newest(self, parts: Parts) -> S3Version | None:
        """The newest manifest, that of a first load which has not committed too."""
        home = S3Home(self._store, parts)
        with _reading():
            return home.newest() or (home.elsewhere() or home).newest()

    def _plain(self, parts: Parts) -> list[S3Object]:
        """What lies below a folder that is no table of ours; nothing while a first load makes it one."""
        for _ in range(_LOOKS):
            found = self._below(parts)
            newest = self._newest(parts)  # after the listing: a load that begins later is not in it
            if newest is None:
                return found
            ours = [each for each in found if each.path in newest.state.files]
            if len(ours) == len(newest.state.files):
                return ours
        raise SourceFailed(
            f"the files of {self.shown(parts)} change faster than they can be listed",
            next_step="run it again when fewer loads run into this table",
        )

    def _below(self, parts: Parts) -> list[S3Object]:
        with _reading():
            return self._store.objects_below("/".join(parts))

    def _file(self, found: S3Object, path: str, name: str | None = None) -> S3SourceFile:
        version = int(hashlib.sha256(found.etag.encode()).hexdigest()[:15], 16)
        shown = self._store.uri(path)
        return S3SourceFile(name or path.rpartition("/")[2], shown, found.size, version, self._store, path)


def _is_row(path: str, belongs: Callable[[str], bool]) -> bool:
    """Whether an object below a folder is a file of the table that the folder is."""
    *folders, name = path.split("/")
    return not is_hidden(name) and all(
        not is_hidden(folder) and ("=" in folder or belongs(folder)) for folder in folders
    )


@contextmanager
def _reading() -> Iterator[None]:
    """What fails here is a source's failure."""
    try:
        yield
    except TargetFailed as error:
        raise SourceFailed(error.what, next_step=error.next_step) from error
