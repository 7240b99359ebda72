"""Notices that a file which a process keeps using was deleted or replaced.

SQLite would make it again, empty, at the next connection.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path


class PinnedFile:
    """The file that is at this path now. If there is none, any later one is right."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # held without opening it, so that no new file gets its number, and no lock is released by its end
        self._descriptor = _hold(path)
        self._identity = _identity(path)
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor)

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
