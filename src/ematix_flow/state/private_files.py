"""Creates files and folders that hold state (logs, errors, positions, messages), readable by this user only.

A stricter umask is respected. Files that an earlier version left readable by others are closed when they are
used next, if they belong to this user.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_FOLDER, _FILE, _OTHERS, _WORLD, _GROUP_WRITES = 0o700, 0o600, 0o077, 0o007, 0o020


def make_private_folders(path: Path, *, tighten: bool = False) -> None:
    """Create the folder and its missing parents. ``tighten`` also closes an existing folder to others: for
    folders that we name, not for those that a user chose."""
    missing = []
    above = path
    while not above.exists():
        missing.append(above)
        above = above.parent
    for folder in reversed(missing):
        folder.mkdir(mode=_FOLDER, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is not a folder")
    if tighten:
        close_to_others(path)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file like `open`, in UTF-8; a new file is readable by this user only."""

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags, _FILE)
        close_to_others(path)
        return descriptor

    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=opener)


def write_private(path: Path, text: str) -> None:
    with open_private(path, "w") as file:
        file.write(text)


def make_private_database(path: Path) -> None:
    """Create an empty SQLite file if it is missing. SQLite gives its side files the same permissions.

    An existing file is never opened: closing it would release all locks of this process on it. If the file
    cannot be created, SQLite reports why. A file that its group may write is shared with that group on
    purpose: it is closed to everybody else.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _FILE))
    for suffix in ("", "-wal", "-shm", "-journal"):
        close_to_others(path.with_name(path.name + suffix), keep_shared=True)


def close_to_others(path: Path, *, keep_shared: bool = False) -> None:
    """Remove all permissions of others, if the path belongs to this user; otherwise leave it as it is.

    With ``keep_shared`` a group that may write keeps its permissions.
    """
    with suppress(OSError):
        facts = path.stat()
        others = _WORLD if keep_shared and facts.st_mode & _GROUP_WRITES else _OTHERS
        if hasattr(os, "geteuid") and facts.st_uid == os.geteuid() and facts.st_mode & others:
            path.chmod(facts.st_mode & 0o7777 & ~others)
