"""Whether the files that declare have changed since the server read them.

A run is another process and reads the files as they are; the pages show what the server read when it
started.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from ematix_flow.graph.registry import Registry

ASK_SECONDS = 3.0

_Stamp = tuple[int, int] | None


class DeclaringFiles:
    """The Python files of a registry's declarations, and how each was when this was made."""

    def __init__(self, registry: Registry, pause: float = ASK_SECONDS) -> None:
        self._pause = pause
        self._first = {file: _stamp(file) for file in _files_of(registry)}
        self._changed: list[str] = []
        self._asked_at = -math.inf

    def changed(self) -> list[str]:
        """The names of the files that are not as they were; the disk is asked at most every few seconds."""
        now = time.monotonic()
        if now - self._asked_at >= self._pause:
            self._asked_at = now
            self._changed = sorted(
                Path(file).name for file, first in self._first.items() if _stamp(file) != first
            )
        return self._changed


def _files_of(registry: Registry) -> set[str]:
    places = [
        *(declared.spec.where for declared in registry.pipelines.values()),
        *(declared.spec.where for declared in registry.streams.values()),
        *(declared.where for declared in registry.connections.values()),
        *(workflow.where for workflow in registry.workflows.values()),
    ]
    return {os.path.abspath(place.file) for place in places if place and place.file.endswith(".py")}


def _stamp(file: str) -> _Stamp:
    """The time and the size of a file; None while there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
