"""Notices that a file which a process keeps using was deleted or replaced.

SQLite would make it again, empty, at the next connection.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path


class PinnedFile:
    """The file that is at this path now, held until `close`. If there is none, any later one is right."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # held without opening it, so that no new file gets its number, and no lock is released by its end
        descriptor = _hold(path)
        self._identity = _identity(path)
        self._end: weakref.finalize[..., PinnedFile] | None = None
        if descriptor is not None:
            self._end = weakref.finalize(self, os.close, descriptor)
            # a forked process may have closed it, and opened another file with its number
            self._end.atexit = False

    def close(self) -> None:
        """Let the file go. The disk may then give its number to a new file, which counts as the same one."""
        if self._end is not None:
            self._end()

    def is_in_place(self) -> bool:
        """Whether the same file is still at the path."""
        return self._identity is None or _identity(self.path) == self._identity


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _hold(path: Path) -> int | None:
    if not hasattr(os, "O_PATH"):  # not Linux
        return None
    with contextlib.suppress(OSError):
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    return None
