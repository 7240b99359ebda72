"""Reads and writes the files of one table for pyiceberg. A file is flushed to the disk when it is closed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile

from ematix_flow.backends.stores.local_store import LocalStore


class TableFiles(FileIO):
    """``location`` is that of the table, which is this folder of the store. ``written`` are new files."""

    def __init__(self, store: LocalStore, folder: str, location: str) -> None:
        super().__init__({})
        self._store, self._folder, self._location = store, folder, location
        self.written: list[str] = []

    def new_input(self, location: str) -> InputFile:
        return _StoredFile(self._store, self.path(location), location)

    def new_output(self, location: str) -> OutputFile:
        self.written.append(location)
        return _NewFile(self._store, self.path(location), location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = self.path(location if isinstance(location, str) else location.location)
        folder, _, name = path.rpartition("/")
        self._store.remove(path)
        self._store.remove(f"{folder}/.{name}.crc")  # Hadoop's checksum

    def remove_written(self) -> None:
        for location in self.written:
            self.delete(location)

    def has(self, location: str) -> bool:
        """Whether a location is in the table's folder."""
        return location.startswith(f"{self._location}/")

    def path(self, location: str) -> str:
        if not self.has(location):
            raise ValueError(f"{location} is outside of the table's folder {self._location}")
        return self._folder + location[len(self._location) :]


class _StoredFile(InputFile):
    def __init__(self, store: LocalStore, path: str, location: str) -> None:
        super().__init__(location)
        self._store, self._path = store, path

    def __len__(self) -> int:
        return Path(self._store.uri(self._path)).stat().st_size

    def exists(self) -> bool:
        return self._store.has_file(self._path)

    def open(self, seekable: bool = True) -> Any:
        return open(self._store.uri(self._path), "rb")


class _NewFile(OutputFile):
    def __init__(self, store: LocalStore, path: str, location: str) -> None:
        super().__init__(location)
        self._store, self._path = store, path

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self._store.has_file(self._path)

    def to_input_file(self) -> InputFile:
        return _StoredFile(self._store, self._path, self.location)

    def create(self, overwrite: bool = False) -> Any:
        return _Upload(self._store, self._path)


class _Upload:
    """Bytes that become a file of the store when the block or the stream ends without an error."""

    def __init__(self, store: LocalStore, path: str) -> None:
        self._store, self._path = store, path
        self._scratch = tempfile.TemporaryDirectory(prefix="ematix-flow-")
        self._local = Path(self._scratch.name) / "file"
        self._file = open(self._local, "wb")  # noqa: SIM115 - pyiceberg closes it

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            self._store.upload(self._local, self._path)
            self._scratch.cleanup()

    def __enter__(self) -> _Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            self._scratch.cleanup()
