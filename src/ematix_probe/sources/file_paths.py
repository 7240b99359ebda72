"""Finds the files of a table: one file, a glob, a folder with its partitions, on a disk or in a bucket.

Folders and files whose name starts with ``_`` or ``.`` are not data (``_SUCCESS``, ``_temporary``), unless
the folder is a partition (``_key=1``).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ematix_probe.errors import CannotConnect, SourceFailed
from ematix_probe.sources.base import Subject
from ematix_probe.sources.s3 import S3Access, is_s3, split_s3
from ematix_probe.suggestions import did_you_mean

_GLOB = re.compile(r"[*?\[]")
_SHOWN = 8


@dataclass(frozen=True)
class DataFile:
    """A file of a table. ``path`` is what opens it, ``shown`` what people read."""

    path: str
    size: int
    shown: str


@dataclass(frozen=True)
class FoundFiles:
    """The files of a table, sorted. ``root`` is the folder that its partition folders are below."""

    files: tuple[DataFile, ...]
    root: str

    @property
    def partitioned(self) -> bool:
        start = len(self.root)
        return any("=" in part for file in self.files for part in file.path[start:].split("/")[:-1])


def has_glob(path: str) -> bool:
    return _GLOB.search(path) is not None


def find_local(path: str, extensions: tuple[str, ...]) -> FoundFiles:
    """The files at a path of this machine."""
    expanded = os.path.abspath(os.path.expanduser(path))
    if os.path.isfile(expanded):  # also a file whose name holds a bracket
        return FoundFiles((_local_file(expanded),), os.path.dirname(expanded))
    if os.path.isdir(expanded):
        names = _of_folder(_walk(expanded), expanded, extensions)
        if not names:
            raise _nothing_there(path, extensions, "the folder has no file to read")
        return FoundFiles(tuple(_local_file(name) for name in names), expanded)
    if not has_glob(path):
        raise _missing_local(path, expanded)
    matched = sorted(glob.glob(expanded, recursive=True))
    names = [name for name in matched if os.path.isfile(name) and not _is_hidden(os.path.basename(name))]
    for folder in matched:
        if os.path.isdir(folder) and not _is_hidden(os.path.basename(folder)):
            names += _of_folder(_walk(folder), folder, extensions)
    if not names:
        raise _nothing_there(path, extensions, "no file matches")
    return FoundFiles(tuple(_local_file(name) for name in sorted(set(names))), _above_glob(expanded))


def find_s3(path: str, extensions: tuple[str, ...], filesystem: Any) -> FoundFiles:
    """The files at ``s3://bucket/key``; paths are ``bucket/key`` as pyarrow takes them."""
    from pyarrow.fs import FileSelector, FileType

    bucket, key = split_s3(path)
    full = f"{bucket}/{key}" if key else bucket
    try:
        if key and (info := filesystem.get_file_info([full])[0]).type == FileType.File:
            return FoundFiles((DataFile(full, info.size or 0, f"s3://{full}"),), full.rpartition("/")[0])
        below = _above_glob(full) if has_glob(key) else full
        listed = filesystem.get_file_info(FileSelector(below, recursive=True, allow_not_found=True))
    except OSError as error:
        raise _s3_error(path, error) from error
    sizes = {each.path: each.size or 0 for each in listed if each.type == FileType.File}
    if not sizes:
        raise _nothing_there(path, extensions, "no object is there")
    if has_glob(key):
        found = [name for name in sizes if _matches(name, full)]
        names = sorted(name for name in found if not _is_hidden(name.rpartition("/")[2]))
    else:
        names = _of_folder(sizes, below, extensions)
    if not names:
        raise _nothing_there(path, extensions, "no object matches")
    return FoundFiles(tuple(DataFile(name, sizes[name], f"s3://{name}") for name in names), below)


def find_files(path: str, extensions: tuple[str, ...], access: S3Access | None) -> tuple[FoundFiles, Any]:
    """The files, and the file system of a bucket (None for a disk)."""
    if is_s3(path):
        filesystem = (access or S3Access()).resolved().filesystem()
        return find_s3(path, extensions, filesystem), filesystem
    return find_local(path, extensions), None


