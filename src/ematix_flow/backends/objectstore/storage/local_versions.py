"""Versions of a table's folder on a disk, and the rename that publishes a version.

The folder that readers know is a link to the ``data`` folder of the current version. A new version is built
in another folder from hard links to the files that stay and to the new files, is flushed, and then replaces
the link: a reader sees the table before or after. Replaced versions are kept for a while for running readers.
Functions that change a table need the lock of `table_lock`.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ematix_flow import fault_points
from ematix_flow.backends.durable_files import flush_to_disk
from ematix_flow.backends.objectstore.layout.table_paths import (
    HIDDEN,
    DataFile,
    TablePaths,
    make_state_folder,
    safe_file_name,
)
from ematix_flow.backends.objectstore.table.disk_errors import explain_disk_errors
from ematix_flow.backends.objectstore.table.table_state import (
    SEALED_ENTRIES,
    STATE_FILE,
    ReplacedVersion,
    TableState,
    read_state,
    sealed_file,
    sealed_lines,
)
from ematix_flow.errors import TargetFailed

KEEP_REPLACED = dt.timedelta(minutes=10)
LOCK_SECONDS = 120.0

_POINTER = "next"
_PUBLISHED = "published"
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True)
class LocalVersion:
    """A version of a table: published, about to be published, or a user's own folder seen as a version."""

    path: Path
    state: TableState
    data: Path


@contextmanager
def table_lock(place: TablePaths) -> Iterator[None]:
    """Hold the table's lock: one process at a time builds and publishes versions, in any pipeline."""
    from filelock import FileLock, Timeout

    lock = FileLock(
        make_state_folder(place.root, "locks") / f"{place.file_stem}.table",
        timeout=LOCK_SECONDS,
        mode=0o600,
        thread_local=False,
        is_singleton=False,
    )
    try:
        lock.acquire()
    except Timeout as error:
        raise TargetFailed(
            f"another load has been changing {place.name!r} for more than {LOCK_SECONDS:.0f} seconds",
            state=f"{place.name} is unchanged by this run",
            next_step="run it again when the other load has ended",
        ) from error
    try:
        yield
    finally:
        lock.release()


def current_version(place: TablePaths) -> LocalVersion | None:
    """The published version; None if there is no folder, or if this product did not write it."""
    path = _linked_version(place)
    if path is None:
        return None
    return LocalVersion(path, read_state(path), path / "data")


def is_current_version(place: TablePaths, path: Path) -> bool:
    """Whether readers see the version in this folder."""
    linked = _linked_version(place)
    return linked is not None and linked.name == path.name


def _linked_version(place: TablePaths) -> Path | None:
    if not place.folder.is_symlink():
        return None
    path = Path(os.path.realpath(place.folder)).parent
    return path if path.parent == Path(os.path.realpath(place.versions_folder)) else None


def link_files(place: TablePaths, files: Iterable[DataFile]) -> Path:
    """Create the folder of a new version with its data, and without a state."""
    path = place.versions_folder / f"{_next_number(place):08d}-{uuid.uuid4().hex[:12]}"
    (path / "data").mkdir(parents=True)
    for file in files:
        to = path / "data" / file.name
        to.parent.mkdir(parents=True, exist_ok=True)
        link_file(file.local_path, to)
    fault_points.point("files.version_written")
    return path


def seal_version(place: TablePaths, path: Path, base: LocalVersion | None, state: TableState) -> LocalVersion:
    """Add the state to a version and flush all of it. It is not visible yet."""
    state = replace(state, replaced=_replaced_versions(base))
    _write_ledger(path, base, state)
    if len(state.ledger) >= SEALED_ENTRIES:
        state = replace(state, ledger=(), sealed=state.sealed + 1)
    _write_text(path / STATE_FILE, json.dumps(state.to_json(), ensure_ascii=False))
    for folder, _, _ in os.walk(path):
        flush_to_disk(Path(folder))
    flush_to_disk(place.versions_folder)
    return LocalVersion(path, state, path / "data")


def _replaced_versions(base: LocalVersion | None) -> tuple[ReplacedVersion, ...]:
    """The earlier versions that are still on disk; the last is the one that is replaced now."""
    if base is None:
        return ()
    there = [r for r in base.state.replaced if (base.path.parent / r.version).exists()]
    return (*there, ReplacedVersion(base.path.name, dt.datetime.now(dt.timezone.utc)))


def _write_ledger(path: Path, base: LocalVersion | None, state: TableState) -> None:
    for number in range(1, state.sealed + 1):
        assert base is not None
        link_file(base.path / sealed_file(number), path / sealed_file(number))
    if len(state.ledger) >= SEALED_ENTRIES:
        _write_text(path / sealed_file(state.sealed + 1), sealed_lines(state.ledger))


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _next_number(place: TablePaths) -> int:
    return max((int(version.name[:8]) for version in _version_folders(place)), default=0) + 1


