"""Versions of a table's folder, and the one rename that publishes a version.

The folder that readers know is a link to the current version's ``data``. A new version is built aside
from hard links to the files that stay and to the new ones, flushed, and then put in the link's place:
a reader sees the table before or after. Replaced versions are kept a while for readers that have begun.
Everything here that changes a table is called with `table_lock` held.
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

from ematix_flow import faults
from ematix_flow.backends.objectstore.diskfailures import told_of
from ematix_flow.backends.objectstore.places import HIDDEN, DataFile, Place, make_state_folder, stem
from ematix_flow.backends.objectstore.tablestate import (
    SEALED_ENTRIES,
    STATE_FILE,
    Replaced,
    TableState,
    read_state,
    sealed_file,
    sealed_lines,
)
from ematix_flow.backends.objectstore.writers import flush_to_disk
from ematix_flow.errors import TargetFailed

KEEP = dt.timedelta(minutes=10)
LOCK_SECONDS = 120.0

_POINTER = "next"
_PUBLISHED = "published"
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True)
class Version:
    """A version of a table, published or about to be; or a user's own folder as if it were one."""

    path: Path
    state: TableState
    data: Path


@contextmanager
def table_lock(place: Place) -> Iterator[None]:
    """One process at a time builds and publishes versions of a table, whatever pipeline it runs."""
    from filelock import FileLock, Timeout

    lock = FileLock(
        make_state_folder(place.root, "locks") / f"{place.slug}.table",
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


def current_version(place: Place) -> Version | None:
    """The published version; None when there is no folder, or one that is not ours."""
    path = _linked_version(place)
    if path is None:
        return None
    return Version(path, read_state(path), path / "data")


def is_current(place: Place, path: Path) -> bool:
    """Whether readers see the version in this folder."""
    linked = _linked_version(place)
    return linked is not None and linked.name == path.name


def _linked_version(place: Place) -> Path | None:
    if not place.folder.is_symlink():
        return None
    path = Path(os.path.realpath(place.folder)).parent
    return path if path.parent == Path(os.path.realpath(place.home)) else None


def link_files(place: Place, files: Iterable[DataFile]) -> Path:
    """The folder of a new version with its data and nothing else yet."""
    path = place.home / f"{_next_number(place):08d}-{uuid.uuid4().hex[:12]}"
    (path / "data").mkdir(parents=True)
    for file in files:
        to = path / "data" / file.name
        to.parent.mkdir(parents=True, exist_ok=True)
        link(file.on_disk, to)
    faults.point("files.version_written")
    return path


def seal_version(place: Place, path: Path, base: Version | None, state: TableState) -> Version:
    """Add the state to a version's data, and flush all of it; nothing is visible yet."""
    state = replace(state, replaced=_replaced_by(base))
    _write_ledger(path, base, state)
    if len(state.ledger) >= SEALED_ENTRIES:
        state = replace(state, ledger=(), sealed=state.sealed + 1)
    _write_text(path / STATE_FILE, json.dumps(state.to_json(), ensure_ascii=False))
    for folder, _, _ in os.walk(path):
        flush_to_disk(Path(folder))
    flush_to_disk(place.home)
    return Version(path, state, path / "data")


def _replaced_by(base: Version | None) -> tuple[Replaced, ...]:
    """The earlier versions that are still on disk, the one that is now replaced as the last."""
    if base is None:
        return ()
    there = [r for r in base.state.replaced if (base.path.parent / r.version).exists()]
    return (*there, Replaced(base.path.name, dt.datetime.now(dt.timezone.utc)))


def _write_ledger(path: Path, base: Version | None, state: TableState) -> None:
    for number in range(1, state.sealed + 1):
        assert base is not None
        link(base.path / sealed_file(number), path / sealed_file(number))
    if len(state.ledger) >= SEALED_ENTRIES:
        _write_text(path / sealed_file(state.sealed + 1), sealed_lines(state.ledger))


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _next_number(place: Place) -> int:
    return max((int(version.name[:8]) for version in _versions(place)), default=0) + 1


def link(source: Path, to: Path) -> None:
    """Another name for the same file; a copy where the file system has no such thing."""
    try:
        os.link(source, to, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copy2(source, to)
        flush_to_disk(to)


# ------------------------------------------------------------------ publishing


def publish(place: Place, version: Version) -> None:
    """Make the version what readers see: one rename, the moment at which the load is committed."""
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    pointer = place.home / _POINTER
    pointer.unlink(missing_ok=True)
    try:
        target = os.path.relpath(os.path.realpath(version.data), os.path.realpath(place.folder.parent))
        os.symlink(target, pointer, target_is_directory=True)
    except OSError as error:
        raise TargetFailed(
            f"cannot make a link in {place.home}: {error.strerror or error}",
            state=f"{place.name} is unchanged",
            next_step="files as a target need a file system with symbolic links",
        ) from error
    flush_to_disk(place.home)
    faults.point("files.before_publish")
    place.require_own()  # a load through another root has another lock
    if place.folder.is_symlink() or not place.folder.exists():
        os.replace(pointer, place.folder)
    else:
        _exchange(pointer, place.folder)
    with told_of(place.folder, "the new version is visible; whether a loss of power undoes it is not known"):
        flush_to_disk(place.folder.parent)
    faults.point("files.after_publish")
    with suppress(OSError):  # a mark for `remove_unpublished`, which knows the current version without it
        (version.path / _PUBLISHED).touch()


def _exchange(pointer: Path, folder: Path) -> None:
    """Put the link where a real folder is, in one step where the system can; the folder is set aside."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        names = os.fsencode(pointer), os.fsencode(folder)
        if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
    aside = pointer.with_name(f"{pointer.name}-link")
    os.replace(pointer, aside)
    os.replace(folder, pointer)
    os.replace(aside, folder)


def settle(place: Place) -> None:
    """Finish what a crash interrupted while a user's own folder was being adopted."""
    folder = place.home / _POINTER
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        if os.path.lexists(place.folder):
            originals = place.root / HIDDEN / "adopted"
            originals.mkdir(parents=True, exist_ok=True)
            os.replace(folder, originals / f"{place.slug}-{uuid.uuid4().hex[:12]}")
        else:
            os.replace(folder, place.folder)
    with suppress(FileNotFoundError):
        (place.home / f"{_POINTER}-link").unlink()


# ------------------------------------------------------------------ what is no longer needed


def remove_unpublished(place: Place) -> list[str]:
    """Drop the versions that a crash left before they were published; their names."""
    current = _linked_version(place)
    known = {current.name} | {r.version for r in read_state(current).replaced} if current else set()
    # a published version that is not known is of a link that the user moved or removed: it is theirs
    crashed = [v for v in _versions(place) if v.name not in known and not (v / _PUBLISHED).exists()]
    for version in crashed:
        shutil.rmtree(version)
    return [version.name for version in crashed]


def remove_replaced(place: Place) -> None:
    """Drop replaced versions that no reader can still need: all but the last one, once they are old."""
    current = current_version(place)
    if current is not None:
        now = dt.datetime.now(dt.timezone.utc)
        for replaced in current.state.replaced[:-1]:
            path = place.home / replaced.version
            if now - replaced.at >= KEEP and path.exists():
                shutil.rmtree(path)


def _versions(place: Place) -> list[Path]:
    if not place.home.exists():
        return []
    return sorted(path for path in place.home.iterdir() if path.name[:8].isdecimal())


# ------------------------------------------------------------------ which table a target is


def remember_target(place: Place, pipeline: str, target: str) -> None:
    """Note where a pipeline's target lives, so that its ledger is found by the target's name."""
    path = _pointer(place.root, pipeline, target)
    with suppress(FileNotFoundError, ValueError):
        if json.loads(path.read_text(encoding="utf-8"))["table"] == place.name:
            return
    make_state_folder(place.root, path.parent.name)
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    _write_text(aside, json.dumps({"pipeline": pipeline, "target": target, "table": place.name}))
    os.replace(aside, path)


def remembered_target(root: Path, pipeline: str, target: str) -> Place | None:
    try:
        found = json.loads(_pointer(root, pipeline, target).read_text(encoding="utf-8"))
        return Place(root, tuple(found["table"].split("/")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        path = _pointer(root, pipeline, target)
        raise TargetFailed(
            f"cannot read {path}: it is damaged",
            next_step="remove the file; the next load writes it anew",
        ) from error


def _pointer(root: Path, pipeline: str, target: str) -> Path:
    return root / HIDDEN / "targets" / f"{stem(pipeline, target)}.json"
