"""Staging of an embedded database: a folder per attempt next to the file, and a file per part in it.

Tasks import this module, so it imports little itself.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ematix_flow.backends.embedded.database_file import UNCHANGED, DatabaseFile
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.generated_names import distinct_name
from ematix_flow.state.private_files import make_private_folders
from ematix_flow.state.state_root import next_step_for

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.backends.base import Load, StagedPart
    from ematix_flow.spec.types import DataType

_PART = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class FolderStaging(ABC):
    """The folder of one attempt, and the columns of its parts. Picklable."""

    suffix: ClassVar[str]  # of the file of a part

    folder: str
    columns: tuple[tuple[str, DataType], ...]

    def path(self, part: str) -> str:
        return part_path(self.folder, part, self.suffix)

    @abstractmethod
    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart: ...


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
        raise ValueError(f"{part!r} is not a valid name of a part")
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