def link_file(source: Path, to: Path) -> None:
    """Create a hard link; copy the file where the file system has no hard links."""
    try:
        os.link(source, to, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copy2(source, to)
        flush_to_disk(to)


# ------------------------------------------------------------------ publishing


def publish(place: TablePaths, version: LocalVersion) -> None:
    """Make the version visible to readers with one rename, which commits the load."""
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    pointer = place.versions_folder / _POINTER
    pointer.unlink(missing_ok=True)
    try:
        target = os.path.relpath(os.path.realpath(version.data), os.path.realpath(place.folder.parent))
        os.symlink(target, pointer, target_is_directory=True)
    except OSError as error:
        raise TargetFailed(
            f"cannot create a link in {place.versions_folder}: {error.strerror or error}",
            state=f"{place.name} is unchanged",
            next_step="a table of files needs a file system with symbolic links",
        ) from error
    flush_to_disk(place.versions_folder)
    fault_points.point("files.before_publish")
    place.require_own_root()  # a load through another root has another lock
    if place.folder.is_symlink() or not place.folder.exists():
        os.replace(pointer, place.folder)
    else:
        _swap_folder(pointer, place.folder)
    with explain_disk_errors(
        place.folder, "the new version is visible; it is not known whether it survives a loss of power"
    ):
        flush_to_disk(place.folder.parent)
    fault_points.point("files.after_publish")
    with suppress(OSError):  # a hint for `remove_unpublished`, which also works without it
        (version.path / _PUBLISHED).touch()


def _swap_folder(pointer: Path, folder: Path) -> None:
    """Replace a real folder by the link, atomically if the system can; the folder is kept aside."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        names = os.fsencode(pointer), os.fsencode(folder)
        if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
    aside = pointer.with_name(f"{pointer.name}-link")
    os.replace(pointer, aside)
    os.replace(folder, pointer)
    os.replace(aside, folder)


def finish_adoption(place: TablePaths) -> None:
    """Finish an adoption of a user's folder that a crash interrupted."""
    folder = place.versions_folder / _POINTER
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        if os.path.lexists(place.folder):
            originals = place.root / HIDDEN / "adopted"
            originals.mkdir(parents=True, exist_ok=True)
            os.replace(folder, originals / f"{place.file_stem}-{uuid.uuid4().hex[:12]}")
        else:
            os.replace(folder, place.folder)
    with suppress(FileNotFoundError):
        (place.versions_folder / f"{_POINTER}-link").unlink()


# ------------------------------------------------------------------ what is no longer needed


def remove_unpublished(place: TablePaths) -> list[str]:
    """Drop the versions that a crash left unpublished, and return their names."""
    current = _linked_version(place)
    known = {current.name} | {r.version for r in read_state(current).replaced} if current else set()
    # an unknown published version belongs to a link that the user moved or removed: keep it
    crashed = [v for v in _version_folders(place) if v.name not in known and not (v / _PUBLISHED).exists()]
    for version in crashed:
        shutil.rmtree(version)
    return [version.name for version in crashed]


def remove_expired_versions(place: TablePaths) -> None:
    """Drop replaced versions that no reader needs any more: all old ones except the last."""
    current = current_version(place)
    if current is not None:
        now = dt.datetime.now(dt.timezone.utc)
        for replaced in current.state.replaced[:-1]:
            path = place.versions_folder / replaced.version
            if now - replaced.replaced_at >= KEEP_REPLACED and path.exists():
                shutil.rmtree(path)


def _version_folders(place: TablePaths) -> list[Path]:
    if not place.versions_folder.exists():
        return []
    return sorted(path for path in place.versions_folder.iterdir() if path.name[:8].isdecimal())


# ------------------------------------------------------------------ which table a target is


def remember_target(place: TablePaths, pipeline: str, target: str) -> None:
    """Record where a pipeline's target is stored, so that its ledger is found by the target's name."""
    path = _target_note_path(place.root, pipeline, target)
    with suppress(FileNotFoundError, ValueError):
        if json.loads(path.read_text(encoding="utf-8"))["table"] == place.name:
            return
    make_state_folder(place.root, path.parent.name)
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    _write_text(aside, json.dumps({"pipeline": pipeline, "target": target, "table": place.name}))
    os.replace(aside, path)


def remembered_target(root: Path, pipeline: str, target: str) -> TablePaths | None:
    try:
        found = json.loads(_target_note_path(root, pipeline, target).read_text(encoding="utf-8"))
        return TablePaths(root, tuple(found["table"].split("/")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        path = _target_note_path(root, pipeline, target)
        raise TargetFailed(
            f"cannot read {path}: it is damaged",
            next_step="remove the file; the next load writes it again",
        ) from error


def _target_note_path(root: Path, pipeline: str, target: str) -> Path:
    return root / HIDDEN / "targets" / f"{safe_file_name(pipeline, target)}.json"
