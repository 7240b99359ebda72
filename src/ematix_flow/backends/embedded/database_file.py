"""The file of an embedded database: its path, and the folder next to it for staging and locks.

Staging and locks are in ``.ematix_flow`` next to the database, not in it: such a database allows one writer,
and a load must hold it only while it applies rows. Every Spark executor must see the folder. Tasks import
this module, so it imports little itself.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.errors import CannotConnect, TargetFailed, Unsupported
from ematix_flow.spec.generated_names import distinct_name
from ematix_flow.state.private_files import make_private_folders
from ematix_flow.state.state_root import next_step_for

if TYPE_CHECKING:
    from ematix_flow.backends.base import Load

MEMORY = ":memory:"
STATE_FOLDER = ".ematix_flow"
UNCHANGED = "the target is unchanged"
_PART = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class DatabaseFile:
    """The path of a database file, absolute and without links. The file may not exist yet."""

    product: str  # SQLite or DuckDB
    connection: str
    path: Path

    @classmethod
    def of(cls, product: str, connection: str, path: str) -> DatabaseFile:
        """A relative path is relative to the working directory."""
        if path.startswith(MEMORY):
            return cls(product, connection, Path(MEMORY))
        return cls(product, connection, Path(os.path.realpath(os.path.expanduser(path))))

    @property
    def in_memory(self) -> bool:
        return str(self.path) == MEMORY

    @property
    def exists(self) -> bool:
        return not self.in_memory and os.path.exists(self.path)

    @property
    def state_folder(self) -> Path:
        return self.path.parent / STATE_FOLDER

    def identity(self) -> str:
        """Equal for every path to one file. A database in memory equals no other."""
        if self.in_memory:
            return f"{self.product}:memory:{uuid.uuid4()}"
        try:
            found = self.path.stat()
        except OSError:
            return f"{self.product}:{self.path}"
        return f"{self.product}:{found.st_dev}:{found.st_ino}"

    def require_shared(self, what: str) -> None:
        """Refuse a database in memory: tasks cannot read it, and it ends with its process."""
        if self.in_memory:
            raise Unsupported(
                f"connection {self.connection!r} is a {self.product} database in memory, "
                f"which cannot be the {what} of a pipeline",
                next_step='give the connection the path of a file, as in  path = "data/warehouse.db"',
            )

    def require_existing(self) -> None:
        self.require_folder()
        if not self.exists:
            raise CannotConnect(
                f"connection {self.connection!r}: there is no {self.product} database at {self.path}",
                next_step="correct the path, or create the database first",
            )
        self._require_no_folder()

    def require_folder(self) -> None:
        if not os.path.isdir(self.path.parent):  # False also without permission
            raise CannotConnect(
                f"connection {self.connection!r}: the folder {self.path.parent} of the {self.product} "
                "database does not exist or cannot be entered",
                state="nothing was read or written",
                next_step=f"create the folder, or correct the path of connection {self.connection!r}",
            )

    def require_writable(self) -> None:
        """Fail before anything is read when the file or its folder cannot be written."""
        self.require_folder()
        self._require_no_folder()
        for path in (self.path.parent, self.path):
            if os.path.exists(path) and not os.access(path, os.W_OK):
                raise self._unwritable_error(path, PermissionError(errno.EACCES, "no permission to write"))
        try:
            self.state_folder.mkdir(exist_ok=True)
        except OSError as error:
            raise self._unwritable_error(self.state_folder, error) from error

    def _require_no_folder(self) -> None:
        if os.path.isdir(self.path):
            raise CannotConnect(
                f"connection {self.connection!r}: {self.path} is a folder, not a {self.product} database",
                next_step="give the path of the file",
            )

    def _unwritable_error(self, path: Path, error: OSError) -> TargetFailed:
        step = "make the database and its folder writable; staging and locks are next to the database"
        return TargetFailed(
            f"connection {self.connection!r}: {path} cannot be written: {error.strerror or error}",
            state=UNCHANGED,
            next_step=next_step_for(error, step),
        )


# ------------------------------------------------------------------ staging folders


def create_staging_folder(file: DatabaseFile, load: Load) -> str:
    """A new empty folder for one attempt."""
    file.require_writable()
    name = f"{_staging_prefix(file, load.pipeline, load.target)}{load.run_id.hex}_{_random_suffix()}"
    folder = file.state_folder / "staging" / name
    try:
        make_private_folders(folder.parent, tighten=True)
        make_private_folders(folder)
    except OSError as error:
        raise TargetFailed(
            f"cannot create the staging folder {folder}: {error.strerror or error}",
            state=UNCHANGED,
            next_step=next_step_for(error, f"make {folder.parent} writable, and run it again"),
        ) from error
    return str(folder)


@contextmanager
def part_file(folder: str, part: str, suffix: str) -> Iterator[str]:
    """A path to write a part to. On success the file gets its final name, on failure it is removed."""
    if not _PART.fullmatch(part):
        raise ValueError(f"{part!r} is no name of a part")
    aside = os.path.join(folder, f".{part}.{_random_suffix()}{suffix}")
    try:
        # never create the folder: a task that outlives its run must not recreate staging
        if not os.path.isdir(folder):
            raise TargetFailed(
                f"the staging folder {folder} does not exist",
                state=UNCHANGED,
                next_step="run it again; on a cluster, put the database where every executor sees it",
            )
        yield aside
        os.replace(aside, part_path(folder, part, suffix))
    except OSError as error:
        raise TargetFailed(
            f"cannot write staging in {folder}: {error.strerror or error}",
            state=UNCHANGED,
            next_step="free space on that disk, or make the folder writable",
        ) from error
    finally:
        Path(aside).unlink(missing_ok=True)


def part_path(folder: str, part: str, suffix: str) -> str:
    return os.path.join(folder, part + suffix)


def drop_staging_folder(folder: str) -> None:
    # the next run sweeps what cannot be removed now: the load itself has ended
    shutil.rmtree(folder, ignore_errors=True)


def sweep_staging_folders(file: DatabaseFile, pipeline: str, target: str) -> list[str]:
    """Remove the folders that crashed attempts of this pipeline left; returns their names."""
    staging = file.state_folder / "staging"
    if not staging.is_dir():
        return []
    prefix = _staging_prefix(file, pipeline, target)
    left = sorted(path for path in staging.iterdir() if path.name.startswith(prefix))
    for path in left:
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise TargetFailed(
                f"cannot remove old staging {path}: {error.strerror or error}",
                state=UNCHANGED,
                next_step="remove the folder by hand",
            ) from error
    return [path.name for path in left]


def _staging_prefix(file: DatabaseFile, pipeline: str, target: str) -> str:
    """Readable, valid on every file system, and not a prefix of another pipeline's names."""
    return distinct_name(pipeline, target, file.path.name, length=40, joint="-") + "_"


def _random_suffix() -> str:
    return uuid.uuid4().hex[:8]