def inner_path(folder: str, schema: str | None, table: str, extensions: tuple[str, ...]) -> list[str]:
    """The paths that a table's name may mean inside a folder, the likely ones first."""
    base = folder.rstrip("/")
    name = "/".join(part for part in (schema, table) if part)
    return [f"{base}/{name}", *(f"{base}/{name}{extension}" for extension in extensions)]


def table_name(path: str) -> str:
    """The name under which a query finds the files: that of the file or folder, without its extension."""
    names = [
        part for part in path.replace("\\", "/").split("/") if part not in ("", ".") and not has_glob(part)
    ]
    return (names[-1].partition(".")[0] or names[-1]) if names else "files"


def is_own_name(path: str, subject: Subject) -> bool:
    """Whether a table is the path itself: it has the path's last name, and its schema is the folder above."""
    if subject.table.lower() != table_name(path).lower():
        return False
    above = [part for part in path.split("/") if not has_glob(part)][-2:-1]
    return subject.schema is None or [subject.schema] == above


# ------------------------------------------------------------------ folders


def _walk(folder: str) -> Iterator[str]:
    for above, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for name in files:
            yield f"{above}/{name}"


def _of_folder(names: Iterable[str], folder: str, extensions: tuple[str, ...]) -> list[str]:
    """The data files of a folder. Files of other kinds are passed over when some have the right extension."""
    below = [name for name in names if not any(map(_is_hidden, name[len(folder) :].strip("/").split("/")))]
    right = [name for name in below if name.lower().endswith(extensions)]
    without = [name for name in below if "." not in name.rpartition("/")[2]]
    return sorted(right or without)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _above_glob(path: str) -> str:
    """The part of a path above its first wildcard."""
    parts = path.split("/")
    first = next(i for i, part in enumerate(parts) if has_glob(part))
    return "/".join(parts[:first]) or "/"


def _matches(name: str, pattern: str) -> bool:
    """Whether a key matches a glob: ``*`` and ``?`` stay inside a folder, ``**/`` is any number of them."""
    return re.fullmatch(_GLOB_PART.sub(_as_regex, pattern), name, re.DOTALL) is not None


_GLOB_PART = re.compile(r"\*\*/|\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


def _as_regex(found: re.Match[str]) -> str:
    part = found[0]
    if part == "**/":
        return "(?:[^/]+/)*"
    if part.startswith("*"):
        return "[^/]*" if len(part) == 1 else ".*"
    if part == "?":
        return "[^/]"
    if part.startswith("[") and len(part) > 2:
        inside = part[1:-1].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(part)


def _local_file(path: str) -> DataFile:
    try:
        return DataFile(path, os.stat(path).st_size, path)
    except OSError as error:
        raise SourceFailed(f"cannot read {path}: {error.strerror or error}") from error


# ------------------------------------------------------------------ errors


def _missing_local(path: str, expanded: str) -> SourceFailed:
    parent = Path(expanded).parent
    try:
        near = [entry.name for entry in parent.iterdir()][:10_000]
    except OSError:
        return SourceFailed(f"there is no file {path}", state=f"the folder {parent} cannot be read either")
    return SourceFailed(f"there is no file {path}{did_you_mean(Path(expanded).name, near)}")


def _nothing_there(path: str, extensions: tuple[str, ...], why: str) -> SourceFailed:
    kinds = ", ".join(extensions[:_SHOWN])
    return SourceFailed(f"{path}: {why}", next_step=f"check the path; files end with {kinds}")


def _s3_error(path: str, error: OSError) -> CannotConnect:
    text = str(error)
    step = "check the endpoint, the region and the name of the bucket"
    if "ACCESS_DENIED" in text or "403" in text or "InvalidAccessKeyId" in text:
        step = "check the keys, and that they may list and read the bucket"
    return CannotConnect(f"cannot read {path}: {text}", next_step=step)
