"""Memory and processor time of a process and all that it started, from ``/proc``: Python, Java, workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

PROC = Path("/proc")
SAMPLE_SECONDS = 0.1
SAMPLES_PER_SEARCH = 5  # finding new processes costs more than reading the known ones


def parent_of(stat: str) -> int:
    """The parent's id in a line of ``/proc/<pid>/stat``; the command in it may hold spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[1])


def descendants(root: int, parents: Mapping[int, int]) -> set[int]:
    """``root`` and everything below it; ``parents`` gives the parent of each process."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def resident_bytes(statm: str, page_size: int) -> int:
    """Memory in RAM of a line of ``/proc/<pid>/statm``."""
    return int(statm.split()[1]) * page_size


def cpu_seconds_of(stat: str, ticks: int) -> float:
    """The processor time in a line of ``/proc/<pid>/stat``, with that of children that ended."""
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / ticks


def cpu_seconds(root: int) -> float:
    """The processor time of a process and everything below it, so far."""
    ticks, found = os.sysconf("SC_CLK_TCK"), 0.0
    for pid in descendants(root, _parents()):
        try:
            found += cpu_seconds_of((PROC / str(pid) / "stat").read_text(), ticks)
        except (OSError, IndexError):  # it has just ended; its parent has its time
            continue
    return found


class MemoryWatch:
    """Samples the tree below a process while the block runs: times of the monotonic clock, and bytes.

    A page that two processes share counts for each of them, as in every sum of resident sizes.
    """

    def __init__(self, root: int) -> None:
        self.samples: list[tuple[float, int]] = []
        self._root = root
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        tree = {self._root}
        samples = 0
        while not self._ended.wait(SAMPLE_SECONDS):
            if samples % SAMPLES_PER_SEARCH == 0:
                tree = descendants(self._root, _parents())
            samples += 1
            self.samples.append((time.monotonic(), sum(self._resident(pid) for pid in tree)))

    def _resident(self, pid: int) -> int:
        try:
            return resident_bytes((PROC / str(pid) / "statm").read_text(), self._page)
        except (OSError, IndexError):  # it has just ended
            return 0


def _parents() -> dict[int, int]:
    parents = {}
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = parent_of((PROC / entry.name / "stat").read_text())
            except (OSError, IndexError):  # it has just ended
                continue
    return parents
