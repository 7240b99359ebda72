"""A folder on a disk that the driver and every worker see."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from filelock import FileLock

from ematix_flow.backends.durable_files import flush_to_disk
from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import CannotConnect
from ematix_flow.state.file_locks import hold_file_lock
from ematix_flow.state.private_files import make_private_folders, open_private

HIDDEN = ".ematix_flow"
_IN_TABLE = "_ematix_flow"  # the folder of a table's journal


@dataclass(frozen=True)
class LocalStore(Store):
    """``root`` is absolute. A file appears under its name, by a link, when all of it is on the disk."""

    root: str

    def _path(self, path: str) -> Path:
        return Path(self.root, path)

    def uri(self, path: str) -> str:
        return str(self._path(path))

    def names(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._path(folder)) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            raise _no_folder_error(self._path(folder)) from error

    def folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._path(folder)) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            raise _no_folder_error(self._path(folder)) from error

    def files_below(self, folder: str, without: Collection[str] = ()) -> Iterator[tuple[str, int]]:
        top = self._path(folder)
        for above, folders, files in os.walk(top):
            if Path(above) == top:
                folders[:] = [name for name in folders if name not in without]
            for name in files:
                path = Path(above, name)
                try:
                    size = path.stat().st_size
                except FileNotFoundError:  # another process has removed it since it was listed
                    continue
                yield path.relative_to(top).as_posix(), size

    def has_file(self, path: str) -> bool:
        return self._path(path).is_file()

    def read(self, path: str) -> str:
        return self._path(path).read_text(encoding="utf-8")

    def open(self, path: str) -> IO[bytes]:
        return self._path(path).open("rb")

    def create(self, path: str, text: str, *, durable: bool = True) -> None:
        place = self._path(path)
        self._make_folder(path.rpartition("/")[0])
        aside = place.with_name(f".{uuid.uuid4().hex}")
        try:
            with open_private(aside, "x") as file:
                file.write(text)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.link(aside, place)
        finally:
            aside.unlink(missing_ok=True)
        if durable:
            flush_to_disk(place.parent)

    def upload(self, local: Path, path: str) -> None:
        place = self._path(path)
        self._make_folder(path.rpartition("/")[0])
        flush_to_disk(local)
        try:
            os.replace(local, place)
        except (
            OSError
        ):  # another file system: copy it next to its final path first, so that it appears at once
            aside = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
            shutil.copyfile(local, aside)
            os.replace(aside, place)
            local.unlink()
        flush_to_disk(place.parent)

    def _make_folder(self, folder: str) -> None:
        """Create a folder. Internal folders are for this user alone; the folders above are not, because they
        may be a table's folder, and the hidden folder also holds versions of tables of files."""
        here = Path(self.root)
        here.mkdir(parents=True, exist_ok=True)
        ours = False
        for part in filter(None, folder.split("/")):
            ours = ours or part == _IN_TABLE or here.name == HIDDEN
            here = here / part
            if ours:
                make_private_folders(here, tighten=True)
            else:
                here.mkdir(exist_ok=True)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._path(path).unlink()

    def remove_tree(self, folder: str) -> bool:
        try:
            shutil.rmtree(self._path(folder))
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        with hold_file_lock(self._locks(), pipeline, target, str(run_id)):
            yield

    @contextmanager
    def table_lock(self, folder: str) -> Iterator[None]:
        name = uuid.uuid5(uuid.NAMESPACE_URL, folder).hex
        with FileLock(self._locks() / f"table-{name}.lock", mode=0o600):
            yield

    def _locks(self) -> Path:
        folder = self._path(f"{HIDDEN}/locks")
        try:
            self._make_folder(f"{HIDDEN}/locks")
        except OSError as error:
            self.check()
            raise CannotConnect(
                f"cannot create the folder {folder}: {error.strerror or error}",
                state="nothing was touched",
                next_step="give this user the right to write there, or name another path in the connection",
            ) from error
        return folder

    def check(self) -> str:
        root = Path(self.root)
        if root.is_dir():
            if not os.access(root, os.R_OK | os.X_OK):
                step = "give this user the right to read it"
                raise CannotConnect(f"cannot read the folder {root}", next_step=step)
            return str(root) if os.access(root, os.W_OK) else f"{root} (read only)"
        above = _nearest_existing(root)
        if not above.is_dir():
            raise _no_folder_error(root)
        if not os.access(above, os.W_OK | os.X_OK):
            raise CannotConnect(
                f"the folder {root} does not exist, and this user cannot create it in {above}",
                next_step="create it, or give this user the right to",
            )
        return f"{root} (does not exist yet; the first load creates it)"

    def identity(self) -> str:
        return f"files:{os.path.realpath(self.root)}"


def _nearest_existing(path: Path) -> Path:
    """The path itself, or its nearest existing parent."""
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _no_folder_error(path: Path) -> CannotConnect:
    what = f"{path} cannot be a folder: {_nearest_existing(path)} is a file"
    return CannotConnect(what, next_step="move the file away, or choose another path")
